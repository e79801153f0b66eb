/** Deleted points stay deleted, also when a journal is replayed after the delete. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
});

afterAll(() => engine?.destroy());

async function rowsOf(device: number): Promise<number[]> {
  const counts = await engine.clickhouse(
    `SELECT count() FROM millrace.telemetry FINAL WHERE device = ${device} AND kind != 0 UNION ALL ` +
      `SELECT count() FROM millrace.latest WHERE device = ${device}`,
  );
  return counts.map(([count]) => Number(count));
}

/** The number of a device in ClickHouse: the only one that has this key. */
async function numberOf(key: string): Promise<number> {
  return eventually(async () => {
    const [row] = await engine.clickhouse(`SELECT DISTINCT device FROM millrace.telemetry WHERE key = '${key}'`);
    return row ? Number(row[0]) : undefined;
  }, 15_000);
}

async function post(device: Device, body: string): Promise<void> {
  expect(await engine.api.postTelemetry(device.token, body)).toBe(200);
}

async function deleteDevice(device: Device): Promise<void> {
  const answer = await engine.api.send('DELETE', `/api/device/${device.id}`, undefined, await engine.api.adminToken());
  expect(answer.status).toBe(200);
}

test('the telemetry of a deleted device leaves both tables, that of others stays', async () => {
  const [gone, kept] = [await engine.api.createDevice('gone'), await engine.api.createDevice('kept')];
  await post(gone, '[{"ts":1,"values":{"gone":1}},{"gone":2}]');
  await post(kept, '{"kept":1}');
  const [goneNumber, keptNumber] = [await numberOf('gone'), await numberOf('kept')];
  await deleteDevice(gone);
  await engine.api.telemetryBecomes(gone.token, 401);
  await eventually(async () => ((await rowsOf(goneNumber)).every((n) => n === 0) ? true : undefined), 20_000);
  expect(await rowsOf(keptNumber)).toEqual([1, 1]);
});

test('points that were still in the journal when their device was deleted do not come back', async () => {
  const device = await engine.api.createDevice('late');
  await post(device, '{"late":0}');
  const number = await numberOf('late');
  process.kill(engine.pids().get('clickhouse')!, 'SIGSTOP');
  for (let i = 1; i <= 20; i += 1) await post(device, `{"ts":${i},"values":{"late":${i}}}`);
  await deleteDevice(device);
  await engine.killAll();
  await engine.start();
  const marker = await engine.api.createDevice('marker');
  await post(marker, '{"ts":1,"values":{"marker":1}}');
  await numberOf('marker');
  await eventually(async () => ((await rowsOf(number)).every((n) => n === 0) ? true : undefined), 20_000);
});
