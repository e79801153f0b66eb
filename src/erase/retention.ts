/**
 * Frees the disk: drops the partitions of days older than `telemetry.ttlDays`, also days that were stored before the
 * setting was made. The table has no rule of its own, because the store would follow a wrong clock. One host at a time
 * does this each hour. Once a day it also deletes what has expired in `latest`, outside the days from 2020 to 2039, of
 * profiles with fewer days, and of points with a time to live.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { type ClickHouse, ClickHouseError, isUnanswered } from '../clickhouse/client.ts';
import type { Parameters } from '../clickhouse/read.ts';
import {
  deleteExpiredLatestStatement,
  deleteExpiredOthersStatement,
  dropDaysStatement,
  endOfDay,
  expiredLatestQuery,
  expiredOthersQuery,
  storedDaysQuery,
} from '../clickhouse/retention-statements.ts';
import type { Postgres } from '../postgres/client.ts';
import { giveBackLease, takeLease } from '../postgres/lease.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { deleteExpiredPoints } from './expired-points.ts';
import { isDue, setDone } from './retention-store.ts';
import { ClockChanged, type SteadyClock } from './steady-clock.ts';

export interface RetentionDeps {
  postgres: Postgres;
  clickhouse: ClickHouse;
  /** Name of the ClickHouse cluster, '' without a cluster. */
  cluster: string;
  clock: Clock;
  scheduler?: Scheduler;
  steadyClock: SteadyClock;
  log: Log;
  isLeader: () => boolean;
  /** 0: all telemetry is kept. */
  ttlDays: number;
  /** True: latest values expire as well. */
  ttlOfLatest: boolean;
}

const leaseName = 'retention';
/** The error of ClickHouse for a partition above `max_partition_size_to_drop`, a protection against mistakes. */
const partitionTooLarge = 359;

export class Retention {
  readonly #deps: RetentionDeps;
  readonly #holder = randomUUID();
  /** The end of the names of leases and work: each shard has its own. */
  readonly #suffix: string;
  /** Stops the timer of the next round. */
  #stopTimer = () => {};
  #running: Promise<void> = Promise.resolve();
  #stopped = false;
  /** Ends the statements of this round. */
  #abort = new AbortController();
  /** The time by which the round deletes. */
  #time = 0;

  constructor(deps: RetentionDeps) {
    this.#deps = deps;
    const { shard = 0 } = deps.clickhouse;
    this.#suffix = shard === 0 ? '' : ` of shard ${shard}`;
  }

  start(): void {
    this.#schedule(limits.retentionFirstMs);
  }

