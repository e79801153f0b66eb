import { expect, test } from 'vitest';
import type { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { readJson } from './json.ts';
import { readPlainJson } from './plain-json.ts';

function reasonOf(read: () => unknown): string {
  try {
    read();
    return 'good';
  } catch (error) {
    return (error as Fault).reason;
  }
}

const nested = (depth: number) => '['.repeat(depth) + ']'.repeat(depth);

test('accepts the same documents, and refuses for the same reason, as the exact reader', () => {
  const cases = ['{}', '[1,-0.5e3,"é😀","\\u00e9",null,true]', '\ufeff{"a":1}', '{"a":1,"a":2}', '"\\ud83d\\ude00"'];
  const bad = ['', '{', '{"a":}', '[1,]', "{'a':1}", '{a:1}', 'NaN', '01', '"\\x"', '"\u0001"', '{} x', '1e999'];
  const odd = ['["\\u0000"]', '{"\\u0000":1}', '["\\ud800"]', '{"a":{"b":"\\udc00x"}}', '[-1e400]'];
  const deep = [nested(limits.jsonDepthMax), nested(limits.jsonDepthMax + 1)];
  const long = [`["${'x'.repeat(20_000)}"`, `["${'x'.repeat(20_000)}\\u0000"]`];
  for (const text of [...cases, ...bad, ...odd, ...deep, ...long]) {
    const bytes = Buffer.from(text);
    expect([text, reasonOf(() => readPlainJson(bytes))]).toEqual([text, reasonOf(() => readJson(bytes))]);
  }
  expect(reasonOf(() => readPlainJson(Buffer.of(0x22, 0xff, 0x22)))).toBe('invalid_utf8');
});

test('a fault of a value names the members on the path to it', () => {
  const f = (text: string) => {
    try {
      return readPlainJson(Buffer.from(text));
    } catch (error) {
      return (error as Fault).message;
    }
  };
  expect(f('{"a":{"b":["x","\\u0000"]}}')).toBe('Validation error: a.b.1: A string holds the character NUL (\\u0000).');
  expect(f('"\\u0000"')).toMatch(/^Validation error: the body: /);
  expect(f('{"a":')).toBe('The body is not valid JSON: expected a value at its end.');
  expect(f('{"__proto__":{"a":1}}')).toEqual(JSON.parse('{"__proto__":{"a":1}}'));
});
