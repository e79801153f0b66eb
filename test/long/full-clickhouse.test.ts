/** ClickHouse answers and refuses every insert, as when its disk is full. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, prepareEngine, startEngine } from '../harness/engine.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers: 1 });
});

afterAll(() => engine.destroy());

test('readiness says that ClickHouse takes no rows; rows and deletes wait and are carried out when there is room', async () => {
  const { id, token } = await engine.api.newDevice();
  expect(await engine.api.postTelemetry(token, '{"deleted": 1}')).toBe(200);
  const series = (key: string) => engine.api.readSeries(id, [key], { startTs: 0, endTs: Date.now() + 1000 });
  await eventually(async () => (await series('deleted'))['deleted']);
  const set = 'ALTER TABLE telemetry MODIFY SETTING min_free_disk_bytes_to_perform_insert';
  await engine.clickhouseCommand(`${set} = 1000000000000000`);
  const pid = engine.pids().get('clickhouse');
  expect(await engine.api.postTelemetry(token, '{"level": 7}')).toBe(200);
  const degraded = await eventually(async () => {
    const status = await engine.status();
    return status.status === 'degraded' ? status : undefined;
  }, 30_000);
  expect(degraded.code).toBe(200);
  expect(degraded.parts).toMatchObject({ clickhouse: 'up' });
  expect(degraded.reasons).toEqual([
    expect.stringMatching(/^ClickHouse takes no rows, which wait in the journal: ClickHouse error 243: .*free space/),
  ]);
  expect(await series('level')).toEqual({});
  const path = `/api/plugins/telemetry/DEVICE/${id}/timeseries/delete?keys=deleted&deleteAllDataForKeys=true`;
  expect((await engine.api.send('DELETE', path)).status).toBe(202);
  await engine.clickhouseCommand(`${set} = 0`);
  const ready = async () => ((await engine.status()).status === 'ready' ? true : undefined);
  expect(await eventually(ready, 60_000)).toBe(true);
  expect((await series('level'))['level']).toHaveLength(1);
  const [back] = await eventually(() => {
    const events = engine.events('storage_insert_back');
    return events.length > 0 ? events : undefined;
  });
  expect(back).toMatchObject({ level: 'info' });
  // Readiness names a refusal that lasts 5 s.
  expect(back!['awayMs']).toBeGreaterThan(5_000);
  const isDeleted = async () => (await series('deleted'))['deleted'] === undefined;
  expect(await eventually(isDeleted, 60_000)).toBe(true);
  expect(engine.pids().get('clickhouse')).toBe(pid);
});

test('a first start on a full disk says what to change, in the words of no store', async () => {
  const env = { JOURNAL_FREE_DISK_BYTES_MIN: '1000TB' };
  const full = await prepareEngine({ workers: 1, reports: true, firstStart: true, env });
  try {
    full.spawn();
    const said = 'its disk is too full for writes: free space on it, or enlarge it.';
    const reasons = await eventually(async () => {
      const { status, reasons: read } = await full.status();
      return status === 'refusing' ? read : undefined;
    }, 60_000);
    expect(reasons).toContain(`The embedded ClickHouse cannot be used yet: ClickHouse error 243: ${said}`);
    const reason = await eventually(async () => full.events('report_feeder_failed')[0]?.['reason'], 30_000);
    expect(reason).toBe(
      'ClickHouse has no tables for reports yet: they are made when ClickHouse takes writes. The reasons of /readyz say what to change.',
    );
  } finally {
    await full.destroy();
  }
});
