/**
 * Shipping into a store that refuses rows, is killed, is slow or lacks memory: which rows are stored, which wait, and
 * which are proven bad.
 */

import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { dayMs } from '../../src/base/durations.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { type ClickHouse, openClickHouse } from '../../src/clickhouse/client.ts';
import { Shards } from '../../src/clickhouse/shards.ts';
import { OrderClock } from '../../src/ingest/order-number.ts';
import { type Disk, realDisk } from '../../src/journal/disk.ts';
import type { Journal } from '../../src/journal/journal.ts';
import { openJournal } from '../../src/journal/open-journal.ts';
import { listQuarantine } from '../../src/journal/quarantine.ts';
import { Shipper } from '../../src/ship/ship.ts';
import type { ShipperDeps } from '../../src/ship/ship-deps.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { readBlock } from '../../src/telemetry/read-block.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { daysOf, type Insert, StandIn } from '../harness/clickhouse-stand-in.ts';
import { type FastClock, fastClock } from '../harness/fast-clock.ts';
import { silentLog } from '../harness/silent-log.ts';

let home: string;
let standIn: StandIn;
let clickhouse: ClickHouse;
let count = 0;
let running: Channel | undefined;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'millrace-ship-faults-'));
});

afterAll(() => rmSync(home, { recursive: true, force: true }));

beforeEach(async () => {
  standIn = await StandIn.start();
  clickhouse = openClickHouse({ url: standIn.url, user: 'u', password: '', database: 'm', log: silentLog });
});

afterEach(async () => {
  standIn.behave = () => 'ok';
  await running?.stop();
  running = undefined;
  await clickhouse.close();
  await standIn.stop();
});

interface Channel {
  dir: string;
  clock: FastClock;
  journal: Journal;
  shipper: Shipper;
  metrics: Metrics;
  add(device: number, times: number[], lane?: 0 | 1): Promise<void>;
  stop(): Promise<void>;
}

interface ChannelOptions extends Partial<ShipperDeps> {
  dir?: string;
  disk?: Disk;
  started?: boolean;
  /** The factor by which its clock is faster than the system's. */
  factor?: number;
}

async function openChannel({
  dir = '',
  disk = realDisk,
  started = true,
  factor = 1000,
  ...options
}: ChannelOptions = {}): Promise<Channel> {
  count += 1;
  const own = dir || join(home, `worker-${count}`);
  const clock = fastClock(factor);
  const journal = await openJournal({ dir: own, disk, clock, log: silentLog, segmentBytes: 4 * 1024 * 1024 });
  const metrics = new Metrics();
  const shipper = new Shipper({
    journal,
    shards: new Shards([clickhouse]),
    clock,
    sleep: clock.sleep,
    log: silentLog,
    metrics,
    intervalMsMin: 250,
    intervalMsMax: 1000,
    rowsMax: 400_000,
    lateSecondsMax: 1,
    timeoutMs: 5_000,
    onShipped: () => {},
    ...options,
  });
  const orders = new OrderClock({ now: () => Date.now(), monotonic: () => 0 }, 1, journal.orderMax);
  const add = async (device: number, times: number[], lane: 0 | 1 = 0) => {
    const rows = new Rows();
    for (const ts of times) {
      rows.addDouble(keyOf('a')!, ts % 1000);
      rows.endRecord(device, ts);
    }
    const order = orders.next();
    const parts = rows.encode({ order, micros: 0, firstPlace: 0 });
    await journal.append([{ lane, order, rows: rows.count, parts }]);
    shipper.wake();
  };
  const stop = async () => {
    await shipper.stop();
    await journal.close();
  };
  running = { dir: own, clock, journal, shipper, metrics, add, stop };
  if (started) shipper.start();
  return running;
}

function metricOf(metrics: Metrics, name: string): number {
  return metrics
    .snapshot()
    .filter((sample) => sample.name === name)
    .reduce((sum, { value }) => sum + value, 0);
}

async function emptied({ journal }: Channel, timeout = 60_000): Promise<void> {
  await vi.waitFor(() => expect(journal.empty).toBe(true), { timeout });
}

