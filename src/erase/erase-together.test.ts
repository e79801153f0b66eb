import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { EraseTogether } from './erase-together.ts';
import type { Erased } from './tombstone-store.ts';

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
    together.add({ device, keys: ['k'], aheadWriters: [], aheadOrders: [] } as unknown as Erased, tenantId, until).then(
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
