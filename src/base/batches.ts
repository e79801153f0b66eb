/**
 * Work that gathers while a statement runs, so that a storm of calls makes few, large statements. The caller keeps its
 * own queue and its cap; one batch is carried out at a time, and what arrives meanwhile belongs to the next.
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

  /** Carries out what is queued, with all else that this turn of the event loop adds. */
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
    // The queue was looked at in this same turn, so nothing is left in it.
    this.#running = undefined;
  }
}
