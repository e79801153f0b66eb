/**
 * Connections that are not read because the journal refuses, in the order in which the waits began. `JournalWaiters`
 * checks every few milliseconds whether the journal accepts again. Then it resumes connections for a slice of time, so
 * that ten thousand connections do not block the event loop.
 */
import type { Clock } from '../../base/clock.ts';
import type { Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';

export interface JournalWaiter {
  /** Called when the journal accepts again, or may accept. */
  journalAccepts(): void;
  /** Called while the journal still refuses. A waiter whose longest wait is over deletes itself. */
  journalRefuses(): void;
}

export class JournalWaiters {
  readonly #clock: Clock;
  readonly #refusal: () => Fault | undefined;
  readonly #scheduler: Scheduler;
  readonly #waiting = new Set<JournalWaiter>();
  #isScheduled = false;

  constructor(clock: Clock, refusal: () => Fault | undefined, scheduler = systemScheduler) {
    this.#clock = clock;
    this.#refusal = refusal;
    this.#scheduler = scheduler;
  }

  get size(): number {
    return this.#waiting.size;
  }

  add(waiter: JournalWaiter): void {
    this.#waiting.add(waiter);
    this.#schedule();
  }

  delete(waiter: JournalWaiter): void {
    this.#waiting.delete(waiter);
  }

  /** Resumes waiting connections while the journal accepts and the slice of time lasts. */
  round(): void {
    const began = this.#clock.monotonic();
    // Iterates over a copy, because a client that is refused again waits after all other clients.
    for (const waiter of [...this.#waiting]) {
      // Reading an earlier connection may have ended this one.
      if (!this.#waiting.has(waiter)) continue;
      const now = this.#clock.monotonic();
      if (this.#refusal() !== undefined) {
        waiter.journalRefuses();
      } else if (now - began > limits.mqttJournalSliceMs) {
        break;
      } else {
        this.#waiting.delete(waiter);
        waiter.journalAccepts();
      }
    }
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#scheduler.after(limits.mqttJournalCheckMs, () => {
      this.#isScheduled = false;
      this.round();
      if (this.#waiting.size > 0) this.#schedule();
    });
  }
}
