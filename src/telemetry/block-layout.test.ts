/** A block has a layout when it is whole; nothing else has one. */
import { expect, test } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { Kind } from '../value/typed.ts';
import { columnHeads, writeSmall, writeVarint } from './block.ts';
import { layoutOf, startOfBlock } from './block-layout.ts';
import { keyOf } from './keys.ts';
import { readBlock } from './read-block.ts';
import { Rows } from './rows.ts';

const now = Date.UTC(2026, 10, 26);

function blockOf(random: Random, records: number, keys: number): Buffer {
  const rows = new Rows();
  for (let record = 0; record < records; record += 1) {
    const key = keyOf(`key ${random.below(keys)}`)!;
    const text = Buffer.from('ü'.repeat(random.below(100)));
    if (random.below(3) === 0) rows.addText(key, Kind.string, text, 0, text.length);
    else rows.addLong(key, random.below(2 ** 31));
    if (random.below(2) === 0) rows.endRecordNow(1 + record, now);
    else rows.endRecord(1 + record, now);
  }
  return Buffer.concat(rows.encode({ order: BigInt(now) << 20n, micros: now * 1000, firstPlace: 0 }));
}

test('every block that is written has a layout, of any size and with keys of any width', () => {
  const random = new Random(1);
  for (const [records, keys] of [
    [1, 1],
    [3, 3],
    [500, 300],
    [3_000, 3_000],
    [80_000, 70_000],
  ] as const) {
    const block = blockOf(random, records, keys);
    const layout = layoutOf(block)!;
    expect(layout).toMatchObject({ rows: records, ...startOfBlock(block) });
    expect(block.readBigUInt64LE(layout.device)).toBe(1n);
    expect(block.readBigInt64LE(layout.ts + 8 * (records - 1))).toBe(BigInt(now));
    expect(layoutOf(block, records)).toEqual(layout);
    expect(layoutOf(block, records - 1)).toBeUndefined();
  }
});

test('a block that ends early, or goes on, has none', () => {
  const block = blockOf(new Random(2), 3, 2);
  for (let length = 0; length < block.length; length += 1) expect(layoutOf(block.subarray(0, length))).toBeUndefined();
  expect(layoutOf(Buffer.concat([block, Buffer.from([0])]))).toBeUndefined();
  expect(layoutOf(Buffer.concat([block, block]))).toBeUndefined();
});

test('bytes with a layout are read without an error, whichever byte of a block is another one', () => {
  const random = new Random(3);
  const block = blockOf(random, 3, 2);
  let whole = 0;
  for (let at = 0; at < block.length; at += 1) {
    const damaged = Buffer.from(block);
    damaged[at]! ^= 1 << random.below(8);
    if (layoutOf(damaged) === undefined) continue;
    whole += 1;
    expect(readBlock(damaged)).toHaveLength(3);
  }
  expect(whole).toBeGreaterThan(0);
});

test('a column that comes first takes no memory for more rows than there are bytes', () => {
  const rows = 2 ** 30;
  const block = Buffer.alloc(100);
  let at = writeVarint(block, writeVarint(block, 0, 6), rows);
  block.set(columnHeads.key, at);
  at += columnHeads.key.length;
  // Indexes of four bytes, one empty key.
  for (const number of [1, 0x202, 1]) at = writeSmall(block, at, number);
  at = writeSmall(block, at + 1, rows);
  expect(layoutOf(block.subarray(0, at))).toBeUndefined();
  expect(() => readBlock(block.subarray(0, at))).toThrow(/ends early/);
});
