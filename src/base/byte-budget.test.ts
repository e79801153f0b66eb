import { expect, test } from 'vitest';
import { ByteBudget } from './byte-budget.ts';

const a = { name: 'a', bytesMax: 60 };
const b = { name: 'b', bytesMax: 60 };

test('an owner has a share, all owners have a cap, and what is refused takes nothing', () => {
  const budget = new ByteBudget(100);
  expect(budget.take(60, [a])).toBe(true);
  expect(budget.take(1, [a])).toBe(false);
  expect(budget.take(40, [b])).toBe(true);
  expect(budget.take(1, [b])).toBe(false);
  expect(budget.held).toBe(100);
  budget.release(20, [a]);
  expect(budget.take(21, [a])).toBe(false);
  expect(budget.take(20, [b])).toBe(true);
});

test('bytes of two owners count for both', () => {
  const budget = new ByteBudget(1000);
  expect(budget.take(50, [a, b])).toBe(true);
  expect(budget.take(20, [b])).toBe(false);
  expect(budget.take(20, [a, b])).toBe(false);
  budget.release(50, [a, b]);
  expect(budget.held).toBe(0);
  expect(budget.take(60, [a])).toBe(true);
});
