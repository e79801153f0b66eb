import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Kind, type TypedValue } from '../value/typed.ts';
import { tsDistanceMsMax } from './block.ts';
import { addDays, SampledRecords } from './block-days.ts';
import { Chunk, chunksOf } from './decoded-chunk.ts';
import { keyOf } from './keys.ts';
import { type BlockRow, readBlock, rowsOfBlock, splitBlock } from './read-block.ts';
import { Rows } from './rows.ts';

const now = 1_700_000_000_000;
const order = (BigInt(now) << 20n) + 0xabcden;
const stamp = { order, micros: now * 1000, firstPlace: 0 };

const nothing = { num: 0, int: '0', text: '' };
const longMin = -(2n ** 63n);
const value = fc.oneof(
  fc.boolean().map((is): TypedValue => ({ ...nothing, kind: Kind.boolean, int: is ? '1' : '0' })),
  fc
    .bigInt({ min: longMin, max: -longMin - 1n })
    .map((int): TypedValue => ({ ...nothing, kind: Kind.long, int: String(int) })),
  fc.double({ noNaN: true }).map((num): TypedValue => ({ ...nothing, kind: Kind.double, num })),
  fc.string({ unit: 'grapheme', maxLength: 200 }).map((text): TypedValue => ({ ...nothing, kind: Kind.string, text })),
);
const key = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 20 }).filter((text) => keyOf(text) !== undefined);
const record = fc.record({
  device: fc.oneof(fc.nat(), fc.maxSafeNat()),
  ts: fc.integer({ min: now - tsDistanceMsMax, max: now + tsDistanceMsMax }),
  values: fc.array(fc.tuple(key, value), { minLength: 1, maxLength: 5 }),
});
type Record = typeof record extends fc.Arbitrary<infer T> ? T : never;

function add(rows: Rows, records: Record[]): void {
  for (const { device, ts, values } of records) {
    for (const [name, typed] of values) {
      if (typed.kind === Kind.string)
        rows.addText(keyOf(name)!, Kind.string, Buffer.from(typed.text), 0, Buffer.byteLength(typed.text));
      else rows.addValue(keyOf(name)!, typed);
    }
    rows.endRecord(device, ts);
  }
}

const expectedRows = (records: Record[]): BlockRow[] =>
  records.flatMap(({ device, ts, values }) =>
    values.map(([name, { kind, num, int, text }]) => {
      const version = order - (BigInt(ts) << 20n) + (1n << 63n);
      return { device, key: name, ts, kind, num, int: BigInt(int), text, seq: 0, expires: 0, version, order };
    }),
  );

/** Rows at server time, by the `ts` of each record; a string is a record that brought its ts. */
function seqs(times: (number | string)[], micros: number, firstPlace = 0): number[] {
  const rows = new Rows(1);
  for (const ts of times) {
    rows.addLong(keyOf('k')!, 1);
    if (typeof ts === 'number') rows.endRecordNow(1, ts);
    else rows.endRecord(1, Number(ts));
  }
  return readBlock(Buffer.concat(rows.encode({ order, micros, firstPlace }))).map(({ seq }) => seq);
}

describe('seq', () => {
  const parts = (all: number[]) => all.map((seq) => [Math.floor(seq / 2 ** 24) - 1, seq % 2 ** 24]);

  it('is 0 for a ts that was brought, and never for server time', () => {
    expect(seqs([String(now), String(now - 1)], now * 1000)).toEqual([0, 0]);
    expect(seqs([now, String(now), now + 5], now * 1000).map((seq) => seq > 0)).toEqual([true, false, true]);
  });

  it('counts the records of a millisecond, and begins again with a later one', () => {
    const places = parts(seqs([now, now, String(now), now, now + 1, now + 1, now + 7], now * 1000)).map(
      ([, place]) => place,
    );
    expect(places).toEqual([0, 1, 0, 2, 0, 1, 0]);
    expect(parts(seqs([now, now], now * 1000, 40_000))).toEqual([
      [0, 40_000],
      [0, 40_001],
    ]);
  });

  it('rises with the moment of the frame, up to a whole millisecond', () => {
    const lags = [-7, 0, 3, 4, 40, 999, 1000, 1e9].map((late) => parts(seqs([now], now * 1000 + late))[0]![0]);
    expect(lags).toEqual([0, 0, 0, 1, 10, 249, 250, 250]);
  });

  it('differs for any two records of one ts, however the clock jumps inside a frame', () => {
    const times = fc.array(fc.integer({ min: now, max: now + 3 }), { maxLength: 40 });
    fc.assert(
      fc.property(times, fc.integer({ min: 0, max: 5000 }), (records, late) => {
        const all = seqs(records, now * 1000 + late);
        const named = all.map((seq, i) => `${records[i]} ${seq}`);
        expect(new Set(named).size).toBe(records.length);
        // Of two records with one ts the later one has the larger number.
        for (let i = 0; i < all.length; i += 1) {
          for (let j = 0; j < i; j += 1) if (records[i] === records[j]) expect(all[i]).toBeGreaterThan(all[j]!);
        }
      }),
    );
  });

  it('is kept by a block that is cut', () => {
    const rows = new Rows();
    for (let i = 0; i < 10; i += 1) {
      rows.addLong(keyOf('k')!, i);
      if (i % 3 === 0) rows.endRecord(1, now);
      else rows.endRecordNow(1, now);
    }
    const block = Buffer.concat(rows.encode(stamp));
    const halves = [splitBlock(block, 0, 4), splitBlock(block, 4, 10)];
    expect(readBlock(Buffer.concat(halves))).toEqual(readBlock(block));
  });
});

