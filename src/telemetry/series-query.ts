/**
 * SQL of the interval of a series: one key of one device. The interval is learnt from the points: it is the median of
 * the steps between neighbouring points, in whole milliseconds. A series is regular when more than half of its steps
 * are within a quarter of the interval. Points may arrive in any order; only their times count, each time once.
 */
import { dayMs, hourMs } from '../base/durations.ts';

/** Fewer steps teach no interval. */
export const stepsMin = 8;
/** Older points that complete a series with fewer steps in the window, and how far back they are read. */
export const olderPoints = 64;
export const olderMs = 30 * dayMs;

/**
 * Returns the window from which intervals are learnt: the range, and as much time before and after it, an hour at least
 * and a day at most.
 */
export function windowAround(startTs: number, endTs: number, now: number): { startTs: number; endTs: number } {
  const ms = Math.min(dayMs, Math.max(hourMs, endTs - startTs));
  return { startTs: startTs - ms, endTs: Math.min(now, endTs + ms) };
}

/** Columns over `found`, the times of the points of a series in any order. */
export const learntInterval = `
  arrayCompact(arraySort(found)) AS times,
  arrayPopFront(arrayDifference(times)) AS steps,
  greatest(1, arrayReduce('quantileExactLow(0.5)', steps)) AS interval,
  length(steps) >= ${stepsMin} AND 2 * arrayCount((s) -> 4 * abs(s - interval) <= interval, steps) > length(steps)
    AS regular`;

/**
 * Column over these: the holes (time of the point before the hole, first and last number of the missing points). Point
 * `n` is missing at that time + n * interval. A point is missing when it is half an interval overdue at the next point,
 * or at `horizon` after the last point. Only missing points within [`startTs`, `endTs`) are in a hole.
 */
export function holesSql(startTs: string, endTs: string, horizon: string): string {
  const first = `greatest(1, ${dividedUp(`${startTs} - t`, 'interval')})`;
  const last = `least(intDiv(2 * (next - t) - interval, 2 * interval), ${dividedUp(`${endTs} - t`, 'interval')} - 1)`;
  return `arrayFilter(
    (h) -> regular AND h.3 >= h.2,
    arrayMap((t, next) -> (t, ${first}, ${last}), times, arrayPushBack(arrayPopFront(times), ${horizon}))
  ) AS holes`;
}

/** Rounds up; a negative quotient may become 0. */
export function dividedUp(a: string, b: string): string {
  return `intDiv(${a} + ${b} - 1, ${b})`;
}
