/** The journal on a real directory, as the shipping uses it. Faults of the disk are in test/crash/journal.test.ts. */

import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { realDisk } from './disk.ts';
import { readWriterId, storeWriterId } from './identity.ts';
import type { Journal, Lane, ShipUnit } from './journal.ts';
import { type OpenJournalDeps, openJournal } from './open-journal.ts';
import { positionFile } from './position.ts';

const all = { rowsMax: 1e9, bytesMax: 1e9 };
let dir = '';

beforeEach(() => {
  dir = join(mkdtempSync(join(tmpdir(), 'journal-')), 'worker-0');
});

afterEach(() => rmSync(join(dir, '..'), { recursive: true }));

function open(options: Partial<OpenJournalDeps> = {}): Promise<Journal> {
  return openJournal({ dir, log, segmentBytes: 64 * 1024, locked: true, ...options });
}

function frame(order: number, rows = 1, lane: Lane = 0, bytes = 1000) {
  return { lane, order: BigInt(order), rows, parts: [Buffer.from(`${order};`), Buffer.alloc(bytes, order)] };
}

async function orders(journal: Journal, lane: Lane, limits = all): Promise<number[] | undefined> {
  const unit = await journal.next(lane, limits);
  if (!unit) return undefined;
  await journal.confirm(unit);
  return unit.payloads.map((payload) => Number.parseInt(payload.toString('latin1'), 10));
}

test('frames come out by lane, in order, over the borders of segments', async () => {
  const journal = await open();
  const expected: Record<Lane, number[]> = { 0: [], 1: [] };
  for (let order = 1; order <= 200; order += 1) {
    const lane = order % 3 === 0 ? 1 : 0;
    await journal.append([frame(order, 2, lane, 3000)]);
    expected[lane].push(order);
  }
  expect(journal.rowsWaiting(0)).toBe(expected[0].length * 2);
  expect(journal.bytesWaiting(1)).toBeGreaterThan(expected[1].length * 3000);
  expect(await orders(journal, 1)).toEqual(expected[1]);
  expect(await orders(journal, 0)).toEqual(expected[0]);
  expect(await orders(journal, 0)).toBeUndefined();
  expect(journal.backlogBytes).toBe(0);
  expect(journal.empty).toBe(true);
  await journal.close();
  // Confirmed segments have become spare ones, of which only a few are kept.
  expect(readdirSync(dir).filter((name) => /seg$|^spare/.test(name)).length).toBeLessThan(8);
});

test('a unit keeps its limits but never is empty', async () => {
  const journal = await open();
  await journal.append([frame(1, 10), frame(2, 10), frame(3, 50), frame(4, 10)]);
  expect(await orders(journal, 0, { rowsMax: 20, bytesMax: 1e9 })).toEqual([1, 2]);
  expect(await orders(journal, 0, { rowsMax: 20, bytesMax: 1e9 })).toEqual([3]);
  expect(await orders(journal, 0, { rowsMax: 1e9, bytesMax: 10 })).toEqual([4]);
  await journal.close();
});

test('a unit is given out and confirmed once; two reads at once are a bug', async () => {
  const journal = await open();
  await journal.append([frame(1), frame(2), frame(3)]);
  const reading = journal.next(0, all);
  await expect(journal.next(0, all)).rejects.toThrow('BUG');
  const unit = (await reading)!;
  expect(unit).toMatchObject({ frames: 3, rows: 3, orderMin: 1n, orderMax: 3n, orders: [1n, 2n, 3n] });
  expect(await journal.next(0, all)).toBeUndefined();
  expect(await journal.next(1, all)).toBeUndefined();
  await journal.confirm(unit);
  expect(() => journal.confirm(unit)).toThrow('BUG');
  await journal.append([frame(4)]);
  expect([journal.rowsWaiting(0), journal.rowsUntaken(0)]).toEqual([1, 1]);
  await journal.close();
});