const has = (device: number) => (insert: Insert) => insert.rows.some((row) => row.device === device);
const now = Date.now();
const some = (n: number) => Array.from({ length: n }, (_, i) => now + i);

test('a store that answers every code there is for a while costs nothing: no suspect, no quarantine, all is stored', {
  timeout: 150_000,
}, async () => {
  const codes = [...Array.from({ length: 760 }, (_, i) => i + 1), 999, 1000, 1001, 1002, 1003];
  let met = 0;
  // Every code is the answer to rows once, and to a control row that follows.
  standIn.behave = (insert) => codes[has(0)(insert) ? met - 1 : met++] ?? 'ok';
  const channel = await openChannel({ factor: 20_000 });
  for (let i = 0; i < 20; i += 1) await channel.add(1 + i, some(5));
  await emptied(channel, 120_000);
  expect(met).toBeGreaterThan(codes.length);
  expect(await listQuarantine(channel.dir)).toEqual([]);
  expect(metricOf(channel.metrics, 'ingest_suspect_rows_total')).toBe(0);
  expect(standIn.stored()).toHaveLength(100);
  expect(standIn.stored('latest')).toHaveLength(20);
});

test('rows that are refused for minutes, while others are accepted, wait beside the lane and are stored in the end', async () => {
  const channel = await openChannel();
  standIn.behave = (insert) => (has(7)(insert) ? 27 : 'ok');
  for (const device of [6, 7, 8]) await channel.add(device, some(10));
  await vi.waitFor(() => expect(channel.journal.suspects.rows).toBe(10), { timeout: 30_000 });
  await channel.add(9, some(10));
  // The lane continues, and deletes know that older rows exist.
  await vi.waitFor(() => expect(standIn.stored().filter(({ device }) => device === 9)).toHaveLength(10), {
    timeout: 30_000,
  });
  await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), { timeout: 30_000 });
  expect(channel.journal.orderShipped()).toBeLessThan(channel.journal.laneShipped(0));
  standIn.behave = () => 'ok';
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(40);
  expect(await listQuarantine(channel.dir)).toEqual([]);
  expect(channel.journal.orderShipped()).toBe(channel.journal.laneShipped(0));
});

test('a bad row is proven bad in several rounds over five minutes; every other row is stored at once', async () => {
  const channel = await openChannel();
  const { clock } = channel;
  const started = clock.monotonic();
  const bad = now + 33;
  standIn.behave = ({ rows }) => (rows.some(({ ts }) => ts === bad) ? 69 : 'ok');
  await channel.add(1, some(100));
  await channel.add(2, [now]);
  await vi.waitFor(() => expect(standIn.stored()).toHaveLength(100), { timeout: 30_000 });
  expect(channel.journal.quarantine.entries).toBe(0);
  await emptied(channel);
  const passed = clock.monotonic() - started;
  expect(passed).toBeGreaterThan(5 * 60_000);
  const alone = standIn.inserts.filter(({ rows }) => rows.length === 1 && rows[0]!.ts === bad);
  expect(alone.length).toBeGreaterThanOrEqual(3);
  const [entry, ...others] = await listQuarantine(channel.dir);
  expect(others).toEqual([]);
  expect(entry).toMatchObject({ kind: 'rows', rows: 1, reason: expect.stringContaining('69') });
  expect(metricOf(channel.metrics, 'ingest_quarantined_rows_total')).toBe(1);
  expect(metricOf(channel.metrics, 'quarantine_entries')).toBe(1);
  expect(metricOf(channel.metrics, 'storage_insert_errors_total')).toBeGreaterThan(3);
});

test('suspects wait for longer than a worker lives, and are tried again by its successor', async () => {
  const first = await openChannel({ factor: 1 });
  standIn.behave = (insert) => (has(7)(insert) ? 27 : 'ok');
  await first.add(7, some(3));
  await vi.waitFor(() => expect(first.journal.suspects.rows).toBe(3), { timeout: 30_000 });
  await first.stop();
  standIn.behave = () => 'ok';
  const second = await openChannel({ dir: first.dir });
  expect(second.journal.suspects.rows).toBe(3);
  expect(second.journal.orderRecovered).toBeDefined();
  await emptied(second);
  expect(standIn.stored()).toHaveLength(3);
});

