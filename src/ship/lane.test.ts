/** When a lane looks for rows. Stores and faults are in test/crash/. */
import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { late } from '../journal/journal.ts';
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
  };
  const lane = new LaneLoop(late, { busy: false } as WideRows, deps as unknown as ShipDeps);
  lane.start();
  looked = 0;
  for (let commit = 0; commit < 100; commit += 1) {
    lane.wake();
    await Promise.resolve();
  }
  // One look for each commit: the lane itself sleeps on.
  expect(looked).toBe(100);
  // As many as are shipped without a wait.
  untaken = 10_000;
  lane.wake();
  await expect.poll(() => untaken).toBe(0);
  await lane.stop();
});
