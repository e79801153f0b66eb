/**
 * Decides the time of an instance from measurements of the database's clock. Pure rules without a timer; the primary's
 * `clock-watch.ts` calls them. Three clocks vote: the database's, the host's, and the previous time, continued by the
 * monotonic clock. The database decides, because all hosts of an installation share it. One exception: when only the
 * database's clock has jumped, the other two win.
 */
import { clockStepMs, type TimeLine } from '../../base/clock.ts';
import { type Fault, unavailable } from '../../base/errors.ts';

export type ClockVerdict = 'unmeasured' | 'good' | 'off' | 'wrong';

/** The state of the clock that the primary sends to its workers. */
export interface ClockState {
  /** Undefined before the first time was chosen. */
  line: TimeLine | undefined;
  /** Host's clock − database's clock, in milliseconds; 0 before the first measurement. */
  offsetMs: number;
  verdict: ClockVerdict;
}

export const unmeasuredClock: ClockState = { line: undefined, offsetMs: 0, verdict: 'unmeasured' };

/** One round trip to the database, in milliseconds. */
interface ClockSample {
  /** The database's answer. */
  database: number;
  /** The host's clock and the monotonic clock, halfway between question and answer. */
  host: number;
  monotonic: number;
  /** Half of the round trip: the answer is right to within this. */
  error: number;
}

/** The measurement of an earlier run. */
export interface RememberedClock {
  /** The database's time at the last measurement. The real time is never earlier. */
  databaseMs: number;
  /** Host's clock − database's clock. */
  offsetMs: number;
  /** The time of the instance − the monotonic time; undefined when the machine was booted since. */
  anchor?: number | undefined;
}

const clockOffMs = 500;
const clockWrongMs = 5_000;
/** Drift of a monotonic clock: a measurement becomes less exact by this much for each millisecond of age. */
const driftPerMs = 0.0001;
/** A clock that is this much faster or slower removes small differences. */
const slewPerMs = 0.1;

interface Estimate {
  anchor: number;
  error: number;
  at: number;
}

export class ClockOffset {
  #anchor: number | undefined;
  /** The anchor of an earlier run since the last boot. */
  #earlierAnchor: number | undefined;
  /** False while the anchor comes from an earlier run or from the host's clock. */
  #isMeasured = false;
  #best: Estimate | undefined;
  /** True when this run or an earlier one measured the offset. */
  #isKnown = false;
  #offsetMs = 0;
  #adjustedAt = 0;
  /** True while only the clock of the database has jumped. The instance then keeps the time of the host. */
  isDatabaseStep = false;

  /** The time of the instance − the monotonic time of the host; undefined before `begin`. */
  get anchor(): number | undefined {
    return this.#anchor;
  }

  get state(): Omit<ClockState, 'line'> {
    const { verdict } = this;
    return { offsetMs: Math.round(this.#offsetMs), verdict };
  }

  get verdict(): ClockVerdict {
    if (!this.#isKnown) return 'unmeasured';
    const offset = Math.abs(this.#offsetMs) - (this.#best?.error ?? 0);
    return offset > clockWrongMs ? 'wrong' : offset > clockOffMs ? 'off' : 'good';
  }

  /**
   * Chooses the time before the first measurement, because the database may be unavailable. Two candidates are the
   * host's clock, and the host's clock less the remembered offset. Of the candidates that are not before the last
   * measured time, the earlier one is chosen. So a repaired clock is noticed, and a clock that is ahead cannot mislead
   * the instance.
   */
  begin(host: number, monotonic: number, remembered: RememberedClock | undefined): void {
    let time = host;
    this.#earlierAnchor = remembered?.anchor;
    if (remembered !== undefined) {
      const { databaseMs, offsetMs } = remembered;
      const possible = [host, host - offsetMs].filter((candidate) => candidate >= databaseMs - clockOffMs);
      time = possible.length > 0 ? Math.min(...possible) : databaseMs;
      this.#offsetMs = host - time;
      this.#isKnown = true;
    }
    this.#anchor = time - monotonic;
    this.#adjustedAt = monotonic;
  }

  measured({ database, host, monotonic, error }: ClockSample): void {
    const sample = { anchor: database - monotonic, error, at: monotonic };
    const best = this.#best;
    const bestError = best === undefined ? 0 : best.error + (monotonic - best.at) * driftPerMs;
    // Two measurements that exclude each other: the database's clock was stepped between them, or this host slept.
    const isStep = best !== undefined && Math.abs(sample.anchor - best.anchor) > error + bestError;
    if (best === undefined || isStep || error < bestError) this.#best = sample;
    this.#offsetMs = host - (monotonic + this.#best!.anchor);
    this.#isKnown = true;
    this.#adjust(this.#best!, host, monotonic);
  }

  #adjust(best: Estimate, host: number, monotonic: number): void {
    const anchor = this.#anchor;
    const elapsed = monotonic - this.#adjustedAt;
    this.#adjustedAt = monotonic;
    const difference = anchor === undefined ? 0 : best.anchor - anchor;
    this.isDatabaseStep = false;
    const isFirst = !this.#isMeasured;
    this.#isMeasured = true;
    if (anchor === undefined) {
      this.#anchor = best.anchor;
    } else if (isFirst && this.#isStepSince(best, host, monotonic)) {
      this.isDatabaseStep = true;
      this.#anchor = this.#earlierAnchor;
    } else if (isFirst) {
      // A slow answer does not contradict a time that differs by less than the error of the answer.
      if (Math.abs(difference) > best.error) this.#anchor = best.anchor;
    } else if (Math.abs(difference) > clockStepMs) {
      this.isDatabaseStep = Math.abs(host - (monotonic + anchor)) <= clockStepMs;
      if (!this.isDatabaseStep) this.#anchor = best.anchor;
    } else if (Math.abs(difference) > best.error) {
      const most = elapsed * slewPerMs;
      this.#anchor = anchor + Math.max(-most, Math.min(most, difference));
    }
  }

  /**
   * True when only the clock of the database has jumped since an earlier run. The monotonic clock continues the time of
   * that run until the next boot.
   */
  #isStepSince(best: Estimate, host: number, monotonic: number): boolean {
    const earlier = this.#earlierAnchor;
    if (earlier === undefined || Math.abs(best.anchor - earlier) <= clockStepMs) return false;
    return Math.abs(host - (monotonic + earlier)) <= clockStepMs;
  }
}

/** Returns a sentence for readiness and the log; undefined when the clocks agree. */
export function clockSentence({ verdict, offsetMs }: Pick<ClockState, 'verdict' | 'offsetMs'>): string | undefined {
  if (verdict !== 'off' && verdict !== 'wrong') return undefined;
  const seconds = (Math.abs(offsetMs) / 1000).toFixed(1);
  const direction = offsetMs > 0 ? 'ahead of' : 'behind';
  return `The clock of this host is ${seconds} s ${direction} the clock of the database; synchronise both (NTP).`;
}

/** The refusal of messages that need a server time; undefined when the clocks are near enough. */
export function clockFault(state: Pick<ClockState, 'verdict' | 'offsetMs'>): Fault | undefined {
  if (state.verdict !== 'wrong') return undefined;
  const sentence = clockSentence(state);
  return unavailable('clock_wrong', `${sentence} Until then only messages with "ts" are accepted.`, 5);
}
