/**
 * Times of messages that are probably wrong: in another unit than milliseconds, or ahead of the server. The windows of
 * the units contain no time in milliseconds that a device would send: a number of seconds from 2000 on is a time in
 * January 1970 in milliseconds, microseconds and nanoseconds are years after 31 900.
 */
import { dayMs } from '../base/durations.ts';

export const units = ['seconds', 'microseconds', 'nanoseconds'] as const;
export type TimeUnit = (typeof units)[number];

export const oddTimeKinds = [...units, 'ahead'] as const;
export type OddTimeKind = (typeof oddTimeKinds)[number];

export interface OddTime {
  kind: OddTimeKind;
  /** The number as it was sent. */
  ts: number;
}

/** The earliest time that a number in another unit may mean: 2000-01-01. */
const earliestMs = 946_684_800_000;
/** The latest time that a number in another unit may mean, counted from the present. */
const aheadMsMax = 366 * dayMs;

/** Returns the unit of a number that is no plausible time in milliseconds. */
export function unitOfTime(ts: number, now: number): TimeUnit | undefined {
  for (const unit of units) {
    const ms = inMilliseconds(ts, unit);
    if (ms >= earliestMs && ms <= now + aheadMsMax) return unit;
  }
  return undefined;
}

export function inMilliseconds(ts: number, unit: TimeUnit): number {
  switch (unit) {
    case 'seconds':
      return ts * 1000;
    case 'microseconds':
      return Math.floor(ts / 1000);
    case 'nanoseconds':
      return Math.floor(ts / 1_000_000);
  }
}

/** Returns the kind of a time that is probably wrong. `aheadMax`: milliseconds. */
export function oddKindOf(ts: number, now: number, aheadMax: number): OddTimeKind | undefined {
  return unitOfTime(ts, now) ?? (ts > now + aheadMax ? 'ahead' : undefined);
}
