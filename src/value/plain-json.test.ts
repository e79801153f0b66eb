import { describe, expect, test } from 'vitest';
import type { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { readJson } from './json.ts';
import { readPlainJson, readPlainRows } from './plain-json.ts';

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

test('a body of too many parts is refused before it is parsed, one that a document may have is not', () => {
  const { apiBodyCountedBytesMin: bytes, apiBodyPartsMax: most } = limits;
  const pad = `"${'x'.repeat(bytes)}"`;
  const elements = (count: number) => Buffer.from(`[${pad}${',1'.repeat(count)}]`);
  // The bracket and the string are parts, too.
  expect(readPlainJson(elements(most - 2))).toHaveLength(most - 1);
  expect(reasonOf(() => readPlainJson(elements(most - 1)))).toBe('message_too_complex');
  // Refused although it has no end: nothing was parsed.
  expect(reasonOf(() => readPlainJson(elements(most).subarray(0, -1)))).toBe('message_too_complex');
  // The densest documents of the size that is not counted.
  for (const element of ['[]', '""', '{}', '1', '{"":1}']) {
    const count = Math.floor((bytes - 1) / (element.length + 1));
    expect(readPlainJson(Buffer.from(`[${Array.from({ length: count }, () => element)}]`))).toHaveLength(count);
    expect(count * (element.match(/[[{:]|"[^"]*"/g)?.length ?? 0) + count).toBeLessThan(most);
  }
  // What is inside of a string counts once.
  const text = `{"a":"${'[,:{\\"'.repeat(100_000)}"}`;
  expect(readPlainJson(Buffer.from(text))).toEqual(JSON.parse(text));
});

describe('a body with rows', () => {
  function read(text: string, name = 'rows') {
    const pieces = readPlainRows(Buffer.from(text), name);
    const rows: unknown[] = [];
    let count = 0;
    for (;;) {
      const { done, value } = pieces.next();
      if (done) return { rows: [...rows, ...((value as Record<string, unknown[]>)[name] ?? [])], count, root: value };
      expect(value.first).toBe(rows.length);
      rows.push(...value.rows);
      count += 1;
    }
  }
  const many = Array.from({ length: 20_000 }, (_, i) => ({ name: `ä "${i}",[{`, list: [i, { a: [] }], none: null }));

  test('is read in pieces, wherever the array is', () => {
    for (const body of [{ rows: many }, { before: { rows: [1] }, x: '"rows":[', rows: many, after: [[]] }]) {
      for (const text of [JSON.stringify(body), `\ufeff${JSON.stringify(body, null, 1)}`]) {
        const { rows, count, root } = read(text);
        expect(rows).toEqual(many);
        expect(count).toBeGreaterThan(10);
        expect({ ...(root as object), rows: many }).toEqual(body);
      }
    }
  });

  test('is read at once when it is short, or when the name is written with escapes', () => {
    expect(read('{"rows":[1,2]}')).toMatchObject({ rows: [1, 2], count: 0 });
    expect(read('{"rows":[]}').rows).toEqual([]);
    expect(read(`{"r\\u006fws":[1,"${'x'.repeat(20_000)}"]}`).rows[0]).toBe(1);
  });

  test('is refused for what JSON does not allow, and for what would take long', () => {
    const fine = JSON.stringify(many).slice(1, -1);
    const bad = [`[${fine},]`, `[${fine},,1]`, `[,${fine}]`, `[${fine}}`, `[${fine}`, `[${fine},{]]`, `[${fine}],1`];
    for (const rows of bad) {
      expect(
        reasonOf(() => read(`{"rows":${rows}}`)),
        rows.slice(-20),
      ).toBe('malformed_json');
    }
    expect(reasonOf(() => read(`{"rows":[${fine}],"rows":[1]}`))).toBe('body');
    expect(reasonOf(() => read(`{"rows":[${fine},["${'x'.repeat(limits.apiRowsBytesMax)}"]]}`))).toBe(
      'message_too_complex',
    );
    const parts = `${'1,'.repeat(limits.apiBodyPartsMax)}1`;
    expect(reasonOf(() => read(`{"rows":[${fine}],"other":[${parts}]}`))).toBe('message_too_complex');
    expect(reasonOf(() => read(`{"rows":[${fine},${nested(limits.jsonDepthMax - 2)}]}`))).toBe('good');
    expect(reasonOf(() => read(`{"rows":[${fine},${nested(limits.jsonDepthMax - 1)}]}`))).toBe('json_too_deep');
    expect(() => read(`{"rows":[${fine},{"a":"\\u0000"}]}`)).toThrow(/^Validation error: rows\.20000\.a: /);
  });
});
