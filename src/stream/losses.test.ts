/** When a stream counts as lost, by its state and the stored position. */
import { expect, test } from 'vitest';
import { findLosses } from './losses.ts';

const position = { created: 'monday', floor: 10, last: 20 };
const state = { created: 'monday', begin: 1, first: 11, last: 25, lost: [] as number[] };

test('a stream from the floor on is whole', () => {
  expect(findLosses(position, state)).toEqual({ losses: [], isOther: false, isCut: false });
  expect(findLosses(position, { ...state, first: 5 }).losses).toEqual([]);
});

test('messages after the floor that are gone are a gap, neighbours together', () => {
  expect(findLosses(position, { ...state, first: 14, lost: [16, 17, 19] }).losses).toEqual([
    { created: 'monday', kind: 'gap', from: 11, to: 13 },
    { created: 'monday', kind: 'gap', from: 16, to: 17 },
    { created: 'monday', kind: 'gap', from: 19, to: 19 },
  ]);
});

test('messages that ClickHouse has may be gone', () => {
  expect(findLosses(position, { ...state, first: 5, lost: [6, 10] }).losses).toEqual([]);
});

test('a stream that ends before messages that it had was cut', () => {
  const { losses, isCut } = findLosses(position, { ...state, last: 15 });
  expect(losses).toEqual([{ created: 'monday', kind: 'cut', from: 16, to: 20 }]);
  expect(isCut).toBe(true);
});

test('a stream that was made at another time is another one, and may have lost messages itself', () => {
  const { losses, isOther } = findLosses(position, { ...state, created: 'tuesday', first: 4 });
  expect(losses).toEqual([
    { created: 'monday', kind: 'removed', from: 11, to: 20 },
    { created: 'tuesday', kind: 'gap', from: 1, to: 3 },
  ]);
  expect(isOther).toBe(true);
});

test('a stream that was made again begins after all numbers of the former one, which is no gap', () => {
  const again = { ...state, created: 'tuesday', begin: 1_000, first: 1_002, last: 1_005 };
  expect(findLosses(position, again).losses).toEqual([
    { created: 'monday', kind: 'removed', from: 11, to: 20 },
    { created: 'tuesday', kind: 'gap', from: 1_000, to: 1_001 },
  ]);
  expect(findLosses(position, { ...again, first: 1_000 }).losses).toHaveLength(1);
});
