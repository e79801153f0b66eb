/** How `ts` is read (docs/http.md#telemetry): stored as given, or refused by name. */
import { expect, test } from 'vitest';
import { at, withPoster } from '../../harness/stored.ts';

for (const [text, ts] of [
  ['"1700000000000"', 1_700_000_000_000],
  ['1.9', 1],
  ['1e12', 1_000_000_000_000],
  ['0', 0],
  ['-5', -5],
  ['7258118400000', 7_258_118_400_000],
] as const) {
  test(`ts ${text} is stored as ${ts}`, () =>
    withPoster(async (poster) => {
      await poster.accept(`{"ts":${text},"values":{"a":1}}`);
      expect(await poster.points('a', at(ts))).toEqual([{ ts, value: '1' }]);
    }));
}

test('refused timestamps are named and store nothing', () =>
  withPoster(async (poster) => {
    for (const text of [
      '"abc"',
      '"1.9"',
      '"1e12"',
      '""',
      '" 1 "',
      'null',
      'true',
      '{}',
      '[1]',
      '99999999999999999999',
      '9000000000000000000',
      '1e300',
    ]) {
      const message = await poster.refuse(`{"ts":${text},"values":{"a":1}}`);
      expect(message, text).toMatch(/\bts\b/);
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('500 different months in one message are all stored', () =>
  withPoster(async (poster) => {
    const times = Array.from({ length: 500 }, (_, month) => Date.UTC(1980, month, 3));
    await poster.accept(JSON.stringify(times.map((ts, n) => ({ ts, values: { a: n } }))));
    const range = { startTs: times[0]!, endTs: times.at(-1)! + 1 };
    const points = await poster.points('a', range, 500);
    expect(points).toEqual(times.map((ts, n) => ({ ts, value: String(n) })));
  }));

test('two messages of one device in one millisecond do not replace each other', () =>
  withPoster(async (poster) => {
    for (let n = 0; n < 50; n += 1) await poster.accept(`{"n":${n}}`);
    const points = await poster.points('n', undefined, 50);
    expect(points.map(({ value }) => Number(value))).toEqual(Array.from({ length: 50 }, (_, n) => n));
  }));