test('a store that answers "too many parts" gets at most 8 attempts in its first minute, though it answers /ping', async () => {
  const factor = 100;
  standIn.behave = () => 252;
  const channel = await openChannel({ factor });
  await channel.add(1, some(5));
  await vi.waitFor(() => expect(standIn.inserts.length).toBeGreaterThan(0), { timeout: 30_000 });
  const first = standIn.inserts[0]!.at;
  await vi.waitFor(() => expect(performance.now() - first).toBeGreaterThan(60_000 / factor), { timeout: 30_000 });
  const attempts = standIn.inserts.filter(({ table, at }) => table === 'telemetry' && at - first <= 60_000 / factor);
  expect(attempts.length).toBeGreaterThanOrEqual(4);
  expect(attempts.length).toBeLessThanOrEqual(8);
  standIn.behave = () => 'ok';
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(5);
});

test('an error after the status 200, or the page of a proxy, stores nothing and loses nothing', async () => {
  const channel = await openChannel();
  const bodies = [
    'Code: 241. DB::Exception: Memory limit (total) exceeded. (MEMORY_LIMIT_EXCEEDED)',
    '__exception__\r\nCode: 27. DB::Exception: Cannot parse input',
    '<html>Down for maintenance</html>',
  ];
  let answered = 0;
  standIn.behave = ({ rows }) => (rows.some(({ device }) => device === 0) ? 'ok' : { body: bodies[answered++ % 3]! });
  await channel.add(1, some(10));
  await vi.waitFor(() => expect(answered).toBeGreaterThan(9), { timeout: 30_000 });
  expect(channel.journal.empty).toBe(false);
  standIn.behave = () => 'ok';
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(10);
  expect(standIn.stored('latest')).toHaveLength(1);
});

test('one row that crashes the store is found by cutting, and stops crashing the store', async () => {
  const channel = await openChannel();
  const bad = now + 5;
  standIn.behave = ({ rows }) => (rows.some(({ ts }) => ts === bad) ? { deadMs: 20 } : 'ok');
  await channel.add(1, some(16));
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(15);
  expect(await listQuarantine(channel.dir)).toHaveLength(1);
  expect(standIn.deaths).toBeGreaterThan(5);
  // Five deaths by the whole unit, two by each half down to the row, and two in each of the rounds that prove the row
  // bad.
  expect(standIn.deaths).toBeLessThan(60);
});

test('a row that lacked memory for minutes is not proven bad when the store is killed', async () => {
  const channel = await openChannel();
  const { journal, clock } = channel;
  standIn.behave = (insert) => (has(1)(insert) ? 241 : 'ok');
  await channel.add(1, [now]);
  await vi.waitFor(() => expect(journal.suspects.rows).toBe(1), { timeout: 30_000 });
  const started = clock.monotonic();
  await vi.waitFor(() => expect(clock.monotonic() - started).toBeGreaterThan(20 * 60_000), { timeout: 30_000 });
  const tries = () => standIn.inserts.filter((insert) => insert.table === 'telemetry' && has(1)(insert)).length;
  const before = tries();
  standIn.behave = (insert) => {
    if (!has(1)(insert)) return 'ok';
    return insert.table === 'telemetry' && tries() <= before + 4 ? { deadMs: 20 } : 241;
  };
  await vi.waitFor(() => expect(tries() > before + 6 || journal.quarantine.entries > 0).toBe(true), {
    timeout: 30_000,
  });
  expect(journal.quarantine.entries).toBe(0);
  standIn.behave = () => 'ok';
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(1);
}, 150_000);

test('a store that manages a thousand rows within the deadline gets all of them in the end', async () => {
  const channel = await openChannel({ timeoutMs: 100, factor: 100 });
  standIn.behave = ({ rows }) => (rows.length > 1_000 ? 'none' : 'ok');
  for (let i = 0; i < 30; i += 1) await channel.add(1 + i, some(100));
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(3_000);
  expect(await listQuarantine(channel.dir)).toEqual([]);
});

