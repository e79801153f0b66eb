/**
 * Shipping into several shards, of which one refuses, hangs or is dead. The shards are stand-ins;
 * test/long/shards.test.ts has real engines.
 */

import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { dayMs } from '../../src/base/durations.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { openClickHouse } from '../../src/clickhouse/client.ts';
import { bucketCount, firstShardMap, noShard, Shards } from '../../src/clickhouse/shards.ts';
import { OrderClock } from '../../src/ingest/order-number.ts';
import { realDisk } from '../../src/journal/disk.ts';
import type { Lane } from '../../src/journal/journal.ts';
import { openJournal } from '../../src/journal/open-journal.ts';
import { Shipper } from '../../src/ship/ship.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { StandIn } from '../harness/clickhouse-stand-in.ts';
import { fastClock } from '../harness/fast-clock.ts';
import { silentLog } from '../harness/silent-log.ts';

const now = Date.now();
let home: string;
let standIns: StandIn[];
let shards: Shards;
let count = 0;
let running: { stop(): Promise<void> } | undefined;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'millrace-ship-shards-'));
});

afterAll(() => rmSync(home, { recursive: true, force: true }));

beforeEach(async () => {
  standIns = await Promise.all([StandIn.start(), StandIn.start(), StandIn.start()]);
  const options = { user: 'u', password: '', database: 'm', log: silentLog };
  shards = new Shards(standIns.map(({ url }, shard) => openClickHouse({ ...options, url, shard })));
  shards.map = firstShardMap(3, 'none');
});

afterEach(async () => {
  for (const standIn of standIns) standIn.behave = () => 'ok';
  await running?.stop();
  running = undefined;
  await shards.close();
  await Promise.all(standIns.map((standIn) => standIn.stop()));
});

async function openChannel({
  dir = '',
  factor = 20,
  servers = shards,
  isReplicated = false,
  shardBytesMax = 1e9,
  disk = realDisk,
} = {}) {
  count += 1;
  const own = dir || join(home, `worker-${count}`);
  const clock = fastClock(factor);
  const journal = await openJournal({ dir: own, disk, clock, log: silentLog, segmentBytes: 4 * 1024 * 1024 });
  const delayed: bigint[] = [];
  const delayedDevices = new Set<number>();
  const stored: bigint[] = [];
  const shipper = new Shipper({
    journal,
    shards: servers,
    clock,
    sleep: clock.sleep,
    log: silentLog,
    metrics: new Metrics(),
    intervalMsMin: 250,
    intervalMsMax: 1000,
    rowsMax: 400_000,
    lateSecondsMax: 1,
    timeoutMs: 2_000,
    isReplicated,
    shardBytesMax,
    onShipped: () => {},
    onDelayed: (_, orders, waits) => {
      delayed.push(...orders);
      for (const device of all) if (waits!(device)) delayedDevices.add(device);
    },
    onFramesStored: (_, orders) => stored.push(...orders),
  });
  const orders = new OrderClock({ now: () => Date.now(), monotonic: () => 0 }, 1, journal.orderMax);
  /** One frame with a row of each device at each time. Returns its order. */
  const add = async (devices: number[], times: number[], lane: Lane = 0): Promise<bigint> => {
    const rows = new Rows();
    for (const device of devices) {
      for (const ts of times) {
        rows.addDouble(keyOf('a')!, ts % 1000);
        rows.endRecord(device, ts);
      }
    }
    const order = orders.next();
    const parts = rows.encode({ order, micros: 0, firstPlace: 0 });
    await journal.append([{ lane, order, rows: rows.count, parts }]);
    shipper.wake();
    return order;
  };
  const stop = async () => {
    await shipper.stop();
    await journal.close();
  };
  const channel = { dir: own, journal, delayed, delayedDevices, stored, add, stop };
  running = channel;
  shipper.start();
  return channel;
}

const devicesOf = (shard: number, table: 'telemetry' | 'latest' = 'telemetry') =>
  [...new Set(standIns[shard]!.stored(table).map(({ device }) => device))].sort((a, b) => a - b);
const some = (from: number, rows: number) => Array.from({ length: rows }, (_, i) => from + i);
const all = some(1, 9);
const within = { timeout: 30_000 };

test('each shard gets the rows of its devices, in both tables', async () => {
  const channel = await openChannel();
  await channel.add(all, some(now, 20));
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  for (const shard of [0, 1, 2]) {
    const own = all.filter((device) => device % 3 === shard);
    expect([devicesOf(shard), devicesOf(shard, 'latest')]).toEqual([own, own]);
    expect(standIns[shard]!.stored()).toHaveLength(own.length * 20);
  }
});

