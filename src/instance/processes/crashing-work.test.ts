import { expect, test } from 'vitest';
import { limits } from '../../base/limits.ts';
import { CrashingWork } from './crashing-work.ts';

const read = { what: 'GET /x', caller: 'user 1' };
const other = { what: 'GET /x', caller: 'user 2' };
const key = 'GET /x of user 1';

test('work that ended two workers within ten minutes is refused for ten minutes', () => {
  let now = 0;
  const crashing = new CrashingWork(() => now);
  expect(crashing.add([read, other, read])).toEqual([]);
  now += limits.deathsWithinMs;
  expect(crashing.add([read])).toEqual([key]);
  expect(crashing.blocked).toEqual([key]);
  now += limits.deathsBlockMs;
  expect(crashing.blocked).toEqual([]);
  expect(crashing.add([other])).toEqual([]);
  now += limits.deathsWithinMs + 1;
  expect(crashing.add([read, other])).toEqual([]);
});
