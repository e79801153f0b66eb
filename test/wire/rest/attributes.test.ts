/** Attributes over REST: paths, scopes, sentences of errors (docs/rest.md#attributes). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { DeviceUser, readAnswer } from '../../harness/device-user.ts';
import { ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const prefix = '/api/plugins/telemetry';

async function send(method: string, path: string, body?: string): Promise<[number, string, string | null]> {
  const {
    status,
    body: text,
    contentType,
  } = await readAnswer(await sharedEngine().send(method, `${prefix}/${path}`, body));
  return [status, text, contentType];
}

function plain(status: number, text: string): [number, string, string] {
  return [status, text, 'text/plain;charset=UTF-8'];
}

test('each of the three paths writes', async () => {
  const device = await DeviceUser.create();
  const { id } = device.device;
  const written = [200, '', null];
  expect(await send('POST', `${id}/SERVER_SCOPE`, '{"a":1}')).toEqual(written);
  expect(await send('POST', `DEVICE/${id}/SERVER_SCOPE`, '{"b":2}')).toEqual(written);
  expect(await send('POST', `DEVICE/${id}/attributes/SERVER_SCOPE`, '{"c":3}')).toEqual(written);
  expect(await device.values('SERVER_SCOPE', '?keys=a,b,c')).toBe(
    '[{"key":"a","value":1},{"key":"b","value":2},{"key":"c","value":3}]',
  );
});

test('shared values keep their types, and a held poll gets them in one message', async () => {
  const device = await DeviceUser.create();
  const answer = device.poll(5_000);
  await new Promise((resolve) => setTimeout(resolve, 150));
  await device.set('SHARED_SCOPE', '{"a":42.0,"b":73}');
  expect((await answer).body).toBe('{"a":42.0,"b":73}');
  expect(await device.values('SHARED_SCOPE')).toBe('[{"key":"a","value":42.0},{"key":"b","value":73}]');
});

test('client attributes are deleted but not written', async () => {
  const device = await DeviceUser.create();
  await device.post('{"a":1,"b":2}');
  const { id } = device.device;
  const refused = plain(400, 'Invalid scope: CLIENT_SCOPE');
  expect(await send('POST', `${id}/CLIENT_SCOPE`, '{"a":1}')).toEqual(refused);
  expect(await send('POST', `DEVICE/${id}/attributes/CLIENT_SCOPE`, '{"a":1}')).toEqual(refused);
  expect(await send('DELETE', `${id}/CLIENT_SCOPE?keys=a,unknown`)).toEqual([200, '', null]);
  expect(await device.values('CLIENT_SCOPE')).toBe('[{"key":"b","value":2}]');
});

test('keys that are not there are left out, and a deletion must name some', async () => {
  const device = await DeviceUser.create();
  await device.set('SERVER_SCOPE', '{"a":1}');
  expect(await device.values('SERVER_SCOPE', '?keys=a,zz')).toBe('[{"key":"a","value":1}]');
  const { id } = device.device;
  expect(await send('DELETE', `DEVICE/${id}/SERVER_SCOPE`)).toEqual(plain(400, 'Empty keys: []'));
  expect(await send('DELETE', `${id}/SERVER_SCOPE?keys=`)).toEqual(plain(400, 'Empty keys: []'));
});

test('keys and values of all scopes are merged', async () => {
  const device = await DeviceUser.create();
  await device.post('{"b":1}');
  await device.set('SHARED_SCOPE', '{"a":2}');
  await device.set('SERVER_SCOPE', '{"c":3,"b":4}');
  const path = `DEVICE/${device.device.id}`;
  const [, keys] = await send('GET', `${path}/keys/attributes`);
  expect(JSON.parse(keys)).toEqual(expect.arrayContaining(['a', 'b', 'c']));
  expect(await send('GET', `${path}/keys/attributes/SHARED_SCOPE`)).toEqual([200, '["a"]', 'application/json']);
  const [status, text] = await send('GET', `${path}/values/attributes?keys=a,b`);
  expect(status).toBe(200);
  const rows = JSON.parse(text) as { key: string; value: number; lastUpdateTs: number }[];
  expect(rows.map(({ key, value }) => [key, value])).toEqual([
    ['b', 1],
    ['a', 2],
    ['b', 4],
  ]);
  for (const { lastUpdateTs } of rows) expect(Math.abs(Date.now() - lastUpdateTs)).toBeLessThan(10_000);
});

test('a key with a comma is named alone', async () => {
  const device = await DeviceUser.create();
  await device.set('SERVER_SCOPE', '{"a,b":1,"c":2}');
  expect(await device.values('SERVER_SCOPE', '?key=a%2Cb')).toBe('[{"key":"a,b","value":1}]');
});

test('a body that is not an object of attributes is refused in words', async () => {
  const { id } = (await DeviceUser.create()).device;
  const path = `DEVICE/${id}/SERVER_SCOPE`;
  expect(await send('POST', path, '{"a":')).toEqual(plain(400, 'Invalid JSON'));
  expect(await send('POST', path, '[1]')).toEqual(plain(400, 'Request is not a JSON object'));
  expect(await send('POST', path, '{}')).toEqual(plain(400, 'No attributes data found in request body!'));
  expect(await send('POST', path, '{"a":null}')).toEqual(plain(400, 'No attributes data found in request body!'));
  expect(await send('POST', path, '{" ":1}')).toEqual(plain(400, 'Key cannot be blank'));
});

test('a large body is stored or refused as a small one', async () => {
  const device = await DeviceUser.create();
  const { tenantId } = await ok('GET', `/api/device/${device.device.id}`);
  const values = Array.from({ length: 30_000 }, (_, i) => `"k${i}":[1.50]`).join(',');
  const paths = [`DEVICE/${device.device.id}/SERVER_SCOPE`, `TENANT/${tenantId.id}/attributes/SERVER_SCOPE`];
  for (const path of paths) {
    expect(await send('POST', path, `{"a":{${values}`)).toEqual(plain(400, 'Invalid JSON'));
    expect(await send('POST', path, `[{${values}}]`)).toEqual(plain(400, 'Request is not a JSON object'));
    expect(await send('POST', path, `{" ":{${values}}}`)).toEqual(plain(400, 'Key cannot be blank'));
    expect(await send('POST', path, `{"large":{${values}}}`)).toEqual([200, '', null]);
  }
  expect(await device.values('SERVER_SCOPE', '?keys=large')).toBe(`[{"key":"large","value":{${values}}}]`);
});

test('an unknown scope, a bad id and an unsupported type of entity are refused as JSON', async () => {
  const { id } = (await DeviceUser.create()).device;
  expect(await fault('POST', `${prefix}/DEVICE/${id}/NO_SCOPE`, { a: 1 })).toMatch(/^400\/31 /);
  expect(await fault('GET', `${prefix}/DEVICE/${id}/values/attributes/NO_SCOPE`)).toMatch(/^400\/31 /);
  expect(await fault('POST', `${prefix}/DEVICE/123/SERVER_SCOPE`, { a: 1 })).toBe('400/31 Invalid UUID string: 123');
  expect(await fault('POST', `${prefix}/NOTHING/${id}/SERVER_SCOPE`, { a: 1 })).toMatch(/^400\/31 /);
});

test('a device that is not there is 404 in words', async () => {
  const missing = plain(404, "Device with requested id wasn't found!");
  const id = randomUUID();
  expect(await send('POST', `${id}/SERVER_SCOPE`, '{"a":1}')).toEqual(missing);
  expect(await send('DELETE', `DEVICE/${id}/SERVER_SCOPE?keys=a`)).toEqual(missing);
  expect(await send('GET', `DEVICE/${id}/values/attributes`)).toEqual(missing);
  expect(await send('GET', `DEVICE/${id}/keys/attributes`)).toEqual(missing);
});
