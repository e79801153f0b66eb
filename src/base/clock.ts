/**
 * Passes time as a parameter, so that a test can change it. The clock of a process follows the time that its primary
 * measures at the database (`clock-watch.ts`), so that all workers and hosts of an installation share one time.
 */
export interface Clock {
  /** Milliseconds since 1970, as devices and users see it; may jump. */
  now(): number;
  /** Milliseconds that only rise; for deadlines and durations. */
  monotonic(): number;
}

/** A clock that also has microseconds. */
export interface FineClock extends Clock {
  /** Microseconds since 1970: `now()` is their whole milliseconds. */
  micros(): number;
}

/** A difference above this is a step: `FollowedClock` jumps instead of going slowly until time has caught up. */
export const clockStepMs = 5_000;
/** Speed of a clock that was ahead. */
const slowSpeed = 0.9;

/** A line that maps monotonic time to clock time. Every process of this host computes the same time from the line. */
export interface TimeLine {
  /** Time − `hostMonotonic()`. */
  anchor: number;
  /** `anchor` is valid from this `hostMonotonic()` on, `earlierAnchor` before it. */
  since: number;
  earlierAnchor: number;
}

/**
 * Returns the `hostMonotonic()` from which on a clock that follows the line shows the time of its anchor. A clock that
 * is given another line earlier would fall back to that time at once.
 */
export function reachedAt({ anchor, since, earlierAnchor }: TimeLine): number {
  const back = earlierAnchor - anchor;
  return back > 0 && back <= clockStepMs ? since + back / (1 - slowSpeed) : since;
}

/**
 * The clock of one process. Until `follow` is called, the time is that of the host's clock. After that, the time is a
 * line of the monotonic clock, so a step of the host's clock has no effect. `now()` goes back only when the followed
 * line has a step.
 *
 * All processes of a host that follow one line read one time, to the microsecond: a worker sorts points without ts by
 * this time.
 */
export class FollowedClock implements FineClock {
  /** The values of the line, for `performance.now()`. */
  #shift: number | undefined;
  #since = Number.NEGATIVE_INFINITY;
  #earlierShift = 0;
  /** The line of a clock that goes slowly since `#since`. */
  #slowShift = Number.NEGATIVE_INFINITY;

  now(): number {
    return this.#shift === undefined ? Date.now() : Math.floor(this.#time(this.#shift));
  }

  micros(): number {
    return this.#shift === undefined ? Date.now() * 1000 : Math.floor(this.#time(this.#shift) * 1000);
  }

  monotonic(): number {
    return performance.now();
  }

  follow({ anchor, since, earlierAnchor }: TimeLine): void {
    this.#shift = anchor + hostMonotonicShift;
    this.#earlierShift = earlierAnchor + hostMonotonicShift;
    this.#since = since - hostMonotonicShift;
    const isStep = earlierAnchor - anchor > clockStepMs;
    this.#slowShift = isStep ? Number.NEGATIVE_INFINITY : this.#earlierShift + (1 - slowSpeed) * this.#since;
  }

  #time(shift: number): number {
    const monotonic = performance.now();
    if (monotonic < this.#since) return monotonic + this.#earlierShift;
    return Math.max(monotonic + shift, monotonic * slowSpeed + this.#slowShift);
  }
}

export const systemClock = new FollowedClock();

/** Milliseconds since the boot of the host, the same in all its processes and containers. */
export function hostMonotonic(): number {
  return performance.now() + hostMonotonicShift;
}

const hostMonotonicShift = measureShift();

/** Returns the least interrupted of a few readings, because two processes must agree within microseconds. */
function measureShift(): number {
  let shift = 0;
  let least = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 10; i += 1) {
    const before = performance.now();
    const host = Number(process.hrtime.bigint()) / 1e6;
    const after = performance.now();
    if (after - before >= least) continue;
    least = after - before;
    shift = host - (before + after) / 2;
  }
  return shift;
}
