/**
 * Computes the time buckets of an aggregated read (docs/rest.md#telemetry). The first bucket begins at the start of the
 * range. Steps have a fixed length or end at the next calendar week, month or quarter. The last bucket ends at the end
 * of the range.
 */
import { dayMs } from '../base/durations.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { WallClock } from '../value/wall-clock.ts';

export const intervalTypes = ['MILLISECONDS', 'WEEK', 'WEEK_ISO', 'MONTH', 'QUARTER'] as const;
export type IntervalType = (typeof intervalTypes)[number];

export interface Range {
  /** Range [startTs, endTs). */
  startTs: number;
  endTs: number;
}

/** Returns the starts of the buckets, ascending. Throws the 400 for more than `historyIntervalsMax`. */
export function bucketStarts(range: Range, intervalType: IntervalType, interval: number, timeZone: string): number[] {
  const { startTs, endTs } = range;
  if (intervalType === 'MILLISECONDS') {
    const count = Math.ceil((endTs - startTs) / interval);
    if (count > limits.historyIntervalsMax) throw tooMany(count, 'interval');
    return Array.from({ length: Math.max(0, count) }, (_, i) => startTs + i * interval);
  }
  if (Math.max(-startTs, endTs) > dateMsMax) throw noDate();
  const calendar = new Calendar(timeZone);
  const starts: number[] = [];
  for (let ts = startTs; ts < endTs; ts = calendar.nextStart(ts, intervalType)) {
    if (starts.length === limits.historyIntervalsMax) throw tooMany(starts.length + 1, 'intervalType');
    starts.push(ts);
  }
  return starts;
}

/** Returns the time of a bucket's result: its middle, rounded down. */
export function bucketTs(starts: number[], index: number, endTs: number): number {
  const start = starts[index]!;
  const end = starts[index + 1] ?? endTs;
  return start + Math.floor((Math.min(end, endTs) - start) / 2);
}

function tooMany(count: number, member: 'interval' | 'intervalType'): Error {
  return badRequest(
    'intervals',
    `Incorrect TsKvQuery. Number of intervals is to high - ${count}. The limit is ${limits.historyIntervalsMax}: make '${member}' longer or the time range shorter.`,
  );
}

/** JavaScript dates end soon after this time, in 270 000 years. */
const dateMsMax = 8.6e15;

function noDate(): Error {
  return badRequest('range', `Calendar intervals need 'startTs' and 'endTs' between -${dateMsMax} and ${dateMsMax}.`);
}

/** Calendar intervals of a time zone. */
class Calendar {
  readonly #clock: WallClock;

  constructor(timeZone: string) {
    this.#clock = new WallClock(timeZone || 'UTC');
  }

  /** Returns the start of the calendar interval after the one that contains `ts`. */
  nextStart(ts: number, type: IntervalType): number {
    const local = new Date(this.#clock.local(ts));
    const [year, month, day] = [local.getUTCFullYear(), local.getUTCMonth(), local.getUTCDate()];
    const next = new Date(0);
    switch (type) {
      case 'WEEK':
        next.setUTCFullYear(year, month, day + 7 - local.getUTCDay());
        break;
      case 'WEEK_ISO':
        next.setUTCFullYear(year, month, day + 7 - ((local.getUTCDay() + 6) % 7));
        break;
      case 'QUARTER':
        next.setUTCFullYear(year, month - (month % 3) + 3, 1);
        break;
      default:
        next.setUTCFullYear(year, month + 1, 1);
    }
    return this.#instant(next.getTime());
  }

  /** Returns the instant of midnight of a local date; when the clock skips midnight, the first instant after it. */
  #instant(local: number): number {
    for (const around of [local - dayMs, local + dayMs]) {
      const offset = this.#clock.local(around) - around;
      const instant = local - offset;
      if (this.#clock.local(instant) === local) return instant;
    }
    // A change to summer time skipped midnight: the offset before the change gives its instant.
    return local - (this.#clock.local(local - dayMs) - (local - dayMs));
  }
}
