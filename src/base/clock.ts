/** Time, handed in so that a test can move it. */
export interface Clock {
  /** Milliseconds since 1970, as devices and users see it; may jump. */
  now(): number;
  /** Milliseconds that only rise; for deadlines and durations. */
  monotonic(): number;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
};
