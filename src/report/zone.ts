/**
 * Wall-clock time of a time zone as whole numbers: the instants at which the offset from UTC changes, and the instant
 * at which a local time begins. The rules of a zone apply from 1900 to 2150. Earlier times have the first offset, and
 * later times the last one.
 */
import { dayMs } from '../base/durations.ts';
import { WallClock } from '../value/wall-clock.ts';

/** Local time is UTC plus `offset` milliseconds from `ts` on. */
interface OffsetChange {
  ts: number;
  offset: number;
}

const firstMs = Date.UTC(1900, 0, 1);
const lastMs = Date.UTC(2150, 0, 1);
/** No zone changes its offset twice within this time. */
const strideMs = 7 * dayMs;

export class Zone {
  readonly name: string;
  readonly #clock: WallClock;

  /** Throws a 400 fault for an unknown name. */
  constructor(name: string) {
    this.name = name;
    this.#clock = new WallClock(name);
  }

  offsetAt(ts: number): number {
    const second = Math.floor(Math.min(lastMs, Math.max(firstMs, ts)) / 1000) * 1000;
    return this.#clock.local(second) - second;
  }

  /** The offset at `start` and every later change before `end`, in order. */
  changes(start: number, end: number): OffsetChange[] {
    const changes = [{ ts: start, offset: this.offsetAt(start) }];
    const until = Math.min(end, lastMs);
    for (let from = Math.max(start, firstMs); from < until; from += strideMs) {
      const to = Math.min(from + strideMs, until);
      const { offset } = changes.at(-1)!;
      if (this.offsetAt(to) === offset) continue;
      const ts = this.#changeBetween(from, to, offset);
      if (ts < end) changes.push({ ts, offset: this.offsetAt(ts) });
    }
    return changes;
  }

  local(ts: number): number {
    return ts + this.offsetAt(ts);
  }

  /** The first moment whose local time is `local` or later; a skipped local time maps to the moment of the change. */
  instant(local: number): number {
    // The offset of a day earlier holds until the change, the offset of a day later from the change on.
    const before = this.offsetAt(local - dayMs);
    const after = this.offsetAt(local + dayMs);
    const early = local - Math.max(before, after);
    if (this.local(early) === local) return early;
    const late = local - Math.min(before, after);
    if (this.local(late) === local) return late;
    return this.#changeBetween(early - dayMs, late, before);
  }

  /** Returns the first millisecond after `from` whose offset is not `offset`. */
  #changeBetween(from: number, to: number, offset: number): number {
    let [low, high] = [from, to];
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.offsetAt(middle) === offset) low = middle;
      else high = middle;
    }
    return high;
  }
}
