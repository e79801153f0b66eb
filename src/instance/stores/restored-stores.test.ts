import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { silentLog as log } from '../../../test/harness/silent-log.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import type { Postgres } from '../../postgres/client.ts';
import { DataDirectory } from '../host/data-directory.ts';
import { type Restored, RestoredStores } from './restored-stores.ts';

let dir = '';
let stores: RestoredStores | undefined;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'millrace-restored-'));
});

afterEach(async () => {
  await stores?.stop();
  rmSync(dir, { recursive: true });
});

/** PostgreSQL whose last device has this number, and ClickHouse that knows devices up to those. */
function setUp(last: number, clickhouseNumbers: { latest: number; telemetry?: number; copied?: number }) {
  const numbers = { device: last, copy: 0 };
  const copies = { all: 0 };
  const restores: unknown[] = [];
  const queries = {
    query: async (text: string, values: unknown[] = []) => {
      const sequence = text.includes('device_copy_version') ? 'copy' : 'device';
      if (/as last$/.test(text.trim())) return [{ last: numbers[sequence] }];
      if (text.includes('setval')) {
        if (numbers[sequence] >= Number(values[0])) return [];
        numbers[sequence] = Number(values[1]);
        return [{}];
      }
      if (text.includes('device_outbox')) copies.all += 1;
      if (text.includes('setting')) restores.push(values[1]);
      return [];
    },
  };
  const postgres = { ...queries, transaction: async (work: (q: typeof queries) => unknown) => await work(queries) };
  const clickhouse = {
    rows: async (sql: string) => {
      if (sql.includes('version')) return [{ n: String(clickhouseNumbers.copied ?? 0) }];
      if (sql.includes('latest')) return [{ n: String(clickhouseNumbers.latest) }];
      return sql.includes('telemetry') ? [{ n: String(clickhouseNumbers.telemetry ?? 0) }] : [];
    },
  };
  const parts = { postgres: postgres as unknown as Postgres };
  stores = new RestoredStores({ ...parts, data: new DataDirectory(dir), log });
  return { stores, clickhouse: clickhouse as unknown as ClickHouse, numbers, copies, restores };
}

test('nothing changes when PostgreSQL is ahead of all', async () => {
  const { stores, clickhouse, numbers, copies } = setUp(100, { latest: 100, telemetry: 99 });
  await Promise.all([stores.postgresPrepared(), stores.clickhousePrepared(clickhouse)]);
  expect(numbers).toEqual({ device: 100, copy: 0 });
  expect(copies.all).toBe(0);
  await expect.poll(() => readFileSync(join(dir, 'device-numbers.json'), 'utf8')).toContain('100');
});

test('a device in ClickHouse raises the numbers, also one that has points only', async () => {
  const { stores, clickhouse, numbers } = setUp(7, { latest: 100, telemetry: 2_000_000 });
  await Promise.all([stores.postgresPrepared(), stores.clickhousePrepared(clickhouse)]);
  await expect.poll(() => numbers.device).toBe(3_000_000);
});

test('a device that is known to this data directory only raises the numbers', async () => {
  writeFileSync(join(dir, 'device-numbers.json'), '{"last":500}');
  const { stores, clickhouse, numbers } = setUp(7, { latest: 100 });
  await Promise.all([stores.postgresPrepared(), stores.clickhousePrepared(clickhouse)]);
  expect(numbers.device).toBe(1_000_500);
});

test('newer copies for reports raise their versions, and all is copied again', async () => {
  const { stores, clickhouse, numbers, copies } = setUp(7, { latest: 0, copied: 40 });
  await Promise.all([stores.postgresPrepared(), stores.clickhousePrepared(clickhouse)]);
  expect(numbers).toEqual({ device: 7, copy: 1_000_040 });
  expect(copies.all).toBe(1);
});

test('the first start after a restore skips numbers and copies all for reports, the next does not', async () => {
  const restored: Restored = { backup: '/b', began: '', restored: '', id: 'of this restore', pending: true };
  writeFileSync(join(dir, 'restored.json'), JSON.stringify(restored));
  const first = setUp(7, { latest: 7 });
  await Promise.all([first.stores.postgresPrepared(), first.stores.clickhousePrepared(first.clickhouse)]);
  expect([first.numbers.device, first.copies.all]).toEqual([1_000_007, 1]);
  expect(first.restores).toEqual(['of this restore']);
  await first.stores.stop();
  const second = setUp(1_000_007, { latest: 7 });
  await Promise.all([second.stores.postgresPrepared(), second.stores.clickhousePrepared(second.clickhouse)]);
  expect([second.numbers.device, second.copies.all, second.restores]).toEqual([1_000_007, 0, []]);
});

test('a server that takes over without the last numbers continues above them, and all is copied for reports again', async () => {
  const clickhouseNumbers = { latest: 100, copied: 0 };
  const { stores, clickhouse, numbers, copies } = setUp(100, clickhouseNumbers);
  await Promise.all([stores.postgresPrepared(), stores.clickhousePrepared(clickhouse)]);
  numbers.device = 140;
  stores.polled(140, false);
  clickhouseNumbers.copied = 9;
  stores.polled(140, true);
  await expect.poll(() => numbers.copy).toBe(1_000_009);
  expect([numbers.device, copies.all]).toEqual([140, 1]);
  numbers.device = 110;
  stores.polled(110, true);
  await expect.poll(() => numbers.device).toBe(1_000_140);
});
