/** When a lane reads rows. Stores and faults are in test/crash/. */
import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { late, live } from '../journal/journal.ts';
import { keyOf } from '../telemetry/keys.ts';
import { Rows } from '../telemetry/rows.ts';
import { LaneLoop } from './lane.ts';
import { type ShipDeps, shipMetrics } from './ship-deps.ts';
import type { WideRows } from './wide-rows.ts';

test('a commit without rows of a lane does not wake the lane', async () => {
  const registry = new Metrics();
  let untaken = 0;
  let looked = 0;
  const deps = {
    clock,
    registry,
    metrics: shipMetrics(registry),
    sleep: (_ms: number, signal: AbortSignal) =>
      new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true })),
    journal: {
      laneTaken: () => 0n,
      rowsUntaken: () => {
        looked += 1;
        return untaken;
      },
      next: async () => {
        untaken = 0;
      },
    },
    notes: { unfinished: () => undefined, earlierMarks: [] },
    shards: { all: [{}] },
    controls: [{}],
  };
  const lane = new LaneLoop(late, { busy: false } as WideRows, deps as unknown as ShipDeps);
  lane.start();
  looked = 0;
  for (let commit = 0; commit < 100; commit += 1) {
    lane.wake();
    await Promise.resolve();
  }
  // One read for each commit: the lane itself continues to sleep.
  expect(looked).toBe(100);
  // As many as are shipped without a wait.
  untaken = 10_000;
  lane.wake();
  await expect.poll(() => untaken).toBe(0);
  await lane.stop();
});

const block = blockOfOneRow();

function blockOfOneRow(): Buffer {
  const rows = new Rows();
  rows.addDouble(keyOf('temperature')!, 21.5);
  rows.endRecord(1, 1_000_000);
  return Buffer.concat(rows.encode({ order: 0n, micros: 0, firstPlace: 0 }));
}

/** Runs a live lane that always has rows, until `isOver`; returns when it inserted, by its own clock. */
async function insertTimes(
  from: number,
  settings: Partial<ShipDeps>,
  isOver: (inserts: readonly number[], now: number) => boolean,
): Promise<number[]> {
  const registry = new Metrics();
  const virtual = { ms: from, now: () => virtual.ms, monotonic: () => virtual.ms };
  const inserts: number[] = [];
  const hasEnded = () => isOver(inserts, virtual.ms);
  const deps = {
    clock: virtual,
    registry,
    metrics: shipMetrics(registry),
    intervalMsMin: 250,
    intervalMsMax: 1000,
    rowsMax: 400_000,
    shards: { all: [{ insertBlocks: async () => ({ repeated: false }) }] },
    controls: [{}],
    sleep: async (ms: number, signal: AbortSignal) => {
      const aborted = () => new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
      if (hasEnded() || ms > 2_000) await aborted();
      else virtual.ms += ms;
    },
    journal: {
      laneTaken: () => 0n,
      laneShipped: () => 0n,
      rowsUntaken: () => (hasEnded() ? 0 : 1),
      next: async () => {
        inserts.push(virtual.ms);
        return { lane: live, payloads: [block], orders: [0n], orderMin: 0n, orderMax: 0n, rows: 1 };
      },
      confirm: async () => {},
    },
    notes: { unfinished: () => undefined, earlierMarks: [], ended: () => {} },
    onShipped: () => {},
    ...settings,
  };
  const lane = new LaneLoop(live, { busy: false } as WideRows, deps as unknown as ShipDeps);
  lane.start();
  await expect.poll(hasEnded).toBe(true);
  await lane.stop();
  return inserts;
}

test.each([
  [1, 250],
  [2, 250],
  [6, 750],
  [8, 1000],
  [240, 1000],
])('with %i workers of all hosts each one inserts every %i ms', async (workers, intervalMs) => {
  const inserts = await insertTimes(1_000_000, { fleetWorkers: () => workers }, (_, now) => now > 1_020_000);
  const waits = inserts.slice(1).map((at, i) => Math.round(at - inserts[i]!));
  expect(new Set(waits)).toEqual(new Set([intervalMs]));
});

test('while senders wait, the lanes of all processes of a host start at the same times', async () => {
  // Milliseconds since the boot of the host; the clocks of the processes began at other times.
  const boot = 1_000_033;
  for (const hostShiftMs of [0, 12_345.6]) {
    const settings = { callersWait: true, hostShiftMs };
    const inserts = await insertTimes(boot - hostShiftMs, settings, ({ length }) => length === 5);
    // The first start is at once, because the lane was idle.
    const expected = [boot, 1_000_100, 1_000_150, 1_000_200, 1_000_250];
    expect(inserts.map((at) => Math.round(at + hostShiftMs))).toEqual(expected);
  }
});

test('while senders wait, a shorter longest interval of the settings counts', async () => {
  const settings = { callersWait: true, hostShiftMs: 0, intervalMsMin: 10, intervalMsMax: 20 };
  const inserts = await insertTimes(1_000_000, settings, ({ length }) => length === 4);
  expect(inserts).toEqual([1_000_000, 1_000_020, 1_000_040, 1_000_060]);
});

test.each([
  [true, 50],
  [false, 320],
])('while senders wait, eight workers insert 25 times a second at most: joined %s', async (joinsInserts, everyMs) => {
  const settings = { callersWait: true, joinsInserts, fleetWorkers: () => 8 };
  const inserts = await insertTimes(960_000, settings, ({ length }) => length === 4);
  expect(inserts).toEqual([0, 1, 2, 3].map((n) => 960_000 + n * everyMs));
});