test('lack of memory halves a unit; a row alone that meets it is never quarantined for it', async () => {
  const channel = await openChannel();
  standIn.behave = ({ rows }) => (rows.length > 20 ? 241 : 'ok');
  for (let i = 0; i < 10; i += 1) await channel.add(1 + i, some(10));
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(100);
  const requests = standIn.inserts.length;
  standIn.behave = () => 241;
  await channel.add(50, [now]);
  // Some minutes of this clock.
  await vi.waitFor(() => expect(standIn.inserts.length).toBeGreaterThan(requests + 20), { timeout: 30_000 });
  expect(channel.shipper.refusal).toBe('ClickHouse error 241, see storage_insert in the log');
  // The store accepts other rows again: this row is a suspect.
  standIn.behave = (insert) => (has(50)(insert) ? 241 : 'ok');
  await vi.waitFor(() => expect(channel.journal.suspects.rows).toBe(1), { timeout: 30_000 });
  expect(channel.shipper.refusal).toBeUndefined();
  standIn.behave = () => 'ok';
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(101);
  expect(await listQuarantine(channel.dir)).toEqual([]);
});

test('a message of twenty years is cut by its days, today first; every row is inserted once', async () => {
  const channel = await openChannel({ started: false });
  const first = Date.UTC(2020, 0, 1);
  const times = Array.from({ length: 7_305 }, (_, i) => first + i * dayMs);
  await channel.add(1, [...times, 0, Date.UTC(2045, 1, 1)], 1);
  await channel.add(2, [now - 3 * dayMs], 1);
  channel.shipper.start();
  await emptied(channel);
  const inserts = standIn.inserts.filter(({ table }) => table === 'telemetry');
  for (const { rows } of inserts) expect(daysOf(rows)).toBeLessThanOrEqual(102);
  expect(inserts.reduce((sum, { rows }) => sum + rows.length, 0)).toBe(7_308);
  expect(standIn.stored()).toHaveLength(7_308);
  expect(
    standIn
      .stored('latest')
      .map(({ ts }) => ts)
      .sort(),
  ).toEqual([now - 3 * dayMs, Date.UTC(2045, 1, 1)].sort());
  // The row of another device does not wait for twenty years of rows.
  expect(inserts.slice(0, 5).some(has(2))).toBe(true);
});

test('a late unit that is too slow for its days is cut by days', async () => {
  const channel = await openChannel({ timeoutMs: 100, factor: 100 });
  standIn.behave = ({ table, rows }) => (table === 'telemetry' && daysOf(rows) > 10 ? 'none' : 'ok');
  await channel.add(
    1,
    Array.from({ length: 80 }, (_, i) => now - i * dayMs),
    1,
  );
  await emptied(channel);
  expect(standIn.stored()).toHaveLength(80);
});

/** Ends a channel as a kill does, and opens its successor on the state of the disk at that moment. */
async function killed(channel: Channel, options: ChannelOptions): Promise<Channel> {
  count += 1;
  const dir = join(home, `worker-${count}`);
  cpSync(channel.dir, dir, { recursive: true });
  const { behave } = standIn;
  standIn.behave = () => 252;
  const stopped = channel.stop();
  standIn.cut();
  await stopped;
  standIn.behave = behave;
  return openChannel({ ...options, dir });
}

test('late rows of many days are stored in the end although the process is killed after every third insert', async () => {
  const first = Date.UTC(2021, 0, 1);
  const times = Array.from({ length: 1_200 }, (_, i) => first + i * dayMs);
  // The clock is slow enough that an insert on a busy machine is not recorded as a long one.
  const options = { started: false, factor: 10 };
  let channel = await openChannel(options);
  await channel.add(1, times, 1);
  await channel.add(2, [first, first + 7 * dayMs], 1);
  for (let round = 1; ; round += 1) {
    expect(round).toBeLessThan(9);
    let left = 3;
    standIn.behave = ({ table }) => (table === 'latest' || left-- > 0 ? 'ok' : 252);
    channel.shipper.start();
    await vi.waitFor(() => expect(left < 0 || channel.journal.empty).toBe(true), { timeout: 30_000 });
    await channel.journal.notes.close();
    if (channel.journal.empty) break;
    expect(channel.journal.rowsWaiting(1)).toBe(1_202);
    channel = await killed(channel, options);
  }
  expect(standIn.stored()).toHaveLength(1_202);
  const inserts = standIn.inserts.filter(({ table }) => table === 'telemetry');
  for (const { rows } of inserts) expect(daysOf(rows)).toBeLessThanOrEqual(102);
});

