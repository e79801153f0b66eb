/** Makes the report of a worker about itself to the primary: refusals, room in its journal, reasons to check it. */
import { systemClock as clock } from '../base/clock.ts';
import { counted } from '../base/counted.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Config } from '../base/settings/config.ts';
import type { Bus } from '../bus/bus.ts';
import type { Ingest } from '../ingest/accept.ts';
import { refusedMessages } from '../ingest/refusals.ts';
import { clockFault } from '../instance/clock/clock-offset.ts';
import type { JournalRoom } from '../instance/health/refusal-forecast.ts';
import type { WorkerRefusals } from '../instance/health/refusal-watch.ts';
import type { PrimaryLink } from '../instance/processes/primary-link.ts';
import { type Journal, laneNames, lanes, late } from '../journal/journal.ts';
import type { Mqtt } from '../mqtt/server.ts';
import type { ConnectionRoom } from '../mqtt/transport/connection-room.ts';
import type { Channel } from './channel.ts';
import type { WorkerDeps } from './worker-deps.ts';

/** Returns the state that the primary receives at short intervals. */
export function workerStatus(
  { config, begin, link, metrics }: WorkerDeps,
  channel: Channel,
  bus: Bus,
  { mqtt, room }: { mqtt: Mqtt; room: ConnectionRoom },
) {
  return {
    ...refusals(channel.ingest, link, metrics),
    room: config.ingest.ack === 'stream' ? roomOfStream(channel) : roomOf(config, channel.journal, metrics),
    busFailure: bus.failure,
    mqttConnections: mqtt.connections,
    isFull: !room.has,
    degraded: degraded(config, begin.slot, channel),
  };
}

/** Returns why this worker accepts no telemetry now, and what it refused. */
function refusals(ingest: Ingest, { state }: PrimaryLink, metrics: Metrics): Omit<WorkerRefusals, 'worker'> {
  const { reason, message } = ingest.refusal() ?? clockFault(state.clock) ?? {};
  return { refusal: reason && { reason, message: message! }, refused: refusedMessages(metrics) };
}

/** Returns the bytes that the journal may still take. */
function roomOf({ ingest }: Config, journal: Journal, metrics: Metrics): Omit<JournalRoom, 'worker'> {
  const { backlogBytesMax, freeDiskBytesMin } = ingest.journal;
  return {
    written: metrics.valueOf('journal_commit_bytes_total'),
    left: backlogBytesMax - journal.backlogDiskBytes,
    leftOnDisk: journal.freeBytes() - freeDiskBytesMin,
  };
}

/** All workers share the room of the stream: the worker that leads reports it for all of them. */
function roomOfStream({ stream }: Channel): Omit<JournalRoom, 'worker'> {
  const { written, left } = stream?.room() ?? { written: 0, left: Number.MAX_SAFE_INTEGER };
  return { written, left, leftOnDisk: Number.MAX_SAFE_INTEGER };
}

/** Returns what an unavailable stream means; undefined when telemetry is refused with the same reason. */
function effectOf({ ingest, stream }: Config): string | undefined {
  if (ingest.ack !== 'stream') return 'what waits in it is not shipped (STREAM_URL)';
  if (stream.fallback === 'refuse') return undefined;
  return 'acknowledged messages are on the disk of this host only (STREAM_FALLBACK=journal)';
}

/** Returns reasons for an operator to check this worker although it accepts telemetry. */
function degraded(config: Config, slot: number, { ingest, journal, orphans, shipper, stream }: Channel): string[] {
  const reasons: string[] = [];
  // While all telemetry is refused, the reason is that of the refusal.
  for (const lane of ingest.refusal() === undefined ? lanes : []) {
    const refused = ingest.recentRefusal(lane);
    if (refused !== undefined) reasons.push(`${laneNames[lane]} rows are refused: ${refused.message}`);
  }
  const { refusal } = shipper;
  if (refusal !== undefined) {
    const place = config.ingest.ack === 'stream' ? 'stream' : 'journal';
    reasons.push(`ClickHouse takes no rows, which wait in the ${place}: ${refusal.slice(0, 200)}`);
  }
  // The place makes the sentences of two workers different: equal ones would be one reason.
  const places = { [`worker-${slot}`]: journal.quarantine.entries, 'orphan journals': orphans.quarantineEntries };
  for (const [place, count] of Object.entries(places)) {
    if (count === 0) continue;
    const entries = counted(count, 'entry', 'entries');
    reasons.push(`rows in quarantine: ${entries} of ${place} (npm run quarantine -- list)`);
  }
  const lateMs = clock.now() - ((stream?.journal ?? journal).oldestWaitingAt(late) ?? clock.now());
  if (lateMs > 4 * config.ingest.ship.lateSecondsMax * 1000) {
    reasons.push(`late lane behind: its oldest rows wait for ${Math.round(lateMs / 1000)} s`);
  }
  const away = stream?.away();
  const missing = stream?.missing();
  if (away !== undefined) {
    const effect = effectOf(config);
    if (effect !== undefined) reasons.push(`the replicated stream is unavailable: ${away.slice(0, 200)}; ${effect}`);
  } else if (missing !== undefined) {
    reasons.push(missing);
  }
  const expired = stream?.expired();
  if (expired !== undefined) reasons.push(expired);
  if (orphans.count > 0) {
    const journals = counted(orphans.count, 'orphan journal');
    reasons.push(`${journals} with ${orphans.bytes} bytes: worker 0 ships the rows to ClickHouse`);
  }
  return reasons;
}
