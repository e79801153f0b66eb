/** Late frames of many days beside their lane: the cap. */
import { expect, test, vi } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { ShipUnit } from '../journal/journal.ts';
import { type ShipDeps, shipMetrics } from './ship-deps.ts';
import { WideRows } from './wide-rows.ts';

test('a part that waited for room is stored, also when nothing else waits by then', async () => {
  const registry = new Metrics();
  const confirmed: ShipUnit[] = [];
  const answers: (() => void)[] = [];
  const parts = {
    clock,
    registry,
    metrics: shipMetrics(registry),
    timeoutMs: 30_000,
    sleep: async () => {},
    shards: {
      all: [{ insertBlocks: () => new Promise((resolve) => answers.push(() => resolve({ repeated: false }))) }],
    },
    controls: [{}],
    journal: {
      confirm: async (unit: ShipUnit) => confirmed.push(unit),
      laneShipped: () => 0n,
    },
    notes: {
      isEmpty: true,
      earlierMarks: [],
      unfinished: () => undefined,
      stored: () => {},
      takesLong: () => {},
      ended: () => {},
    },
    onShipped: () => {},
  };
  const wide = new WideRows(parts as unknown as ShipDeps);
  const { signal } = new AbortController();
  // Two of these frames exceed the cap of held bytes.
  const take = () => {
    const unit = { payloads: [], orders: [] } as unknown as ShipUnit;
    const part = { payloads: [new Uint8Array(20 * 1024 * 1024)], orders: [1n], rows: 1, orderMin: 1n };
    return wide.take(unit, part, signal);
  };
  expect(await take()).toBe(true);
  const second = take();
  for (const stored of [1, 2]) {
    // One insert for each table.
    await vi.waitFor(() => expect(answers).toHaveLength(2), 20_000);
    for (const answer of answers.splice(0)) answer();
    await vi.waitFor(() => expect(confirmed).toHaveLength(stored), 20_000);
  }
  expect(await second).toBe(true);
  expect(wide.busy).toBe(false);
  await wide.stop();
});
