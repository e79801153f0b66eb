/** Joined blocks have the rows of all, in their order. */
import { expect, test } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { Kind } from '../value/typed.ts';
import { joinBlocks } from './join-blocks.ts';
import { keyOf } from './keys.ts';
import { blocksOf, readBlock, rowsOfBlock } from './read-block.ts';
import { Rows } from './rows.ts';

const now = Date.UTC(2026, 10, 26);

interface Wanted {
  records: number;
  /** Keys are drawn from so many. */
  keys: number;
  /** Absent: some records have their own time. */
  isServerTime?: boolean;
  hasTexts?: boolean;
}

function blockOf(random: Random, n: number, { records, keys, isServerTime, hasTexts = true }: Wanted): Buffer {
  const rows = new Rows();
  for (let record = 0; record < records; record += 1) {
    const device = 1 + random.below(50) + random.below(2) * 2 ** 33;
    for (let value = 1 + random.below(3); value > 0; value -= 1) {
      const key = keyOf(`key ${random.below(keys)}`)!;
      const text = Buffer.from('ü'.repeat(random.below(100)));
      if (hasTexts && random.below(3) === 0) rows.addText(key, Kind.string, text, 0, text.length);
      else if (hasTexts && random.below(2) === 0) rows.addLong(key, random.below(2 ** 31) - 2 ** 30);
      else rows.addDouble(key, random.below(1000) / 7);
    }
    if (isServerTime ?? random.below(2) === 0) rows.endRecordNow(device, now);
    else rows.endRecord(device, now - random.below(1000));
  }
  return Buffer.concat(rows.encode({ order: BigInt(now + n) << 20n, micros: now * 1000, firstPlace: 0 }));
}

function joined(blocks: readonly Uint8Array[]): Buffer {
  // The memory has any contents before.
  return joinBlocks(blocks, (bytes) => Buffer.alloc(bytes, 0xaa));
}

test('blocks of any keys, columns and sizes become one with the same rows in the same order', () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const random = new Random(seed);
    const keys = [3, 300, 3000][random.below(3)]!;
    const blocks = Array.from({ length: 2 + random.below(30) }, (_, n) => {
      const kind = random.below(3);
      const wanted = { records: 1 + random.below(kind === 0 ? 3 : 40), keys, hasTexts: random.below(2) === 0 };
      return blockOf(random, n, kind === 2 ? wanted : { ...wanted, isServerTime: kind === 0 });
    });
    const body = joined(blocks);
    expect(blocksOf(body)).toHaveLength(1);
    expect(readBlock(body)).toEqual(blocks.flatMap((block) => readBlock(block)));
  }
});

test('keys beyond 65 536 have wider indexes', () => {
  const random = new Random(1);
  const blocks = Array.from({ length: 60 }, (_, n) => blockOf(random, n, { records: 500, keys: 1_000_000 }));
  const body = joined(blocks);
  expect(blocksOf(body)).toHaveLength(1);
  expect(readBlock(body)).toEqual(blocks.flatMap((block) => readBlock(block)));
});

test('a large block, and bytes that are no block, stay as they are between joined ones', () => {
  const random = new Random(7);
  const small = Array.from({ length: 4 }, (_, n) => blockOf(random, n, { records: 2, keys: 5 }));
  const large = blockOf(random, 4, { records: 3000, keys: 5 });
  const damaged = Buffer.from(small[1]!);
  damaged[2] = 0xff;
  const cut = small[0]!.subarray(0, small[0]!.length - 1);
  for (const other of [large, damaged, cut, Buffer.alloc(0), Buffer.from('INSERT')]) {
    const body = joined([small[0]!, small[1]!, other, small[2]!, small[3]!]);
    const first = joined([small[0]!, small[1]!]);
    const last = joined([small[2]!, small[3]!]);
    expect(body.equals(Buffer.concat([first, other, last]))).toBe(true);
  }
  expect(joined([large]).equals(large)).toBe(true);
});

test('every single damage of a block is passed on or read as ClickHouse would read it', () => {
  const random = new Random(3);
  const [first, second] = [blockOf(random, 0, { records: 2, keys: 4 }), blockOf(random, 1, { records: 2, keys: 4 })];
  for (let at = 0; at < second!.length; at += 1) {
    const damaged = Buffer.from(second!);
    damaged[at]! ^= 1 << random.below(8);
    const body = joined([first!, damaged]);
    if (body.subarray(-damaged.length).equals(damaged) && body.length === first!.length + damaged.length) continue;
    expect(readBlock(body)).toEqual([...readBlock(first!), ...readBlock(damaged)]);
  }
});

test('blocks are joined up to the rows that ClickHouse puts in a block', () => {
  const random = new Random(5);
  const blocks = Array.from({ length: 100 }, (_, n) => blockOf(random, n, { records: 900, keys: 5 }));
  const rows = blocksOf(joined(blocks)).map((block) => rowsOfBlock(block));
  expect(Math.max(...rows)).toBeLessThanOrEqual(65_000);
  expect(rows.length).toBeLessThan(6);
  expect(rows.reduce((sum, count) => sum + count)).toBe(blocks.reduce((sum, block) => sum + rowsOfBlock(block), 0));
});
