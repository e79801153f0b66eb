/**
 * The pace of the messages between workers and their home (`home-exchange.ts`): at most one in an interval on average,
 * and the first few at once.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';

interface HomePaceDeps {
  intervalMs: () => number;
  /** Returns true when there was something to send. */
  send: () => boolean;
  clock: Clock;
  scheduler: Scheduler;
}

export class HomePace {
  readonly #deps: HomePaceDeps;
  /** Messages that may be sent now. */
  #credit: number = limits.homeMessagesAtOnce;
  #creditedAt: number;
  #isDue = false;
  #stopTimer = () => {};
  #isStopped = false;

  constructor(deps: HomePaceDeps) {
    this.#deps = deps;
    this.#creditedAt = deps.clock.monotonic();
  }

  /** What is counted in one turn of the loop goes together. */
  wake(): void {
    if (this.#isDue || this.#isStopped) return;
    this.#isDue = true;
    this.#earn();
    const { intervalMs, scheduler } = this.#deps;
    if (this.#credit >= 1) scheduler.soon(() => this.#run());
    else this.#stopTimer = scheduler.after(Math.ceil((1 - this.#credit) * intervalMs()), () => this.#run());
  }

  stop(): void {
    this.#isStopped = true;
    this.#stopTimer();
  }

  #run(): void {
    this.#isDue = false;
    if (this.#isStopped) return;
    this.#earn();
    if (this.#deps.send()) this.#credit = Math.max(0, this.#credit - 1);
  }

  #earn(): void {
    const { intervalMs, clock } = this.#deps;
    const now = clock.monotonic();
    const earned = (now - this.#creditedAt) / intervalMs();
    this.#credit = Math.min(limits.homeMessagesAtOnce, this.#credit + earned);
    this.#creditedAt = now;
  }
}
