/** Shipping into a real ClickHouse: refused rows, repeated inserts, and the effect of deletes. */

import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { systemClock as clock } from '../../src/base/clock.ts';
import { dayMs } from '../../src/base/durations.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { Shards } from '../../src/clickhouse/shards.ts';
import { insertLatest, insertTelemetry } from '../../src/clickhouse/statements.ts';
import { eraseSeries } from '../../src/erase/erase-in-clickhouse.ts';
import { OrderClock } from '../../src/ingest/order-number.ts';
import type { Journal } from '../../src/journal/journal.ts';
import { openJournal } from '../../src/journal/open-journal.ts';
import { listQuarantine, readQuarantined } from '../../src/journal/quarantine.ts';
import { Shipper } from '../../src/ship/ship.ts';
import { writeVarint } from '../../src/telemetry/block.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { startTestClickHouse, type TestClickHouse } from '../harness/clickhouse-server.ts';
import { fastClock } from '../harness/fast-clock.ts';
import { silentLog } from '../harness/silent-log.ts';
import { noStoredDeletes } from '../harness/stored-deletes.ts';

let embedded: TestClickHouse;
let home: string;
let journals = 0;
let devices = 100;

beforeAll(async () => {
  embedded = await startTestClickHouse();
  home = mkdtempSync(join(tmpdir(), 'millrace-ship-'));
}, 60_000);

afterAll(async () => {
  await embedded.stop();
  rmSync(home, { recursive: true, force: true });
});

interface Channel {
  dir: string;
  journal: Journal;
  shipper: Shipper;
  orders: OrderClock;
  stop(): Promise<void>;
}

async function openChannel(factor = 1, lateSecondsMax = 1, earlier = ''): Promise<Channel> {
  journals += 1;
  const dir = earlier || join(home, `worker-${journals}`);
  const shipClock = fastClock(factor);
  const journal = await openJournal({ dir, clock: shipClock, log: silentLog, segmentBytes: 4 * 1024 * 1024 });
  const shipper = new Shipper({
    journal,
    shards: new Shards([embedded.clickhouse]),
    clock: shipClock,
    sleep: shipClock.sleep,
    log: silentLog,
    metrics: new Metrics(),
    intervalMsMin: 10,
    intervalMsMax: 50,
    rowsMax: 100_000,
    lateSecondsMax,
    timeoutMs: 10_000,
    onShipped: () => {},
  });
  const stop = async () => {
    await shipper.stop();
    await journal.close();
  };
  return { dir, journal, shipper, orders: new OrderClock(clock, journals, journal.orderMax), stop };
}

type Point = [key: string, ts: number, num: number];

async function append(channel: Channel, device: number, points: Point[], lane: 0 | 1 = 0): Promise<void> {
  const order = channel.orders.next();
  await channel.journal.append([{ lane, order, rows: points.length, parts: [blockOf(order, device, points)] }]);
}

function blockOf(order: bigint, device: number, points: Point[]): Buffer {
  const rows = new Rows();
  for (const [key, ts, num] of points) {
    rows.addDouble(keyOf(key)!, num);
    rows.endRecord(device, ts);
  }
  return Buffer.concat(rows.encode({ order, micros: 0, firstPlace: 0 }));
}

async function stored(table: string, device: number): Promise<[string, number, number][]> {
  const sql = `SELECT toString(key) AS key, ts, num FROM ${table} FINAL WHERE device = {device:UInt64} AND kind != 0 ORDER BY key, ts`;
  const found = await embedded.clickhouse.rows<{ key: string; ts: string; num: number }>(sql, { device });
  return found.map(({ key, ts, num }) => [key, Number(ts), num]);
}

async function shipAll(channel: Channel, start = true): Promise<void> {
  if (start) channel.shipper.start();
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), { timeout: 30_000 });
  await channel.stop();
}