describe('Rows', () => {
  it('return the added rows through readBlock, after any reuse or rollback', () => {
    const rows = new Rows(1);
    fc.assert(
      fc.property(fc.array(record), fc.array(record), fc.array(record), (first, refused, second) => {
        rows.reset();
        add(rows, first);
        const mark = rows.mark();
        add(rows, refused);
        rows.rollback(mark);
        add(rows, second);
        const block = Buffer.concat(rows.encode(stamp));
        const expected = expectedRows([...first, ...second]);
        expect(readBlock(block)).toEqual(expected);
        if (expected.length === 0) return;
        expect(rowsOfBlock(block)).toBe(expected.length);
        expect(Math.abs(rows.bytes - block.length)).toBeLessThan(200 + expected.length * 3);
        const middle = expected.length >> 1;
        expect(readBlock(splitBlock(block, 0, middle))).toEqual(expected.slice(0, middle));
        expect(readBlock(splitBlock(block, middle, expected.length))).toEqual(expected.slice(middle));
      }),
      { numRuns: 200 },
    );
  });

  it('keep texts when they have to move', () => {
    const rows = new Rows(1);
    const texts = Array.from({ length: 300 }, (_, i) => (i % 3 === 0 ? '' : 'é'.repeat(i * 7)));
    for (const [i, text] of texts.entries()) {
      if (i % 2 === 0) rows.addText(keyOf('k')!, Kind.string, Buffer.from(text), 0, Buffer.byteLength(text));
      else rows.addValue(keyOf('k')!, { ...nothing, kind: Kind.json, text });
    }
    for (let i = 0; i < 5000; i += 1) rows.addLong(keyOf('n')!, i);
    rows.endRecord(1, now);
    const read = readBlock(Buffer.concat(rows.encode(stamp)));
    expect(read.map(({ text }) => text)).toEqual([...texts, ...Array(5000).fill('')]);
  });

  it('leave out columns that no row needs', () => {
    const rows = new Rows();
    const block = (): string => Buffer.concat(rows.encode(stamp)).toString('latin1');
    rows.addDouble(keyOf('k')!, 1.5);
    rows.endRecord(1, now);
    expect([block().includes('\x03int'), block().includes('\x04text')]).toEqual([false, false]);
    rows.addLong(keyOf('k')!, 1);
    rows.endRecord(1, now);
    expect(block().includes('\x03int')).toBe(true);
    rows.reset();
    rows.addText(keyOf('k')!, Kind.string, Buffer.from('x'), 0, 1);
    rows.endRecord(1, now);
    expect(block().includes('\x04text')).toBe(true);
    expect(block().includes('\x03int')).toBe(false);
  });

  it('leave out seq when every message brought its ts', () => {
    const rows = new Rows();
    const block = (): string => Buffer.concat(rows.encode(stamp)).toString('latin1');
    rows.addDouble(keyOf('k')!, 1.5);
    rows.endRecord(1, now);
    const mark = rows.mark();
    const without = block();
    expect(without.includes('\x03seq')).toBe(false);
    rows.addDouble(keyOf('k')!, 2.5);
    rows.endRecordNow(1, now);
    expect(block().includes('\x03seq')).toBe(true);
    rows.rollback(mark);
    expect(block()).toBe(without);
  });

  it('index as many keys as there are', () => {
    for (const count of [256, 257, 65_536, 65_537]) {
      const rows = new Rows();
      for (let i = 0; i < count; i += 1) rows.addLong(keyOf(`many${i}`)!, i);
      rows.endRecord(1, now);
      const read = readBlock(Buffer.concat(rows.encode(stamp)));
      expect(read.every((row, i) => row.key === `many${i}` && row.int === BigInt(i))).toBe(true);
    }
  });

  it('work for two frames that are filled by turns', () => {
    const [a, b] = [new Rows(), new Rows()];
    for (let i = 0; i < 4; i += 1) {
      for (const rows of [a, b]) {
        rows.addLong(keyOf(`turn${i % 2}`)!, i);
        rows.endRecord(1, now);
      }
    }
    for (const rows of [a, b])
      expect(readBlock(Buffer.concat(rows.encode(stamp))).map((row) => row.key)).toEqual([
        'turn0',
        'turn1',
        'turn0',
        'turn1',
      ]);
  });

  it('refuse to read what is no block', () => {
    const rows = new Rows();
    rows.addLong(keyOf('k')!, 1);
    rows.endRecord(1, now);
    const block = Buffer.concat(rows.encode(stamp));
    for (let length = 1; length < block.length; length += 1)
      expect(() => readBlock(block.subarray(0, length))).toThrow(/block/);
  });

  it('are a block to ClickHouse, and several are one body', () => {
    const rows = new Rows();
    const blocks: Uint8Array[] = [];
    const expected: BlockRow[] = [];
    const frame = (records: Record[]): void => {
      rows.reset();
      add(rows, records);
      blocks.push(Buffer.concat(rows.encode(stamp)));
      expected.push(...expectedRows(records));
    };
    frame([{ device: 2 ** 40 + 3, ts: -5, values: [['num', { ...nothing, kind: Kind.double, num: 0.1 }]] }]);
    frame(fc.sample(record, { numRuns: 50, seed: 7 }));
    frame([{ device: 1, ts: now, values: [['long', { ...nothing, kind: Kind.long, int: '-9223372036854775808' }]] }]);
    frame([
      {
        device: 1,
        ts: now,
        values: Array.from({ length: 300 }, (_, i) => [
          `k${i}`,
          { ...nothing, kind: Kind.string, text: 'x'.repeat(i) },
        ]),
      },
    ]);
    const half = splitBlock(blocks.at(-1)!, 100, 200);
    blocks.push(half);
    expected.push(...expected.slice(-200, -100));
    const read = askClickHouse(Buffer.concat(blocks));
    expect(read).toEqual(
      expected.map(({ device, key, ts, kind, num, int, text, version }) => ({
        device: String(device),
        key,
        ts: String(ts),
        kind,
        num,
        int: String(int),
        text,
        version: String(version),
      })),
    );
  }, 60_000);
});

