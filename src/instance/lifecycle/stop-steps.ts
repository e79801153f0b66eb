/**
 * Runs the steps of a stop one after the other, within one total time. A step that takes longer is abandoned, so that
 * the stop continues; abandoned steps are named at the end. The primary and its workers each have one.
 */
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { systemScheduler } from '../../base/scheduler.ts';

interface StopStepsDeps {
  msMax: number;
  log: Log;
  /** Returns milliseconds that only rise. */
  monotonic?: () => number;
}

/** Shorter waits are not named. */
const namedMsMin = 100;

export class StopSteps {
  readonly #log: Log;
  readonly #monotonic: () => number;
  readonly #begun: number;
  readonly #deadline: number;
  readonly #waits: string[] = [];
  #unfinished = false;

  constructor({ msMax, log, monotonic = () => performance.now() }: StopStepsDeps) {
    this.#log = log;
    this.#monotonic = monotonic;
    this.#begun = monotonic();
    this.#deadline = this.#begun + msMax;
  }

  get msLeft(): number {
    return Math.max(0, this.#deadline - this.#monotonic());
  }

  get seconds(): number {
    return (this.#monotonic() - this.#begun) / 1000;
  }

  /** True when some step did not end in time. */
  get unfinished(): boolean {
    return this.#unfinished;
  }

  /** Returns, for example, `open requests 4.2 s, the journal 5.8 s (not finished)`; '' when no step took long. */
  get waits(): string {
    return this.#waits.join(', ');
  }

  /** Resolves when `work` has ended, or when the time of all steps is over. A failure is logged. */
  async step(name: string, work: () => Promise<unknown> | unknown): Promise<void> {
    const begun = this.#monotonic();
    const ended = this.#run(name, work);
    const ending = new AbortController();
    const late = systemScheduler.sleep(this.msLeft, ending.signal).then((): 'late' => 'late');
    const outcome = await Promise.race([ended, late]);
    ending.abort();
    this.#note(name, begun, { isLate: outcome === 'late' });
  }

  /** Like `step`, but waits for `work` without a limit. */
  async whole(name: string, work: () => Promise<unknown> | unknown): Promise<void> {
    const begun = this.#monotonic();
    await this.#run(name, work);
    this.#note(name, begun, { isLate: false });
  }

  async #run(name: string, work: () => Promise<unknown> | unknown): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.#log.error('stop_failed', { part: name, reason: messageOf(error) });
    }
  }

  #note(name: string, begun: number, { isLate }: { isLate: boolean }): void {
    const ms = this.#monotonic() - begun;
    if (isLate) this.#unfinished = true;
    if (isLate || ms >= namedMsMin)
      this.#waits.push(`${name} ${(ms / 1000).toFixed(1)} s${isLate ? ' (not finished)' : ''}`);
  }
}
