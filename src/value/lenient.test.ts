import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type Json, JsonNumber, readJson, writeJson } from './json.ts';
import { leniently, strictJson, strictly } from './lenient.ts';

const strictText = (text: string | Uint8Array): string => Buffer.from(strictJson(Buffer.from(text))).toString();

function outcome(read: () => string): string {
  try {
    return read();
  } catch (error) {
    if (error instanceof Fault) return `${error.reason}: ${error.message}`;
    throw error;
  }
}

const lenientOutcome = (text: string) =>
  outcome(() => leniently(Buffer.from(text), (strict) => writeJson(readJson(strict))));

describe('lenient JSON', () => {
  it('takes what the guides and small devices send', () => {
    const f = (text: string, expected: string): void => expect(lenientOutcome(text), text).toBe(expected);
    f('{temperature:25}', '{"temperature":25}');
    f("{'a':'it''}", 'malformed_json: The body is not valid JSON: expected "," or "}" at byte 9.');
    f(`{'a':'say "hi"','b\\'c':"it's \\u00e9"}`, '{"a":"say \\"hi\\"","b\'c":"it\'s é"}');
    f('{"a":1,}', '{"a":1}');
    f('[{a:1},{b:2} , ]', '[{"a":1},{"b":2}]');
    f('// first\n{a:1, # second\r\n /* third */ b /**/ : /* * / */ 2, // last\n}// end', '{"a":1,"b":2}');
    f("{'on': True, 'off': FALSE, 'none': Null}", '{"on":true,"off":false,"none":null}');
    f('{1:2, a.b-c:3, $x:4, größe:5, NaN:6, true:7}', '{"1":2,"a.b-c":3,"$x":4,"größe":5,"NaN":6,"true":7}');
    f('\ufeff{a:1}', '{"a":1}');
    f('{"a":1,"b":2,a:3,}', '{"a":3,"b":2}');
  });

  it('keeps each digit of a number', () => {
    for (const literal of [
      '42.0',
      '-0',
      '1e2',
      '9223372036854775807',
      '12345678901234567890',
      '1.10',
      '1E-7',
      '-0.0',
    ]) {
      expect(lenientOutcome(`{a:${literal}}`)).toBe(`{"a":${literal}}`);
    }
  });

  it('refuses what may be a broken number or text, and names the place', () => {
    const f = (text: string, expected: string): void =>
      expect(lenientOutcome(text), text).toBe(`malformed_json: The body is not valid JSON: expected ${expected}.`);
    const textInQuotes = 'a value (text needs quotes)';
    for (const word of ['hot', 'NaN', 'Infinity', 'None', '.5', '+5', 'undefined', 'truely', 'é'])
      f(`{a:${word}}`, `${textInQuotes} at byte 3`);
    f('{a:-Infinity}', 'a digit at byte 4');
    f('{a:01}', '"," or "}" at byte 4');
    f('{a:0x1F}', '"," or "}" at byte 4');
    f('{a:25,5}', '":" at byte 7');
    f('{a:12V}', '"," or "}" at byte 5');
    f('{a:5.}', 'a digit at byte 5');
    f('{a=1}', '":" at byte 2');
    f('{a:1;b:2}', '"," or "}" at byte 4');
    f('{a b:1}', '":" at byte 3');
    f('{a\u00a0:1}', 'a member name (one with blanks needs quotes) at byte 1');
    f('{:1}', 'a member name at byte 1');
    f('{,}', 'a member name at byte 1');
    f('{a:1,,}', 'a member name at byte 5');
    f('[,]', 'a value at byte 1');
    f('{a:}', 'a value at byte 3');
    f('{a:1', '"," or "}" at its end');
    f('{a:1}}', 'the end of the body at byte 5');
    f('{a:1]', '"," or "}" at byte 4');
    f('{a:1} b', 'the end of the body at byte 6');
    f("{a:'b}", 'the end of a string at its end');
    f("{a:'\n'}", 'no raw control character in a string at byte 4');
    f("{a:'\\x'}", 'a valid escape at byte 4');
    f("{a:'\\u12g4'}", 'a hexadecimal digit at byte 8');
    f('{a:1 /* b }', 'the end of a comment at its end');
    f('{a:1 / b }', '"," or "}" at byte 5');
    f('', 'a value at its end');
  });

  it('has the caps of the strict reader', () => {
    const deep = (depth: number) => lenientOutcome(`${'{a:'.repeat(depth)}1${'}'.repeat(depth)}`);
    expect(deep(limits.jsonDepthMax)).toMatch(/^\{"a":/);
    expect(deep(limits.jsonDepthMax + 1)).toMatch(/^json_too_deep/);
    expect(lenientOutcome(`${'['.repeat(100_000)}'`)).toMatch(/^json_too_deep/);
    expect(lenientOutcome("{'a':'\\u0000'}")).toMatch(/^nul_character/);
    expect(lenientOutcome("{a:'\\ud800'}")).toMatch(/^lone_surrogate/);
    expect(lenientOutcome('{a:1e400}')).toMatch(/^number_not_finite/);
    expect(lenientOutcome(`{a:${'1'.repeat(limits.numberCharsMax + 1)}}`)).toMatch(/^number_too_long/);
    expect(
      outcome(() => leniently(Buffer.from([0x7b, 0x61, 0xff, 0x3a, 0x31, 0x7d]), () => strictText('{a\xff:1}'))),
    ).toBe('{"aÿ":1}');
    const invalid = Buffer.from([0x7b, 0x61, 0xff, 0x3a, 0x31, 0x7d]);
    expect(outcome(() => leniently(invalid, (strict) => writeJson(readJson(strict))))).toMatch(/^invalid_utf8/);
  });

  it('is off when the setting is off', () => {
    expect(outcome(() => strictly(Buffer.from('{a:1}'), (body) => writeJson(readJson(body))))).toMatch(
      /^malformed_json/,
    );
  });

  it('reads strict JSON as the strict reader does', () => {
    fc.assert(
      fc.property(fc.json({ stringUnit: 'grapheme' }), fc.constantFrom(undefined, 1, '\t'), (json, space) => {
        const spaced = JSON.stringify(JSON.parse(json), null, space);
        expect(JSON.parse(strictText(spaced))).toEqual(JSON.parse(spaced));
        const strict = outcome(() => writeJson(readJson(Buffer.from(spaced))));
        expect(outcome(() => writeJson(readJson(strictJson(Buffer.from(spaced)))))).toBe(strict);
      }),
      { numRuns: 300 },
    );
  });

  it('reads what any writer of it meant', () => {
    fc.assert(
      fc.property(tree, fc.infiniteStream(fc.nat(6)), (json, choices) => {
        const text = looseText(json, () => choices.next().value as number);
        expect(outcome(() => writeJson(readJson(strictJson(Buffer.from(text)))))).toBe(writeJson(json));
      }),
      { numRuns: 1000 },
    );
  });

  it('never makes what the strict reader calls malformed, and agrees with it on strict JSON', () => {
    const bits = ['{', '}', '[', ']', "'", '"', ':', ',', '1', '-', '.', 'e', 'a', 'true', '//', '/*', '*/', '#'];
    const piece = fc.constantFrom(...bits, '\\', '\\u0041', "\\'", '\n', ' ', 'é', '\u00a0', '=', ';', '{a:1}', '[1,]');
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 16 }), (pieces) => {
        const text = Buffer.from(pieces.join(''));
        const strict = outcome(() => writeJson(readJson(text)));
        const lenient = outcome(() => writeJson(readJson(strictJson(text))));
        if (!strict.startsWith('malformed_json')) expect(lenient, String(text)).toBe(strict);
        const rewritten = outcome(() => strictText(text));
        if (!rewritten.startsWith('malformed_json'))
          expect(
            outcome(() => writeJson(readJson(Buffer.from(rewritten)))),
            String(text),
          ).not.toMatch(/^malformed/);
      }),
      { numRuns: 5_000 },
    );
  });
});

