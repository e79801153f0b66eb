/**
 * Opens the path of telemetry: the journal, the call that every door uses, the shipping to ClickHouse, and the deletes.
 */
import { openSigningKey } from '../auth/signing-key.ts';
import { systemClock as clock, hostMonotonic } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { limits } from '../base/limits.ts';
import type { Config } from '../base/settings/config.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { Eraser } from '../erase/erase.ts';
import { Retention } from '../erase/retention.ts';
import { type Decode, Ingest, type IngestDeps, streamLinger } from '../ingest/accept.ts';
import { shardBehind } from '../ingest/journal-health.ts';
import { type JournalReport, reportOf } from '../ingest/journal-report.ts';
import { forgetJournal } from '../ingest/journal-store.ts';
import { Receipts } from '../ingest/receipts.ts';
import { RefusedPoints } from '../ingest/refused-points.ts';
import { OrphanJournals } from '../instance/journals/orphan-journals.ts';
import { hostNameOf } from '../instance/membership/host-description.ts';
import type { PrimaryLink } from '../instance/processes/primary-link.ts';
import type { Journal } from '../journal/journal.ts';
import { Shipper } from '../ship/ship.ts';
import type { OpenedStream } from '../stream/open-stream.ts';
import { framesOfStream } from '../stream/stream-frames.ts';
import type { RoomAhead } from '../telemetry/body-thread.ts';
import { decodeTelemetry } from '../telemetry/decode.ts';
import { decodeOptions } from '../telemetry/decode-options.ts';
import { DecodeThread } from '../telemetry/decode-thread.ts';
import { leniently, strictly } from '../value/lenient.ts';
import type { Identity } from './identity.ts';
import { failJournal, isLeading, type OpenedJournal, openWorkerJournal } from './journal.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openChannel(deps: WorkerDeps, stores: Stores, identity: Identity, stop: { shipMsMax: number }) {
  const { link, config, log, started } = deps;
  const { shards, postgres, bus } = stores;
  const decoding = openDecoding(deps, (tenantId) => ingest.roomForLarge(tenantId));
  // Frames may arrive before the shipper is made: it takes them when it starts.
  let wakeShipper = () => {};
  const own = await openWorkerJournal(deps, postgres, () => wakeShipper());
  const { journal, stream, writer } = own;
  const { eraser, retentions, journals } = makeDeletes(deps, stores);
  started.addWhole('last report of the journals', () => eraser.end(localReports));

  const shipper: Shipper = makeShipper(deps, stores, own, () => ingest);
  wakeShipper = () => shipper.wake();
  const signingKey = await openSigningKey(postgres, config.auth.signingKey);
  const ingest: Ingest = makeIngest(deps, stores, identity, { own, shipper, signingKey });
  shipper.start();
  const orphans = await openOrphans(deps, stores);
  const { suspects, quarantine } = journal;
  const refusedRows = () => [{ writer, suspects, quarantine }, ...orphans.refusedRows()];
  const refusedPoints = new RefusedPoints({ bus, log, journals: refusedRows });
  await refusedPoints.start();
  started.add('questions about refused rows', () => refusedPoints.stop());
  // A step of its own, because a drain may use up the time of its step.
  started.addWhole('what the journals keep', () =>
    link.kept(journal.backlogBytes + journal.shardBacklog.bytes + journal.suspects.bytes + orphans.bytes),
  );
  started.add('journal', async ({ msLeft }) => {
    const drainMsMax = Math.min(stop.shipMsMax, msLeft);
    void stream?.stopTaking();
    await Promise.all([shipper.drain(drainMsMax), orphans.drain(drainMsMax)]);
  });

  const { deletedDeviceGraceMs, credentialPollMs } = limits;
  const isCurrent = () => clock.monotonic() - identity.changes.currentAt < deletedDeviceGraceMs - credentialPollMs;
  const localReports = answerForJournals(link, { writer, journal, stream, shipper, orphans, shards, isCurrent });
  eraser.start();
  for (const retention of retentions) retention.start();
  started.add('deletes', () => Promise.all([eraser.stopErasing(), ...retentions.map((retention) => retention.stop())]));
  // Makes accepted messages durable, even on a slow disk; the primary ends a worker that hangs.
  started.addWhole('accepted messages', () => ingest.close());
  return { ...decoding, journal, stream, journals, ingest, shipper, orphans, signingKey, refusedPoints };
}

