/**
 * Decides whether the clock may be used to delete what has expired. A clock that was set ahead by a year would
 * otherwise delete everything within the hour. The times are those of the database, so the answer is the same for all
 * hosts. An embedded database has the clock of its host. Asked by `retention.ts` and `erase.ts`.
 */
import { dayMs } from '../base/durations.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Queries } from '../postgres/client.ts';
import { readClockTimes, setTrustedTime, setUntrustedTime } from './retention-store.ts';

/**
 * Returns false while the time is more than `clockJumpMsMax` after the last time that was trusted, until a day has
 * passed at the new time: an operator can set the clock right meanwhile. The same happens after a stop of some days.
 */
export async function isClockSteady(queries: Queries, log: Log): Promise<boolean> {
  const { now, trusted, untrusted } = await readClockTimes(queries);
  if (trusted === undefined || now - trusted <= limits.clockJumpMsMax) {
    await setTrustedTime(queries, now);
    return true;
  }
  const sinceMs = untrusted === undefined ? -1 : now - untrusted;
  if (sinceMs < 0 || sinceMs > limits.clockJumpWaitMs + limits.clockJumpMsMax) {
    await setUntrustedTime(queries, now);
    const days = Math.round((now - trusted) / dayMs);
    const reason = `the clock is ${days} days after the last check: nothing expires for a day, set the clock right if it is wrong`;
    log.warn('expiry_waits', { reason });
    return false;
  }
  if (sinceMs < limits.clockJumpWaitMs) return false;
  await setTrustedTime(queries, now);
  return true;
}
