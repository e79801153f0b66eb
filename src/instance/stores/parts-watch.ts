/**
 * Reads from time to time how many parts the fullest partition of ClickHouse has, by which a host sets the pace of its
 * inserts (`ship/host-pace.ts`). After a failure the last number counts for a while only.
 */
import { type Clock, systemClock } from '../../base/clock.ts';
import { limits } from '../../base/limits.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { partsOfTables } from '../../clickhouse/parts-statements.ts';

interface PartsWatchDeps {
  clickhouse: ClickHouse;
  isClickHouseUp: () => boolean;
  clock?: Pick<Clock, 'monotonic'>;
  scheduler?: Scheduler;
}

export class PartsWatch {
  readonly #deps: PartsWatchDeps;
  readonly #clock: Pick<Clock, 'monotonic'>;
  #parts = 0;
  #readAt = Number.NEGATIVE_INFINITY;
  #isReading = false;
  /** Stops the timer of the reads. */
  #stopTimer = () => {};

  constructor(deps: PartsWatchDeps) {
    this.#deps = deps;
    this.#clock = deps.clock ?? systemClock;
  }

  /** 0 while it is not known. */
  get partsOfPartition(): number {
    return this.#clock.monotonic() - this.#readAt <= limits.partsKnownMs ? this.#parts : 0;
  }

  start(): void {
    const { scheduler = systemScheduler } = this.#deps;
    this.#stopTimer = scheduler.every(limits.partsPollMs, () => void this.#read());
  }

  stop(): void {
    this.#stopTimer();
  }

  async #read(): Promise<void> {
    const { clickhouse, isClickHouseUp } = this.#deps;
    if (this.#isReading || !isClickHouseUp()) return;
    this.#isReading = true;
    try {
      this.#parts = (await partsOfTables(clickhouse, limits.partsPollMs)).partsOfPartitionMax;
      this.#readAt = this.#clock.monotonic();
    } catch {
      // The watch of the stores reports an outage.
    } finally {
      this.#isReading = false;
    }
  }
}
