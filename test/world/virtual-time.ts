/**
 * Time that passes only when nothing else can happen: the run takes the next timer, sets the time to it, and calls it.
 * Timers of the same moment run in an order that the seed chooses. A process has its own view, which ends with it.
 */
import type { FineClock } from '../../src/base/clock.ts';
import type { Scheduler, Sleep } from '../../src/base/scheduler.ts';
import type { Random } from '../harness/random.ts';

interface Timer {
  at: number;
  /** Chooses among the timers of one moment. */
  draw: number;
  run: (() => void) | undefined;
}

/** Unix time at which every run begins: noon, so that no run of hours crosses a day. */
export const beginsAt = Date.UTC(2026, 0, 15, 12);

export class VirtualTime {
  readonly #random: Random;
  #timers: Timer[] = [];
  /** Milliseconds since the run began, with fractions. */
  #passed = 0;

  constructor(random: Random) {
    this.#random = random;
  }

  get passed(): number {
    return this.#passed;
  }

  at(ms: number, run: () => void): Timer {
    const timer = { at: Math.max(ms, this.#passed), draw: this.#random.next(), run };
    this.#timers.push(timer);
    return timer;
  }

  after(ms: number, run: () => void): Timer {
    return this.at(this.#passed + Math.max(0, ms), run);
  }

  readonly sleep: Sleep = (ms, signal) => sleepWith((run) => this.after(ms, run), signal);

  /** Runs until `isOver`, or until the time has passed. Returns false in the second case. */
  async run(isOver: () => boolean, msMax: number): Promise<boolean> {
    for (;;) {
      // Everything that does not wait for a timer ends in this turn: disks and stores of a world answer in memory.
      await new Promise((resolve) => setImmediate(resolve));
      if (isOver()) return true;
      const next = this.#take();
      if (!next || next.at > msMax) return false;
      this.#passed = next.at;
      next.run?.();
    }
  }

  #take(): Timer | undefined {
    let least: Timer | undefined;
    this.#timers = this.#timers.filter(({ run }) => run !== undefined);
    for (const timer of this.#timers) {
      if (!least || timer.at < least.at || (timer.at === least.at && timer.draw < least.draw)) least = timer;
    }
    if (least) this.#timers.splice(this.#timers.indexOf(least), 1);
    return least;
  }
}

/** The clock and the timers of one process. `skewMs`: the error of its clock. */
export class ProcessTime implements FineClock, Scheduler {
  readonly #time: VirtualTime;
  readonly #skewMs: number;
  #isOver = false;

  constructor(time: VirtualTime, skewMs: number) {
    this.#time = time;
    this.#skewMs = skewMs;
  }

  readonly now = (): number => Math.floor(this.#exact());
  readonly micros = (): number => Math.floor(this.#exact() * 1000);
  readonly monotonic = (): number => this.#time.passed;
  readonly sleep: Sleep = (ms, signal) => sleepWith((run) => this.#after(ms, run), signal);

  after(ms: number, run: () => void): void {
    this.#after(ms, run);
  }

  every(ms: number, run: () => void): () => void {
    let isEnded = false;
    const again = (): void => {
      this.#after(ms, () => {
        if (isEnded) return;
        run();
        again();
      });
    };
    again();
    return () => {
      isEnded = true;
    };
  }

  readonly soon = (run: () => void): void => {
    this.#after(0, run);
  };

  /** Ends the process as `kill -9` does: none of its timers is called any more. */
  end(): void {
    this.#isOver = true;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  #exact(): number {
    return beginsAt + this.#time.passed + this.#skewMs;
  }

  #after(ms: number, run: () => void): Timer {
    return this.#time.after(ms, () => {
      if (!this.#isOver) run();
    });
  }
}

function sleepWith(after: (run: () => void) => Timer, signal: AbortSignal | undefined): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = (): void => {
      timer.run = undefined;
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = after(end);
    signal?.addEventListener('abort', end);
  });
}
