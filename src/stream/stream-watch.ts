/**
 * Watches the streams. Each process learns which of its own frames ClickHouse has. The worker that leads a host also
 * reads the state of the streams, and one host at a time (a lease) compares it with the position in PostgreSQL, writes
 * the position, and removes what ClickHouse has. A missing message is damage: the range is logged, counted and noted in
 * the quarantine of this worker, and shipping continues after the range.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { JetStreamApiError } from '@nats-io/jetstream';
import type { Clock } from '../base/clock.ts';
import { messageOf, StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import type { StreamRoom } from '../ingest/stream-health.ts';
import { type Lane, laneNames, lanes, live } from '../journal/journal.ts';
import type { Quarantine } from '../journal/quarantine.ts';
import type { Queries } from '../postgres/client.ts';
import { takeLease } from '../postgres/lease.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { findLosses, type Loss } from './losses.ts';
import { missingSentence } from './missing-servers.ts';
import { addStream, keepStreamPosition, noteLast, readStreamPosition, type StreamPosition } from './position-store.ts';
import { hasCertificate, ServerCertificates } from './server-certificates.ts';
import type { StreamClient } from './stream-client.ts';
import { consumerNotFound, type StreamLink, streamNotFound } from './stream-link.ts';
import { consumerName, jsonConsumerName, type StreamSettings, streamName } from './stream-names.ts';
import type { StreamWriter } from './stream-writer.ts';
import { missingOf, observeLane, type Seen, WatchedLane } from './watched-lane.ts';

interface WatchDeps {
  client: StreamClient;
  writer: StreamWriter;
  settings: StreamSettings;
  postgres: Queries;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  quarantine: Pick<Quarantine, 'addGap'>;
  isLeader: () => boolean;
  isAccepting: boolean;
}

const roundMs = 500;
/** A stop waits so long for PostgreSQL. */
const noteMsMax = 1_000;
const leaseMs = 10_000;
/** A host without the lease asks for it again after this time, so that hosts without it cost PostgreSQL little. */
const leaseAgainMs = 5_000;
/** A renewed certificate is noticed after this time. */
const certificatesMs = 60_000;
const leaseName = 'streams';
const missingCodes = new Set([streamNotFound, consumerNotFound]);