test('a unit that takes longer than the time between kills becomes smaller', async () => {
  const options = { timeoutMs: 60_000, started: false };
  let channel = await openChannel(options);
  for (let i = 0; i < 30; i += 1) await channel.add(1 + i, some(100));
  for (let round = 1; ; round += 1) {
    expect(round).toBeLessThan(40);
    let hangs = false;
    standIn.behave = ({ rows }) => {
      if (rows.length <= 500) return 'ok';
      hangs = true;
      return 'none';
    };
    channel.shipper.start();
    await vi.waitFor(() => expect(hangs || channel.journal.empty).toBe(true), { timeout: 30_000 });
    await sleep(50);
    if (channel.journal.empty) break;
    channel = await killed(channel, options);
  }
  expect(standIn.stored()).toHaveLength(3_000);
});

test('late rows gather: 48 a second over 300 days are a few inserts a minute, a lone one goes at once', async () => {
  const channel = await openChannel({ factor: 20, lateSecondsMax: 30 });
  const { clock } = channel;
  await channel.add(1, [now - 5 * dayMs], 1);
  await vi.waitFor(() => expect(standIn.stored()).toHaveLength(1), { timeout: 30_000 });
  const until = clock.monotonic() + 60_000;
  let device = 2;
  for (let next = clock.monotonic(); clock.monotonic() < until; next += 250) {
    await channel.add(
      device++,
      Array.from({ length: 12 }, (_, i) => now - (3 + ((device * 12 + i) % 300)) * dayMs),
      1,
    );
    await clock.sleep(Math.max(0, next + 250 - clock.monotonic()), new AbortController().signal);
  }
  const units = channel.metrics.snapshot().find(({ name }) => name === 'storage_batch_rows')!.buckets!;
  // A unit of many days counts twice: the part that the lane stores, and the part stored beside the lane.
  expect(units.reduce((sum, n) => sum + n, 0)).toBeLessThanOrEqual(10);
  expect(standIn.stored().length).toBeGreaterThan(500);
  expect(standIn.inserts.every(({ isPatient }) => isPatient)).toBe(true);
});

test('rows of today are not patient: they need not wait for inserts of other days', async () => {
  const channel = await openChannel();
  await channel.add(1, some(3));
  await emptied(channel);
  expect(standIn.inserts.some(({ isPatient }) => isPatient)).toBe(false);
});

test('rows count as stored only when an earlier try, which was not waited for, has ended in the store', async () => {
  const channel = await openChannel({ timeoutMs: 500, factor: 1 });
  // The first insert of each table continues after its deadline; its repetition is stored at once.
  const repeated = new Set<string>();
  standIn.behave = ({ table }) => {
    const answer = repeated.has(table) ? 'ok' : { lateMs: 3_000 };
    repeated.add(table);
    return answer;
  };
  await channel.add(1, some(5));
  await vi.waitFor(() => expect(standIn.stored('latest')).toHaveLength(1), { timeout: 30_000 });
  expect(standIn.running).toBe(2);
  // Until then a delete of the rows would not be final: the earlier insert would bring a latest value back.
  expect(channel.journal.rowsWaiting(0)).toBe(5);
  await emptied(channel);
  expect(standIn.running).toBe(0);
});

test('rows count as stored only when an insert of a killed process has ended in the store', async () => {
  const first = await openChannel({ timeoutMs: 60_000, factor: 1, started: false });
  standIn.behave = () => ({ lateMs: 3_000 });
  await first.add(1, some(5));
  first.shipper.start();
  await vi.waitFor(() => expect(standIn.running).toBe(2), { timeout: 30_000 });
  standIn.behave = () => 'ok';
  const dir = join(home, `worker-${(count += 1)}`);
  cpSync(first.dir, dir, { recursive: true });
  const next = await openChannel({ dir, timeoutMs: 60_000, factor: 1 });
  await vi.waitFor(() => expect(standIn.stored('latest')).toHaveLength(1), { timeout: 30_000 });
  expect([standIn.running, next.journal.rowsWaiting(0)]).toEqual([2, 5]);
  await emptied(next);
  expect(standIn.running).toBe(0);
  expect(next.journal.notes.earlierMarks).toEqual([]);
  standIn.cut();
  await first.stop();
});