/** Bytes that are no block, as a program with wrong code or another program could put them between right checksums. */
function noBlocks(block: Buffer): Record<string, Buffer> {
  const rowsAt = 1;
  const claim = (rows: number) => {
    const target = Buffer.alloc(16);
    const end = writeVarint(target, 0, rows);
    return Buffer.concat([block.subarray(0, rowsAt), target.subarray(0, end), block.subarray(rowsAt + 1)]);
  };
  const key = block.indexOf('LowCardinality(String)') + 'LowCardinality(String)'.length;
  const keys = Buffer.from(block);
  keys.writeUInt32LE(2 ** 31 - 1, key + 16);
  const otherName = Buffer.from(block);
  otherName.write('devicf', block.indexOf('device'));
  const otherType = Buffer.from(block);
  otherType.write('UInt65', block.indexOf('UInt64'));
  return {
    text: Buffer.from('this is no block at all'),
    noise: randomBytes(300),
    empty: Buffer.alloc(0),
    'a cut block': block.subarray(0, -1),
    'a block and more': Buffer.concat([block, Buffer.from('x')]),
    'two rows instead of one': claim(2),
    'a column of 34 GB': claim(2 ** 32 - 1),
    'two billion keys': keys,
    'an unknown column': otherName,
    'an unknown type': otherType,
  };
}

test('bytes that are no block go to quarantine alone and at once; the frames around them are stored', async () => {
  const device = devices++;
  const channel = await openChannel();
  const bytes = noBlocks(blockOf(channel.orders.next(), device, [['a', 999, 1]]));
  let points = 0;
  const addPoint = () => append(channel, device, [['a', 1000 + points, points++]]);
  for (const payload of Object.values(bytes)) {
    await addPoint();
    await channel.journal.append([{ lane: 0, order: channel.orders.next(), rows: 1, parts: [payload] }]);
  }
  await addPoint();
  await shipAll(channel);
  expect(await stored('telemetry', device)).toEqual(Array.from({ length: points }, (_, i) => ['a', 1000 + i, i]));
  const entries = await listQuarantine(channel.dir);
  const kept = await Promise.all(entries.map(async (entry) => (await readQuarantined(entry)).toString('hex')));
  expect(kept.sort()).toEqual(
    Object.values(bytes)
      .map((payload) => payload.toString('hex'))
      .sort(),
  );
  for (const { kind, reason } of entries) expect({ kind, reason }).toEqual({ kind: 'gap', reason: 'no block' });
});

test('the same frames shipped twice are stored once', async () => {
  const device = devices++;
  const channel = await openChannel();
  await append(channel, device, [
    ['a', 1, 1],
    ['b', 1, 2],
  ]);
  const unit = await channel.journal.next(0, { rowsMax: 100, bytesMax: 1e6 });
  const body = Buffer.concat(unit!.payloads);
  for (let i = 0; i < 3; i += 1) {
    await embedded.clickhouse.insertBlocks(insertTelemetry, body);
    await embedded.clickhouse.insertBlocks(insertLatest, body);
  }
  // The process ends before the unit is confirmed: the next one ships the frames again.
  await channel.stop();
  await shipAll(await openChannel(1, 1, channel.dir));
  for (const table of ['telemetry', 'latest']) {
    expect(await stored(table, device)).toEqual([
      ['a', 1, 1],
      ['b', 1, 2],
    ]);
  }
});

test('the later write of one (device, key, ts) counts, in the same frame too, in both tables', async () => {
  const device = devices++;
  const channel = await openChannel();
  await append(channel, device, [
    ['a', 5, 1],
    ['a', 5, 2],
    ['b', 9, 1],
    ['b', 3, 7],
  ]);
  await append(channel, device, [['b', 3, 8]]);
  await shipAll(channel);
  expect(await stored('telemetry', device)).toEqual([
    ['a', 5, 2],
    ['b', 3, 8],
    ['b', 9, 1],
  ]);
  expect(await stored('latest', device)).toEqual([
    ['a', 5, 2],
    ['b', 9, 1],
  ]);
});

test('a delete takes what was written up to its order, and nothing that came later', async () => {
  const device = devices++;
  const channel = await openChannel();
  await append(channel, device, [
    ['a', 100, 1],
    ['a', 200, 1],
    ['b', 100, 1],
  ]);
  const order = channel.orders.next().toString();
  await append(channel, device, [['a', 150, 2]]);
  await shipAll(channel);
  const { clickhouse } = embedded;
  const erased = { id: 1, device, keys: ['a'], startTs: 100, endTs: 200, orderNumber: order, latest: 'keep' as const };
  await eraseSeries({ clickhouse, cluster: '', msLeft: () => 30_000, deletes: noStoredDeletes, mayHaveBegun: false }, [
    { ...erased, aheadWriters: [], aheadOrders: [] },
  ]);
  expect(await stored('telemetry', device)).toEqual([
    ['a', 150, 2],
    ['a', 200, 1],
    ['b', 100, 1],
  ]);
});

