/**
 * Finds why points of a device are missing: messages were refused at that time, or the device was not connected.
 * Refusals and ends of connections are known since the workers started, and for devices with trouble only; the last
 * connection and the last activity are stored. Without a proof the cause is `unknown`.
 */
import type { Outcome } from './outcome.ts';

export const gapCauses = ['refused', 'offline', 'late', 'unknown'] as const;

export interface Evidence {
  refusals: readonly Outcome[];
  connections: readonly Outcome[];
  active: boolean;
  lastActivityTime: number | null;
  lastConnectTime: number | null;
  lastDisconnectTime: number | null;
}

interface Cause {
  cause: (typeof gapCauses)[number];
  /** The stable word of the refusal or of the end of the connection; null = not known. */
  reason: string | null;
  message: string | null;
}

interface Span {
  startTs: number;
  endTs: number;
}

/** `gap`: from the first to the last missing point. */
export function causeOf({ startTs, endTs }: Span, intervalMs: number, evidence: Evidence): Cause {
  const { refusals, connections } = evidence;
  // A point may be half an interval early or late.
  const around = { startTs: startTs - intervalMs / 2, endTs: endTs + intervalMs / 2 };
  const refusal = refusals.find((outcome) => happenedIn(outcome, around));
  if (refusal) return { cause: 'refused', reason: refusal.reason, message: refusal.message };
  const ended = connections.find((outcome) => outcome.event !== 'connected' && happenedIn(outcome, around));
  if (ended) return { cause: 'offline', reason: ended.reason, message: ended.message };
  const wasOffline = offlineSpans(evidence).some((span) => span.startTs <= endTs && span.endTs >= startTs);
  return { cause: wasOffline ? 'offline' : 'unknown', reason: null, message: null };
}

/** Equal outcomes are one: only the first and the last have a time, and the others are taken as evenly spread. */
function happenedIn({ since, ts, count }: Outcome, { startTs, endTs }: Span): boolean {
  if (ts < startTs || since > endTs) return false;
  if (since >= startTs || ts <= endTs) return true;
  return (ts - since) / (count - 1) <= endTs - startTs;
}

function offlineSpans({ active, lastActivityTime, lastConnectTime, lastDisconnectTime }: Evidence): Span[] {
  const spans: Span[] = [];
  if (!active && lastActivityTime !== null) spans.push({ startTs: lastActivityTime, endTs: Infinity });
  if (lastDisconnectTime !== null) {
    const isBack = lastConnectTime !== null && lastConnectTime >= lastDisconnectTime;
    spans.push({ startTs: lastDisconnectTime, endTs: isBack ? lastConnectTime : Infinity });
  }
  return spans;
}
