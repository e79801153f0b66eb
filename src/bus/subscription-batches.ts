/**
 * Makes and ends the subscriptions of a link in batches: requests that come while a batch runs make the next one. One
 * batch runs at a time, because Redis disconnects a subscriber for which too many replies wait.
 */

import { limits } from '../base/limits.ts';

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
  readonly #queue: Batch[] = [];
  #isRunning = false;
  /** Monotonic time. */
  #begunMs = Number.NEGATIVE_INFINITY;

  /** `run` never rejects. No channel is in both lists. */
  constructor(run: (entered: string[], left: string[]) => Promise<void>) {
    this.#run = run;
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
      this.#begunMs = performance.now();
      await this.#run([...batch.entered], [...batch.left]);
      batch.resolve();
    }
    this.#isRunning = false;
  }

  /** Resolves after this turn of the loop, whose requests share a batch; later if a batch has just begun. */
  #gathered(): Promise<unknown> {
    const waitMs = this.#begunMs + limits.busGatherMs - performance.now();
    const isFull = this.#queue.length > 1;
    return new Promise((resolve) => (waitMs > 0 && !isFull ? setTimeout(resolve, waitMs) : setImmediate(resolve)));
  }
}
