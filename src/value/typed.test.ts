import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { readJson } from './json.ts';
import {
  castString,
  doubleText,
  Kind,
  strictForm,
  stringForm,
  type TypedValue,
  typedNumber,
  typedValue,
} from './typed.ts';

const typed = (text: string, cast = true): TypedValue => typedValue(readJson(Buffer.from(text)), cast)!;

describe('typed values', () => {
  it('are written as in docs/http.md#values', () => {
    const f = (json: string, strict: string, asString: string): void => {
      expect(strictForm(typed(json))).toBe(strict);
      expect(stringForm(typed(json))).toBe(asString);
    };
    f('42.0', '42.0', '"42.0"');
    f('73', '73', '"73"');
    f('1.5E2', '150', '"150"');
    f('1e3', '1000', '"1000"');
    f('12345678.5', '12345678.5', '"1.23456785E7"');
    f('0.0004', '0.0004', '"4.0E-4"');
    f('"25.5"', '25.5', '"25.5"');
    f('"007"', '7', '"7"');
    f('"1e5"', '"1e5"', '"1e5"');
    f('"a\\"b"', '"a\\"b"', '"a\\"b"');
    f('true', 'true', '"true"');
    f('false', 'false', '"false"');
    f('{"a": [1.0]}', '{"a":[1.0]}', '"{\\"a\\":[1.0]}"');
    f('-9223372036854775808', '-9223372036854775808', '"-9223372036854775808"');
    f('-0.0', '0.0', '"0.0"');
    f('1e21', '1e+21', '"1.0E21"');
    f('1e20', '100000000000000000000.0', '"1.0E20"');
    f('1e-7', '1e-7', '"1.0E-7"');
  });

  it('store nothing for null, and strings as they are when the cast is off', () => {
    expect(typedValue(null, true)).toBeUndefined();
    expect(typed('"007"', false)).toEqual({ kind: Kind.string, num: 0, int: '0', text: '007' });
  });

  it('read back as what they were', () => {
    const same = (value: TypedValue): void => expect(typed(strictForm(value), false)).toEqual(value);
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (num) => {
        same({ kind: Kind.double, num: num + 0, int: '0', text: '' });
        expect(Number(doubleText(num)) === num).toBe(true);
      }),
    );
    fc.assert(
      fc.property(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), (int) => {
        same({ kind: Kind.long, num: 0, int: String(int), text: '' });
        expect(castString(String(int))?.int).toBe(String(int));
      }),
    );
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), (text) => void same({ kind: Kind.string, num: 0, int: '0', text })),
    );
  });

  it('know a whole number in any notation', () => {
    const digits = fc.stringMatching(/^[0-9]{1,22}$/);
    fc.assert(
      fc.property(
        digits,
        digits,
        fc.integer({ min: -30, max: 30 }),
        fc.boolean(),
        (whole, fraction, exponent, negative) => {
          const literal = `${negative ? '-' : ''}${BigInt(whole)}.${fraction}e${exponent}`;
          const scaled = BigInt(`${whole}${fraction}`) * 10n ** 60n;
          const exact = scaled / 10n ** BigInt(60 + fraction.length - exponent);
          const isWhole = scaled % 10n ** BigInt(60 + fraction.length - exponent) === 0n;
          const signed = negative ? -exact : exact;
          const long = isWhole && BigInt.asIntN(64, signed) === signed;
          const expected = long
            ? { kind: Kind.long, num: 0, int: String(signed), text: '' }
            : { kind: Kind.double, num: Number(literal) + 0, int: '0', text: '' };
          expect(typedNumber(literal)).toEqual(expected);
        },
      ),
      { numRuns: 500 },
    );
  });

  it('take no time for absurd exponents', () => {
    const start = performance.now();
    for (let i = 0; i < 1000; i += 1) {
      expect(typedNumber(`1e-${'9'.repeat(1000)}`).num).toBe(0);
      expect(typedNumber(`0e${'9'.repeat(1000)}`).int).toBe('0');
      expect(typedNumber(`${'0'.repeat(1)}.${'0'.repeat(900)}1e-999999999`).num).toBe(0);
    }
    expect(performance.now() - start).toBeLessThan(20_000);
  });
});
