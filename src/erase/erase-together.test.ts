import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { StoredDelete } from './deletes-store.ts';
import { EraseTogether } from './erase-together.ts';

function deleteOf(device: number, key = 'k'): StoredDelete {
  return { device, keys: [key], aheadWriters: [], aheadOrders: [] } as unknown as StoredDelete;
}

/** Batches that end when the test says so, and the devices that each of them has. */
function heldBatches() {
  const running: { devices: number[]; end: () => void }[] = [];
  const together = new EraseTogether(clock, (batch) => {
    return new Promise((end) => running.push({ devices: batch.map(({ device }) => device), end }));
  });
  const until = clock.monotonic() + 60_000;
  return {
    running,
    add: (device: number, tenantId: string, key?: string) => together.add(deleteOf(device, key), tenantId, until),
  };
}

test('the delete of a tenant waits for no batch of another tenant, and shares its own batch with none of its deletes', async () => {
  const { running, add } = heldBatches();
  const own = Array.from({ length: 2 * limits.eraseRangesMax }, (_, device) => add(device, 'a'));
  const other = add(1_000, 'b');
  expect(running.map(({ devices }) => devices)).toEqual([[0], [1_000]]);
  running[1]!.end();
  await other;
  expect(running).toHaveLength(2);
  const next = add(1_001, 'b');
  expect(running[2]!.devices).toEqual([1_001]);
  for (let n = 0; n < running.length; n += 1) {
    running[n]!.end();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all([...own, next]);
  expect(running.map(({ devices }) => devices.length)).toEqual([
    ...[1, 1, 1],
    ...[limits.eraseRangesMax, limits.eraseRangesMax - 1],
  ]);
});

test('deletes that do not fit into a batch are carried out by later batches of their tenant', async () => {
  const { running, add } = heldBatches();
  const long = 'k'.repeat(limits.eraseListBytesMax);
  const own = [0, 1, 2, 3].map((device) => add(device, 'a', long));
  const others = [10, 11, 12].map((device) => add(device, 'b', long));
  for (let n = 0; n < running.length; n += 1) {
    expect(running.length - n).toBeLessThanOrEqual(limits.seriesDeleteBatchesMax);
    running[n]!.end();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all([...own, ...others]);
  expect(running.map(({ devices }) => devices)).toEqual([[0], [10], [1], [11], [2], [12], [3]]);
});

test('tenants take turns with their deletes, and a full queue makes room for the tenant that has none in it', async () => {
  const batches: number[][] = [];
  const together = new EraseTogether(
    clock,
    async (batch) => {
      batches.push(batch.map(({ device }) => device));
      await new Promise((resolve) => setImmediate(resolve));
    },
    2 * limits.eraseRangesMax,
  );
  const until = clock.monotonic() + 60_000;
  const add = (device: number, tenantId: string) =>
    together.add(deleteOf(device), tenantId, until).then(
      () => 'done',
      ({ message }: Error) => message,
    );
  // The first delete is carried out immediately, and the others wait.
  const own = Array.from({ length: 2 * limits.eraseRangesMax + 1 }, (_, device) => add(device, 'a'));
  const other = add(1_000, 'b');
  expect(await other).toBe('done');
  expect(batches.findIndex((batch) => batch.includes(1_000))).toBe(1);
  const outcomes = await Promise.all(own);
  expect(outcomes.filter((outcome) => outcome !== 'done')).toEqual(['many deletes wait']);
});
