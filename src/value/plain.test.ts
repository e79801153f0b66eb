import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { readJson, writeJson } from './json.ts';
import { endOfPlain } from './plain.ts';

const end = (text: string, depth = 1): number => {
  const bytes = Buffer.from(text);
  return endOfPlain(bytes, 0, bytes.length - 1, depth);
};

describe('endOfPlain', () => {
  it('takes what is compact already', () => {
    const members = (n: number) => `{${Array.from({ length: n }, (_, i) => `"k${i}":${i}`)}}`;
    for (const text of ['{}', '[]', '[1,-2.50,true,false,null,"é"]', '{"a":{"a":[{}]},"b":0.0,"":1}', members(16)]) {
      expect(end(text), text).toBe(Buffer.byteLength(text));
    }
    for (const text of [
      '[ 1]',
      '[1e5]',
      '["\\n"]',
      '{"a":1,"a":2}',
      members(17),
      `[${'9'.repeat(301)}]`,
      '[01]',
      '[1,]',
      '[}',
      '[1',
      '[tru]',
      '{"a"}',
    ]) {
      expect(end(text), text).toBe(-1);
    }
    const deep = '['.repeat(limits.jsonDepthMax) + ']'.repeat(limits.jsonDepthMax);
    expect(end(deep)).toBe(deep.length);
    expect(end(deep, 2)).toBe(-1);
  });

  it('takes only what the exact reader would write just so', () => {
    const check = (text: string): void => {
      const last = text.at(-1);
      if (last !== '}' && last !== ']') return;
      if (end(text) === Buffer.byteLength(text)) expect(writeJson(readJson(Buffer.from(text)))).toBe(text);
    };
    const pieces = fc.array(
      fc.constantFrom('{', '}', '[', ']', '"a"', '"b"', '"', ':', ',', '1', '-', '.', '0', 'true', 'null', ' ', 'é'),
      { maxLength: 14 },
    );
    fc.assert(
      fc.property(pieces, (list) => check(`[${list.join('')}]`)),
      { numRuns: 3000 },
    );
    fc.assert(
      fc.property(fc.json({ stringUnit: 'grapheme' }), (json) => {
        const text = `[${JSON.stringify(JSON.parse(json))}]`;
        check(text);
        if (!/\\|e[+-]|\d{300}/.test(text) && !/(,.*){16}/.test(text)) expect(end(text)).toBe(Buffer.byteLength(text));
      }),
      { numRuns: 300 },
    );
  });
});
