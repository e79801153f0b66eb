/**
 * Gathers work while a statement runs, so that many calls make few, large statements. The caller owns the queue and its
 * cap. One batch runs at a time; work that arrives meanwhile belongs to the next batch.
 */
export class Batches {
  readonly #hasWork: () => boolean;
  readonly #runBatch: () => Promise<void>;
  #running: Promise<void> | undefined;

  /** `runBatch` takes from the caller's queue until `hasWork` is false, and answers its failures itself. */
  constructor(hasWork: () => boolean, runBatch: () => Promise<void>) {
    this.#hasWork = hasWork;
    this.#runBatch = runBatch;
  }

  get isRunning(): boolean {
    return this.#running !== undefined;
  }

  /** Runs the queued work, together with all work that this turn of the event loop adds. */
  wake(): void {
    this.#running ??= this.#run();
  }

  /** Resolves when nothing is queued. */
  async idle(): Promise<void> {
    await this.#running;
  }

  async #run(): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#hasWork()) await this.#runBatch();
    // The queue was read in this same turn, so it is empty.
    this.#running = undefined;
  }
}
