/**
 * Makes and ends the subscriptions of a link in batches: requests that come while a batch runs make the next one. One
 * batch runs at a time, because Redis disconnects a subscriber for which too many replies wait.
 */

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
    // The requests of this turn of the loop share a batch.
    await new Promise((resolve) => setImmediate(resolve));
    for (let batch = this.#queue.shift(); batch; batch = this.#queue.shift()) {
      await this.#run([...batch.entered], [...batch.left]);
      batch.resolve();
    }
    this.#isRunning = false;
  }
}
