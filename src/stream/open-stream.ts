/**
 * Opens the stream of a worker: connects in the background, reads what ClickHouse does not have, and takes frames. Made
 * while STREAM_URL is set, also for another level of `ingest.ack`: a change of the level leaves no frame behind.
 */
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import type { StreamOfLane } from '../ingest/stream-health.ts';
import { type Journal, type Lane, lanes, late, live } from '../journal/journal.ts';
import type { Queries } from '../postgres/client.ts';
import { checkRights } from './check-rights.ts';
import { checkRunningStreams } from './check-streams.ts';
import { findUse } from './copies-store.ts';
import { DeletesAgain, type ReopenDeletes } from './deletes-again.ts';
import { JsonRelay } from './json-relay.ts';
import { LaneReader } from './lane-reader.ts';
import { prepareStreams } from './prepare-streams.ts';
import { Senders } from './senders.ts';
import { StreamClient } from './stream-client.ts';
import { StreamJournal } from './stream-journal.ts';
import type { StreamLink } from './stream-link.ts';
import type { StreamSettings } from './stream-names.ts';
import { withStream } from './stream-report.ts';
import { StreamWatch } from './stream-watch.ts';
import { StreamWriter } from './stream-writer.ts';

interface OpenStreamDeps {
  settings: StreamSettings;
  /** The id of the installation. */
  installation: string;
  /** Names the connection for the operator of the servers. */
  name: string;
  journal: Journal;
  postgres: Queries;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  isLeader: () => boolean;
  /** True when hosts publish to the streams: `ingest.ack` is `stream`. */
  isAccepting: boolean;
  /** Called when there are frames to ship. */
  onFrame: () => void;
  reopenDeletes: ReopenDeletes;
}

export interface OpenedStream {
  journal: StreamJournal;
  writer: StreamWriter;
  /** As `StreamWriter.unavailable`. */
  away(): string | undefined;
  /** As `StreamWatch.missing`. */
  missing(): string | undefined;
  /** As `StreamWatch.expired`. */
  expired(): string | undefined;
  /** Changes the report of the worker's journal. */
  report(report: JournalReport): JournalReport;
  /** Reports of the streams themselves, not older than the call. */
  reports(msMax: number): Promise<JournalReport[]>;
  /** As `StreamWatch.room`. */
  room(): ReturnType<StreamWatch['room']>;
  /** The streams as ingest needs to know them. */
  ofLanes: readonly [StreamOfLane, StreamOfLane];
  /** Takes no more frames from the stream, and leaves the waiting ones to other processes. */
  stopTaking(): Promise<void>;
  close(): Promise<void>;
}

/** Resolves when the servers have answered, or have not answered within the time of one try. */
export async function openStream(deps: OpenStreamDeps): Promise<OpenedStream> {
  const { settings, installation, name, journal, postgres, clock, log, metrics, isLeader, isAccepting } = deps;
  const { onFrame, reopenDeletes } = deps;
  const prepare = async (link: StreamLink) =>
    prepareStreams(link, settings, { installation, ...(await findUse(postgres)) });
  const check = async (link: StreamLink) => {
    await checkRunningStreams(link, settings);
    await checkRights(link, settings);
  };
  const client = new StreamClient(settings, log, name, prepare, check);
  const { quarantine } = journal;
  const writer = new StreamWriter({ client, settings, clock, log, metrics, local: journal });
  const reading = { client, settings, log, metrics, quarantine, onFrame };
  const readers = [new LaneReader(live, reading), new LaneReader(late, reading)] as const;
  const watching = { client, writer, settings, postgres, clock, log, metrics, quarantine, isLeader, isAccepting };
  const watch = new StreamWatch(watching);
  const relaying = { client, settings, senders: new Senders(postgres), log, metrics };
  const relays = settings.json.enabled ? lanes.map((lane) => new JsonRelay(lane, relaying)) : [];
  await client.start();
  for (const part of [...readers, ...relays]) part.start();
  watch.start();
  const deletesAgain = new DeletesAgain({ reopen: reopenDeletes, clock, log, ackMsMax: settings.ackMsMax });
  const both = new StreamJournal(journal, writer, readers, deletesAgain);
  const ofLane = (lane: Lane): StreamOfLane => ({
    refusal: () => writer.refusal(lane),
    room: () => watch.roomOf(lane),
    deflation: () => writer.deflation(lane),
  });
  return {
    journal: both,
    writer,
    away: () => writer.unavailable,
    missing: () => watch.missing,
    expired: () => watch.expired,
    report: (report) => withStream(report, readers, writer, clock.now()),
    reports: (msMax) => watch.reports(msMax),
    room: () => watch.room(),
    ofLanes: [ofLane(live), ofLane(late)],
    stopTaking: async () => {
      both.leaveStream();
      await Promise.all([...readers.map((reader) => reader.stopTaking()), ...relays.map((relay) => relay.close())]);
    },
    close: async () => {
      writer.close();
      await watch.stop();
      await Promise.all([...readers, ...relays, deletesAgain].map((part) => part.close()));
      await client.close();
    },
  };
}
