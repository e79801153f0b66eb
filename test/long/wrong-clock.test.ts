/**
 * A machine whose clock, like that of its stores, was wrong by a year and is right after a restart: points that were
 * deleted before or after the restart stay deleted, and no point that was written later is hidden.
 */
import { afterAll, afterEach, expect, test } from 'vitest';
import { Api, type Device, eventually } from '../harness/api.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { MachineClock } from '../harness/machine-clock.ts';

const year = 365 * 24 * 3_600;
const clock = new MachineClock();
let servers: DebianPostgres;
let postgres: PostgresNode | undefined;
let engine: Engine | undefined;
let api: Api;

afterEach(async () => {
  await engine?.destroy();
  await servers.remove([postgres]);
  [engine, postgres] = [undefined, undefined];
});
afterAll(() => clock.remove());

/** Sends 30 values without `ts` and 30 with one, of the last minutes by the right clock. */
async function send(device: Device, ...keys: string[]): Promise<void> {
  const now = Date.now();
  for (let n = 0; n < 30; n += 1) {
    const values = Object.fromEntries(keys.map((key) => [key, n]));
    for (const body of [values, { ts: now - 60_000 - n, values }]) {
      expect(await api.postTelemetry(device.token, JSON.stringify(body))).toBe(200);
    }
  }
}

const all = { startTs: 0, endTs: Date.now() + 3 * year * 1000 };

async function count(device: Device, key: string): Promise<number> {
  return (await api.readSeries(device.id, [key], all))[key]?.length ?? 0;
}

async function hasPoints(device: Device, key: string, points: number): Promise<void> {
  await eventually(async () => (await count(device, key)) === points, 20_000);
}

async function remove(device: Device, key: string): Promise<void> {
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=${key}&deleteAllDataForKeys=true`;
  const { status } = await api.send('DELETE', path);
  expect([200, 202]).toContain(status);
  await hasPoints(device, key, 0);
}

test.each([
  ['ahead', year],
  ['behind', -year],
])('deletes hold when the clock was a year %s and is right again', { timeout: 120_000 }, async (_, seconds) => {
  clock.set(seconds);
  servers = new DebianPostgres();
  postgres = await clock.around(() => servers.primary());
  const env = { ...clock.environment, DATABASE_URL: `postgres://millrace@127.0.0.1:${postgres.port}/millrace` };
  engine = await startEngine({ workers: 2, env });
  api = engine.api;
  const device = await api.createDevice('clock');
  await send(device, 'deletedThen', 'deletedLater', 'kept');
  await hasPoints(device, 'kept', 60);
  await remove(device, 'deletedThen');
  await engine.stop();
  await postgres.stop();

  clock.set(0);
  await clock.around(() => postgres!.start());
  await engine.start();
  // Tokens that were issued with the wrong clock have expired.
  api = new Api(engine.api.address);
  expect([await count(device, 'deletedThen'), await count(device, 'deletedLater')]).toEqual([0, 60]);
  await remove(device, 'deletedLater');
  await send(device, 'deletedThen', 'deletedLater');
  await hasPoints(device, 'deletedThen', 60);
  await hasPoints(device, 'deletedLater', 60);
  await remove(device, 'deletedLater');
  await engine.stop();

  await engine.start();
  const counts = await Promise.all(['deletedThen', 'deletedLater', 'kept'].map((key) => count(device, key)));
  expect(counts).toEqual([60, 0, 60]);
  expect(Object.keys(await api.readLatest(device.id)).sort()).toEqual(['deletedThen', 'kept']);
});
