/**
 * Times in which a server acknowledged nothing although messages were due: pauses, after which it went on, and the end
 * of a load that nothing acknowledged any more.
 */
import type { Counted } from './generator-process.ts';
import { dueUntil, type PaceOrder } from './pace.ts';

/** Seconds count from the begin of the load. */
export interface Pause {
  fromSecond: number;
  seconds: number;
}

/** Why a load was ended before its time. */
export interface EarlyEnd {
  /** The last acknowledgement in seconds from the begin of the load; 0 = there was none. */
  sinceSecond: number;
  /** The same moment in Unix time. */
  sinceMs: number;
  /** The load was ended after so long. */
  seconds: number;
  /** False: no connection was ever accepted, and nothing was sent. */
  wasConnected: boolean;
}

const tenthsMin = 10;
/** A rate of a few messages/s has gaps of its own. */
const dueMin = 3;

/** Adds up the tenths of several processes, from the begin of the earliest. */
function tenthsOf(counted: Counted[]): number[] {
  const begin = Math.min(...counted.map(({ startedAtMs }) => startedAtMs));
  const sums: number[] = [];
  for (const { tenths, startedAtMs } of counted) {
    const shift = Math.round((startedAtMs - begin) / 100);
    // The array of a process has holes.
    tenths.forEach((count, n) => {
      sums[n + shift] = (sums[n + shift] ?? 0) + (count ?? 0);
    });
  }
  return sums;
}

/** Returns the end of the last tenth with an acknowledgement, in seconds from the begin; 0 = there was none. */
export function lastSecond(counted: Counted[]): number {
  return tenthsOf(counted).length / 10;
}

/** Returns the pauses of at least a second in a load whose messages were due until `untilSecond`. */
export function pausesOf(counted: Counted[], pace: PaceOrder, untilSecond: number): Pause[] {
  const tenths = tenthsOf(counted);
  const pauses: Pause[] = [];
  const until = Math.round(untilSecond * 10);
  let from = 0;
  for (let n = 0; n <= until; n += 1) {
    if (n < until && !tenths[n]) continue;
    const due = dueUntil(n * 100, pace) - dueUntil(from * 100, pace);
    if (n - from >= tenthsMin && (pace.rate === 0 || due >= dueMin))
      pauses.push({ fromSecond: from / 10, seconds: (n - from) / 10 });
    from = n + 1;
  }
  return pauses;
}
