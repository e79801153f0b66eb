/** The first map of shards. */
import { expect, test } from 'vitest';
import type { ClickHouse } from '../../clickhouse/client.ts';
import type { Queries } from '../../postgres/client.ts';
import { makeShardMap } from './shard-map-store.ts';

/** Returns the shards to which the first map gives buckets when these tables of the first server have rows. */
async function firstShards(...filled: string[]): Promise<number[]> {
  let shardOf: Buffer | undefined;
  const postgres = {
    query: async (text: string, values: readonly unknown[]) => {
      if (text.includes('insert into shard_map')) shardOf = values[1] as Buffer;
      return [];
    },
  } as unknown as Queries;
  const first = {
    rows: async (sql: string) => [{ count: String(filled.filter((table) => sql.includes(`FROM ${table} `)).length) }],
  } as unknown as ClickHouse;
  await makeShardMap(postgres, first, 3);
  return [...new Set(shardOf)];
}

test('a server that has rows keeps all buckets, also when it has no latest value any more', async () => {
  expect(await firstShards()).toEqual([0, 1, 2]);
  expect(await firstShards('latest', 'telemetry')).toEqual([0]);
  expect(await firstShards('telemetry')).toEqual([0]);
});
