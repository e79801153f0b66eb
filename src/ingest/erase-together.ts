/**
 * Deletes of series that callers wait for, one batch at a time in each worker: what comes while the statements of a batch
 * run gathers for the next batch. Many callers cost the store what a few do. `delete-series.ts` calls.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { NotYet } from './carry-out.ts';
import { type Erased, listBytesOf } from './tombstones.ts';

interface Waiting {
  erased: Erased;
  /** Monotonic: the caller waits no longer. */
  until: number;
  resolve: () => void;
  reject: (error: unknown) => void;
}

export class EraseTogether {
  readonly #erase: (batch: Erased[], msLeft: () => number) => Promise<void>;
  readonly #clock: Clock;
  #waiting: Waiting[] = [];
  #isRunning = false;

  constructor(clock: Clock, erase: (batch: Erased[], msLeft: () => number) => Promise<void>) {
    this.#clock = clock;
    this.#erase = erase;
  }

  /** Resolves when the delete is carried out; rejects at `until`, after a failure of its batch, or when too many wait. */
  add(erased: Erased, until: number): Promise<void> {
    if (this.#waiting.length >= limits.seriesDeletesWaitingMax) return Promise.reject(new NotYet('many deletes wait'));
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new NotYet('no time is left')), until - this.#clock.monotonic());
      this.#waiting.push({
        erased,
        until,
        resolve: () => {
          clearTimeout(timer);
          resolve();
        },
        reject: (error) => {
          clearTimeout(timer);
          reject(error);
        },
      });
      if (!this.#isRunning) void this.#run();
    });
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    while (this.#waiting.length > 0) {
      const began = this.#clock.monotonic();
      // A caller that has waited in vain was answered; `erase.ts` carries its delete out.
      const waiting = this.#waiting.filter(({ until }) => until > began);
      const batch = waiting.slice(0, countTogether(waiting));
      this.#waiting = waiting.slice(batch.length);
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
}

/** How many of those that wait share statements. */
function countTogether(waiting: readonly Waiting[]): number {
  let count = 0;
  let bytes = 0;
  for (const { erased } of waiting.slice(0, limits.eraseRangesMax)) {
    bytes += listBytesOf(erased);
    if (count > 0 && bytes > limits.eraseListBytesMax) break;
    count += 1;
  }
  return count;
}
