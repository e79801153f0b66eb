import { expect, test } from 'vitest';
import { Batches } from './batches.ts';

test('calls of one turn share a batch, and calls during a batch share the next', async () => {
  const queue: number[] = [];
  const batches: number[][] = [];
  let during = [3, 4];
  const gathering = new Batches(
    () => queue.length > 0,
    async () => {
      batches.push(queue.splice(0));
      for (const item of during) {
        queue.push(item);
        gathering.wake();
      }
      during = [];
      await new Promise((resolve) => setImmediate(resolve));
    },
  );
  queue.push(1);
  gathering.wake();
  queue.push(2);
  gathering.wake();
  expect([gathering.isRunning, batches]).toEqual([true, []]);
  await gathering.idle();
  expect([gathering.isRunning, batches]).toEqual([
    false,
    [
      [1, 2],
      [3, 4],
    ],
  ]);
  queue.push(5);
  gathering.wake();
  await gathering.idle();
  expect(batches.at(-1)).toEqual([5]);
});