/** Opens what decodes telemetry, and the thread for large messages. */
function openDecoding({ config, started }: WorkerDeps, room: RoomAhead) {
  const decoding = decodeOptions(config);
  const readBody = decoding.lenientJson ? leniently : strictly;
  const decode: Decode<CachedDevice> = (body, device, now, rows) => decodeTelemetry(body, device, now, rows, decoding);
  const thread = new DecodeThread(decoding, { room });
  started.add('decoding thread', () => thread.close());
  return { decoding, readBody, decode, thread };
}

/** Makes what carries out deletes and the retention. Only the worker that leads does both for its host. */
function makeDeletes(deps: WorkerDeps, { shards, postgres, cluster, steadyClock }: Stores) {
  const { link, config, log, metrics } = deps;
  const { tombstonesKeptDays, ttlDays, ttlOfLatest } = config.telemetry;
  const isLeader = () => isLeading(deps);
  const journals = (flush = false) => link.askJournals(flush);
  const latestAheadMsMax = latestAheadMsOf(config);
  const erasing = { postgres, cluster, clock, steadyClock, log, isLeader, latestAheadMsMax };
  const host = hostNameOf(config);
  const eraser = new Eraser({ ...erasing, host, shards, metrics, journals, tombstonesKeptDays });
  const retentions = shards.all.map((clickhouse) => new Retention({ ...erasing, clickhouse, ttlDays, ttlOfLatest }));
  return { eraser, retentions, journals };
}

/** Returns what the journal of this worker and orphan journals need to be shipped. */
function shippingOf({ config, log, metrics }: WorkerDeps, { shards, steadyClock }: Stores) {
  return {
    shards,
    clock,
    log,
    metrics,
    quarantineKeptDays: config.ingest.quarantine.keptDays,
    expiryTime: () => steadyClock.time(),
    latestAheadMsMax: latestAheadMsOf(config),
    ...config.ingest.ship,
  };
}

function makeShipper(
  deps: WorkerDeps,
  stores: Stores,
  { journal, stream }: OpenedJournal,
  ingest: () => Ingest,
): Shipper {
  const { begin, config, fleetWorkers } = deps;
  const isRelayed = begin.engines.clickhouse.relayUrls !== undefined;
  return new Shipper({
    ...shippingOf(deps, stores),
    journal: stream?.journal ?? journal,
    // The relay keeps the pace of the host, so each worker inserts as if it were alone.
    ...(!isRelayed && { fleetWorkers }),
    callersWait: config.ingest.ack === 'store',
    joinsInserts: config.clickhouse.url === '' || isRelayed,
    isRelayed,
    isReplicated: stream !== undefined,
    shardBytesMax: config.ingest.journal.backlogBytesMax,
    hostShiftMs: hostMonotonic() - clock.monotonic(),
    onSuspects: (lane, orders) => ingest().notices.suspected(lane, orders),
    onDelayed: (lane, orders, waits) => ingest().notices.delayed(lane, orders, waits),
    onFramesStored: (lane, orders) => ingest().notices.stored(lane, orders),
    onShipped: () => ingest().notices.shipped(),
  });
}

interface IngestParts {
  own: OpenedJournal;
  shipper: Shipper;
  signingKey: Awaited<ReturnType<typeof openSigningKey>>;
}

