import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { decimal } from './decimal.ts';

/** Digits and place of the point, as `decode.ts` passes them; and the number as a string. */
function check(digits: string, fractionDigits: number): number {
  const high = digits.slice(0, 15);
  const low = digits.slice(15);
  const num = decimal(Number(high), Number(low), low.length, fractionDigits);
  if (!Number.isNaN(num)) expect(num, `${digits}e-${fractionDigits}`).toBe(Number(`${digits}e-${fractionDigits}`));
  return num;
}

describe('decimal', () => {
  it('is the nearest double, or NaN when it is uncertain', () => {
    const digits = fc.stringMatching(/^[0-9]{16,22}$/);
    fc.assert(
      fc.property(digits, fc.nat(22), (text, fraction) => void check(text, fraction)),
      { numRuns: 3000 },
    );
  });

  it('is exact for the numbers that scripts print', () => {
    let unknown = 0;
    fc.assert(
      fc.property(fc.double({ min: 1e-4, max: 1e9, noNaN: true }), (num) => {
        const [whole, fraction = ''] = String(num).split('.') as [string, string?];
        if (whole.length + fraction.length < 16 || fraction.length > 22) return;
        if (Number.isNaN(check(whole + fraction, fraction.length))) unknown += 1;
      }),
      { numRuns: 3000 },
    );
    expect(unknown).toBe(0);
    expect(check('030000000000000004', 17)).toBe(0.30000000000000004);
  });

  it('does not guess when the digits lie between two doubles', () => {
    expect(check('90071992547409930', 1)).toBeNaN();
    fc.assert(
      fc.property(fc.bigInt({ min: 2n ** 52n, max: 2n ** 53n - 1n }), fc.integer({ min: -2, max: 2 }), (half, off) => {
        check(String((2n * half + 1n) * 1000n + BigInt(off)), 3);
      }),
      { numRuns: 1000 },
    );
  });
});
