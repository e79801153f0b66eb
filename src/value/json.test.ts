import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type Json, JsonNumber, readJson, writeJson } from './json.ts';

const rewritten = (text: string | Uint8Array): string =>
  writeJson(readJson(typeof text === 'string' ? Buffer.from(text) : text));

function reasonOf(text: string | Uint8Array): string {
  try {
    return `taken: ${rewritten(text)}`;
  } catch (error) {
    if (error instanceof Fault) return error.reason;
    throw error;
  }
}

describe('readJson and writeJson', () => {
  it('keep numbers as written, order, and odd names', () => {
    const f = (text: string, expected: string): void => expect(rewritten(text)).toBe(expected);
    f('42.0', '42.0');
    f(' [ 1e2 , -0 , 12345678901234567890 , 1.10 ] ', '[1e2,-0,12345678901234567890,1.10]');
    f('{"b":1,"a":{"2":1,"1":2}}', '{"b":1,"a":{"2":1,"1":2}}');
    f('{"a":1,"b":2,"a":3}', '{"a":3,"b":2}');
    f('{"__proto__":{"x":1},"constructor":null}', '{"__proto__":{"x":1},"constructor":null}');
    f('\ufeff{}', '{}');
    f('"\\u00e9\\/\\n\\ud83c\\udf21"', '"é/\\n🌡"');
    f('{"":[]}', '{"":[]}');
  });

  it('refuse with a reason', () => {
    const f = (text: string | Uint8Array, reason: string): void => expect(reasonOf(text), String(text)).toBe(reason);
    for (const text of [
      '',
      ' ',
      '{',
      '[1,]',
      '{"a":1,}',
      '01',
      '1 2',
      "'a'",
      'nul',
      '"\t"',
      '"\\x"',
      '\ufeff\ufeff1',
      '\u00a01',
    ])
      f(text, 'malformed_json');
    f('"\\u0000"', 'nul_character');
    f('"\\ud800"', 'lone_surrogate');
    f('1e400', 'number_not_finite');
    f(`${'['.repeat(limits.jsonDepthMax + 1)}`, 'json_too_deep');
    f(new Uint8Array([0x22, 0xff, 0x22]), 'invalid_utf8');
    expect(() => readJson(Buffer.from('{"a":1 x}'))).toThrow('expected "," or "}" at byte 7');
  });

  it('agree with JSON.parse on every document it takes', () => {
    const toPlain = (json: Json): unknown => {
      if (json instanceof JsonNumber) return Number(json.literal);
      if (Array.isArray(json)) return json.map(toPlain);
      if (!(json instanceof Map)) return json;
      const plain = {};
      // `__proto__` becomes an own member, as JSON.parse makes it.
      for (const [name, value] of json)
        Object.defineProperty(plain, name, {
          value: toPlain(value),
          enumerable: true,
          configurable: true,
          writable: true,
        });
      return plain;
    };
    const text = fc.oneof(fc.json({ stringUnit: 'grapheme' }), fc.json({ noUnicodeString: false } as object));
    fc.assert(
      fc.property(text, fc.constantFrom(undefined, 1, '\t'), (json, space) => {
        const spaced = JSON.stringify(JSON.parse(json), null, space);
        if (/\\ud[89a-f]|\\u0000/i.test(spaced)) return;
        const read = readJson(Buffer.from(spaced));
        expect(toPlain(read)).toEqual(JSON.parse(spaced));
        expect(writeJson(read)).toBe(JSON.stringify(JSON.parse(spaced)));
        expect(writeJson(readJson(Buffer.from(writeJson(read))))).toBe(writeJson(read));
      }),
      { numRuns: 300 },
    );
  });
});
