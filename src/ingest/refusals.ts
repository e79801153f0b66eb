/**
 * The reasons for which a worker accepts no telemetry of any sender, and the number of messages refused for each. The
 * worker reports both to the primary, which logs when a refusal begins and ends (`instance/health/refusal-watch.ts`).
 */
import type { Fault } from '../base/errors.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Reason } from '../base/reasons.ts';

/** Reasons that may end within seconds: a client that pauses and sends again is accepted then. */
const passing = [
  'journal_slow',
  'disk_full',
  'backlog_full',
  'loop_lag',
  'journal_failed',
  'store_away',
  'store_waiters',
  'stream_away',
  'stream_full',
  'stream_slow',
] as const satisfies Reason[];

const passingReasons: ReadonlySet<string> = new Set(passing);
/** A wrong clock refuses only messages without "ts". */
const reasons: readonly Reason[] = [...passing, 'clock_wrong'];

export function isJournalRefusal({ status, reason }: Fault): boolean {
  return status === 503 && passingReasons.has(reason);
}

/** Returns the messages that all doors of this process refused so far, by reason. */
export function refusedMessages(metrics: Metrics): Partial<Record<Reason, number>> {
  const counts: Partial<Record<Reason, number>> = {};
  for (const name of ['ingest_rejected_total', 'mqtt_publish_refused_total']) {
    for (const reason of reasons) {
      const count = metrics.valueOf(name, { reason });
      if (count > 0) counts[reason] = (counts[reason] ?? 0) + count;
    }
  }
  return counts;
}
