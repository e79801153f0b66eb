/** Which buckets move, and in which steps. test/long/shards.test.ts moves them under load. */
import { expect, test, vi } from 'vitest';
import { shareTestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { startTestPostgres } from '../../../test/harness/postgres-server.ts';
import { Random } from '../../../test/harness/random.ts';
import { silentLog as log } from '../../../test/harness/silent-log.ts';
import { systemClock as clock } from '../../base/clock.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { bucketCount, firstShardMap, noShard, Shards } from '../../clickhouse/shards.ts';
import type { Queries } from '../../postgres/client.ts';
import { ShardMapFollower } from './shard-map-follower.ts';
import { makeShardMap, readShardMap } from './shard-map-store.ts';
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
  const { shardOf } = firstShardMap(3, 'none');
  const moves = planMoves(shardOf, 4);
  expect(new Set(moves.values())).toEqual(new Set([3]));
  expect(sizes(after(shardOf, moves), 4)).toEqual([256, 256, 256, 256]);
  expect(planMoves(after(shardOf, moves), 4).size).toBe(0);
});

test('an installation with one server shares its buckets with the new ones', () => {
  const { shardOf } = firstShardMap(3, 'some');
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
    if (text.includes('from shard_map_uses')) return [];
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

test('the lease is renewed during a copy that takes longer, and not after the end', async () => {
  let renew: (() => void) | undefined;
  const scheduler: Scheduler = {
    ...systemScheduler,
    sleep: async () => {},
    every: (_, run) => {
      renew = run;
      return () => {
        renew = undefined;
      };
    },
  };
  const map = { version: 1, shardOf: Buffer.alloc(bucketCount), movesTo: Buffer.alloc(bucketCount, noShard) };
  let isCopied = false;
  let leases = 0;
  const answerTo = (text: string, values: readonly unknown[]): object[] => {
    if (text.includes('insert into lease')) leases += 1;
    if (text.includes('count(*)')) return [{ count: 0 }];
    if (/from (journals|shard_map_uses)|update tombstones/.test(text)) return [];
    if (text.includes('from shard_map')) return [{ ...map, isCopied }];
    if (text.includes('update shard_map')) {
      const [version, shardOf, movesTo, copied] = values as [number, Buffer, Buffer, boolean];
      Object.assign(map, { version, shardOf, movesTo });
      isCopied = copied;
    }
    return [{ holder: values[1] }];
  };
  const postgres = { query: async (text: string, values: readonly unknown[]) => answerTo(text, values) };
  const renewed: number[] = [];
  const clickhouse = {
    rows: async (sql: string) => (sql.includes('latest') ? [{ count: '0' }] : []),
    copyTo: async () => {
      const before = leases;
      renew?.();
      renew?.();
      renewed.push(leases - before);
    },
  } as unknown as ClickHouse;
  const deps = { postgres: postgres as unknown as Queries, shards: [clickhouse, clickhouse], cluster: '', scheduler };
  await moveBuckets({ ...deps, withoutSilent: false, say: () => {} }, () => (isCopied ? new Map() : new Map([[7, 1]])));
  expect([renewed, renew]).toEqual([[2], undefined]);
});

test('a move waits for a process that has just read an earlier map, and for its work by that map', async () => {
  const { postgres, stop } = await startTestPostgres();
  const copied = vi.fn();
  const server = {
    rows: async (sql: string) => (sql.includes('latest') ? [{ count: '0' }] : []),
    copyTo: async () => copied(),
  } as unknown as ClickHouse;
  const servers = [server, server];
  await makeShardMap(postgres, { rows: async () => [{ count: '1' }] } as unknown as ClickHouse, 2);
  // A worker whose read of the map takes long, as with a busy database.
  let answer = () => {};
  const held = new Promise<void>((resolve) => {
    answer = resolve;
  });
  let isReading = false;
  const slow: Queries = {
    async query(text, values, options) {
      const rows = await postgres.query<never>(text, values, options);
      if (!text.includes('from shard_map') || text.includes('shard_map_uses')) return rows;
      isReading = true;
      await held;
      return rows;
    },
  };
  const shards = new Shards(servers);
  const follower = new ShardMapFollower({ postgres: slow, shards, clock, log });
  const started = follower.start();
  await vi.waitFor(() => expect(isReading).toBe(true), 20_000);
  let isMoved = false;
  const scheduler = { ...systemScheduler, sleep: (ms: number) => systemScheduler.sleep(Math.min(ms, 200)) };
  const deps = { postgres, shards: servers, cluster: '', withoutSilent: true, say: () => {}, scheduler };
  const moving = moveBuckets(deps, () => new Map([[7, 1]])).then(() => {
    isMoved = true;
  });
  const versionOf = async () => (await readShardMap(postgres))!.version;
  try {
    await vi.waitFor(async () => expect(await versionOf()).toBe(2), 20_000);
    answer();
    await started;
    const end = shards.begin();
    await vi.waitFor(() => expect(shards.map?.version).toBe(2), 20_000);
    // The move looks five times a second.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    expect([copied.mock.calls.length, isMoved]).toEqual([0, false]);
    end();
    await vi.waitFor(() => expect(copied).toHaveBeenCalled(), 20_000);
  } finally {
    answer();
    await follower.stop();
    await moving;
    await stop();
  }
  expect(shards.map?.version).toBeGreaterThan(1);
}, 120_000);

test('a move takes along the points of every time, also those before 1970', async () => {
  const [stores, ...servers] = await Promise.all([startTestPostgres(), shareTestClickHouse(), shareTestClickHouse()]);
  const { postgres } = stores;
  const dayMs = 86_400_000;
  const times = [-800 * dayMs - 5, -800 * dayMs, -dayMs - 1, -dayMs, -1, 0, dayMs - 1, dayMs, 20_000 * dayMs + 5];
  const shards = servers.map(({ clickhouse }) => clickhouse);
  const [from, to] = shards as [ClickHouse, ClickHouse];
  const timesOn = async (shard: ClickHouse) =>
    (await shard.rows<{ ts: string }>('SELECT ts FROM telemetry FINAL ORDER BY ts')).map(({ ts }) => Number(ts));
  try {
    const values = times.map((ts) => `(7, 'k', ${ts}, 3, 1, 1)`);
    await from.exec(`INSERT INTO telemetry (device, key, ts, kind, num, version) VALUES ${values.join(', ')}`);
    await makeShardMap(postgres, from, 2);
    const scheduler = { ...systemScheduler, sleep: (ms: number) => systemScheduler.sleep(Math.min(ms, 20)) };
    const deps = { postgres, shards, cluster: '', withoutSilent: false, say: () => {}, scheduler };
    await moveBuckets(deps, () => new Map([[7, 1]]));
    expect(await timesOn(to)).toEqual(times);
    await expect.poll(() => timesOn(from)).toEqual([]);
  } finally {
    await Promise.all([stores.stop(), ...servers.map((server) => server.stop())]);
  }
}, 120_000);
