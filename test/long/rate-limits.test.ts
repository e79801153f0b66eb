/**
 * Rate limits of device and tenant on an engine of two workers: what counts, when a message is refused, that no part of
 * a refused message is stored, and that the workers share a bucket.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({
    workers: 2,
    env: {
      RATE_LIMITS_DEVICE_MESSAGES: '5:60,100:3600',
      RATE_LIMITS_DEVICE_TELEMETRY_MESSAGES: '4:60',
      RATE_LIMITS_DEVICE_TELEMETRY_DATA_POINTS: '20:60',
      RATE_LIMITS_TENANT_TELEMETRY_DATA_POINTS: '300:600',
    },
  });
  // After a start each worker counts alone until it knows which worker has the sums.
  await eventually(sharesCounts, 20_000);
});

afterAll(() => engine?.destroy());

/** True when the workers together accept no more messages of a new device than its limit, five. */
async function sharesCounts(): Promise<boolean> {
  const device = await engine.api.newDevice();
  const statuses: number[] = [];
  for (let n = 0; n < 12; n += 1) statuses.push(await post(device, '{}'));
  return statuses.filter((status) => status === 200).length === 5;
}

/** Waits until the workers have exchanged their counts. Then uses a new connection, so that any worker may get it. */
async function request(device: Device, method: string, path: string, body?: string): Promise<Response> {
  await sleep(40);
  return await fetch(`${engine.api.http}/api/v1/${device.token}/${path}`, {
    method,
    headers: { connection: 'close' },
    ...(body !== undefined && { body }),
    signal: AbortSignal.timeout(5_000),
  });
}

async function post(device: Device, body: string, path = 'telemetry'): Promise<number> {
  const response = await request(device, 'POST', path, body);
  await response.arrayBuffer();
  return response.status;
}

/** `429/33 message`; the error body has exactly its four members. */
async function refusal(response: Response): Promise<string> {
  const error = (await response.json()) as Record<string, unknown>;
  expect(Object.keys(error).sort()).toEqual(['errorCode', 'message', 'status', 'timestamp']);
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(0);
  return `${response.status}/${error['errorCode']} ${error['message']}`;
}

function values(prefix: string, count: number): string {
  return JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, n) => [`${prefix}${n}`, n])));
}

test('a device above its telemetry messages gets 429, at every worker', async () => {
  const device = await engine.api.newDevice();
  for (let n = 0; n < 4; n += 1) expect(await post(device, '{"a":1}')).toBe(200);
  for (let n = 0; n < 8; n += 1) {
    const response = await request(device, 'POST', 'telemetry', '{"a":1}');
    expect(await refusal(response)).toMatch(
      /^429\/33 Too many requests for current device! .*4 telemetry messages in 60 s/,
    );
    expect(Number(response.headers.get('retry-after'))).toBeLessThanOrEqual(60);
  }
});

test('another device of the tenant is still served', async () => {
  expect(await post(await engine.api.newDevice(), '{"a":1}')).toBe(200);
});

test('a message with more data points than are left stores nothing', async () => {
  const device = await engine.api.newDevice();
  expect(await post(device, values('kept', 15))).toBe(200);
  const refused = await request(device, 'POST', 'telemetry', values('refused', 6));
  expect(await refusal(refused)).toContain('20 telemetry data points in 60 s');
  expect(await post(device, values('last', 5))).toBe(200);
  await eventually(async () => Object.keys(await engine.api.readLatest(device.id)).length >= 20);
  const keys = Object.keys(await engine.api.readLatest(device.id));
  expect(keys.filter((key) => key.startsWith('refused'))).toEqual([]);
});

test('a message larger than the whole bucket must come in parts, a large body as well', async () => {
  const device = await engine.api.newDevice();
  const many = await request(device, 'POST', 'telemetry', values('k', 21));
  expect(await refusal(many)).toContain('has 21: send it in parts');
  const large = JSON.stringify({ ...(JSON.parse(values('k', 30)) as object), text: 'x'.repeat(300_000) });
  expect(await refusal(await request(device, 'POST', 'telemetry', large))).toContain('has 31: send it in parts');
});

test('a message without points is counted as a plain message', async () => {
  const device = await engine.api.newDevice();
  for (let n = 0; n < 5; n += 1) expect(await post(device, '{}')).toBe(200);
  expect(await refusal(await request(device, 'POST', 'telemetry', '{}'))).toContain('5 messages in 60 s');
  expect(await post(device, '{"a":1}')).toBe(200);
});

test('attribute posts share the telemetry buckets', async () => {
  const device = await engine.api.newDevice();
  expect(await post(device, '{"a":1}')).toBe(200);
  for (let n = 0; n < 3; n += 1) expect(await post(device, '{"fw":"1"}', 'attributes')).toBe(200);
  expect(await refusal(await request(device, 'POST', 'attributes', '{"fw":"1"}'))).toContain('4 telemetry messages');
});

test('over its messages every other operation is refused at once, reads and long polls too', async () => {
  const device = await engine.api.newDevice();
  for (let n = 0; n < 5; n += 1) {
    const response = await request(device, 'GET', 'attributes');
    await response.arrayBuffer();
    expect(response.status).toBe(200);
  }
  const operations: [method: string, path: string, body?: string][] = [
    ['GET', 'attributes'],
    ['GET', 'attributes/updates?timeout=20000'],
    ['GET', 'rpc?timeout=20000'],
    ['POST', 'rpc', '{"method":"x","params":{}}'],
    ['POST', 'rpc/1', '{}'],
    ['POST', 'claim', '{}'],
    ['GET', 'firmware?title=a&version=1'],
    ['GET', 'software?title=a&version=1'],
  ];
  for (const [method, path, body] of operations) {
    const startedAt = performance.now();
    const response = await request(device, method, path, body);
    expect(await refusal(response), path).toMatch(
      /^429\/33 Too many requests for current device! .*5 messages in 60 s/,
    );
    expect(performance.now() - startedAt).toBeLessThan(5_000);
  }
});

// Runs last: it uses up the bucket that all devices of the tenant share.
test('all devices together over the limit of the tenant get 429 that names the tenant', async () => {
  let answer: Response | undefined;
  for (let n = 0; n < 16 && !answer; n += 1) {
    const response = await request(await engine.api.newDevice(), 'POST', 'telemetry', values('k', 20));
    if (response.status === 429) answer = response;
    else await response.arrayBuffer();
  }
  expect(await refusal(answer!)).toMatch(/^429\/33 Too many requests for current tenant! .*300 telemetry data points/);
});