test('units of a lane may be open together; the lane moves over a unit when those before it are confirmed', async () => {
  const journal = await open();
  const two = { rowsMax: 2, bytesMax: 1e9 };
  await journal.append([1, 2, 3, 4, 5, 6, 7].map((order) => frame(order)));
  const [first, second, third] = [await journal.next(0, two), await journal.next(0, two), await journal.next(0, two)];
  expect([first, second, third].map((unit) => unit!.orders)).toEqual([
    [1n, 2n],
    [3n, 4n],
    [5n, 6n],
  ]);
  expect([journal.rowsWaiting(0), journal.rowsUntaken(0), journal.laneTaken(0)]).toEqual([7, 1, 6n]);
  await journal.confirm(third!);
  await journal.confirm(second!);
  expect([journal.rowsWaiting(0), journal.laneShipped(0), journal.orderShipped()]).toEqual([7, 0n, 0n]);
  await journal.close();
  // No frame was confirmed before its turn, so all of them come again.
  const again = await open();
  const unit = (await again.next(0, { rowsMax: 1, bytesMax: 1e9 }))!;
  expect(await orders(again, 0)).toEqual([2, 3, 4, 5, 6, 7]);
  expect([again.laneShipped(0), again.rowsUntaken(0), again.laneTaken(0)]).toEqual([0n, 0, 7n]);
  await again.append([frame(8)]);
  expect([again.rowsUntaken(0), again.laneTaken(0)]).toEqual([1, 7n]);
  await again.confirm(unit);
  expect([again.rowsWaiting(0), again.laneShipped(0)]).toEqual([1, 7n]);
  expect(await orders(again, 0)).toEqual([8]);
  expect(again.empty).toBe(true);
  await again.close();
});

test('the memory of a unit is used again when the unit is confirmed, not earlier', async () => {
  const journal = await open();
  const memoryOf = (unit: ShipUnit | undefined) => unit!.payloads[0]!.buffer;
  await journal.append([frame(1), frame(2)]);
  const first = (await journal.next(0, { rowsMax: 1, bytesMax: 1e9 }))!;
  const second = (await journal.next(0, all))!;
  expect(memoryOf(second)).not.toBe(memoryOf(first));
  expect([first, second].map(({ payloads }) => payloads[0]!.toString('latin1', 0, 2))).toEqual(['1;', '2;']);
  await journal.confirm(second);
  await journal.append([frame(3)]);
  const third = (await journal.next(0, all))!;
  expect(third.orders).toEqual([3n]);
  expect(memoryOf(third)).toBe(memoryOf(second));
  expect(first.payloads[0]!.toString('latin1', 0, 2)).toBe('1;');
  await journal.append([frame(4, 1, 1), frame(5, 1, 1)]);
  // Rows of many days are stored for long beside their lane.
  const late = (await journal.next(1, { rowsMax: 1, bytesMax: 1e9 }))!;
  for (const unit of [first, third, late]) await journal.confirm(unit);
  expect(memoryOf(await journal.next(1, all))).not.toBe(memoryOf(late));
  await journal.close();
});

test('two appends at once, or order numbers that fall, are bugs', async () => {
  const journal = await open();
  const first = journal.append([frame(5)]);
  await expect(journal.append([frame(6)])).rejects.toThrow('BUG');
  await first;
  await expect(journal.append([frame(5)])).rejects.toThrow('BUG');
  await journal.append([frame(5, 1, 1), frame(6)]);
  await journal.close();
});

test('what is shipped is known by order number over both lanes', async () => {
  const journal = await open();
  expect(journal.isShipped(100n)).toBe(true);
  await journal.append([frame(10), frame(11, 1, 1), frame(12), frame(13, 1, 1)]);
  expect([journal.orderMax, journal.orderShipped()]).toEqual([13n, 9n]);
  expect(await orders(journal, 0)).toEqual([10, 12]);
  expect([journal.orderShipped(), journal.isShipped(10n), journal.isShipped(11n)]).toEqual([10n, true, false]);
  expect(await orders(journal, 1)).toEqual([11, 13]);
  expect([journal.orderShipped(), journal.isShipped(99n)]).toEqual([13n, true]);
  await journal.close();
});