function makeIngest(
  { link, config, log, metrics, fleetWorkers }: WorkerDeps,
  { shards }: Stores,
  { devices, oddTimes }: Identity,
  { own: { journal, stream, orders }, shipper, signingKey }: IngestParts,
): Ingest {
  const acksInStream = config.ingest.ack === 'stream' ? stream : undefined;
  return new Ingest({
    ...config.ingest.journal,
    // A receipt names the frame of a message, and a stream cuts a message into several.
    ...(config.ingest.ack !== 'stream' && {
      receipts: new Receipts({ signingKey, ack: config.ingest.ack, clock, log }),
    }),
    journal: acksInStream?.journal ?? journal,
    ...(acksInStream && ofStream(acksInStream, config.stream.subjects)),
    fleetWorkers,
    orders,
    clock,
    log,
    metrics,
    ack: config.ingest.ack,
    storeAckMsMax: config.ingest.storeAckMsMax,
    ...(shards.isDivided && { refusalOf: shardRefusal(shards, journal, config.ingest.journal.backlogBytesMax) }),
    aheadMsMax: latestAheadMsOf(config) || dayMs,
    onOddTimes: (device, { kind, ts }, count) => oddTimes.add(devices.get(device), kind, ts, count),
    onCommitted: () => shipper.wake(),
    onFailed: (reason) => failJournal(link, log, reason),
  });
}

/** Opens the journals of workers that no longer exist, which this worker ships. */
async function openOrphans(deps: WorkerDeps, stores: Stores): Promise<OrphanJournals> {
  const { begin, config } = deps;
  const orphans = new OrphanJournals({
    ...shippingOf(deps, stores),
    segmentBytes: config.ingest.journal.segmentBytes,
    installation: begin.installation,
    dirs: begin.orphanJournals,
    onStored: (stored) => forgetJournal(stores.postgres, stored),
  });
  await orphans.start();
  return orphans;
}

function latestAheadMsOf(config: Config): number {
  return config.telemetry.latestFutureSecondsMax * 1000;
}

/** Refuses devices of a shard for which half of the journal waits. */
function shardRefusal(shards: Shards, journal: Journal, backlogBytesMax: number) {
  const bytesMax = Math.floor(backlogBytesMax / 2);
  return (device: number) => {
    const shard = shards.shardOf(device);
    if (shard === undefined || journal.shardBacklog.bytesOf(shard) < bytesMax) return undefined;
    return shardBehind(shard, bytesMax);
  };
}

interface JournalAnswersDeps {
  writer: number;
  journal: Journal;
  stream: OpenedStream | undefined;
  shipper: Shipper;
  orphans: OrphanJournals;
  shards: Shards;
  /**
   * False: this worker has not read the latest changes and may still accept messages of a deleted device. Its journal
   * then settles nothing.
   */
  isCurrent: () => boolean;
}

/**
 * Answers the primary, which asks how far the journals of this worker are stored, and which holds them for a backup.
 * Returns the function that makes the reports, without those of the streams.
 */
function answerForJournals(
  link: PrimaryLink,
  { writer, journal, stream, shipper, orphans, shards, isCurrent }: JournalAnswersDeps,
): () => JournalReport[] {
  const ownReport = () => {
    const report = reportOf(journal, writer, clock, shards.versionInUse);
    return stream ? stream.report(report) : report;
  };
  const localReports = () => [...(isCurrent() ? [ownReport()] : []), ...orphans.reports().reports];
  link.onHoldJournals(
    () => [journal.hold(), ...orphans.hold()],
    () => [journal.endHold(), orphans.endHold()].every((intact) => intact),
  );
  link.onReportJournals(async (flush) => {
    if (flush) {
      shipper.flush();
      orphans.flush();
    }
    const ofStreams = (await stream?.reports(limits.journalReportsMsMax / 2)) ?? [];
    // Rows of a stream are shipped by the workers, which report their maps themselves.
    for (const report of ofStreams) report.mapVersion = shards.versionInUse;
    return { reports: [...localReports(), ...ofStreams], isWhole: isCurrent() && orphans.reports().isWhole };
  });
  return localReports;
}

/** Returns what ingest needs for a stream. */
function ofStream({ ofLanes }: OpenedStream, subjects: number): Partial<IngestDeps> {
  return { framesOf: framesOfStream(subjects), linger: streamLinger, streams: ofLanes };
}

export type Channel = Awaited<ReturnType<typeof openChannel>>;
