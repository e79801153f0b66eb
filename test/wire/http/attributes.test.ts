/** Client attributes that a device posts, and attributes that it reads (docs/http.md#attributes). */
import { expect, test } from 'vitest';
import { DeviceUser } from '../../harness/device-user.ts';
import { faultOf } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

async function user(): Promise<DeviceUser> {
  return await DeviceUser.create();
}

test('a post stores client attributes with their types', async () => {
  const device = await user();
  await device.post('{"fw":"1.2.3","n":"5"}');
  expect(await device.values('CLIENT_SCOPE')).toBe('[{"key":"fw","value":"1.2.3"},{"key":"n","value":5}]');
});

test('a device reads back at once what was acknowledged', async () => {
  const device = await user();
  for (let i = 0; i < 20; i += 1) {
    await device.post(`{"n":${i}}`);
    expect(await device.read('?clientKeys=n')).toBe(`{"client":{"n":${i}}}`);
  }
});

test('a post that is no object is refused and stores nothing', async () => {
  const device = await user();
  for (const body of ['[{"a":1}]', '5', 'null', '"x"', '{"a":', '{"":1}', '{"  ":1}', `{"${'k'.repeat(256)}":1}`]) {
    expect((await device.ask('POST', 'attributes', body)).status, body).toBe(400);
  }
  expect((await device.ask('POST', 'attributes', '')).status).toBe(400);
  expect(await device.read()).toBe('{}');
});

test('an empty object is accepted, and null keeps what is there', async () => {
  const device = await user();
  await device.post('{"a":1}');
  await device.post('{}');
  await device.post('{"a":null}');
  expect(await device.read()).toBe('{"client":{"a":1}}');
});

test('ts and values are names like any other', async () => {
  const device = await user();
  await device.post('{"ts":7,"values":{"a":1}}');
  expect(await device.read()).toBe('{"client":{"ts":7,"values":{"a":1}}}');
});

test('a key twice in a message and a key in two messages: the last one stays', async () => {
  const device = await user();
  await device.post('{"a":1,"a":2}');
  expect(await device.read()).toBe('{"client":{"a":2}}');
  const texts = Array.from({ length: 30 }, (_, i) => `{"a":${i}}`);
  await Promise.all(texts.map((text) => device.post(text)));
  await device.post('{"a":"last"}');
  expect(await device.read()).toBe('{"client":{"a":"last"}}');
});

test('values come back digit for digit and member by member', async () => {
  const device = await user();
  const values =
    '"a":42.0,"b":9223372036854775807,"c":{"z":1.50,"a":[1e2,"\\"\\\\"]},"d":-0.5,"e":true,"f":"\\" \\\\ {}, é😀 NULL","g":"null"';
  await device.post(`{${values}}`);
  expect(await device.read()).toBe(`{"client":{${values}}}`);
});

test('large nested JSON comes back digit for digit, and a large post that is refused stores nothing', async () => {
  const device = await user();
  const nested = `{${Array.from({ length: 40_000 }, (_, i) => `"k${i}":[1.50,{}]`).join(',')}}`;
  await device.post(`{"large":${nested},"small":1}`);
  expect(await device.read('?clientKeys=large,small')).toBe(`{"client":{"large":${nested},"small":1}}`);
  await device.post(`{large:${nested.replaceAll('1.50', '2')},}`);
  expect(await device.read('?clientKeys=large')).toBe(`{"client":{"large":${nested.replaceAll('1.50', '2')}}}`);
  for (const body of [
    `{"small":2,"x":${nested}`,
    `[${nested}]`,
    nested,
    `{"small":2,"${'k'.repeat(256)}":${nested}}`,
  ]) {
    expect((await device.ask('POST', 'attributes', body)).status, body.slice(0, 20)).toBe(400);
  }
  expect(await device.read('?clientKeys=small')).toBe('{"client":{"small":1}}');
});

test('client and shared attributes come apart, server attributes never', async () => {
  const device = await user();
  await device.post('{"a":1}');
  await device.set('SHARED_SCOPE', '{"b":"x"}');
  await device.set('SERVER_SCOPE', '{"s":1}');
  expect(await device.read()).toBe('{"client":{"a":1},"shared":{"b":"x"}}');
  expect(await device.read('?clientKeys=a')).toBe('{"client":{"a":1}}');
  expect(await device.read('?sharedKeys=b')).toBe('{"shared":{"b":"x"}}');
  expect(await device.read('?clientKeys=a&sharedKeys=b')).toBe('{"client":{"a":1},"shared":{"b":"x"}}');
  expect(await device.read('?clientKeys=s&sharedKeys=s')).toBe('{"client":{}}');
});