test('while ClickHouse is unavailable rows wait; afterwards they arrive once', async () => {
  const device = devices++;
  const channel = await openChannel();
  process.kill(embedded.server.pid, 'SIGSTOP');
  channel.shipper.start();
  await append(channel, device, [['a', 1, 1]]);
  channel.shipper.wake();
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(channel.journal.empty).toBe(false);
  process.kill(embedded.server.pid, 'SIGCONT');
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), { timeout: 30_000 });
  await channel.stop();
  expect(await stored('telemetry', device)).toEqual([['a', 1, 1]]);
});

test('one message of 250 days is stored whole, in both tables, and does not delay other rows', async () => {
  const device = devices++;
  const channel = await openChannel();
  const first = Date.UTC(2021, 0, 1);
  const days = Array.from({ length: 250 }, (_, i): [string, number, number] => ['a', first + i * dayMs, i]);
  await append(channel, device, days, 1);
  await append(channel, device, [['b', Date.now() - 5 * dayMs, 1]], 1);
  await append(channel, device, [['c', Date.now(), 1]]);
  channel.shipper.start();
  await vi.waitFor(async () => expect((await stored('telemetry', device)).map(([key]) => key)).toContain('c'), {
    timeout: 30_000,
  });
  await shipAll(channel, false);
  expect(await stored('telemetry', device)).toHaveLength(252);
  expect((await stored('latest', device)).slice(0, 1)).toEqual([['a', first + 249 * dayMs, 249]]);
}, 120_000);

test('late rows of other devices are stored while a message of 1 200 days is; a stop in between loses nothing', async () => {
  const device = devices++;
  const others = [devices++, devices++, devices++];
  // Late rows wait for half a minute here, so in the time of this test only the allowance for a few rows lets the
  // others be inserted.
  const channel = await openChannel(1, 30);
  const first = Date.UTC(2021, 0, 1);
  const days = Array.from({ length: 1_200 }, (_, i): [string, number, number] => ['a', first + i * dayMs, i]);
  const count = async (of: number) => (await stored('telemetry', of)).length;
  channel.shipper.start();
  await append(channel, device, days, 1);
  const before = channel.journal.laneShipped(1);
  channel.shipper.wake();
  await vi.waitFor(async () => expect(await count(device)).toBeGreaterThan(0), { timeout: 30_000 });
  for (const other of others) {
    await append(channel, other, [['b', first + 77 * dayMs, 1]], 1);
    channel.shipper.wake();
    await vi.waitFor(async () => expect(await count(other)).toBe(1), { timeout: 30_000 });
  }
  // The message is not complete, so no later frame counts as shipped, neither for the position nor for deletes.
  expect(await count(device)).toBeLessThan(1_200);
  expect(channel.journal.rowsWaiting(1)).toBe(1_203);
  expect(channel.journal.laneShipped(1)).toBe(before);
  await channel.stop();
  const again = await openChannel(1, 30, channel.dir);
  expect(again.journal.rowsWaiting(1)).toBe(1_203);
  again.shipper.start();
  await vi.waitFor(() => expect(again.journal.empty).toBe(true), { timeout: 120_000 });
  await again.stop();
  expect(await stored('telemetry', device)).toEqual(days);
  expect(await stored('latest', device)).toEqual([days.at(-1)]);
  for (const other of others) expect(await count(other)).toBe(1);
}, 180_000);

test('what waits for company is shipped at once when a delete waits for it', async () => {
  const device = devices++;
  const channel = await openChannel(1, 3_600);
  const old = (from: number) => Array.from({ length: 100 }, (_, n): [string, number, number] => ['a', from + n, 1]);
  channel.shipper.start();
  // The first rows use up the allowance.
  await append(channel, device, old(0), 1);
  channel.shipper.wake();
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), { timeout: 30_000 });
  await append(channel, device, old(100), 1);
  channel.shipper.wake();
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(channel.journal.empty).toBe(false);
  channel.shipper.flush();
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), { timeout: 30_000 });
  await channel.stop();
  expect(await stored('telemetry', device)).toHaveLength(200);
});
