/**
 * A clock for unit tests that wait for timers and for each other in one process. It passes with real time, in steps of
 * 5 ms, but a stall of the machine lasts one step on it: no deadline ends while the process has no CPU.
 */
import { afterEach, beforeEach, vi } from 'vitest';

const faked = ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'] as const;

/** Gives each test of the file this clock. */
export function useSteadyClock(): void {
  beforeEach(() => void vi.useFakeTimers({ toFake: [...faked], shouldAdvanceTime: true, advanceTimeDelta: 5 }));
  afterEach(() => void vi.useRealTimers());
}

/** Sleeps on the clock of the test. */
export function steadySleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
