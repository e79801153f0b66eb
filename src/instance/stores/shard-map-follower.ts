/** Keeps the map of shards of a process up to date, by PostgreSQL. */
import type { Clock } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Shards } from '../../clickhouse/shards.ts';
import { isAway, type Queries } from '../../postgres/client.ts';
import { type OnPoll, SharedPoll } from '../../postgres/shared-poll.ts';
import { readShardMap, shardsNeeded } from './shard-map-store.ts';

interface ShardMapFollowerDeps {
  postgres: Queries;
  shards: Shards;
  clock: Clock;
  log: Log;
  /** Absent: this process polls alone. */
  onPoll?: OnPoll;
}

export class ShardMapFollower {
  readonly #poll: SharedPoll;

  constructor({ postgres, shards, clock, log, onPoll }: ShardMapFollowerDeps) {
    const read = async (): Promise<boolean> => {
      try {
        const map = await readShardMap(postgres);
        if (map === undefined) return false;
        if (shardsNeeded(map) > shards.all.length) {
          // This process keeps the map that it has, and a move waits for it (`shard-moves.ts`).
          log.error('shard_not_named', { shards: shardsNeeded(map), named: shards.all.length });
          return false;
        }
        if (map.version !== shards.map?.version) shards.map = map;
        return true;
      } catch (error) {
        if (!isAway(error)) log.warn('shard_map_unread', { reason: messageOf(error) });
        return false;
      }
    };
    this.#poll = new SharedPoll({ kind: 'shardMap', clock, read }, onPoll);
  }

  /** Resolves after the first read. */
  start(): Promise<void> {
    return this.#poll.start();
  }

  stop(): Promise<void> {
    return this.#poll.stop();
  }
}
