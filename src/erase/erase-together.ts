/**
 * Deletes of series that callers wait for, in batches: the deletes of a tenant that arrive while a batch of this tenant
 * runs gather for a later batch. Many callers cost the store as much as a few do. Few batches run at once, tenants take
 * turns in them, and a tenant is in one batch at a time. So the deletes of one tenant are never in all batches, and the
 * delete of another tenant begins at once. Called by `delete-series.ts`.
 */
import type { Clock } from '../base/clock.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { StoredDelete } from './deletes-store.ts';
import { NotYet } from './erase-in-clickhouse.ts';
import { listBytesOf } from './tombstone-store.ts';

const timeIsOver = `the delete has not ended within ${limits.seriesDeleteMsMax / 1000} s: it is carried out in the background`;

interface Waiting {
  erased: StoredDelete;
  tenantId: string;
  /** Monotonic time at which the caller stops waiting. */
  until: number;
  resolve: () => void;
  reject: (error: unknown) => void;
}

export class EraseTogether {
  readonly #erase: (batch: StoredDelete[], msLeft: () => number) => Promise<void>;
  readonly #clock: Clock;
  readonly #scheduler = systemScheduler;
  readonly #waiting: FairQueue<Waiting>;
  /** Deletes that were taken from the queue and did not fit into their batch: at most one of each batch. */
  readonly #kept: Waiting[] = [];
  /** The tenants of the running batches. */
  readonly #running = new Set<string>();
  #batches = 0;

  constructor(
    clock: Clock,
    erase: (batch: StoredDelete[], msLeft: () => number) => Promise<void>,
    waitingMax: number = limits.seriesDeletesWaitingMax,
  ) {
    this.#waiting = new FairQueue(waitingMax);
    this.#clock = clock;
    this.#erase = erase;
  }

  /**
   * Resolves when the delete is carried out; rejects at `until`, after a failure of its batch, or when too many wait.
   */
  add(erased: StoredDelete, tenantId: string, until: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const waitMs = until - this.#clock.monotonic();
      const stopTimer = this.#scheduler.after(waitMs, () => reject(new NotYet(timeIsOver)));
      const waiting = {
        erased,
        tenantId,
        until,
        resolve: () => {
          stopTimer();
          resolve();
        },
        reject: (error: unknown) => {
          stopTimer();
          reject(error);
        },
      };
      this.#waiting.push({ tenant: tenantId, caller: '' }, waiting)?.reject(new NotYet('many deletes wait'));
      this.#startBatches();
    });
  }

  #startBatches(): void {
    while (this.#batches < limits.seriesDeleteBatchesMax) {
      const batch = this.#takeSome(this.#clock.monotonic());
      if (batch.length === 0) return;
      void this.#run(batch);
    }
  }

  async #run(batch: Waiting[]): Promise<void> {
    const tenants = new Set(batch.map(({ tenantId }) => tenantId));
    const until = this.#clock.monotonic() + limits.seriesDeleteMsMax;
    this.#batches += 1;
    for (const tenant of tenants) this.#running.add(tenant);
    try {
      await this.#erase(
        batch.map(({ erased }) => erased),
        () => until - this.#clock.monotonic(),
      );
      for (const { resolve } of batch) resolve();
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
    this.#batches -= 1;
    for (const tenant of tenants) this.#running.delete(tenant);
    this.#startBatches();
  }

  /**
   * Takes as many deletes as share statements, of tenants without a running batch. A caller that timed out has its
   * answer: `erase.ts` carries that delete out.
   */
  #takeSome(now: number): Waiting[] {
    const batch: Waiting[] = [];
    let bytes = 0;
    while (batch.length < limits.eraseRangesMax) {
      const next = this.#takeKept() ?? this.#waiting.shift((tenant) => !this.#running.has(tenant));
      if (!next) break;
      if (next.until <= now) continue;
      bytes += listBytesOf(next.erased);
      if (batch.length > 0 && bytes > limits.eraseListBytesMax) {
        this.#kept.push(next);
        break;
      }
      batch.push(next);
    }
    return batch;
  }

  #takeKept(): Waiting | undefined {
    const place = this.#kept.findIndex(({ tenantId }) => !this.#running.has(tenantId));
    return place < 0 ? undefined : this.#kept.splice(place, 1)[0];
  }
}