/** The rows as the real engine reads them; in a process of its own, for it never gives its memory back. */
function askClickHouse(body: Uint8Array): object[] {
  const directory = mkdtempSync(join(tmpdir(), 'rows-'));
  try {
    const file = join(directory, 'x.native');
    writeFileSync(file, body);
    const columns =
      'device UInt64, key LowCardinality(String), ts Int64, kind UInt8, num Float64, int Int64, text String, version UInt64';
    const script = `
      const { Session } = require('chdb');
      const session = new Session(${JSON.stringify(join(directory, 'db'))});
      const sql = "SELECT * FROM file('${file}', 'Native', '${columns}') FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers=1, output_format_json_quote_denormals=1, max_threads=1";
      process.stdout.write(session.query(sql), () => process.exit(0));`;
    const cwd = fileURLToPath(new URL('../../', import.meta.url));
    const answer = execFileSync(process.execPath, ['-e', script], { cwd, encoding: 'utf8', maxBuffer: 1e8 });
    return answer
      .trimEnd()
      .split('\n')
      .map((line) => {
        const row = JSON.parse(line);
        return { ...row, num: row.num === 'inf' ? Infinity : row.num === '-inf' ? -Infinity : Number(row.num) };
      });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

it('a block of points with a time to live says when they expire, also in parts', () => {
  const rows = new Rows();
  rows.addLong(keyOf('a')!, 1);
  rows.addText(keyOf('b')!, Kind.string, Buffer.from('x'), 0, 1);
  rows.endRecordNow(7, now);
  const [chunk] = chunksOf(rows).map((each) => new Chunk(each));
  const stamp = { order, micros: now * 1000, firstPlace: 0 };
  const without = Buffer.concat(chunk!.encode(stamp));
  chunk!.expireAt(2 ** 32 - 1);
  const block = Buffer.concat(chunk!.encode(stamp));
  expect(readBlock(block)).toEqual(readBlock(without).map((row) => ({ ...row, expires: 2 ** 32 - 1 })));
  expect(readBlock(splitBlock(block, 1, 2))).toEqual([readBlock(block)[1]]);
  expect(rowsOfBlock(block)).toBe(2);
  const times = (bytes: Buffer) => addDays(bytes, new Set(), 0, Number.MAX_SAFE_INTEGER);
  expect(times(block)).toEqual({ rows: 2, hasSeq: true, hasExpires: true, oldest: now, newest: now });
  expect(times(without)).toMatchObject({ hasSeq: true, hasExpires: false });
});

it('a sample tells whether most devices of some blocks sent one record', () => {
  const areSingle = (deviceOf: (n: number) => number, messages = 20_000) => {
    const sampled = new SampledRecords();
    const rows = new Rows();
    for (let n = 0; n < messages; n += 1) {
      for (const key of ['a', 'b', 'c']) rows.addLong(keyOf(key)!, n);
      rows.endRecord(deviceOf(n), now + n);
      if (n % 1_000 !== 999) continue;
      sampled.add(Buffer.concat(rows.encode({ order, micros: now * 1000, firstPlace: 0 })));
      rows.reset();
    }
    sampled.add(Buffer.from('not a block'));
    return sampled.areSingle;
  };
  expect(areSingle((n) => n)).toBe(true);
  expect(areSingle((n) => 10 * n + 2 ** 40)).toBe(true);
  expect(areSingle((n) => n >> 1)).toBe(false);
  expect(areSingle((n) => n % 5_000)).toBe(false);
  // Too few to tell.
  expect(areSingle((n) => n, 1_000)).toBe(false);
});