  /** A statement that takes long is ended: the next leader repeats it. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopTimer();
    const { scheduler = systemScheduler } = this.#deps;
    const stopAbort = scheduler.after(limits.eraseStopMsMax, () => this.#abort.abort());
    await this.#running;
    stopAbort();
  }

  #schedule(waitMs: number): void {
    const { scheduler = systemScheduler } = this.#deps;
    this.#stopTimer = scheduler.after(waitMs, () => {
      this.#running = this.round().finally(() => {
        if (!this.#stopped) this.#schedule(limits.retentionMs);
      });
    });
  }

  /** Runs one round. `start` repeats the round; a test calls it. */
  async round(): Promise<void> {
    const { postgres, steadyClock, log, isLeader, ttlDays, ttlOfLatest } = this.#deps;
    if (!isLeader()) return;
    this.#abort = new AbortController();
    try {
      if (!(await takeLease(postgres, leaseName + this.#suffix, this.#holder, limits.retentionLeaseMs))) return;
      try {
        const time = await steadyClock.time();
        if (time === undefined) return;
        this.#time = time;
        if (ttlDays > 0) {
          const limit = time - ttlDays * dayMs;
          await this.#dropDays(limit);
          if (ttlOfLatest) await this.#daily('latest', () => this.#deleteLatest(limit));
          await this.#daily('other days', () => this.#deleteOthers(limit));
        }
        await this.#deleteExpired();
      } finally {
        await giveBackLease(postgres, leaseName + this.#suffix, this.#holder);
      }
    } catch (error) {
      if (isAway(error) || isUnanswered(error) || error instanceof ClockChanged) return;
      log.warn('retention_failed', { reason: messageOf(error).slice(0, 500) });
    }
  }

  async #dropDays(limit: number): Promise<void> {
    const { clickhouse, cluster, log } = this.#deps;
    const stored = await clickhouse.rows<{ day: number }>(storedDaysQuery(cluster));
    const expired = stored.map(({ day }) => Number(day)).filter((day) => endOfDay(day) <= limit);
    for (let at = 0; at < expired.length && !this.#stopped; at += limits.retentionDaysMax) {
      const days = expired.slice(at, at + limits.retentionDaysMax);
      await this.#drop(dropDaysStatement(cluster, days));
      log.info('retention_dropped', { days: days.length, newest: days.at(-1) });
    }
  }

  async #deleteLatest(limit: number): Promise<void> {
    const { clickhouse, cluster, log } = this.#deps;
    const [row] = await clickhouse.rows<{ count: string }>(expiredLatestQuery, { limit });
    if (row!.count === '0') return;
    await this.#write(deleteExpiredLatestStatement(cluster), { limit });
    log.info('retention_latest', { values: Number(row!.count) });
  }

  /**
   * Deletes rows outside the range of days. The delete rewrites every part of the table, so a few rows do not justify
   * it.
   */
  async #deleteOthers(limit: number): Promise<void> {
    const { clickhouse, cluster, log } = this.#deps;
    const [row] = await clickhouse.rows<{ count: string }>(expiredOthersQuery, { limit });
    if (Number(row!.count) < limits.retentionOtherRowsMin) return;
    await this.#write(deleteExpiredOthersStatement(cluster), { limit });
    log.info('retention_other_days', { rows: Number(row!.count) });
  }

  /** Work that ends at a stop, or because another host has the lease, is not done: the next round repeats it. */
  async #deleteExpired(): Promise<void> {
    const { postgres, clock } = this.#deps;
    if (!(await isDue(postgres, `expired points${this.#suffix}`)) || this.#stopped) return;
    const isWeekly = await isDue(postgres, `few expired points${this.#suffix}`, 7);
    const until = clock.monotonic() + limits.retentionExpiredMsMax;
    let isMine = true;
    const mayContinue = async () => {
      if (clock.monotonic() >= until) return false;
      isMine =
        !this.#stopped && (await takeLease(postgres, leaseName + this.#suffix, this.#holder, limits.retentionLeaseMs));
      return isMine;
    };
    const write = this.#write.bind(this);
    const drop = this.#drop.bind(this);
    const rowsMin = isWeekly ? 1 : limits.retentionExpiredRowsMin;
    await deleteExpiredPoints({ ...this.#deps, now: this.#time, write, drop, mayContinue }, rowsMin);
    if (!isMine) return;
    if (isWeekly) await setDone(postgres, `few expired points${this.#suffix}`);
    await setDone(postgres, `expired points${this.#suffix}`);
  }

  /** Runs `work` once a day over all hosts. */
  async #daily(name: string, work: () => Promise<void>): Promise<void> {
    const { postgres } = this.#deps;
    if (!(await isDue(postgres, name + this.#suffix)) || this.#stopped) return;
    await work();
    await setDone(postgres, name + this.#suffix);
  }

  async #drop(statement: string): Promise<void> {
    await this.#write(statement).catch((error: unknown) => {
      if (!(error instanceof ClickHouseError) || error.code !== partitionTooLarge) throw error;
      return this.#write(statement, {}, { max_partition_size_to_drop: '0' });
    });
  }

  /** Asks the clock again, because a round takes up to an hour. */
  async #write(statement: string, parameters: Parameters = {}, more: Record<string, string> = {}): Promise<void> {
    const { clickhouse, cluster, steadyClock } = this.#deps;
    await steadyClock.confirm(this.#time);
    const waits = {
      distributed_ddl_task_timeout: '30',
      distributed_ddl_output_mode: 'null_status_on_timeout',
    } as const;
    await clickhouse.exec(statement, parameters, {
      timeoutMs: limits.retentionStatementMsMax,
      abortSignal: this.#abort.signal,
      settings: { ...(cluster !== '' && waits), ...more },
    });
  }
}