export class StreamWatch {
  readonly #deps: WatchDeps;
  readonly #holder = randomUUID();
  readonly #lost: Counter;
  readonly #notGiven: Counter;
  readonly #lanes: readonly [WatchedLane, WatchedLane];
  /** Another host had the lease. This process asks for the lease again at this time. */
  #leaseAgainAt = Number.NEGATIVE_INFINITY;
  readonly #certificates: ServerCertificates;
  /** When the certificates are read next. */
  #certificatesAt = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(deps: WatchDeps) {
    this.#deps = deps;
    const { metrics, clock } = deps;
    const onUnread = (reason: string) => deps.log.warn('stream_certificates_unread', { reason });
    this.#certificates = new ServerCertificates(deps.settings, 'millrace certificates', onUnread);
    this.#lost = metrics.counter(
      'stream_losses_total',
      'Ranges of messages that a stream has lost, or a whole stream.',
    );
    this.#notGiven = metrics.counter(
      'stream_json_missed_total',
      'Frames that left a stream before they were given as JSON.',
    );
    const ends = 'Days until the certificate of a door, or of the servers of the stream, ends; negative afterwards.';
    const daysLeft = () => (deps.isLeader() ? this.#certificates.first?.daysLeft : undefined);
    metrics.observed('tls_certificate_days_left', ends, daysLeft, 'max', { door: 'stream' });
    this.#lanes = [new WatchedLane(clock), new WatchedLane(clock)];
    for (const lane of lanes) observeLane(metrics, clock, lane, this.#lanes[lane]);
  }

  start(): void {
    this.#timer = setTimeout(() => {
      this.#running = this.round().finally(() => {
        if (!this.#stopped) this.start();
      });
    }, roundMs);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#running;
    await Promise.race([this.#noteLast(), sleep(noteMsMax, undefined, { ref: false })]);
  }

  /** The frames that this process has published last may be later than the position of the stream. */
  async #noteLast(): Promise<void> {
    const { writer, settings, postgres } = this.#deps;
    for (const lane of lanes) {
      const { isEmpty, lastMax } = writer.own[lane];
      if (isEmpty) continue;
      try {
        await noteLast(postgres, streamName(settings, lane), lastMax);
      } catch (error) {
        // A stop does not wait for a PostgreSQL that is unavailable.
        if (!isAway(error)) this.#warn(lane, 'stream_watch_failed', messageOf(error));
      }
    }
  }

  /**
   * Returns reports of the streams as journals, at the worker that leads. A stream whose servers do not answer in time
   * has no report. The reports are of no moment before the call: deletes that were made before the call rely on them,
   * and a frame of a process that has ended may be in no other report.
   */
  async reports(msMax: number): Promise<JournalReport[]> {
    const { client, clock, isLeader } = this.#deps;
    const { link } = client;
    if (!isLeader() || link?.isConnected !== true) return [];
    const from = clock.monotonic();
    // The next round logs why a stream cannot be read.
    const reads = lanes.map((lane) => this.#read(link, lane).catch(() => {}));
    await Promise.race([Promise.all(reads), sleep(msMax, undefined, { ref: false })]);
    return lanes.flatMap((lane) => {
      const { seen } = this.#lanes[lane];
      if (seen?.writer === undefined || seen.at < from) return [];
      const { writer, created, last, floor } = seen;
      // Numbers of messages are far below all order numbers, so they are never ahead of the clock.
      const shipped = String(floor);
      const none = { orderRecovered: null, orderHeld: null, isAhead: false };
      return { writer, run: created, orderHigh: String(last), orderShipped: shipped, orderDone: shipped, ...none };
    });
  }

  /**
   * Returns the bytes that all hosts have appended to the stream of live rows, estimated by the numbers and the sizes
   * of frames, and what that stream can still take; undefined by a worker that does not lead, and while that is not
   * known. A stream of late rows without room refuses no live row.
   */
  room(): { written: number; left: number } | undefined {
    const { fresh, written } = this.#lanes[live];
    if (!this.#deps.isLeader() || fresh === undefined) return undefined;
    return { written, left: fresh.bytesMax - fresh.bytes };
  }

  /** Returns what the stream of a lane holds; undefined while that is not known. */
  roomOf(lane: Lane): StreamRoom | undefined {
    return this.#lanes[lane].room(this.#deps.writer.published[lane]);
  }

  /** Returns what the unavailable servers mean; undefined while all are there, and by a worker that does not lead. */
  get missing(): string | undefined {
    const { isLeader, settings } = this.#deps;
    if (!isLeader()) return undefined;
    for (const lane of lanes) {
      const { fresh } = this.#lanes[lane];
      const missing = fresh && missingOf(fresh);
      if (missing !== undefined) return missingSentence(streamName(settings, lane), missing);
    }
    return undefined;
  }

  /** Returns which certificate has expired; undefined: none, and by a worker that does not lead. */
  get expired(): string | undefined {
    const first = this.#deps.isLeader() ? this.#certificates.first : undefined;
    if (first === undefined || first.daysLeft > 0) return undefined;
    return `the certificate of ${first.server} (STREAM_URL) has expired: a connection that is lost cannot be made again there, so renew it`;
  }

  /** Connects to each server of STREAM_URL once in a while. */
  #readCertificates({ connection, isConnected }: StreamLink): void {
    const now = this.#deps.clock.monotonic();
    if (now < this.#certificatesAt || !isConnected || !hasCertificate(connection)) return;
    this.#certificatesAt = now + certificatesMs;
    void this.#certificates.refresh();
  }

  /** Runs one round. `start` repeats it; a test calls it. */
  async round(): Promise<void> {
    const { client, isLeader } = this.#deps;
    const { link } = client;
    if (!link) return;
    if (isLeader()) this.#readCertificates(link);
    for (const lane of lanes) {
      try {
        await (isLeader() ? this.#lead(link, lane) : this.#follow(link, lane));
        await this.#forgetLost(link, lane);
        this.#lanes[lane].isMissing = false;
        this.#lanes[lane].failure = '';
        client.unmade[lane] = undefined;
      } catch (error) {
        if (isMissing(error)) await this.#repair(lane);
        else if (!isAway(error)) this.#warn(lane, 'stream_watch_failed', messageOf(error));
      }
    }
  }

  /** Logs a failure when it begins or changes: rounds are frequent. */
  #warn(lane: Lane, event: string, reason: string): void {
    const watched = this.#lanes[lane];
    if (reason !== watched.failure) this.#deps.log.warn(event, { lane: laneNames[lane], reason });
    watched.failure = reason;
  }

  async #follow(link: StreamLink, lane: Lane): Promise<void> {
    const { client, writer, settings } = this.#deps;
    const own = writer.own[lane];
    await this.#readRoom(link, lane);
    if (own.isEmpty && client.unmade[lane] === undefined) return;
    const { added } = own;
    const { floor } = await link.consumerState(streamName(settings, lane));
    own.confirmed(floor, added);
  }

  async #readRoom(link: StreamLink, lane: Lane): Promise<void> {
    const { writer, settings, clock } = this.#deps;
    const { added } = writer.own[lane];
    const watched = this.#lanes[lane];
    if (!watched.isRoomDue(added)) return;
    const at = clock.monotonic();
    const published = writer.published[lane];
    watched.noteRoom({ ...(await link.room(streamName(settings, lane))), at, added, published });
  }

  /**
   * Forgets frames that the stream has lost, because a lane without new frames would never learn it from a number that
   * is given again. Deletes wait for frames that are not confirmed. The state of the stream is read only after frames
   * have waited for a while.
   */
  async #forgetLost(link: StreamLink, lane: Lane): Promise<void> {
    const { writer, settings, clock } = this.#deps;
    const own = writer.own[lane];
    const order = own.orderMin;
    const now = clock.monotonic();
    const watched = this.#lanes[lane];
    if (!watched.isWaitingLong(order, now)) return;
    const { lastMax } = own;
    const { last } = await link.laneState(streamName(settings, lane));
    // The state says nothing of frames that were appended meanwhile.
    if (own.lastMax !== lastMax || own.orderMin !== order) return;
    if (lastMax <= last) watched.notLost(order, now);
    else if (watched.isLostForLong(now)) own.lostAfter(last);
  }

  /** Reads the state of a stream. `at` of the result is the time before the read. */
  async #read(link: StreamLink, lane: Lane): Promise<Seen> {
    const { writer, settings, clock } = this.#deps;
    const name = streamName(settings, lane);
    const at = clock.monotonic();
    const watched = this.#lanes[lane];
    const known = watched.seen;
    const ownBefore = writer.own[lane].added;
    const published = writer.published[lane];
    // The place of the consumer is read first: an operator's purge moves the place, and must not count as confirmed
    // frames.
    const consumer = await link.consumerState(name);
    const state = await link.laneState(name);
    // The place is of the former stream when the stream was made again meanwhile.
    const isSame = known?.created === state.created;
    const floor = Math.max(isSame ? consumer.floor : 0, state.first - 1);
    if (isSame) writer.own[lane].confirmed(floor, ownBefore);
    // Messages that ClickHouse has may be there for long: they wait to be given as JSON, or for PostgreSQL.
    const isFirstStored = consumer.waiting > 0 && state.first <= floor;
    const oldestAtMs = isFirstStored ? await link.timeOf(name, floor + 1) : state.firstAtMs;
    const newest = watched.seen;
    const missingSince = state.missing && (newest?.missingSince ?? at);
    const seen: Seen = { ...state, ...consumer, floor, oldestAtMs, writer: newest?.writer, at, missingSince };
    watched.noteRoom({ bytes: state.bytes, bytesMax: state.bytesMax, at, added: ownBefore, published });
    watched.note(seen);
    return seen;
  }

  async #lead(link: StreamLink, lane: Lane): Promise<void> {
    const { settings, postgres } = this.#deps;
    const name = streamName(settings, lane);
    const watched = this.#lanes[lane];
    const seen = await this.#read(link, lane);
    if (seen.writer !== undefined && this.#deps.clock.monotonic() < this.#leaseAgainAt) return;
    try {
      const position = (await readStreamPosition(postgres, name)) ?? (await addStream(postgres, name, seen));
      if (!position) return;
      seen.writer = position.writer;
      if (watched.seen) watched.seen.writer = position.writer;
      if (await takeLease(postgres, leaseName, this.#holder, leaseMs)) {
        await this.#advance(link, lane, seen, position);
        return;
      }
      this.#leaseAgainAt = this.#deps.clock.monotonic() + leaseAgainMs;
      // Another host compares the stream, so what this one noticed says nothing of what it finds later.
      watched.notCut();
    } catch (error) {
      // Without PostgreSQL nothing is compared. Stored frames leave the stream when it is half full: telemetry goes on.
      if (!isAway(error)) throw error;
      if (isHalfFull(seen) && seen.floor >= seen.first) {
        // The next holder of the lease, also after a restart, must not take what is removed now for a gap. A note whose
        // answer came too late is found in the next state.
        if (seen.removed < seen.first) await link.noteRemoved(name, seen.floor);
        const floor = seen.removed < seen.first ? seen.floor : Math.min(seen.floor, seen.removed);
        await this.#remove(link, lane, { ...seen, floor });
      }
    }
  }

  async #advance(link: StreamLink, lane: Lane, seen: Seen, position: StreamPosition): Promise<void> {
    const { postgres, log, settings, isAccepting } = this.#deps;
    const { name } = position;
    const removed = position.created === seen.created ? seen.removed : 0;
    const known = { ...position, floor: Math.max(position.floor, removed) };
    const { losses, isOther, isCut } = findLosses(known, seen);
    // A server that has just become the leader may not have applied its newest messages.
    if (isCut && !this.#lanes[lane].isCutForLong()) return;
    if (!isCut) this.#lanes[lane].notCut();
    for (const loss of losses) await this.#report(name, loss);
    if (isOther) {
      log.info('stream_new', { stream: name, created: seen.created });
    }
    // The consumer has a place after the end of the stream, and would skip the messages that get these numbers next.
    if (isCut) await this.#makeConsumerAgain(link, name);
    const floor = isCut
      ? Math.min(seen.floor, seen.first - 1)
      : isOther
        ? seen.floor
        : Math.max(seen.floor, known.floor);
    const use = { servers: settings.url, accepting: isAccepting };
    const isKept = await keepStreamPosition(postgres, position, { created: seen.created, floor, last: seen.last }, use);
    if (!isKept) return;
    // After a cut, new messages get numbers that were removed before.
    if (isCut && seen.removed > 0) await link.noteRemoved(name, 0);
    // The position may know more as stored than the consumer: after a cut that was not noticed, frames that no process
    // has shipped have the numbers of former ones.
    if (!isCut) await this.#remove(link, lane, seen);
  }

  /** Frames stay until they were given as JSON, or until the stream is half full. */
  async #remove(
    link: StreamLink,
    lane: Lane,
    seen: Pick<Seen, 'floor' | 'first' | 'bytes' | 'bytesMax'>,
  ): Promise<void> {
    const { settings } = this.#deps;
    const name = streamName(settings, lane);
    let upTo = seen.floor;
    if (settings.json.enabled && upTo >= seen.first) {
      const { floor: given } = await link.consumerState(name, jsonConsumerName);
      if (isHalfFull(seen)) this.#notGiven.add(Math.max(0, upTo - Math.max(given, seen.first - 1)));
      else upTo = Math.min(upTo, given);
    }
    if (upTo >= seen.first) await link.purge(name, upTo);
  }

  async #makeConsumerAgain(link: StreamLink, stream: string): Promise<void> {
    await link.manager.consumers.delete(stream, consumerName);
    await this.#deps.client.prepareAgain();
  }

  /** Makes a missing stream again. The next comparison finds the loss, because the position names the former stream. */
  async #repair(lane: Lane): Promise<void> {
    const { client, settings, postgres, log } = this.#deps;
    const name = streamName(settings, lane);
    try {
      if (!this.#lanes[lane].isMissing) log.error('stream_missing', { stream: name });
      this.#lanes[lane].isMissing = true;
      await client.prepareAgain();
      client.unmade[lane] = undefined;
      const position = await readStreamPosition(postgres, name);
      const state = await client.link?.laneState(name);
      if (position && state && position.created !== state.created) log.warn('stream_made_again', { stream: name });
    } catch (error) {
      if (error instanceof StartError) client.unmade[lane] = error.message;
      this.#warn(lane, 'stream_not_ready', messageOf(error));
    }
  }

  async #report(stream: string, loss: Loss): Promise<void> {
    const { quarantine, log } = this.#deps;
    const note = { stream, ...loss, noticed: new Date().toISOString() };
    const place = `${stream}-${loss.created.replace(/[^0-9A-Za-z]/g, '')}-${loss.kind}`;
    if ((await quarantine.addGap(place, loss.from, Buffer.from(`${JSON.stringify(note)}\n`))) === 'known') return;
    this.#lost.add(1);
    log.error('stream_lost', { ...note, range: `${place} ${loss.from}` });
  }
}

function isHalfFull({ bytes, bytesMax }: Pick<Seen, 'bytes' | 'bytesMax'>): boolean {
  return bytes > bytesMax / 2;
}

function isMissing(error: unknown): boolean {
  return error instanceof JetStreamApiError && missingCodes.has(error.code);
}