test('nothing is shipped before the map is known', async () => {
  shards.map = undefined;
  const channel = await openChannel();
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(channel.journal.rowsUntaken(0)).toBe(0), within);
  expect(standIns.flatMap(({ inserts }) => inserts)).toEqual([]);
  shards.map = firstShardMap(3, 'some');
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  expect([devicesOf(0), devicesOf(1), devicesOf(2)]).toEqual([all, [], []]);
});

for (const [name, answer] of [
  ['refuses rows', 252],
  ['does not answer', 'none'],
] as const) {
  test(`a shard that ${name} stops only its own rows, which are stored once when it works again`, async () => {
    standIns[1]!.behave = () => answer;
    const channel = await openChannel();
    let last = await channel.add(all, some(now, 20));
    await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
    for (let n = 1; n <= 5; n += 1) {
      last = await channel.add(all, some(now + 100 * n, 20));
      await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
    }
    // Rows of other days as well, of more days than the lane itself stores.
    await channel.add(
      all,
      some(0, 150).map((day) => now - (10 + day) * dayMs),
      1,
    );
    await vi.waitFor(() => expect(channel.journal.rowsWaiting(1)).toBe(0), within);
    for (const shard of [0, 2]) expect(standIns[shard]!.stored()).toHaveLength(3 * (6 * 20 + 150));
    expect(devicesOf(1)).toEqual([]);
    expect([channel.journal.shardBacklog.shards(), channel.journal.shardBacklog.rows]).toEqual([
      [1],
      3 * (6 * 20 + 150),
    ]);
    // Deletes and acknowledgements know that rows are missing.
    expect(channel.journal.orderShipped()).toBeLessThan(channel.journal.laneShipped(0));
    expect(channel.delayed).toContain(last);
    expect([...channel.delayedDevices]).toEqual([1, 4, 7]);

    standIns[1]!.behave = () => 'ok';
    await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
    expect(standIns[1]!.stored()).toHaveLength(3 * (6 * 20 + 150));
    // Later rows go to the shard at once.
    const direct = await channel.add([1, 2, 3], [now + 5_000]);
    await vi.waitFor(() => expect(channel.stored).toContain(direct), within);
    expect(channel.delayed).not.toContain(direct);
    expect(channel.journal.empty).toBe(true);
  });
}

test('a shard that works again gets its rows from the lanes again, also while rows come all the time', async () => {
  standIns[1]!.behave = () => 252;
  const channel = await openChannel();
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(channel.journal.shardBacklog.holds(1)).toBe(true), within);
  // Rows of the backlog take longer than the lanes need for the next ones.
  standIns[1]!.behave = ({ isPatient }) => (isPatient ? { okMs: 100 } : 'ok');
  const before = standIns[1]!.inserts.length;
  const isOwn = (row: { device: number }) => all.includes(row.device);
  const isDirect = () =>
    standIns[1]!.inserts.slice(before).some(({ isPatient, rows }) => !isPatient && rows.some(isOwn));
  const deadline = performance.now() + 20_000;
  for (let n = 1; !isDirect() && performance.now() < deadline; n += 1) {
    await channel.add(all, [now + n]);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  expect(isDirect()).toBe(true);
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
});

test('a process that is killed while a shard is dead loses nothing, at any moment', async () => {
  standIns[2]!.behave = () => 'none';
  const channel = await openChannel({ factor: 100 });
  const copies: string[] = [];
  for (let n = 0; n < 12; n += 1) {
    await channel.add(all, [now + n]);
    if (n % 3 === 1) await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
    copies.push(join(home, `copy-${count}-${n}`));
    cpSync(channel.dir, copies.at(-1)!, { recursive: true });
  }
  await channel.stop();
  standIns[2]!.behave = () => 'ok';
  const whole = standIns[0]!.stored().length;
  expect(whole).toBeGreaterThan(0);
  for (const [n, dir] of copies.entries()) {
    const again = await openChannel({ dir, factor: 100 });
    await vi.waitFor(() => expect(again.journal.empty).toBe(true), within);
    await again.stop();
    const found = standIns.flatMap((standIn) => standIn.stored()).filter(({ ts }) => ts <= now + n);
    expect(found).toHaveLength(all.length * (n + 1));
  }
});

