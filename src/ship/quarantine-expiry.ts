/**
 * Sweeps one quarantine: notices what an operator has removed, and removes entries by their age. Called by
 * `suspect-trials.ts` for a journal that is shipped, and for the quarantine that an orphan journal leaves.
 */
import type { Clock } from '../base/clock.ts';
import { dayMs, hourMs } from '../base/durations.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Quarantine } from '../journal/quarantine.ts';

export interface ExpirySettings {
  /** Days after which an entry of the quarantine is deleted; 0 = never. */
  quarantineKeptDays: number;
  /** Returns the time by which entries expire; undefined while nothing may expire. */
  expiryTime: () => Promise<number | undefined>;
}

interface QuarantineExpiryDeps extends ExpirySettings {
  quarantine: Quarantine;
  clock: Clock;
  log: Log;
  metrics: Metrics;
}

export class QuarantineExpiry {
  readonly #deps: QuarantineExpiryDeps;
  readonly #expired: Counter;
  #nextExpiry = Number.NEGATIVE_INFINITY;

  constructor(deps: QuarantineExpiryDeps) {
    this.#deps = deps;
    this.#expired = deps.metrics.counter(
      'quarantine_expired_rows_total',
      'Rows that left the quarantine by their age.',
    );
  }

  /** Reads the directory again, and once an hour removes what has expired. */
  async sweep(): Promise<void> {
    const { quarantine, clock, expiryTime, log, quarantineKeptDays } = this.#deps;
    const now = clock.monotonic();
    try {
      await quarantine.refresh();
      if (quarantineKeptDays === 0 || now < this.#nextExpiry) return;
      this.#nextExpiry = now + hourMs;
      const time = await expiryTime();
      if (time === undefined) return;
      const { entries, rows } = await quarantine.expire(time - quarantineKeptDays * dayMs);
      if (entries === 0) return;
      this.#expired.add(rows);
      log.error('quarantine_expired', { entries, rows, keptDays: quarantineKeptDays });
    } catch (error) {
      log.warn('quarantine_unreadable', { reason: messageOf(error) });
    }
  }
}
