/**
 * Opens the path of telemetry: the journal, the call that every door uses, the shipping to ClickHouse, and the deletes.
 */
import { hostname } from 'node:os';
import { join } from 'node:path';
import { openSigningKey } from '../auth/signing-key.ts';
import { systemClock as clock, clockStepMs, hostMonotonic } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { Eraser } from '../erase/erase.ts';
import { Retention } from '../erase/retention.ts';
import { reopenCovering } from '../erase/tombstone-store.ts';
import { type Decode, Ingest, type IngestDeps, streamLinger } from '../ingest/accept.ts';
import { shardBehind } from '../ingest/journal-health.ts';
import { type JournalReport, reportOf } from '../ingest/journal-report.ts';
import { forgetJournal, readHighOrders, type StoredJournal } from '../ingest/journal-store.ts';
import { OrderClock, orderMs } from '../ingest/order-number.ts';
import { Receipts } from '../ingest/receipts.ts';
import { RefusedPoints } from '../ingest/refused-points.ts';
import { writerIdOf } from '../ingest/writer-id.ts';
import { checkInstance, instanceVariable } from '../instance/host/data-directory.ts';
import { journalDirectory, journalName } from '../instance/host/data-files.ts';
import { OrphanJournals } from '../instance/journals/orphan-journals.ts';
import type { PrimaryLink } from '../instance/processes/primary-link.ts';
import type { Journal } from '../journal/journal.ts';
import { openJournal } from '../journal/open-journal.ts';
import { isAway, type Postgres, type Queries } from '../postgres/client.ts';
import { Shipper } from '../ship/ship.ts';
import { type OpenedStream, openStream } from '../stream/open-stream.ts';
import { framesOfStream } from '../stream/stream-frames.ts';
import { decodeTelemetry } from '../telemetry/decode.ts';
import { decodeOptions } from '../telemetry/decode-options.ts';
import { DecodeThread } from '../telemetry/decode-thread.ts';
import { leniently, strictly } from '../value/lenient.ts';
import type { Identity } from './identity.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openChannel(
  deps: WorkerDeps,
  { shards, postgres, bus, cluster, steadyClock }: Stores,
  { changes, devices, oddTimes }: Identity,
  stop: { shipMsMax: number },
) {
  const { link, begin, config, log, metrics, started, fleetWorkers } = deps;
  const decoding = decodeOptions(config);
  const readBody = decoding.lenientJson ? leniently : strictly;
  const decode: Decode<CachedDevice> = (body, device, now, rows) => decodeTelemetry(body, device, now, rows, decoding);
  const thread = new DecodeThread(decoding, { room: (tenantId) => ingest.roomForLarge(tenantId) });
  started.add('decoding thread', () => thread.close());

  const { segmentBytes, freeDiskBytesMin, backlogBytesMax, ...waits } = config.ingest.journal;
  const { dir, journal } = await openOwnJournal(deps);
  const isStream = config.ingest.ack === 'stream';
  // Frames may arrive before the shipper is made: it takes them when it starts.
  let wakeShipper = () => {};
  const stream = await openOwnStream(deps, postgres, journal, () => wakeShipper());
  const writer = await writerIdOf({ journal, dir, postgres, onWaiting: (reason) => link.waiting(reason) });
  const orders = await openOrders({ writer, journal, stream, postgres, log });

  // The worker that leads carries out the deletes and the retention of its host.
  const isLeader = () => isLeading(deps);
  const journals = (flush = false) => link.askJournals(flush);
  const { tombstonesKeptDays, ttlDays, ttlOfLatest } = config.telemetry;
  const latestAheadMsMax = config.telemetry.latestFutureSecondsMax * 1000;
  const erasing = { postgres, cluster, clock, steadyClock, log, isLeader, latestAheadMsMax };
  const eraser = new Eraser({ ...erasing, shards, metrics, journals, tombstonesKeptDays });
  const retentions = shards.all.map((clickhouse) => new Retention({ ...erasing, clickhouse, ttlDays, ttlOfLatest }));
  started.addWhole('last report of the journals', () => eraser.end(localReports));

  const expiryTime = () => steadyClock.time();
  const expiring = { quarantineKeptDays: config.ingest.quarantine.keptDays, expiryTime };
  const shipping = { shards, clock, log, metrics, ...expiring, latestAheadMsMax, ...config.ingest.ship };
  const isRelayed = begin.engines.clickhouse.relayUrls !== undefined;
  const shipper: Shipper = new Shipper({
    ...shipping,
    journal: stream?.journal ?? journal,
    // The relay keeps the pace of the host, so each worker inserts as if it were alone.
    ...(!isRelayed && { fleetWorkers }),
    callersWait: config.ingest.ack === 'store',
    joinsInserts: config.clickhouse.url === '' || isRelayed,
    isRelayed,
    isReplicated: stream !== undefined,
    shardBytesMax: backlogBytesMax,
    hostShiftMs: hostMonotonic() - clock.monotonic(),
    onSuspects: (lane, orders) => ingest.suspected(lane, orders),
    onDelayed: (lane, orders) => ingest.delayed(lane, orders),
    onFramesStored: (lane, orders) => ingest.stored(lane, orders),
    onShipped: () => ingest.shipped(),
  });
  wakeShipper = () => shipper.wake();
  const signingKey = await openSigningKey(postgres, config.auth.signingKey);
  const ingest: Ingest = new Ingest({
    ...waits,
    // A receipt names the frame of a message, and a stream cuts a message into several.
    ...(!isStream && { receipts: new Receipts({ signingKey, ack: config.ingest.ack, clock, log }) }),
    journal: isStream && stream ? stream.journal : journal,
    ...(isStream && stream && ofStream(stream, config.stream.subjects)),
    fleetWorkers,
    orders,
    clock,
    log,
    metrics,
    ack: config.ingest.ack,
    storeAckMsMax: config.ingest.storeAckMsMax,
    backlogBytesMax,
    ...(shards.isDivided && { refusalOf: shardRefusal(shards, journal, backlogBytesMax) }),
    freeDiskBytesMin,
    aheadMsMax: latestAheadMsMax || dayMs,
    onOddTimes: (device, { kind, ts }, count) => oddTimes.add(devices.get(device), kind, ts, count),
    onCommitted: () => shipper.wake(),
    onFailed: (reason) => fail(link, log, reason),
  });
  shipper.start();
  const onStored = (stored: StoredJournal) => forgetJournal(postgres, stored);
  const orphans = new OrphanJournals({
    ...shipping,
    segmentBytes,
    installation: begin.installation,
    dirs: begin.orphanJournals,
    onStored,
  });
  await orphans.start();
  const { suspects, quarantine } = journal;
  const refusedRows = () => [{ writer, suspects, quarantine }, ...orphans.refusedRows()];
  const refusedPoints = new RefusedPoints({ bus, log, journals: refusedRows });
  await refusedPoints.start();
  started.add('questions about refused rows', () => refusedPoints.stop());
  started.add('journal', ({ msLeft }) => {
    const drainMsMax = Math.min(stop.shipMsMax, msLeft);
    void stream?.stopTaking();
    return Promise.all([shipper.drain(drainMsMax), orphans.drain(drainMsMax)]);
  });

  const isCurrent = () => clock.monotonic() - changes.currentAt < limits.deletedDeviceGraceMs - limits.credentialPollMs;
  const localReports = answerForJournals(link, { writer, journal, stream, shipper, orphans, shards, isCurrent });
  eraser.start();
  for (const retention of retentions) retention.start();
  started.add('deletes', () => Promise.all([eraser.stopErasing(), ...retentions.map((retention) => retention.stop())]));
  // Makes accepted messages durable, even on a slow disk; the primary ends a worker that hangs.
  started.addWhole('accepted messages', () => ingest.close());
  const ofReceipts = { signingKey, refusedPoints };
  return { decoding, readBody, decode, thread, journal, stream, journals, ingest, shipper, orphans, ...ofReceipts };
}