test('the same key lives in each scope alone, one of them nested', async () => {
  const device = await user();
  await device.post('{"k":{"deep":[1,2.0]}}');
  await device.set('SHARED_SCOPE', '{"k":"shared"}');
  await device.set('SERVER_SCOPE', '{"k":3}');
  expect(await device.read('?clientKeys=k&sharedKeys=k')).toBe(
    '{"client":{"k":{"deep":[1,2.0]}},"shared":{"k":"shared"}}',
  );
  await device.delete('SHARED_SCOPE', 'k');
  expect(await device.read()).toBe('{"client":{"k":{"deep":[1,2.0]}}}');
  // On a busy machine the attributes of activity may be written by now, too.
  expect(await device.values('SERVER_SCOPE')).toContain('{"key":"k","value":3}');
  await device.delete('CLIENT_SCOPE', 'k');
  expect(await device.read()).toBe('{}');
  expect(await device.values('SERVER_SCOPE')).toContain('{"key":"k","value":3}');
});

test('asked for client keys, the member client is always there; shared only when found', async () => {
  const device = await user();
  expect(await device.read('?clientKeys=missing')).toBe('{"client":{}}');
  expect(await device.read('?sharedKeys=missing')).toBe('{}');
  expect(await device.read('?clientKeys=,')).toBe('{"client":{}}');
});

test('a repeated list is one list, an empty name in it is ignored', async () => {
  const device = await user();
  await device.set('SHARED_SCOPE', '{"b":1,"c":2,"d":3}');
  await device.post('{"a":1}');
  expect(await device.read('?sharedKeys=b&sharedKeys=c')).toBe('{"shared":{"b":1,"c":2}}');
  expect(await device.read('?clientKeys=a,,z')).toBe('{"client":{"a":1}}');
});

test('an empty list and unknown parameters count as not given', async () => {
  const device = await user();
  await device.post('{"a":1}');
  await device.set('SHARED_SCOPE', '{"b":2}');
  for (const query of ['?sharedKeys=', '?client_keys=a', '?clientKeys=&sharedKeys=']) {
    expect(await device.read(query)).toBe('{"client":{"a":1},"shared":{"b":2}}');
  }
});

test('all keys of a scope override its list', async () => {
  const device = await user();
  await device.post('{"a":1}');
  await device.set('SHARED_SCOPE', '{"b":2,"c":3}');
  expect(await device.read('?allSharedKeys=true')).toBe('{"shared":{"b":2,"c":3}}');
  expect(await device.read('?allSharedKeys=true&sharedKeys=b&clientKeys=a')).toBe(
    '{"client":{"a":1},"shared":{"b":2,"c":3}}',
  );
});

test('a fresh device reads an empty object', async () => {
  expect(await (await user()).read()).toBe('{}');
});

test('an unknown token is 401 for every operation, at once', async () => {
  const startedAt = performance.now();
  for (const [method, path, body] of [
    ['POST', 'attributes', '{"a":1}'],
    ['POST', 'attributes', '{"a":'],
    ['GET', 'attributes'],
    ['GET', 'attributes/updates'],
  ] as const) {
    const response = await fetch(`${sharedEngine().http}/api/v1/unknown-token/${path}`, { method, body: body ?? null });
    expect(await faultOf(response)).toMatch(/^401\/10 /);
  }
  expect(performance.now() - startedAt).toBeLessThan(10_000);
});

test('too many keys and too large a body are refused', async () => {
  const device = await user();
  const members = Array.from({ length: 1_001 }, (_, i) => `"k${i}":1`);
  expect((await device.ask('POST', 'attributes', `{${members.join(',')}}`)).status).toBe(400);
  expect((await device.ask('POST', 'attributes', `{"a":"${'x'.repeat(1024 * 1024)}"}`)).status).toBe(413);
  await device.post(`{${members.slice(0, 1_000).join(',')}}`);
  await device.post(`{"long":"${'x'.repeat(500_000)}"}`);
});

test('attributes that are too many bytes for one answer are read by key', async () => {
  const device = await user();
  const value = 'x'.repeat(1_000_000);
  for (let i = 0; i < 9; i += 1) await device.post(`{"k${i}":"${value}"}`);
  const { status, body } = await device.ask('GET', 'attributes');
  expect([status, body]).toEqual([400, expect.stringContaining('name fewer keys')]);
  expect((await device.read('?clientKeys=k0,k8')).length).toBeGreaterThan(2_000_000);
});