test('a new start replays what was not confirmed, and gives the first order', async () => {
  const first = await open();
  await first.append([frame(10), frame(11), frame(12, 1, 1)]);
  await orders(first, 0, { rowsMax: 1, bytesMax: 1e9 });
  await first.close();
  const second = await open();
  expect([second.orderMax, second.orderRecovered]).toEqual([12n, 11n]);
  expect(second.oldestUnshippedMs(Date.now())).toBeLessThan(60_000);
  await second.append([frame(20)]);
  expect(await orders(second, 0)).toEqual([11, 20]);
  expect(await orders(second, 1)).toEqual([12]);
  await second.close();
  const third = await open();
  expect([third.orderMax, third.orderRecovered, third.empty]).toEqual([20n, undefined, true]);
  await third.close();
});

test('an append larger than a segment goes into one of its own', async () => {
  const journal = await open();
  await journal.append([frame(1)]);
  await journal.append([frame(2, 1, 0, 200_000)]);
  await journal.append([frame(3)]);
  await journal.close();
  const second = await open();
  expect(await orders(second, 0)).toEqual([1, 2, 3]);
  await second.close();
});

test('a directory of a worker that is gone is shipped and removed', async () => {
  const journal = await open();
  await journal.append([frame(1), frame(2, 1, 1)]);
  await storeWriterId(dir, 7);
  await journal.close();
  const adopted = await open({ adopt: true });
  await expect(adopted.append([frame(9)])).rejects.toThrow('BUG');
  await expect(adopted.discard()).rejects.toThrow('BUG');
  expect(await orders(adopted, 0)).toEqual([1]);
  expect(await orders(adopted, 1)).toEqual([2]);
  await adopted.discard();
  expect(existsSync(dir)).toBe(false);
});

test('a directory with something in quarantine stays, with nothing else in it', async () => {
  const journal = await open();
  await journal.quarantine.add([{ reason: 'refused', payload: Buffer.from('rows'), rows: 2, order: 5n }]);
  await journal.close();
  const adopted = await open({ adopt: true });
  await adopted.discard();
  expect(readdirSync(dir)).toEqual(['quarantine']);
});

test('a memory journal takes appends without syncing them', async () => {
  const journal = await open({ durable: 'none' });
  for (let order = 1; order <= 100; order += 1) await journal.append([frame(order)]);
  expect((await orders(journal, 0))?.length).toBe(100);
  await journal.close();
});

test('an append in flight counts as begun, and no start gives out what is done', async () => {
  const journal = await open();
  const appended = journal.append([frame(10), frame(11)]);
  expect([journal.orderBegun, journal.orderMax]).toEqual([11n, 0n]);
  await appended;
  await journal.append([frame(20)]);
  expect([journal.orderBegun, journal.orderMax, journal.orderDone]).toEqual([20n, 20n, 0n]);
  expect(await orders(journal, 0, { rowsMax: 2, bytesMax: 1e9 })).toEqual([10, 11]);
  expect(journal.orderDone).toBe(11n);
  const next = await open();
  expect(next.orderRecovered! > journal.orderDone).toBe(true);
  expect(next.orderDone).toBe(19n);
  await next.close();
});

test('a writer id is kept, and nonsense is refused', async () => {
  expect(await readWriterId(dir)).toBeUndefined();
  await storeWriterId(dir, 16_383);
  expect(await readWriterId(dir)).toBe(16_383);
  await expect(storeWriterId(dir, 16_384)).rejects.toThrow('out of range');
  const open = async () => Promise.reject(Object.assign(new Error('EIO: i/o error, open'), { code: 'EIO' }));
  await expect(readWriterId(dir, { ...realDisk, open })).rejects.toThrow('cannot be read: EIO');
  for (const torn of ['', '12a', '99999']) {
    writeFileSync(join(dir, 'writer'), torn);
    await expect(readWriterId(dir)).rejects.toThrow(/must hold a number.*table journals/);
  }
});

