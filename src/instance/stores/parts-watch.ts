/**
 * Reads from time to time how many parts the fullest partition of one ClickHouse server has, by which a host sets the
 * pace of its inserts into this server (`ship/host-pace.ts`). After a failure the last number counts for a while only.
 * All hosts read, so each one reads more rarely when there are many.
 */
import { type Clock, systemClock } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { isUnanswered } from '../../clickhouse/errors/clickhouse-error.ts';
import { partsOfTables } from '../../clickhouse/parts-statements.ts';

interface PartsWatchDeps {
  clickhouse: ClickHouse;
  isClickHouseUp: () => boolean;
  /** Live hosts. */
  hosts: () => number;
  log: Log;
  clock?: Pick<Clock, 'monotonic'>;
  scheduler?: Scheduler;
}

export class PartsWatch {
  readonly #deps: PartsWatchDeps;
  readonly #clock: Pick<Clock, 'monotonic'>;
  #parts = 0;
  #readAt = Number.NEGATIVE_INFINITY;
  /** The last read failed although ClickHouse answers, which was logged. */
  #isRefused = false;
  /** Ends the wait for the next read; undefined while the watch is stopped. */
  #endWait: (() => void) | undefined;

  constructor(deps: PartsWatchDeps) {
    this.#deps = deps;
    this.#clock = deps.clock ?? systemClock;
  }

  /** 0 while it is not known. */
  get partsOfPartition(): number {
    return this.#clock.monotonic() - this.#readAt <= limits.partsKnownMs ? this.#parts : 0;
  }

  start(): void {
    this.#readLater();
  }

  stop(): void {
    this.#endWait?.();
    this.#endWait = undefined;
  }

  #readLater(): void {
    const { hosts, scheduler = systemScheduler } = this.#deps;
    const intervalMs = Math.min(
      limits.partsPollMsMax,
      Math.max(limits.partsPollMs, hosts() * limits.partsPollMsPerHost),
    );
    this.#endWait = scheduler.after(intervalMs, async () => {
      await this.#read();
      if (this.#endWait) this.#readLater();
    });
  }

  async #read(): Promise<void> {
    const { clickhouse, isClickHouseUp, log } = this.#deps;
    if (!isClickHouseUp()) return;
    try {
      this.#parts = (await partsOfTables(clickhouse, limits.partsPollMs)).partsOfPartitionMax;
      this.#readAt = this.#clock.monotonic();
      this.#isRefused = false;
    } catch (error) {
      // The watch of the stores reports an outage.
      if (isUnanswered(error)) return;
      if (!this.#isRefused) log.warn('parts_unread', { reason: messageOf(error) });
      this.#isRefused = true;
    }
  }
}
