/**
 * Time, handed in so that a test can move it. The clock of a process follows the time that its primary has measured at
 * the database (`clock-watch.ts`), so that all workers and all hosts of an installation read one time.
 */
export interface Clock {
  /** Milliseconds since 1970, as devices and users see it; may jump. */
  now(): number;
  /** Milliseconds that only rise; for deadlines and durations. */
  monotonic(): number;
}

/** A difference above this is a step: `FollowedClock` jumps instead of standing still until time has caught up. */
export const clockStepMs = 5_000;

/**
 * The clock of one process: the host's clock until `follow` is called, after that the followed time alone, carried by the
 * monotonic clock. A step of the host's clock has no effect then. `now()` falls back only when a step is followed.
 */
export class FollowedClock implements Clock {
  /** Followed time − `performance.now()`. */
  #shift: number | undefined;
  #last = 0;
  /** The host's clock at the last look. */
  #host = 0;

  now(): number {
    const host = Date.now();
    if (this.#shift === undefined) return host;
    // The host's clock only says whether a millisecond has passed: to ask it costs half as much as the monotonic clock.
    if (host === this.#host) return this.#last;
    this.#host = host;
    const now = Math.floor(performance.now() + this.#shift);
    if (now > this.#last) this.#last = now;
    return this.#last;
  }

  monotonic(): number {
    return performance.now();
  }

  /** `anchor`: time − `hostMonotonic()`, which means the same in every process of this host. */
  follow(anchor: number): void {
    const shift = anchor + hostMonotonicShift;
    if (performance.now() + shift < this.#last - clockStepMs) this.#last = 0;
    this.#shift = shift;
    this.#host = 0;
  }
}

export const systemClock = new FollowedClock();

/** Milliseconds since the boot of the host, the same in all its processes and containers. */
export function hostMonotonic(): number {
  return performance.now() + hostMonotonicShift;
}

const hostMonotonicShift = Number(process.hrtime.bigint()) / 1e6 - performance.now();