test('frames of a replicated stream are confirmed only when every shard has their rows', async () => {
  standIns[1]!.behave = () => 252;
  const channel = await openChannel({ factor: 100, isReplicated: true });
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(devicesOf(2)).toEqual([2, 5, 8]), within);
  const refused = standIns[1]!.inserts.length;
  // Of the clock of this test, many times the time after which a part moves to the backlog of its shard.
  await vi.waitFor(() => expect(standIns[1]!.inserts.length).toBeGreaterThan(refused + 20), within);
  expect([channel.journal.rowsWaiting(0), channel.journal.shardBacklog.isEmpty]).toEqual([9, true]);
  standIns[1]!.behave = () => 'ok';
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  expect(devicesOf(1)).toEqual([1, 4, 7]);
});

test('rows stay in the lane while as many as may wait beside it for their shard', async () => {
  standIns[1]!.behave = () => 252;
  const channel = await openChannel({ factor: 100, shardBytesMax: 1 });
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
  await channel.add(all, [now + 1]);
  await vi.waitFor(() => expect(standIns[2]!.stored()).toHaveLength(6), within);
  const refused = standIns[1]!.inserts.length;
  await vi.waitFor(() => expect(standIns[1]!.inserts.length).toBeGreaterThan(refused + 5), within);
  expect([channel.journal.rowsWaiting(0), channel.journal.shardBacklog.rows]).toEqual([9, 3]);
  standIns[1]!.behave = () => 'ok';
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  expect(standIns[1]!.stored()).toHaveLength(6);
});

test('rows of a file that could not be removed, although they are stored, block no later rows', async () => {
  standIns[1]!.behave = () => 252;
  let failures = 0;
  const remove = async (path: string) => {
    if (path.endsWith('.rows') && standIns[1]!.stored().length > 0 && failures++ < 2) throw new Error('EIO');
    await realDisk.remove(path);
  };
  const channel = await openChannel({ disk: { ...realDisk, remove } });
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
  standIns[1]!.behave = () => 'ok';
  await vi.waitFor(() => expect(failures).toBeGreaterThan(0), within);
  await channel.add(all, [now + 1]);
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  expect([devicesOf(1), failures > 2]).toEqual([[1, 4, 7], true]);
});

for (const left of [1, 2]) {
  test(`rows that wait for shards are stored when the settings name ${left} of the three servers later`, async () => {
    for (const standIn of standIns) standIn.behave = () => 252;
    const channel = await openChannel();
    await channel.add(all, [now]);
    await vi.waitFor(() => expect(channel.journal.shardBacklog.shards().sort()).toEqual([0, 1, 2]), within);
    await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
    await channel.stop();
    for (const standIn of standIns) standIn.behave = () => 'ok';
    const servers = new Shards(shards.all.slice(0, left));
    if (left > 1) servers.map = { ...firstShardMap(left, 'none'), version: 9 };
    const again = await openChannel({ dir: channel.dir, servers });
    await vi.waitFor(() => expect(again.journal.empty).toBe(true), within);
    for (const shard of [0, 1, 2]) expect(devicesOf(shard)).toEqual(all.filter((device) => device % left === shard));
  });
}

test('rows of a moving bucket go to both shards', async () => {
  const map = firstShardMap(3, 'none');
  map.movesTo[4 % bucketCount] = 2;
  shards.map = map;
  const channel = await openChannel();
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  expect([devicesOf(1), devicesOf(2)]).toEqual([
    [1, 4, 7],
    [2, 4, 5, 8],
  ]);
  expect(map.movesTo[1]).toBe(noShard);
});

test('a row that its shard alone refuses is a suspect, and is stored there in the end', async () => {
  standIns[1]!.behave = ({ rows }) => (rows.some(({ device }) => device === 4) ? 27 : 'ok');
  const channel = await openChannel({ factor: 1000 });
  await channel.add(all, [now]);
  await vi.waitFor(() => expect(channel.journal.suspects.rows).toBe(1), within);
  await vi.waitFor(() => expect(channel.journal.rowsWaiting(0)).toBe(0), within);
  await vi.waitFor(() => expect(devicesOf(1)).toEqual([1, 7]), within);
  standIns[1]!.behave = () => 'ok';
  await vi.waitFor(() => expect(channel.journal.empty).toBe(true), within);
  expect([devicesOf(0), devicesOf(1), devicesOf(2)]).toEqual([
    [3, 6, 9],
    [1, 4, 7],
    [2, 5, 8],
  ]);
});
