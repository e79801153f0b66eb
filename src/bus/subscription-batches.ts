/**
 * Gathers the channels that a bus enters and leaves into batches: requests that come while a batch runs make the next
 * one. One batch runs at a time, because Redis disconnects a subscriber for which too many replies wait.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';

/** Channels in one command. */
export const channelsPerCommand = 1000;

interface Batch {
  entered: Set<string>;
  left: Set<string>;
  done: Promise<void>;
  resolve: () => void;
}

export class SubscriptionBatches {
  readonly #run: (entered: string[], left: string[]) => Promise<void>;
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #scheduler: Scheduler;
  readonly #queue: Batch[] = [];
  #isRunning = false;
  /** Monotonic time. */
  #begunMs = Number.NEGATIVE_INFINITY;

  /** `run` never rejects. No channel is in both lists. */
  constructor(
    run: (entered: string[], left: string[]) => Promise<void>,
    clock: Pick<Clock, 'monotonic'>,
    scheduler: Scheduler,
  ) {
    this.#run = run;
    this.#clock = clock;
    this.#scheduler = scheduler;
  }

  /** Resolves when the batch of the channel has run. */
  enter(channel: string): Promise<void> {
    const batch = this.#last();
    batch.left.delete(channel);
    batch.entered.add(channel);
    return batch.done;
  }

  leave(channel: string): void {
    const batch = this.#last();
    batch.entered.delete(channel);
    batch.left.add(channel);
  }

  #last(): Batch {
    const last = this.#queue.at(-1);
    if (last && last.entered.size + last.left.size < channelsPerCommand) return last;
    let resolve = () => {};
    const done = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    const batch: Batch = { entered: new Set(), left: new Set(), done, resolve };
    this.#queue.push(batch);
    void this.#runAll();
    return batch;
  }

  async #runAll(): Promise<void> {
    if (this.#isRunning) return;
    this.#isRunning = true;
    while (this.#queue.length > 0) {
      await this.#gathered();
      const batch = this.#queue.shift()!;
      this.#begunMs = this.#clock.monotonic();
      await this.#run([...batch.entered], [...batch.left]);
      batch.resolve();
    }
    this.#isRunning = false;
  }

  /** Resolves after this turn of the loop, whose requests share a batch; later if a batch has just begun. */
  #gathered(): Promise<unknown> {
    const waitMs = this.#begunMs + limits.busGatherMs - this.#clock.monotonic();
    const isFull = this.#queue.length > 1;
    if (waitMs > 0 && !isFull) return this.#scheduler.sleep(waitMs);
    return new Promise((resolve) => this.#scheduler.soon(() => resolve(undefined)));
  }
}