const literals = fc.oneof(
  fc.integer().map(String),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((num) => JSON.stringify(num)),
  fc.constantFrom('1.0', '-0', '9223372036854775807', '1e5', '0.30000000000000004'),
);
const { tree } = fc.letrec<{ tree: Json }>((tie) => ({
  tree: fc.oneof(
    { maxDepth: 4, withCrossShrink: true },
    fc.constantFrom<Json>(null, true, false),
    literals.map((literal): Json => new JsonNumber(literal)),
    fc.string({ unit: 'grapheme' }),
    fc.array(tie('tree'), { maxLength: 4 }),
    fc
      .array(fc.tuple(fc.oneof(fc.string({ unit: 'grapheme' }), fc.constantFrom('a', 'b_1', 'c.d')), tie('tree')), {
        maxLength: 4,
      })
      .map((members): Json => new Map(members)),
  ),
}));

/** Returns a lenient text that means the same as `json`; `choose` picks among the forms. */
function looseText(json: Json, choose: () => number): string {
  const blank = () => ['', ' ', '\n\t', '/* , } " */', "// ' ]\n", '# {\r', '/**/ '][choose()]!;
  const quoted = (text: string): string => {
    if (choose() < 3) return JSON.stringify(text);
    const inner = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'");
    return `'${inner}'`;
  };
  const name = (text: string) => (/^[A-Za-z_][\w.-]*$/.test(text) && choose() < 4 ? text : quoted(text));
  const list = (items: string[]) =>
    items.map((item) => blank() + item + blank()).join(',') + (items.length > 0 && choose() < 3 ? `,${blank()}` : '');
  const value = (node: Json): string => {
    if (node instanceof JsonNumber) return node.literal;
    if (typeof node === 'string') return quoted(node);
    if (Array.isArray(node)) return `[${blank()}${list(node.map(value))}]`;
    if (node instanceof Map)
      return `{${blank()}${list([...node].map(([key, member]) => `${name(key)}${blank()}:${blank()}${value(member)}`))}}`;
    const word = String(node);
    return choose() < 3 ? word : word.toUpperCase();
  };
  return blank() + value(json) + blank();
}
