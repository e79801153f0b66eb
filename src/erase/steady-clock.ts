/**
 * Decides by which time expiry may delete. A clock that was set ahead by a year would otherwise delete everything
 * within the hour. Two clocks must agree: that of the database, which is the same for all hosts, and that of the
 * installation (`base/clock.ts`), which a host keeps when the database's clock jumps. An embedded database has the
 * clock of its host, so both clocks may be wrong: a time far after the last trusted time waits. Everything that deletes
 * by age asks here for the time.
 */
import { type Clock, clockStepMs } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { readClockTimes, setClockDoubt, setTrustedTime } from './retention-store.ts';

interface SteadyClockDeps {
  postgres: Queries;
  clock: Clock;
  log: Log;
}

/** Thrown before a delete whose time turned out to be wrong after its round began. */
export class ClockChanged extends Error {
  constructor() {
    super('the clock changed during the round');
    this.name = 'ClockChanged';
  }
}

export class SteadyClock {
  readonly #deps: SteadyClockDeps;
  /** True after the log has said that the clocks differ, until the clocks agree. */
  #differs = false;

  constructor(deps: SteadyClockDeps) {
    this.#deps = deps;
  }

  /**
   * Returns the earlier of the two times, in whole milliseconds: callers compare it with integers of both stores.
   * Undefined while the clocks differ, while the time is in doubt, and while the database is unavailable: then nothing
   * may expire.
   */
  async time(): Promise<number | undefined> {
    const { postgres, clock, log } = this.#deps;
    try {
      const before = clock.now();
      const times = await readClockTimes(postgres);
      const after = clock.now();
      const aheadMs = times.now > after ? times.now - after : Math.min(0, times.now - before);
      if (Math.abs(aheadMs) > clockStepMs) {
        const seconds = Math.round(Math.abs(aheadMs) / 1000);
        const side = aheadMs > 0 ? 'ahead of' : 'behind';
        const reason = `the clock of the database is ${seconds} s ${side} that of this host: nothing expires until they agree`;
        if (!this.#differs) log.warn('expiry_waits', { reason });
        this.#differs = true;
        return undefined;
      }
      this.#differs = false;
      return (await isTrusted(postgres, times, log)) ? Math.floor(Math.min(times.now, after)) : undefined;
    } catch (error) {
      if (isAway(error)) return undefined;
      throw error;
    }
  }

  /** Throws `ClockChanged` unless what has expired by `time` may still be deleted. */
  async confirm(time: number): Promise<void> {
    const now = await this.time();
    if (now === undefined || now < time - clockStepMs) throw new ClockChanged();
  }
}

/**
 * Returns false while the time is more than `clockJumpMsMax` after the last trusted time, until Millrace has run for a
 * day in all at such times: an operator can set the clock right meanwhile. The same happens after a stop of some days,
 * and while no time was ever trusted. An earlier time may be used at once, because less has expired by that time. It
 * becomes the trusted time after Millrace has run for a day in all at earlier times. Earlier and later times have a day
 * each: a clock that starts late each time does not begin the day of later times again, and does not shorten that day.
 */
async function isTrusted(
  queries: Queries,
  { now, trusted, doubts }: Awaited<ReturnType<typeof readClockTimes>>,
  log: Log,
): Promise<boolean> {
  const sinceMs = trusted === undefined ? Number.POSITIVE_INFINITY : now - trusted;
  const isBehind = sinceMs < -clockStepMs;
  if (!isBehind && sinceMs <= limits.clockJumpMsMax) {
    await setTrustedTime(queries, Math.max(now, trusted!));
    return true;
  }
  const side = isBehind ? 'behind' : 'ahead';
  const known = doubts[side];
  let until = known?.until ?? now + limits.clockJumpWaitMs;
  const gapMs = known === undefined ? 0 : now - known.checked;
  // Millrace did not run meanwhile, or the clock was set: neither counts.
  if (gapMs < 0 || gapMs > limits.clockCheckGapMsMax) until += gapMs;
  if (now >= until) {
    await setTrustedTime(queries, now);
    return true;
  }
  await setClockDoubt(queries, side, { checked: now, until });
  if (isBehind) return true;
  if (known === undefined) {
    const days = Math.round(sinceMs / dayMs);
    const wait = 'nothing expires until Millrace has run for a day';
    if (trusted === undefined)
      log.info('expiry_waits', {
        reason: `this is the first run: ${wait}, so that a wrong clock deletes nothing. Nothing needs to be done.`,
      });
    else
      log.warn('expiry_waits', {
        reason: `the clock is ${days} days after the last check: ${wait}, set the clock right if it is wrong`,
      });
  }
  return false;
}
