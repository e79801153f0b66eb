/** Which buckets move, and in which steps. test/long/shards.test.ts moves them under load. */
import { expect, test } from 'vitest';
import { Random } from '../../../test/harness/random.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { bucketCount, firstShardMap, noShard } from '../../clickhouse/shards.ts';
import type { Queries } from '../../postgres/client.ts';
import { moveBuckets, planMoves } from './shard-moves.ts';

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

test('deletes are carried out again only when those that met the copy have ended', async () => {
  const map = { version: 1, shardOf: Buffer.alloc(bucketCount), movesTo: Buffer.alloc(bucketCount, noShard) };
  let ofDelete: number | undefined;
  let looks = 0;
  const answerTo = (text: string, values: readonly unknown[]): object[] => {
    if (text.includes('from shard_map')) return [{ ...map, isCopied: false }];
    if (text.includes('update shard_map')) {
      const [version, shardOf, movesTo] = values as [number, Buffer, Buffer];
      Object.assign(map, { version, shardOf, movesTo });
    }
    if (text.includes('from journals')) {
      looks += 1;
      if (looks === 3) ofDelete = undefined;
      return [{ host: 'a', isLive: true, mapVersion: ofDelete ?? map.version }];
    }
    if (text.includes('update tombstones')) throw new Error(`reopened during a delete: ${ofDelete !== undefined}`);
    // The lease is given to everyone.
    return [{ holder: values[1] }];
  };
  const postgres = {
    query: async (text: string, values: readonly unknown[]) => answerTo(text, values),
  } as unknown as Queries;
  const clickhouse = {
    rows: async (sql: string) => (sql.includes('latest') ? [{ count: '0' }] : []),
    copyTo: async () => {
      ofDelete = map.version;
    },
  } as unknown as ClickHouse;
  const deps = { postgres, shards: [clickhouse, clickhouse], cluster: '', withoutSilent: false, say: () => {} };
  await expect(moveBuckets(deps, () => new Map([[7, 1]]))).rejects.toThrow('reopened during a delete: false');
});
