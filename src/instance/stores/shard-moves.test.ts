/** Which buckets move. test/long/shards.test.ts moves them under load. */
import { expect, test } from 'vitest';
import { Random } from '../../../test/harness/random.ts';
import { bucketCount, firstShardMap } from '../../clickhouse/shards.ts';
import { planMoves } from './shard-moves.ts';

function sizes(shardOf: Uint8Array, shards: number): number[] {
  return Array.from({ length: shards }, (_, shard) => shardOf.filter((each) => each === shard).length);
}

function after(shardOf: Uint8Array, moves: Map<number, number>): Uint8Array {
  const next = shardOf.slice();
  for (const [bucket, to] of moves) next[bucket] = to;
  return next;
}

test('a new shard gets its share, and no bucket moves between the others', () => {
  const { shardOf } = firstShardMap(3, false);
  const moves = planMoves(shardOf, 4);
  expect(new Set(moves.values())).toEqual(new Set([3]));
  expect(sizes(after(shardOf, moves), 4)).toEqual([256, 256, 256, 256]);
  expect(planMoves(after(shardOf, moves), 4).size).toBe(0);
});

test('an installation with one server shares its buckets with the new ones', () => {
  const { shardOf } = firstShardMap(3, true);
  const moves = planMoves(shardOf, 3);
  expect(sizes(after(shardOf, moves), 3).sort()).toEqual([341, 341, 342]);
});

test('a plan moves as few buckets as possible, from any map', () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const random = new Random(seed);
    const shards = 2 + random.below(6);
    const shardOf = Uint8Array.from({ length: bucketCount }, () => random.below(1 + random.below(shards)));
    const emptied = random.below(3) === 0 ? random.below(shards) : undefined;
    const moves = planMoves(shardOf, shards, emptied);
    const found = sizes(after(shardOf, moves), shards);
    const kept = found.filter((_, shard) => shard !== emptied);
    expect(Math.max(...kept) - Math.min(...kept)).toBeLessThanOrEqual(1);
    if (emptied !== undefined) expect(found[emptied]).toBe(0);
    for (const [bucket, to] of moves) expect(to).not.toBe(shardOf[bucket]);
    const before = sizes(shardOf, shards);
    const gained = found.reduce((sum, size, shard) => sum + Math.max(0, size - before[shard]!), 0);
    expect(moves.size).toBe(gained);
  }
});
