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
  readonly #timers = new TimerHeap();
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
    this.#timers.add(timer);
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
      if (!next || next.at > msMax) {
        if (next) this.#timers.add(next);
        this.#passed = Math.max(this.#passed, msMax);
        return false;
      }
      this.#passed = next.at;
      next.run?.();
    }
  }

  #take(): Timer | undefined {
    for (;;) {
      const timer = this.#timers.take();
      if (timer === undefined || timer.run !== undefined) return timer;
    }
  }
}

/** A binary heap of timers, the next one first. */
class TimerHeap {
  readonly #timers: Timer[] = [];

  add(timer: Timer): void {
    const timers = this.#timers;
    let at = timers.length;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (isBefore(timers[parent]!, timer)) break;
      timers[at] = timers[parent]!;
      at = parent;
    }
    timers[at] = timer;
  }

  take(): Timer | undefined {
    const timers = this.#timers;
    const first = timers[0];
    const last = timers.pop();
    if (last === undefined || last === first) return last;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= timers.length) break;
      if (child + 1 < timers.length && isBefore(timers[child + 1]!, timers[child]!)) child += 1;
      if (isBefore(last, timers[child]!)) break;
      timers[at] = timers[child]!;
      at = child;
    }
    timers[at] = last;
    return first;
  }
}

function isBefore(a: Timer, b: Timer): boolean {
  return a.at < b.at || (a.at === b.at && a.draw < b.draw);
}

/** The clock and the timers of one process. `skewMs`: the error of its clock. */
export class ProcessTime implements FineClock, Scheduler {
  readonly #time: VirtualTime;
  readonly #skewMs: number;
  #isOver = false;
  /** Events of a process that is stalled, in their order; undefined while the process runs. */
  #held: (() => void)[] | undefined;

  constructor(time: VirtualTime, skewMs: number) {
    this.#time = time;
    this.#skewMs = skewMs;
  }

  readonly now = (): number => Math.floor(this.#exact());
  readonly micros = (): number => Math.floor(this.#exact() * 1000);
  readonly monotonic = (): number => this.#time.passed;
  readonly sleep: Sleep = (ms, signal) => sleepWith((run) => this.#after(ms, run), signal);

  after(ms: number, run: () => void): () => void {
    const timer = this.#after(ms, run);
    return () => {
      timer.run = undefined;
    };
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

  /** Calls `run` now; after the stall when the process is stalled, and never when the process has ended. */
  event(run: () => void): void {
    if (this.#held) this.#held.push(run);
    else if (!this.#isOver) run();
  }

  /** Stops the process for a time: nothing runs, and what arrives waits. */
  stall(ms: number): void {
    if (this.#held) return;
    this.#held = [];
    this.#time.after(ms, () => this.#goOn());
  }

  #goOn(): void {
    const next = this.#held?.shift();
    if (next === undefined) {
      this.#held = undefined;
      return;
    }
    if (!this.#isOver) next();
    // What the event has caused runs before the next event.
    this.#time.after(0, () => this.#goOn());
  }

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
    const timer = this.#time.after(ms, () => {
      // A timer that was stopped during a stall is not called after the stall.
      this.event(() => timer.run && run());
    });
    return timer;
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