test('a held journal can be copied while it is shipped and written: the copy has what waited, the end gives files up', async () => {
  const journal = await open();
  for (let order = 1; order <= 60; order += 1) await journal.append([frame(order, 1, order % 5 === 0 ? 1 : 0, 3000)]);
  expect(await orders(journal, 0, { rowsMax: 10, bytesMax: 1e9 })).toHaveLength(10);
  const cut = journal.hold();
  // All is shipped and more is written before the first byte is copied.
  for (let order = 61; order <= 120; order += 1) await journal.append([frame(order, 1, 0, 3000)]);
  while (await orders(journal, 0));
  while (await orders(journal, 1));
  const copy = join(dir, '..', 'worker-1');
  mkdirSync(copy);
  for (const { name, bytes } of cut.segments) {
    writeFileSync(join(copy, name), readFileSync(join(dir, name)).subarray(0, bytes));
  }
  const { cursors, orderHigh } = cut.position;
  writeFileSync(join(copy, 'position'), positionFile({ cursors, orderHigh: BigInt(orderHigh) }));
  const held = readdirSync(dir).length;
  expect(journal.endHold()).toBe(true);
  expect(journal.endHold()).toBe(false);
  await journal.close();
  expect(readdirSync(dir).length).toBeLessThan(held);

  const restored = await openJournal({ dir: copy, log, segmentBytes: 64 * 1024 });
  expect(restored.degraded).toBe(false);
  expect(restored.orderMax).toBe(60n);
  expect(await orders(restored, 1)).toEqual([5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]);
  const waited = Array.from({ length: 60 }, (_, i) => i + 1).filter((order) => order > 12 && order % 5 !== 0);
  expect(await orders(restored, 0)).toEqual(waited);
  await restored.close();
});

test('a disk that runs full ends the hold', async () => {
  let free = 1e9;
  let now = 0;
  const clock = { now: () => Date.now(), monotonic: () => now };
  const journal = await open({ disk: { ...realDisk, freeBytes: async () => free }, clock, freeBytesMin: 1e6 });
  for (let order = 1; order <= 60; order += 1) await journal.append([frame(order, 1, 0, 3000)]);
  const cut = journal.hold();
  const unit = await journal.next(0, { rowsMax: 50, bytesMax: 1e9 });
  await journal.confirm(unit!);
  expect(cut.segments.every(({ name }) => existsSync(join(dir, name)))).toBe(true);
  free = 1.5e6;
  now += 1000;
  journal.freeBytes();
  await expect.poll(() => journal.freeBytes()).toBe(1.5e6);
  await orders(journal, 0);
  expect(existsSync(join(dir, cut.segments[0]!.name))).toBe(false);
  expect(journal.endHold()).toBe(false);
  await journal.close();
});

test('an opening that fails keeps no file open', async () => {
  const journal = await open();
  await journal.append([frame(1), frame(2)]);
  await orders(journal, 0, { rowsMax: 1, bytesMax: 1e9 });
  await journal.close();
  const opened: string[] = [];
  const disk: typeof realDisk = {
    ...realDisk,
    freeBytes: () => Promise.reject(Object.assign(new Error('EIO: i/o error, statfs'), { code: 'EIO' })),
    open: async (path, mode) => {
      const file = await realDisk.open(path, mode);
      opened.push(path);
      const close = file.close.bind(file);
      file.close = () => {
        opened.splice(opened.indexOf(path), 1);
        return close();
      };
      return file;
    },
  };
  await expect(open({ disk, adopt: true })).rejects.toThrow('EIO');
  expect(opened).toEqual([]);
});
