/**
 * Reads rows that other processes write, when there are new ones. One process of the host polls PostgreSQL once a
 * second for all workers (`instance/stores/host-poll.ts`), so the workers of an idle host read nothing. A worker reads
 * by itself when the poll of the host found something, when the worker missed a result, and once a second while there
 * are no results.
 */
import { type Clock, hostMonotonic } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';

/** `rpcs` and `rollout`: rows that wait for any worker; the others: rows that no earlier poll has found. */
export const polledKinds = ['credentials', 'heads', 'ended', 'tenantLimits', 'shardMap', 'rpcs', 'rollout'] as const;
export type Polled = (typeof polledKinds)[number];

/** What one poll of the host found. */
export interface PollResult {
  /** One more than the number of the previous poll. */
  number: number;
  /** `hostMonotonic()` before the statement. */
  at: number;
  found: Polled[];
}

/** Passes on the results of the host's poll. */
export type OnPoll = (handler: (result: PollResult) => void) => void;

interface SharedPollDeps {
  kind: Polled;
  clock: Clock;
  scheduler?: Scheduler | undefined;
  /** Reads what is new. Returns false when the store did not answer: the next result is read again. */
  read: () => Promise<boolean>;
  /** Called when there was nothing new at this time of the monotonic clock. */
  onNothing?: (at: number) => void;
}

/** A result that comes later than this is missed. */
const missedMs = 1.5 * limits.hostPollMs;

export class SharedPoll {
  readonly #deps: SharedPollDeps;
  #lastNumber: number | undefined;
  #mustRead = true;
  /** True while there are no results of the host. */
  #isMissing = true;
  #isDue = false;
  #reading: Promise<void> | undefined;
  /** Stops the timer of the next read. */
  #stopTimer = () => {};
  /** True from `start` to `stop`. */
  #isRunning = false;

  /** `onPoll` absent: this process polls alone. */
  constructor(deps: SharedPollDeps, onPoll?: OnPoll) {
    this.#deps = deps;
    onPoll?.((result) => this.#receive(result));
  }

  /** Resolves after the first read. */
  async start(): Promise<void> {
    this.#isRunning = true;
    await this.#read();
  }

  async stop(): Promise<void> {
    this.#isRunning = false;
    this.#stopTimer();
    await this.#reading;
  }

  #receive({ number, at, found }: PollResult): void {
    const isNext = this.#lastNumber !== undefined && number === this.#lastNumber + 1;
    this.#lastNumber = number;
    this.#isMissing = false;
    if (!this.#isRunning) return;
    if (this.#mustRead || !isNext || found.includes(this.#deps.kind)) void this.#read();
    else {
      const { clock, onNothing } = this.#deps;
      onNothing?.(at - hostMonotonic() + clock.monotonic());
      this.#schedule(missedMs);
    }
  }

  /** A result that arrives while a read runs may be of a later time: the rows are read once more. */
  #read(): Promise<void> {
    this.#isDue = true;
    this.#reading ??= this.#readAll().finally(() => {
      this.#reading = undefined;
      this.#schedule(this.#isMissing ? limits.hostPollMs : missedMs);
    });
    return this.#reading;
  }

  async #readAll(): Promise<void> {
    while (this.#isDue && this.#isRunning) {
      this.#isDue = false;
      this.#mustRead = true;
      this.#mustRead = !(await this.#deps.read());
    }
  }

  #schedule(waitMs: number): void {
    this.#stopTimer();
    if (!this.#isRunning) return;
    const { scheduler = systemScheduler } = this.#deps;
    this.#stopTimer = scheduler.after(waitMs, () => {
      this.#isMissing = true;
      void this.#read();
    });
  }
}
