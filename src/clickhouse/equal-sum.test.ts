/**
 * A sum of doubles on the real engine: it is the same for every division of the work, and as exact as a double can be.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { equalSumIf } from './equal-sum.ts';

let embedded: SharedClickHouse;

beforeAll(async () => {
  embedded = await shareTestClickHouse();
  await embedded.clickhouse.exec(
    'CREATE TABLE doubles (n UInt32, num Float64) ENGINE = MergeTree ORDER BY n SETTINGS index_granularity = 128',
  );
});

afterAll(() => embedded.stop());

/** SQL of doubles of `number`, in several parts, as a table has that still receives points. */
async function fill(sql: string, parts: number, rows: number): Promise<void> {
  await embedded.clickhouse.exec('TRUNCATE TABLE doubles');
  for (let part = 0; part < parts; part += 1) {
    await embedded.clickhouse.exec(`INSERT INTO doubles SELECT number, ${sql} FROM numbers(${part * rows}, ${rows})`);
  }
}

async function bitsOf(sql: string): Promise<string[]> {
  const rows = await embedded.clickhouse.rows<{ bits: string }>(sql);
  return rows.map(({ bits }) => bits);
}

/** What `sum` is over all doubles, in every division of the work; each as its bits. */
async function answers(sum: string): Promise<Set<string>> {
  const found = new Set<string>();
  for (const threads of [1, 2, 5]) {
    for (const rows of [65_409, 1_000, 177]) {
      // Small tables are otherwise read by one thread.
      const small = 'merge_tree_min_rows_for_concurrent_read = 1, merge_tree_min_bytes_for_concurrent_read = 1';
      const division = `max_threads = ${threads}, max_block_size = ${rows}, ${small}`;
      const [bits] = await bitsOf(
        `SELECT leftPad(hex(reinterpretAsUInt64(${sum})), 16, '0') AS bits FROM doubles SETTINGS ${division}`,
      );
      found.add(bits!);
    }
  }
  return found;
}

const doubleOf = (bits: string) => Buffer.from(bits, 'hex').readDoubleBE();

/** Returns the double that is nearest to the exact sum; computes with multiples of 2^-1074. */
function exactSum(values: number[]): number {
  let units = 0n;
  const bits = new DataView(new ArrayBuffer(8));
  for (const value of values) {
    bits.setFloat64(0, value);
    const word = bits.getBigUint64(0);
    const exponent = (word >> 52n) & 0x7ffn;
    const fraction = word & 0xfffffffffffffn;
    const size = exponent === 0n ? fraction : (fraction | 0x10000000000000n) << (exponent - 1n);
    units += value < 0 ? -size : size;
  }
  // 2^-1074 itself cannot divide: two steps keep every quotient in range.
  const whole = units >> 900n;
  const below = units & ((1n << 900n) - 1n);
  return Number(whole) * 2 ** -174 + Number(below >> 700n) * 2 ** -374;
}

test.each([
  ['temperatures', '20 + 10 * sin(number * number)'],
  ['every size and sign', 'sin(number * 7.1) * exp10(number % 24 - 12.)'],
  ['tiny doubles', '(1 + abs(sin(number * number))) * 1e-9'],
  ['whole numbers beyond 53 bits', 'trunc(sin(number * number) * exp2(60))'],
])('a sum of %s is one double, with any threads and blocks', async (_, sql) => {
  await fill(sql, 4, 10_000);
  const [answer, ...others] = await answers(equalSumIf('num', 'n >= 0'));
  expect(others).toEqual([]);
  const values = await bitsOf(`SELECT leftPad(hex(reinterpretAsUInt64(num)), 16, '0') AS bits FROM doubles`);
  const exact = exactSum(values.map(doubleOf));
  expect(Math.abs(doubleOf(answer!) - exact)).toBeLessThanOrEqual(Math.abs(exact) * 2 ** -51);
});

test('the plain sum of the same doubles depends on threads and blocks', async () => {
  await fill('20 + 10 * sin(number * number)', 4, 10_000);
  expect((await answers('sum(num)')).size).toBeGreaterThan(1);
});

test('doubles at the ends of the range are added as they are', async () => {
  await fill('[1.5e300, -1e300, 2e-308, 0.][number + 1]', 1, 4);
  expect([...(await answers(equalSumIf('num', 'n >= 0')))].map(doubleOf)).toEqual([1.5e300 - 1e300]);
  expect([...(await answers(equalSumIf('num', 'n >= 2')))].map(doubleOf)).toEqual([2e-308]);
});
