import fc from 'fast-check';
import { expect, test } from 'vitest';
import { dayMs } from '../base/durations.ts';
import { inMilliseconds, oddKindOf, type TimeUnit, unitOfTime, units } from './odd-time.ts';

const now = Date.UTC(2026, 10, 22);
const year2000 = Date.UTC(2000, 0, 1);

test.each([
  [1_700_000_000, 'seconds', 1_700_000_000_000],
  [year2000 / 1000, 'seconds', year2000],
  [1_700_000_000_000_000, 'microseconds', 1_700_000_000_000],
  [1_700_000_000_000_000_000, 'nanoseconds', 1_700_000_000_000],
] as const)('%d is in %s', (ts, unit, ms) => {
  expect(unitOfTime(ts, now)).toBe(unit);
  expect(Math.abs(inMilliseconds(ts, unit) - ms)).toBeLessThanOrEqual(1);
});

test.each([0, -5, 1, 86_400_000, year2000 / 1000 - 1, (now + 367 * dayMs) / 1000, year2000 * 1000 - 1, 1e300])(
  '%d is in no other unit',
  (ts) => {
    expect(unitOfTime(ts, now)).toBeUndefined();
  },
);

test('no time in milliseconds from February 1970 to the year 30 000 is taken for another unit', () => {
  const times = fc.double({ min: 31 * dayMs, max: Date.UTC(9999, 0) * 3, noNaN: true });
  fc.assert(fc.property(times, (ts) => unitOfTime(Math.floor(ts), now) === undefined));
});

test('each unit comes back to its millisecond, and a time ahead is named', () => {
  const times = fc.integer({ min: year2000, max: now + 366 * dayMs });
  const factor: Record<TimeUnit, number> = { seconds: 1 / 1000, microseconds: 1000, nanoseconds: 1_000_000 };
  fc.assert(
    fc.property(times, fc.constantFrom(...units), (ms, unit) => {
      const ts = Math.floor(ms * factor[unit]);
      const back = inMilliseconds(ts, unit);
      return (back < year2000 || unitOfTime(ts, now) === unit) && Math.abs(back - ms) < (unit === 'seconds' ? 1000 : 2);
    }),
  );
  expect(oddKindOf(now + dayMs, now, dayMs)).toBeUndefined();
  expect(oddKindOf(now + dayMs + 1, now, dayMs)).toBe('ahead');
  expect(oddKindOf(now - 20 * 365 * dayMs, now, dayMs)).toBeUndefined();
});
