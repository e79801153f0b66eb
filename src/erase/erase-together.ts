/**
 * Deletes of series that callers wait for, one batch at a time in each worker: deletes that arrive while a batch runs
 * gather for the next batch. Many callers cost the store as much as a few do, and tenants take turns. Called by
 * `delete-series.ts`.
 */
import type { Clock } from '../base/clock.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import { NotYet } from './erase-in-clickhouse.ts';
import { type Erased, listBytesOf } from './tombstone-store.ts';

const timeIsOver = `the delete has not ended within ${limits.seriesDeleteMsMax / 1000} s: it is carried out in the background`;

interface Waiting {
  erased: Erased;
  /** Monotonic time at which the caller stops waiting. */
  until: number;
  resolve: () => void;
  reject: (error: unknown) => void;
}

export class EraseTogether {
  readonly #erase: (batch: Erased[], msLeft: () => number) => Promise<void>;
  readonly #clock: Clock;
  readonly #waiting: FairQueue<Waiting>;
  /** A delete that was taken from the queue and did not fit into its batch. */
  #kept: Waiting | undefined;
  #isRunning = false;

  constructor(
    clock: Clock,
    erase: (batch: Erased[], msLeft: () => number) => Promise<void>,
    waitingMax: number = limits.seriesDeletesWaitingMax,
  ) {
    this.#waiting = new FairQueue(waitingMax);
    this.#clock = clock;
    this.#erase = erase;
  }

  /**
   * Resolves when the delete is carried out; rejects at `until`, after a failure of its batch, or when too many wait.
   */
  add(erased: Erased, tenantId: string, until: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new NotYet(timeIsOver)), until - this.#clock.monotonic());
      const waiting = {
        erased,
        until,
        resolve: () => {
          clearTimeout(timer);
          resolve();
        },
        reject: (error: unknown) => {
          clearTimeout(timer);
          reject(error);
        },
      };
      this.#waiting.push({ tenant: tenantId, caller: '' }, waiting)?.reject(new NotYet('many deletes wait'));
      if (!this.#isRunning) void this.#run();
    });
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    while (this.#waiting.length > 0 || this.#kept) {
      const began = this.#clock.monotonic();
      const batch = this.#takeSome(began);
      if (batch.length === 0) continue;
      const msLeft = () => began + limits.seriesDeleteMsMax - this.#clock.monotonic();
      try {
        await this.#erase(
          batch.map(({ erased }) => erased),
          msLeft,
        );
        for (const { resolve } of batch) resolve();
      } catch (error) {
        for (const { reject } of batch) reject(error);
      }
    }
    this.#isRunning = false;
  }

  /**
   * Takes as many deletes as share statements. A caller that timed out has its answer: `erase.ts` carries that delete
   * out.
   */
  #takeSome(now: number): Waiting[] {
    const batch: Waiting[] = [];
    let bytes = 0;
    while (batch.length < limits.eraseRangesMax) {
      const next = this.#kept ?? this.#waiting.shift();
      this.#kept = undefined;
      if (!next) break;
      if (next.until <= now) continue;
      bytes += listBytesOf(next.erased);
      if (batch.length > 0 && bytes > limits.eraseListBytesMax) {
        this.#kept = next;
        break;
      }
      batch.push(next);
    }
    return batch;
  }
}