/** Opens the journal of this worker. */
async function openOwnJournal({ link, begin, config, log, metrics, started }: WorkerDeps) {
  checkInstance(config.data.dir, process.env[instanceVariable]);
  const dir = join(config.data.dir, journalDirectory, journalName(begin.slot));
  const { ack, journal: settings, quarantine } = config.ingest;
  const journal = await openJournal({
    dir,
    log,
    metrics,
    segmentBytes: settings.segmentBytes,
    durable: ack === 'memory' ? 'none' : 'sync',
    freeBytesMin: Math.floor(settings.freeDiskBytesMin / 2),
    quarantineBytesMax: quarantine.bytesMax,
    installation: begin.installation,
    locked: true,
    onLost: (reason) => fail(link, log, reason),
  });
  started.addWhole('end of the journal', () => journal.close());
  return { dir, journal };
}

/** Opens the replicated stream; undefined when there is none. */
async function openOwnStream(
  deps: WorkerDeps,
  postgres: Postgres,
  journal: Journal,
  onFrame: () => void,
): Promise<OpenedStream | undefined> {
  const { begin, config, log, metrics, started } = deps;
  if (config.stream.url === '') return undefined;
  const stream = await openStream({
    settings: config.stream,
    installation: begin.installation,
    name: `millrace ${hostname()} worker-${begin.slot}`,
    journal,
    postgres,
    clock,
    log,
    metrics,
    isLeader: () => isLeading(deps),
    isAccepting: config.ingest.ack === 'stream',
    onFrame,
    reopenDeletes: (...frames) => reopenCovering(postgres, ...frames),
  });
  started.addWhole('end of the stream', () => stream.close());
  return stream;
}

/** True while this worker leads those of its host. */
function isLeading({ link, begin }: WorkerDeps): boolean {
  return link.state.leader === begin.slot;
}

interface OrdersDeps {
  writer: number;
  journal: Journal;
  stream: OpenedStream | undefined;
  postgres: Queries;
  log: Log;
}

/** Makes the clock of order numbers, which continues after every order that this writer has used. */
async function openOrders({ writer, journal, stream, postgres, log }: OrdersDeps): Promise<OrderClock> {
  const orderMax = stream ? await highestOrder(postgres, writer, journal.orderMax) : journal.orderMax;
  const leadMs = orderMs(orderMax) - clock.now();
  // An earlier run without the database used a clock that was ahead; a journal's order numbers never go back.
  if (leadMs > clockStepMs) log.warn('order_ahead', { leadSeconds: Math.round(leadMs / 1000) });
  return new OrderClock(clock, writer, orderMax);
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

/**
 * Returns the highest order that is known of this writer. Frames of an earlier run are not in its journal but in the
 * stream; after a clock that was set back, new frames get higher orders.
 */
async function highestOrder(postgres: Queries, writer: number, journaled: bigint): Promise<bigint> {
  try {
    const known = (await readHighOrders(postgres)).find((row) => row.writer === writer);
    const reported = BigInt(known?.orderHigh ?? 0);
    return reported > journaled ? reported : journaled;
  } catch (error) {
    if (!isAway(error)) throw error;
    return journaled;
  }
}

export type Channel = Awaited<ReturnType<typeof openChannel>>;

/** The disk of the journal failed twice: nothing that is accepted now could be kept. */
function fail(link: PrimaryLink, log: Log, reason: string): void {
  log.error('journal_failed', { reason });
  void link.failed(new StartError(`the journal cannot be written: ${reason}`));
  systemScheduler.after(100, () => process.exit(1));
}
