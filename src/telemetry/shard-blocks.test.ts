/** Blocks that are divided by shards have the same rows together. */
import { expect, test } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { bucketCount, firstShardMap, noShard, type ShardMap } from '../clickhouse/shards.ts';
import { Kind } from '../value/typed.ts';
import { layoutOf } from './block-layout.ts';
import { keyOf } from './keys.ts';
import { type BlockRow, readBlock } from './read-block.ts';
import { Rows } from './rows.ts';
import { blocksByShard } from './shard-blocks.ts';

const now = Date.UTC(2026, 10, 26);

function blockOf(random: Random, devices: readonly number[]): Buffer {
  const rows = new Rows();
  for (let record = 1 + random.below(40); record > 0; record -= 1) {
    const device = devices[random.below(devices.length)]!;
    for (let value = 1 + random.below(3); value > 0; value -= 1) {
      const key = keyOf(`key ${random.below(300)}`)!;
      const text = Buffer.from('x'.repeat(random.below(200)));
      if (random.below(3) === 0) rows.addText(key, Kind.string, text, 0, text.length);
      else if (random.below(2) === 0) rows.addLong(key, random.below(2 ** 31) - 2 ** 30);
      else rows.addDouble(key, random.below(1000) / 7);
    }
    if (random.below(2) === 0) rows.endRecord(device, now - random.below(1000));
    else rows.endRecordNow(device, now);
  }
  return Buffer.concat(rows.encode({ order: BigInt(now) << 20n, micros: now * 1000, firstPlace: 0 }));
}

function shardsOfRow({ device }: BlockRow, { shardOf, movesTo }: ShardMap): number[] {
  const bucket = device % bucketCount;
  return movesTo[bucket] === noShard ? [shardOf[bucket]!] : [shardOf[bucket]!, movesTo[bucket]!];
}

test('each shard gets the rows of its devices, in their order, and of buckets that move to it', () => {
  for (let seed = 0; seed < 300; seed += 1) {
    const random = new Random(seed);
    const shards = 1 + random.below(5);
    const map = firstShardMap(shards, random.below(4) === 0 ? 'some' : 'none');
    for (let moves = random.below(3) * 200; moves > 0; moves -= 1) {
      const bucket = random.below(bucketCount);
      const to = random.below(shards);
      if (to !== map.shardOf[bucket]) map.movesTo[bucket] = to;
    }
    // Numbers above 32 bits have buckets, too.
    const devices = Array.from({ length: 1 + random.below(6) }, () => random.below(5000) + random.below(2) * 2 ** 33);
    const block = blockOf(random, devices);
    const rows = readBlock(block);
    const divided = blocksByShard(block, shards, map);
    expect(divided).toHaveLength(shards);
    for (const [shard, part] of divided.entries()) {
      expect(part ? readBlock(part) : []).toEqual(rows.filter((row) => shardsOfRow(row, map).includes(shard)));
    }
  }
});

test('what was divided is a block, and is divided again, also with fewer rows than its block had keys', () => {
  const map = firstShardMap(3, 'none');
  for (let seed = 0; seed < 300; seed += 1) {
    const random = new Random(seed);
    const block = blockOf(random, [0, 1, 1, 1, 1, 1, 1, 2]);
    const [, part] = blocksByShard(block, 3, map);
    if (!part) continue;
    expect(layoutOf(part)).toBeDefined();
    const moved = { ...map, shardOf: map.shardOf.map((shard) => (shard === 1 ? 2 : 0)) };
    const again = blocksByShard(part, 3, moved);
    expect(again.map((each) => each && readBlock(each))).toEqual([undefined, undefined, readBlock(part)]);
  }
});

test('a block of one shard is not copied, and bytes that are no block go to the first shard', () => {
  const map = firstShardMap(3, 'none');
  const block = blockOf(new Random(7), [1, 4, 7]);
  expect(blocksByShard(block, 3, map)[1]).toBe(block);
  const noBlock = Buffer.from('no block');
  expect(blocksByShard(noBlock, 3, map)).toEqual([noBlock, undefined, undefined]);
  const ofAll = blockOf(new Random(1), [1, 2, 3]);
  expect(blocksByShard(ofAll, 3, map)).not.toContain(ofAll);
  const cut = ofAll.subarray(0, ofAll.length - 1);
  expect(blocksByShard(cut, 3, map)).toEqual([cut, undefined, undefined]);
});
