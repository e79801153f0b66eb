/**
 * A clock on which a test's minutes take milliseconds, with the sleep that belongs to it. Sockets stay as fast as ever.
 */
import type { Clock } from '../../src/base/clock.ts';
import { type Sleep, systemScheduler } from '../../src/base/scheduler.ts';

export interface FastClock extends Clock {
  sleep: Sleep;
}

/** `factor` seconds of this clock pass in one second. */
export function fastClock(factor: number): FastClock {
  const startedAt = Date.now();
  const started = performance.now();
  const passed = () => (performance.now() - started) * factor;
  return {
    now: () => Math.floor(startedAt + passed()),
    monotonic: () => started + passed(),
    sleep: (ms, signal) => systemScheduler.sleep(ms / factor, signal),
  };
}
