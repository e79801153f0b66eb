/**
 * The cost of deletes on a large table: ten years of days, of which an hour of one device is deleted, and ten thousand
 * deleted devices. The times are printed. The limits are high, because the machine may be busy.
 */

import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock as clock } from '../../src/base/clock.ts';
import { dayMs } from '../../src/base/durations.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { Shards } from '../../src/clickhouse/shards.ts';
import { insertDeviceTombstone } from '../../src/device/sql/store.ts';
import { seriesDeleter } from '../../src/erase/delete-series.ts';
import { Eraser } from '../../src/erase/erase.ts';
import { SteadyClock } from '../../src/erase/steady-clock.ts';
import { startTestClickHouse, type TestClickHouse } from '../harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../harness/postgres-server.ts';
import { silentLog as log } from '../harness/silent-log.ts';

const years = 10;
const days = years * 365;
const firstTs = Date.UTC(2020, 0, 1);
const deviceCount = 10_000;

let stores: TestPostgres;
let embedded: TestClickHouse;

beforeAll(async () => {
  [stores, embedded] = await Promise.all([startTestPostgres(), startTestClickHouse()]);
  const { clickhouse } = embedded;
  const columns = 'device, key, ts, kind, num, version';
  const fill = (select: string) =>
    clickhouse.exec(
      `INSERT INTO telemetry (${columns}) ${select}`,
      {},
      { settings: { max_partitions_per_insert_block: '0' } },
    );
  await clickhouse.exec('ALTER TABLE telemetry MODIFY SETTING fsync_after_insert = 0, fsync_part_directory = 0');
  // A hundred devices with a point each day, and one that sends each second of one day.
  for (let day = 0; day < days; day += 365) {
    const at = `${firstTs} + (${day} + intDiv(number, 100)) * ${dayMs} + number % 100`;
    await fill(`SELECT 1 + number % 100, 'k', ${at}, 3, 1, 1 FROM numbers(36500)`);
  }
  await fill(`SELECT 500, 'k', ${firstTs + 2000 * dayMs} + number * 1000, 3, 1, 1 FROM numbers(86400)`);
  // Ten thousand devices with a hundred points in each of the last ten days.
  const last = firstTs + (days - 10) * dayMs;
  await fill(`SELECT 1000 + intDiv(number, 1000), 'k', ${last} + (number % 10) * ${dayMs} + number % 1000, 3, 1, 1
    FROM numbers(${deviceCount * 1000})`);
  await clickhouse.exec('ALTER TABLE telemetry MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1');
  await clickhouse.exec(
    `INSERT INTO latest (${columns}) SELECT ${columns} FROM telemetry ORDER BY ts DESC LIMIT 1 BY device`,
  );
}, 600_000);

afterAll(async () => {
  await Promise.all([stores?.stop(), embedded?.stop()]);
});

const count = async (where: string): Promise<number> => {
  const [row] = await embedded.clickhouse.rows<{ n: string }>(
    `SELECT count() AS n FROM telemetry FINAL WHERE kind != 0 AND ${where}`,
  );
  return Number(row!.n);
};

const journals = async () => ({ reports: [], isWhole: true });

test('one hour of one device is deleted from ten years', { timeout: 300_000 }, async () => {
  const remove = seriesDeleter({
    postgres: stores.postgres,
    shards: new Shards([embedded.clickhouse]),
    cluster: '',
    clock,
    log,
    journals,
  });
  const startTs = firstTs + 2000 * dayMs;
  const times: number[] = [];
  for (let hour = 0; hour < 5; hour += 1) {
    const from = startTs + hour * 3_600_000;
    const began = performance.now();
    const range = { keys: ['k'], startTs: from, endTs: from + 3_600_000, latest: 'delete' as const };
    expect(await remove({ device: 500, ...range })).toBe('done');
    times.push(performance.now() - began);
  }
  console.log(`one hour of one device from ${days} days: ${times.map((ms) => Math.round(ms)).join(', ')} ms`);
  expect(await count('device = 500')).toBe(19 * 3600);
  expect(Math.min(...times)).toBeLessThan(5_000);
});

test('ten thousand deleted devices go in the background', { timeout: 600_000 }, async () => {
  const { postgres } = stores;
  for (let device = 1000; device < 1000 + deviceCount; device += 1)
    await insertDeviceTombstone(postgres, device, Date.now());
  await postgres.query(`update tombstones set handed_over = true, recorded_at = recorded_at - interval '1 hour'`);
  const parts = {
    host: 'deletes',
    postgres,
    shards: new Shards([embedded.clickhouse]),
    cluster: '',
    clock,
    log,
    metrics: new Metrics(),
    journals,
  };
  const steadyClock = new SteadyClock({ postgres, clock, log });
  const eraser = new Eraser({ ...parts, steadyClock, isLeader: () => true, tombstonesKeptDays: 90 });
  const began = performance.now();
  await eraser.round();
  const seconds = (performance.now() - began) / 1000;
  console.log(`${deviceCount} deleted devices with ${deviceCount * 1000} points: ${seconds.toFixed(1)} s`);
  expect(await count('device >= 1000')).toBe(0);
  expect(await postgres.query('select id from tombstones where applied_at is null')).toEqual([]);
  expect(seconds).toBeLessThan(180);
});
