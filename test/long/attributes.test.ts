/**
 * Attributes between two workers over Redis, with stores that stop: an acknowledged write is stored, a write that
 * cannot be stored is answered 503, and an update that the bus has lost is still sent.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import type { Engine } from '../harness/engine.ts';
import type { RawConnection, RawResponse } from '../harness/raw.ts';
import { type RedisEngine, startRedisEngine } from '../harness/redis-engine.ts';
import type { RedisServer } from '../harness/stores.ts';
import { restOn, withWorkers } from '../harness/workers.ts';

let started: RedisEngine;
let redis: RedisServer;
let engine: Engine;

beforeAll(async () => {
  started = await startRedisEngine();
  ({ redis, engine } = started);
});

afterAll(async () => {
  await started?.destroy();
});

function poll(connection: RawConnection, { token }: Device, timeoutMs: number): Promise<RawResponse> {
  return connection.ask({ method: 'GET', path: `/api/v1/${token}/attributes/updates?timeout=${timeoutMs}` });
}

async function share(connection: RawConnection, { id }: Device, body: string): Promise<number> {
  const path = `/api/plugins/telemetry/${id}/SHARED_SCOPE`;
  return (await restOn(connection, await engine.api.adminToken(), { path, body })).status;
}

async function post({ token }: Device, body: string): Promise<Response> {
  return await fetch(`${engine.api.http}/api/v1/${token}/attributes`, {
    method: 'POST',
    body,
    headers: { connection: 'close' },
    signal: AbortSignal.timeout(20_000),
  });
}

async function read({
  token,
}: Device): Promise<{ client?: Record<string, unknown>; shared?: Record<string, unknown> }> {
  const response = await fetch(`${engine.api.http}/api/v1/${token}/attributes`, { headers: { connection: 'close' } });
  expect(response.status).toBe(200);
  return (await response.json()) as Awaited<ReturnType<typeof read>>;
}

test('a poll on one worker receives a change made on another', () =>
  withWorkers(engine.port, async ([first, second]) => {
    const device = await engine.api.newDevice();
    /** The shortest time of each direction: a stall of the machine makes one answer late. */
    const leastMs = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (let i = 0; i < 10; i += 1) {
      const [poller, writer] = i % 2 === 0 ? [first!, second!] : [second!, first!];
      const answer = poll(poller, device, 5_000);
      await sleep(100);
      const startedAt = performance.now();
      expect(await share(writer, device, `{"k":${i}}`)).toBe(200);
      let answered = (await answer).body.toString();
      // A poll that arrives before the other worker has noted the last answer may get the same update again.
      if (answered === `{"k":${i - 1}}`) answered = (await poll(poller, device, 5_000)).body.toString();
      expect(answered).toBe(`{"k":${i}}`);
      leastMs[i % 2] = Math.min(leastMs[i % 2]!, performance.now() - startedAt);
    }
    expect(Math.max(...leastMs)).toBeLessThan(3_000);
  }));

test('without Redis an update still reaches the held poll of another worker, a little later', () =>
  withWorkers(engine.port, async ([first, second]) => {
    const device = await engine.api.newDevice();
    expect((await poll(first!, device, 1)).status).toBe(408);
    await redis.kill();
    try {
      const answer = poll(first!, device, 10_000);
      await sleep(200);
      expect(await share(second!, device, '{"k":1}')).toBe(200);
      expect((await answer).body.toString()).toBe('{"k":1}');
      expect((await post(device, '{"c":1}')).status).toBe(200);
    } finally {
      await redis.start();
    }
    await eventually(async () => {
      const answer = poll(first!, device, 2_000);
      await sleep(200);
      await share(second!, device, '{"k":2}');
      return (await answer).status === 200;
    });
  }));

test('while PostgreSQL dies and restarts every write is committed or refused with 503, and no poll is refused as unknown', async () => {
  const devices = await Promise.all(Array.from({ length: 10 }, () => engine.api.newDevice()));
  for (const device of devices) expect((await post(device, '{"n":0}')).status).toBe(200);
  const acknowledged = new Map<Device, number>();
  const statuses = new Set<number>();
  let writing = true;
  const writers = devices.map(async (device) => {
    for (let n = 1; writing; n += 1) {
      const response = await post(device, `{"n":${n}}`);
      await response.arrayBuffer();
      statuses.add(response.status);
      if (response.status === 200) acknowledged.set(device, n);
    }
  });
  await sleep(300);
  await engine.kill('postgres');
  const polled = await fetch(`${engine.api.http}/api/v1/${devices[0]!.token}/attributes/updates?timeout=300`);
  statuses.add(polled.status === 408 ? 200 : polled.status);
  await eventually(async () => (await post(devices[0]!, '{"back":1}')).status === 200, 60_000);
  await sleep(500);
  writing = false;
  await Promise.all(writers);
  expect([...statuses].filter((status) => status !== 200 && status !== 503)).toEqual([]);
  for (const device of devices) {
    const { client } = await read(device);
    expect(Number(client!['n'])).toBeGreaterThanOrEqual(acknowledged.get(device)!);
  }
});
