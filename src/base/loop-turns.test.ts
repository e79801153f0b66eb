import { expect, test } from 'vitest';
import { inTurns, nextTurn } from './loop-turns.ts';

test('one work goes on in an iteration of the loop, in the order in which they waited', async () => {
  const order: string[] = [];
  const work = async (name: string): Promise<void> => {
    for (let i = 0; i < 3; i += 1) {
      await nextTurn();
      order.push(name);
    }
  };
  let iterations = 0;
  let isOver = false;
  const count = (): void => {
    iterations += 1;
    order.push('.');
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  await Promise.all(['a', 'b', 'c'].map(work));
  isOver = true;
  expect(order.filter((name) => name !== '.')).toEqual(['a', 'b', 'c', 'a', 'b', 'c', 'a', 'b', 'c']);
  expect(order.join('')).not.toMatch(/[abc]{2}/);
  expect(iterations).toBeGreaterThanOrEqual(8);
});

test('items are worked on in order, and the loop goes on in between', async () => {
  const seen: number[] = [];
  let others = 0;
  const other = setInterval(() => (others += 1), 1);
  const busy = (n: number, index: number): void => {
    seen.push(n * 10 + index);
    const end = performance.now() + 3;
    while (performance.now() < end);
  };
  await inTurns([0, 1, 2, 3, 4, 5], busy);
  clearInterval(other);
  expect(seen).toEqual([0, 11, 22, 33, 44, 55]);
  expect(others).toBeGreaterThan(0);
});
