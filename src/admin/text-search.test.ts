import fc from 'fast-check';
import { expect, test } from 'vitest';
import { cpuMs } from '../../test/harness/cpu-time.ts';
import { limits } from '../base/limits.ts';
import { testOf } from './key-filter.ts';
import { containsTest } from './text-search.ts';

test('long texts are found as includes finds them', () => {
  const letters = fc.string({ unit: fc.constantFrom('a', 'b', '\ud83d', 'é'), maxLength: 6 });
  fc.assert(
    fc.property(letters, letters, fc.nat(2000), (wanted, text, times) => {
      const long = wanted.repeat(times);
      for (const each of [text.repeat(700), `${text.repeat(300)}${long}`, `${long}${text}`.slice(1)]) {
        expect(containsTest(long)(each)).toBe(each.includes(long));
      }
    }),
  );
});

/** Costs `includes` the product of both lengths. */
function costlyTexts(length: number) {
  const wanted = `b${'a'.repeat(length)}`;
  return { wanted, text: `${`b${'a'.repeat(length - 1)}c`.repeat(6)}${'a'.repeat(16 * length)}` };
}

test.each(['CONTAINS', 'NOT_CONTAINS'])('%s reads each character of a long text about once', (operation) => {
  const { wanted, text } = costlyTexts(30_000);
  const test = testOf({ type: 'STRING', operation, value: wanted, ignoreCase: true });
  const startedAt = cpuMs();
  expect(test(text)).toBe(operation !== 'CONTAINS');
  // The product of the lengths takes seconds.
  expect(cpuMs() - startedAt).toBeLessThan(1000);
});

test('a long value is compared by its first characters, and by ENDS_WITH by its last', () => {
  const most = 'x'.repeat(limits.queriedTextCharsMax);
  const value = `y${most}${most}z`;
  const test = (operation: string, wanted: string) =>
    testOf({ type: 'STRING', operation, value: wanted, ignoreCase: true })(value);
  expect(test('STARTS_WITH', 'Yx')).toBe(true);
  expect(test('ENDS_WITH', 'xZ')).toBe(true);
  expect(test('CONTAINS', 'yx')).toBe(true);
  expect(test('CONTAINS', 'xz')).toBe(false);
  expect(test('EQUAL', value.slice(0, limits.queriedTextCharsMax))).toBe(false);
  expect(test('NOT_EQUAL', value.slice(0, limits.queriedTextCharsMax))).toBe(true);
});
