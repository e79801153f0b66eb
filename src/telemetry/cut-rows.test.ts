/** Rows in several chunks: no row is lost or changed, devices stay together, and no chunk is too large. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Kind } from '../value/typed.ts';
import { cutRows } from './cut-rows.ts';
import { Chunk, chunksOf } from './decoded-chunk.ts';
import { keyOf } from './keys.ts';
import { readBlock } from './read-block.ts';
import { Rows } from './rows.ts';

const now = 1_700_000_000_000;
const order = BigInt(now) << 20n;
const value = fc.oneof(fc.boolean(), fc.maxSafeInteger(), fc.double(), fc.string({ maxLength: 300 }));
const record = fc.record({
  device: fc.integer({ min: 1, max: 12 }),
  isServerTime: fc.boolean(),
  points: fc.uniqueArray(fc.tuple(fc.constantFrom('a', 'b', 'temperature', 'long'.repeat(20)), value), {
    minLength: 1,
    selector: ([key]) => key,
  }),
});

function rowsOf(records: readonly (typeof record extends fc.Arbitrary<infer R> ? R : never)[]): Rows {
  const rows = new Rows();
  for (const [i, { device, isServerTime, points }] of records.entries()) {
    for (const [name, point] of points) {
      const key = keyOf(name)!;
      if (typeof point === 'boolean') rows.addBoolean(key, point);
      else if (typeof point === 'string') {
        const text = Buffer.from(point);
        rows.addText(key, Kind.string, text, 0, text.length);
      } else if (Number.isSafeInteger(point)) rows.addLong(key, point);
      else rows.addDouble(key, point);
    }
    if (isServerTime) rows.endRecordNow(device, now);
    else rows.endRecord(device, now - i);
  }
  return rows;
}

const cuts = [
  { how: 'by bucket', buckets: 5, cut: (rows: Rows, max: number) => cutRows(rows, (device) => device % 5, max) },
  {
    how: 'of one bucket',
    buckets: 1,
    cut: (rows: Rows, max: number) => chunksOf(rows, max).map((chunk) => new Chunk(chunk)),
  },
];

test.each(cuts)('the chunks $how have every row, are below the size, and have points of their own', (each) => {
  fc.assert(
    fc.property(
      fc.array(record, { minLength: 1, maxLength: 60 }),
      fc.constantFrom(1_500, 4_000, 1e6),
      (records, max) => {
        const rows = rowsOf(records);
        const stamp = { order, micros: now * 1000, firstPlace: 0 };
        const whole = readBlock(Buffer.concat(rows.encode(stamp)));
        const points: string[] = [];
        const names = new Set<string>();
        let firstPlace = 0;
        for (const chunk of each.cut(rows, max)) {
          const block = Buffer.concat(chunk.encode({ ...stamp, firstPlace }));
          firstPlace += chunk.records;
          const found = readBlock(block);
          expect(found).toHaveLength(chunk.count);
          expect(new Set(found.map(({ device }) => device % each.buckets)).size).toBe(1);
          if (found.length > 1) expect(block.length).toBeLessThanOrEqual(max);
          for (const { device, key, ts, seq, kind, num, int, text } of found) {
            points.push(JSON.stringify([device, key, ts, kind, String(num), String(int), text]));
            if (seq > 0) names.add(`${device} ${key} ${ts} ${seq}`);
          }
        }
        const expected = whole.map(({ device, key, ts, kind, num, int, text }) =>
          JSON.stringify([device, key, ts, kind, String(num), String(int), text]),
        );
        expect(points.sort()).toEqual(expected.sort());
        // Two points at server time never have the same key, so none replaces another one.
        const atServerTime = new Set(
          whole.filter(({ seq }) => seq > 0).map((r) => `${r.device} ${r.key} ${r.ts} ${r.seq}`),
        );
        expect(names.size).toBe(atServerTime.size);
      },
    ),
    { numRuns: 200 },
  );
});
