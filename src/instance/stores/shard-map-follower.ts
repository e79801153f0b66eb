/**
 * Keeps the map of shards of a process up to date, by PostgreSQL, and reports on which map the process relies. A move
 * of buckets waits for this report (`shard-moves.ts`). The first report comes before the first map is read: a move that
 * does not see the report has written its map already, and the process reads that one.
 */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import type { Clock } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { Shards } from '../../clickhouse/shards.ts';
import type { Queries } from '../../postgres/client.ts';
import { isAway } from '../../postgres/postgres-error.ts';
import { type OnPoll, SharedPoll } from '../../postgres/shared-poll.ts';
import { readShardMap, removeMapUse, removeOldMapUses, shardsNeeded, writeMapUse } from './shard-map-store.ts';

interface ShardMapFollowerDeps {
  postgres: Queries;
  shards: Shards;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  /** Absent: this process polls alone. */
  onPoll?: OnPoll;
}

export class ShardMapFollower {
  readonly #deps: ShardMapFollowerDeps;
  readonly #id = randomUUID();
  readonly #poll: SharedPoll;
  #reportedVersion: number | undefined;
  #reportedAt = Number.NEGATIVE_INFINITY;
  /** Reports are written one after the other, so that the last one counts. */
  #reporting: Promise<void> = Promise.resolve();
  /** Stops the timer of the reports. */
  #stopTimer = () => {};

  constructor(deps: ShardMapFollowerDeps) {
    this.#deps = deps;
    const { clock, scheduler, onPoll } = deps;
    this.#poll = new SharedPoll({ kind: 'shardMap', clock, scheduler, read: () => this.#read() }, onPoll);
  }

  /** Resolves after the first read. */
  start(): Promise<void> {
    const { scheduler = systemScheduler } = this.#deps;
    this.#stopTimer = scheduler.every(limits.mapUsePollMs, () => {
      this.#report().catch((error: unknown) => this.#failed(error));
    });
    return this.#poll.start();
  }

  /** Called when the process stores no further row. */
  async stop(): Promise<void> {
    this.#stopTimer();
    await this.#poll.stop();
    await this.#reporting.catch(() => {});
    // A row that stays counts until it is old.
    await removeMapUse(this.#deps.postgres, this.#id).catch((error: unknown) => this.#failed(error));
  }

  /** Reads the map now. Returns false when PostgreSQL did not answer, or has a map that this process cannot use. */
  async #read(): Promise<boolean> {
    const { postgres, shards, log } = this.#deps;
    try {
      await this.#report();
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
      this.#failed(error);
      return false;
    }
  }

  #report(): Promise<void> {
    this.#reporting = this.#reporting.catch(() => {}).then(() => this.#reportNext());
    return this.#reporting;
  }

  /** Writes when the version has changed, or as a heartbeat. */
  async #reportNext(): Promise<void> {
    const { postgres, shards, clock } = this.#deps;
    const mapVersion = shards.versionInUse;
    const isDue = clock.monotonic() - this.#reportedAt >= limits.mapUseReportMs;
    if (!isDue && mapVersion === this.#reportedVersion) return;
    if (this.#reportedVersion === undefined) await removeOldMapUses(postgres);
    await writeMapUse(postgres, { id: this.#id, host: hostname(), mapVersion });
    this.#reportedVersion = mapVersion;
    this.#reportedAt = clock.monotonic();
  }

  #failed(error: unknown): void {
    if (!isAway(error)) this.#deps.log.warn('shard_map_unread', { reason: messageOf(error) });
  }
}
