/** Calls that devices make (docs/http.md#calls), answered by rules.yaml. */
import { expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { faultOf } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

function call(device: Device, body: string): Promise<Response> {
  return fetch(`${sharedEngine().http}/api/v1/${device.token}/rpc`, { method: 'POST', body });
}

async function answered(device: Device, body: string): Promise<string> {
  const response = await call(device, body);
  const text = await response.text();
  if (response.status === 200) expect(response.headers.get('content-type')).toBe('application/json');
  return `${response.status} ${text}`;
}

test('a rule answers with its JSON', async () => {
  const device = await newDevice();
  const response = await call(device, '{"method":"getTime","params":{}}');
  expect(response.status).toBe(200);
  const { time } = (await response.json()) as { time: number };
  expect(Math.abs(time - Date.now())).toBeLessThan(5_000);
});

test('params may be absent, and keep every digit', async () => {
  const device = await newDevice();
  const f = async (body: string, expected: string) => expect(await answered(device, body)).toBe(`200 ${expected}`);
  await f('{"method":"echo"}', '{"method": "echo", "params": null, "text": "<>"}');
  await f(
    '{"method":"echo2","params":{"a":42.0,"b":9223372036854775807}}',
    '{"method": "echo2", "params": {"a":42.0,"b":9223372036854775807}, "text": "<42.0>"}',
  );
  await f(
    '{"method":"echo","params":{"a":"\\"x\\""}}',
    '{"method": "echo", "params": {"a":"\\"x\\""}, "text": "<\\"x\\">"}',
  );
});

test('any JSON document reaches the rules, without a method if it has none', async () => {
  const device = await newDevice();
  const f = async (body: string, expected: string) => expect(await answered(device, body)).toBe(`200 ${expected}`);
  await f('[]', '{"document": []}');
  await f('[1.0,"x"]', '{"document": [1.0,"x"]}');
  await f('5', '{"document": 5}');
  await f('null', '{"document": null}');
  await f('"x"', '{"document": "x"}');
  await f('{"params":{"a":1}}', '{"document": {"a":1}}');
  await f('{"method":7,"params":1}', '{"document": 1}');
});

test('only what is no JSON is refused, after the token', async () => {
  const device = await newDevice();
  expect(await faultOf(await call(device, '{"method":'))).toMatch(/^400\/31 The body is not valid JSON/);
  expect(await faultOf(await call(device, ''))).toMatch(/^400\/31 Required request body/);
  expect(await faultOf(await call({ id: '', token: 'nobody' }, '{"method":'))).toMatch(/^401\/10/);
  expect(await faultOf(await call({ id: '', token: 'nobody' }, ''))).toMatch(/^400\/31/);
});

test('a body of more than 65536 bytes is 413', async () => {
  const device = await newDevice();
  const body = (bytes: number) => `"${'x'.repeat(bytes - 2)}"`;
  expect((await call(device, body(65_536))).status).toBe(200);
  expect(await faultOf(await call(device, body(65_537)))).toBe('413/31 Payload size exceeds the limit of 65536 bytes');
});

test('a call that no rule fits is answered 408, empty, at the end of its time', async () => {
  const device = await newDevice();
  const begin = performance.now();
  expect(await answered(device, '{"method":"nobodyAnswers"}')).toBe('408 ');
  expect(performance.now() - begin).toBeGreaterThan(1_900);
  expect(performance.now() - begin).toBeLessThan(8_000);
});

test('a device can have a bounded number of calls without an answer', async () => {
  const device = await newDevice();
  const statuses = await Promise.all(
    Array.from({ length: 60 }, async () => (await call(device, '{"method":"nobodyAnswers"}')).status),
  );
  // Each of the two workers holds 20 calls at most.
  expect(statuses.filter((status) => status === 429).length).toBeGreaterThanOrEqual(20);
  expect(new Set(statuses)).toEqual(new Set([408, 429]));
});

test('a rule sees the attributes of each scope, the latest value and the name of the device', async () => {
  const api = sharedEngine();
  const device = await newDevice();
  const { name } = (await (await api.send('GET', `/api/device/${device.id}`)).json()) as { name: string };
  await fetch(`${api.http}/api/v1/${device.token}/attributes`, { method: 'POST', body: '{"size":1.0}' });
  const attributes = `/api/plugins/telemetry/DEVICE/${device.id}`;
  expect((await api.send('POST', `${attributes}/SHARED_SCOPE`, '{"size":9223372036854775807}')).status).toBe(200);
  expect((await api.send('POST', `${attributes}/SERVER_SCOPE`, '{"size":{"a":[1]}}')).status).toBe(200);
  expect(await api.postTelemetry(device.token, '{"size":"big"}')).toBe(200);
  const expected = `200 {"mine": 1.0, "shared": 9223372036854775807, "theirs": {"a":[1]}, "latest": "big", "by": "${name}"}`;
  await eventually(async () => (await answered(device, '{"method":"look"}')) === expected);
});

test('a rule sets shared attributes before it answers, as it wrote them', async () => {
  const api = sharedEngine();
  const device = await newDevice();
  expect(await answered(device, '{"method":"checkIn","params":{"zone":"north"}}')).toBe('200 "welcome"');
  const read = await fetch(`${api.http}/api/v1/${device.token}/attributes?sharedKeys=zone,note,size`);
  expect(JSON.parse(await read.text())).toEqual({ shared: { zone: 'north', note: '007', size: 2 } });
});
