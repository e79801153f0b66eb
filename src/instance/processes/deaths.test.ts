import { expect, test } from 'vitest';
import { limits } from '../../base/limits.ts';
import { Deaths } from './deaths.ts';

const read = { what: 'GET /x', caller: 'user 1' };
const other = { what: 'GET /x', caller: 'user 2' };
const key = 'GET /x of user 1';

test('work that ended two workers within ten minutes is refused for ten minutes', () => {
  let now = 0;
  const deaths = new Deaths(() => now);
  expect(deaths.add([read, other, read])).toEqual([]);
  now += limits.deathsWithinMs;
  expect(deaths.add([read])).toEqual([key]);
  expect(deaths.blocked).toEqual([key]);
  now += limits.deathsBlockMs;
  expect(deaths.blocked).toEqual([]);
  expect(deaths.add([other])).toEqual([]);
  now += limits.deathsWithinMs + 1;
  expect(deaths.add([read, other])).toEqual([]);
});
