import * as fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { integerLiteral, stringLiteral } from './literals.ts';

let shared: SharedClickHouse;

beforeAll(async () => {
  shared = await shareTestClickHouse();
});

afterAll(() => shared.stop());

async function readBack(text: string): Promise<string> {
  const read = shared.clickhouse.binaryRows(`SELECT ${stringLiteral(text)}`, {}, {}, (row) => row.text().toString());
  return (await read)[0]!;
}

test('ClickHouse reads a literal of a string as that string, whatever its characters are', async () => {
  const pieces = [
    "'",
    '"',
    '`',
    '\\',
    '\0',
    '\n',
    '\r',
    '\t',
    '\b',
    '{',
    '}',
    ';',
    '--',
    '/*',
    '*/',
    '%',
    'ü',
    '😀',
    'x',
    '0',
  ];
  const texts = fc.array(fc.constantFrom(...pieces), { maxLength: 12 }).map((list) => list.join(''));
  await fc.assert(
    fc.asyncProperty(texts, async (text) => (await readBack(text)) === text),
    { numRuns: 300 },
  );
});

test('a literal of an integer is a safe integer', () => {
  expect([0, -1, Number.MAX_SAFE_INTEGER].map(integerLiteral)).toEqual(['0', '-1', '9007199254740991']);
  for (const value of [0.5, 2 ** 53, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(() => integerLiteral(value)).toThrow('safe integer');
  }
});