test('while senders wait for ClickHouse, units do not wait for the interval', async () => {
  const channel = await openChannel({ factor: 1, callersWait: true, intervalMsMin: 60_000, intervalMsMax: 60_000 });
  for (let i = 1; i <= 5; i += 1) {
    await channel.add(i, [now]);
    await channel.add(i, [now - 9 * dayMs], 1);
    await vi.waitFor(() => expect(standIn.stored()).toHaveLength(2 * i), { timeout: 30_000 });
  }
});

test('a disk that takes no suspects stops the lane, not the worker; the lane continues when there is room', async () => {
  let full = true;
  const disk: Disk = {
    ...realDisk,
    open: async (path, mode) => {
      if (full && mode !== 'read' && /\/(suspects|quarantine)\//.test(path)) {
        throw Object.assign(new Error('ENOSPC: no space left'), { code: 'ENOSPC' });
      }
      return realDisk.open(path, mode);
    },
  };
  const channel = await openChannel({ disk });
  standIn.behave = (insert) => (has(7)(insert) ? 27 : 'ok');
  await channel.add(7, [now]);
  await vi.waitFor(() => expect(standIn.inserts.filter(has(7)).length).toBeGreaterThan(1), { timeout: 30_000 });
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect([channel.journal.rowsWaiting(0), channel.journal.suspects.rows]).toEqual([1, 0]);
  full = false;
  await vi.waitFor(() => expect(channel.journal.suspects.rows + channel.journal.quarantine.entries).toBe(1), {
    timeout: 30_000,
  });
  await emptied(channel);
  expect((await listQuarantine(channel.dir)).map(({ rows }) => rows)).toEqual([1]);
});

test('rows that are proven bad while the disk takes no quarantine wait, also when others of their round are stored', async () => {
  let full = true;
  let refusals = 0;
  const disk: Disk = {
    ...realDisk,
    open: async (path, mode) => {
      if (full && mode !== 'read' && path.includes('/quarantine/')) {
        refusals += 1;
        throw Object.assign(new Error('ENOSPC: no space left'), { code: 'ENOSPC' });
      }
      return realDisk.open(path, mode);
    },
  };
  const channel = await openChannel({ disk, started: false });
  const { clock, journal, shipper } = channel;
  let proven = Number.POSITIVE_INFINITY;
  standIn.behave = (insert) => (has(7)(insert) || (has(8)(insert) && clock.monotonic() < proven) ? 27 : 'ok');
  // Rows of one unit share their rounds.
  await channel.add(7, [now]);
  await channel.add(8, [now]);
  shipper.start();
  await vi.waitFor(() => expect(journal.suspects.rows).toBe(2), { timeout: 30_000 });
  proven = clock.monotonic() + 5 * 60_000;
  await vi.waitFor(() => expect(journal.suspects.rows).toBe(1), { timeout: 30_000 });
  // The round in which row 8 was stored, and one more.
  const before = refusals;
  await vi.waitFor(() => expect(refusals).toBeGreaterThan(before + 1), { timeout: 30_000 });
  expect(journal.quarantine.entries).toBe(0);
  full = false;
  await vi.waitFor(() => expect(journal.quarantine.entries).toBe(1), { timeout: 30_000 });
  await emptied(channel);
});

test('the control row is read back as what it is', async () => {
  const channel = await openChannel();
  standIn.behave = (insert) => (has(7)(insert) ? 27 : 'ok');
  await channel.add(7, [now]);
  await vi.waitFor(() => expect(channel.journal.suspects.rows).toBe(1), { timeout: 30_000 });
  const control = standIn.inserts.find(has(0))!;
  expect(readBlock(control.body)).toMatchObject([{ device: 0, key: 'control', ts: 0 }]);
});
