/**
 * Takes telemetry from every door. Decoded rows gather in a frame while the last frame is being synced. The frame then
 * goes to the journal in one write, and all its waiters are acknowledged in order (group commit). Nothing is
 * acknowledged before its rows are durable, and at every cap the caller is refused with a reason.
 *
 * Two lanes: live rows (yesterday, today and tomorrow), and late rows (all others), which touch many days and so are
 * shipped in larger units.
 */
import type { FineClock } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { type Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { JournalError, type JournalFrame, type Lane, late, live } from '../journal/journal.ts';
import type { TakesFrames } from '../journal/seam.ts';
import type { TimeRange } from '../journal/ship-notes.ts';
import type { Chunk } from '../telemetry/decoded-chunk.ts';
import { newMark, type Rows } from '../telemetry/rows.ts';
import type { Sender } from './backlog-shares.ts';
import {
  type Commit,
  devicesFrom,
  type FramesOf,
  type Gathering,
  LargeMessage,
  laneOf,
  type NewStamp,
} from './commit.ts';
import { Commits, type Linger } from './commits.ts';
import { IngestMetrics } from './ingest-metrics.ts';
import { checkIntervalMs, diskFull, JournalHealth, journalFailed, slowDisk } from './journal-health.ts';
import { type OnOddTimes, reportOddTimes } from './odd-times-of-records.ts';
import type { OrderClock } from './order-number.ts';
import type { AckLevel } from './receipt.ts';
import type { Receipts } from './receipts.ts';
import { countRefused, StoreAcks, type Waiter } from './store-acks.ts';
import { StoreNotices } from './store-notices.ts';
import { lateWaits, StreamHealth, type StreamOfLane } from './stream-health.ts';
import { areIn, hasTimeIn } from './time-range.ts';

export type { AckLevel, Waiter };

/** Decodes one message into `rows` and returns its data points; throws a Fault and leaves `rows` unchanged. */
export type Decode<Source> = (body: Uint8Array, source: Source, now: number, rows: Rows) => number;

/**
 * Charges the sender for a decoded message, whose rows begin at `first`. Throws a Fault above a limit; the message then
 * leaves no row.
 */
type Charge<Source> = (source: Source, points: number, rows: Rows, first: number) => void;

export interface IngestDeps {
  journal: TakesFrames;
  orders: OrderClock;
  clock: FineClock;
  /** A simulation passes its own. */
  scheduler?: Scheduler;
  log: Log;
  metrics: Metrics;
  ack: AckLevel;
  /** Undefined: every message is acknowledged without a receipt. */
  receipts?: Receipts;
  /** The time for which a message of `store` waits for ClickHouse. */
  storeAckMsMax: number;
  backlogBytesMax: number;
  freeDiskBytesMin: number;
  lingerMsMax: number;
  unsyncedBytesMax: number;
  unsyncedMsMax: number;
  /** `ingest.ack: stream`: cuts gathered rows into frames; absent: one frame for each lane. */
  framesOf?: FramesOf | undefined;
  /** Workers of all hosts, which share the streams. */
  fleetWorkers?: () => number;
  /** Absent: as for a sync of the own disk, with `lingerMsMax`. */
  linger?: Linger;
  /** Returns why messages of this device are refused: too many rows wait for its shard. Absent: there is one server. */
  refusalOf?: (device: number) => Fault | undefined;
  /** `ingest.ack: stream`: the streams, one for each lane. Absent: a journal takes the frames of both lanes at once. */
  streams?: readonly [StreamOfLane, StreamOfLane] | undefined;
  /** Milliseconds ahead of the server from which a `ts` is odd. */
  aheadMsMax?: number;
  /** Called for accepted records with odd times: with one of them and the number of those of its device and kind. */
  onOddTimes?: OnOddTimes;
  /** Called after each commit, when there is something to ship. */
  onCommitted: () => void;
  /** Called when the journal cannot be written any more: the process must end. */
  onFailed: (reason: string) => void;
}

/** A commit to a stream costs three servers a sync, so it pays to wait longer. */
export const streamLinger: Linger = { msMax: 4, messagesMin: 3, messagesMax: 1_000 };

/** Gathered messages have their order numbers after less than this time: a commit waits for one append at most. */
const gatheredMsMax = 60_000;

export class Ingest {
  readonly #deps: IngestDeps;
  /** Undefined unless `ingest.ack` is `store`. */
  readonly #storeAcks: StoreAcks | undefined;
  /** Gets the notices of shipping. */
  readonly notices: StoreNotices;
  readonly #metrics: IngestMetrics;
  readonly #endChecks: () => void;
  readonly #mark = newMark();
  readonly #commits: Commits;
  /** The commits of late rows. Those of a stream wait for no live row and delay none; else these are `#commits`. */
  readonly #lateCommits: Commits;
  readonly #refusalOf: IngestDeps['refusalOf'];
  /** True: a shard that is down delays the messages of its own devices only, so their devices are noted. */
  readonly #notesDevices: boolean;
  readonly #health: JournalHealth;
  /** Undefined unless `ingest.ack` is `stream`. */
  readonly #streams: StreamHealth | undefined;
  /** Times of the live lane: yesterday, today and tomorrow. */
  #near: TimeRange = { from: 0, to: 0 };
  /**
   * Times of points that may be in either lane: those of the live lane, a minute ago and in a minute. The live lane
   * moves at midnight, while messages gather and wait.
   */
  #shared: TimeRange = { from: 0, to: 0 };
  /** Times that need no inspection: those of the live lane that are not too far ahead. */
  #usual: TimeRange = { from: 0, to: 0 };
  #onIdle: (() => void)[] = [];

  constructor(deps: IngestDeps) {
    this.#deps = deps;
    this.#refusalOf = deps.refusalOf;
    const { metrics, clock, scheduler = systemScheduler, streams, unsyncedBytesMax } = deps;
    const committing = {
      linger: deps.linger ?? { msMax: deps.lingerMsMax, messagesMin: 3, messagesMax: 64 },
      scheduler,
      unsyncedBytesMax,
      write: (commit: Commit, onEnd: () => void) => this.#write(commit, onEnd),
      onIdle: () => this.#resumeIdle(),
    };
    this.#commits = new Commits(committing);
    this.#lateCommits = streams === undefined ? this.#commits : new Commits({ ...committing, ...this.#afterLive() });
    this.#streams = streams && new StreamHealth({ ...deps, streams });
    this.#metrics = new IngestMetrics(deps, () => this.#unsyncedBytes());
    if (deps.ack === 'store') {
      const onAcknowledged = (messages: number, since: number) => this.#metrics.acknowledged(messages, since);
      this.#storeAcks = new StoreAcks({ clock, metrics, timeoutMs: deps.storeAckMsMax, onAcknowledged });
    }
    this.#notesDevices = this.#storeAcks !== undefined && deps.refusalOf !== undefined;
    this.notices = new StoreNotices({
      acks: this.#storeAcks,
      journal: deps.journal,
      isAppending: () => this.#commits.isWriting,
      notesDevices: this.#notesDevices,
    });
    const streamRefusal = streams && (() => this.#streams?.refusal());
    this.#health = new JournalHealth({ ...deps, streamRefusal });
    this.#check();
    this.#endChecks = scheduler.every(checkIntervalMs, () => this.#check());
  }

  /** Returns the reason why telemetry is refused now; undefined when it is accepted. */
  refusal(): Fault | undefined {
    const { refusal } = this.#health;
    if (refusal) return refusal;
    // Large messages have a cap of their own (`LargeQueue`). They refuse no other message.
    if (this.#isFull(this.#commits)) return slowDisk();
    return this.#storeAcks?.refusal();
  }

  /** Returns why the stream of a lane refuses rows, or did within the last seconds. */
  recentRefusal(lane: Lane): Fault | undefined {
    return this.#streams?.recentRefusal(lane);
  }

  /** As `refusal`, without reasons that pass within milliseconds: a body that is still arriving may find room. */
  journalRefusal(): Fault | undefined {
    return this.#health.refusal;
  }

  /**
   * Accepts one message and returns its data points; `waiter` gets the outcome later. Throws the decoder's Fault, the
   * refusal, or the fault of `charge`; then `waiter` is not called. A message that the server itself writes has no
   * `sender` and counts for no share of the journal. `now`: the time of points without `ts`, from the clock of
   * `IngestDeps`, not before the arrival of the message.
   */
  accept<Source>(
    decode: Decode<Source>,
    body: Uint8Array,
    source: Source,
    waiter: Waiter,
    charge?: Charge<Source>,
    sender?: Sender,
    now: number = this.#deps.clock.now(),
  ): number {
    const refusal = this.refusal();
    if (refusal) throw refusal;
    if (sender !== undefined && this.#refusalOf !== undefined) this.#admitToShard(sender);
    const { gathering } = this.#commits;
    const shares = sender && this.#health.shares;
    const isLimited = shares !== undefined || this.#streams?.isLimiting === true;
    const bytesBefore = isLimited ? this.#gatheredBytes() : 0;
    if (shares !== undefined) shares.admit(sender!);
    gathering.live.mark(this.#mark);
    let points = decode(body, source, now, gathering.live);
    if (isLimited) this.#admitToStream(sender);
    if (charge !== undefined) this.#charge(charge, source, points, gathering.live);
    if (points === 0) {
      waiter.acknowledge();
      return 0;
    }
    const isUsual = areIn(gathering.live, this.#mark, this.#usual) && gathering.live.converted.length === 0;
    let lane: Lane = live;
    let first = this.#mark.spans;
    const isLate = !isUsual && this.#placeUnusual(gathering, now);
    if (isLate || (this.#lateCommits.gathering.isMixed && this.#followLate(gathering))) {
      lane = late;
      const { gathering: mixed } = this.#lateCommits;
      if (mixed !== gathering && this.#isFull(this.#lateCommits)) throw lateWaits();
      first = mixed.late.spans().count;
      points = decode(body, source, now, mixed.late);
      mixed.isMixed ||= hasTimeIn(mixed.late, first, this.#shared);
      // `#placeUnusual` has noted the times of a message that `#followLate` moves here.
      if (isLate) this.#noteTimes(mixed.late, first, now);
      if (this.#storeAcks) mixed.lateWaiters.add(waiter);
    }
    if (isLimited && sender !== undefined) {
      const bytes = this.#gatheredBytes() - bytesBefore;
      shares?.add(sender, bytes);
      this.#streams?.add(lane, sender, bytes);
    }
    if (waiter.receipt !== undefined && sender !== undefined) {
      const spans = (lane === live ? gathering.live : this.#lateCommits.gathering.late).spans();
      gathering.askers.add(waiter, sender, lane, [{ spans, from: first, to: spans.count }]);
    }
    const commits = lane === live ? this.#commits : this.#lateCommits;
    if (this.#notesDevices) {
      const rows = lane === live ? gathering.live : commits.gathering.late;
      commits.gathering.devices.set(waiter, devicesFrom(rows.spans(), first));
    }
    this.#commit(commits, points, waiter);
    return points;
  }

  /**
   * The threads that decode wait for this before each body of the tenant; undefined: there is room. While telemetry is
   * refused no body waits, so that its sender gets the refusal in time.
   */
  roomForLarge(tenantId: string): Promise<void> | undefined {
    return this.#health.refusal ? undefined : this.#commits.large.room(tenantId);
  }

  /**
   * Accepts a message that was decoded in a thread, as a commit of its own. Resolves when the message has its order
   * numbers: messages that are accepted after that get higher ones. With `ingest.ack: memory` the message is
   * acknowledged then. Messages that were accepted before this call get lower order numbers.
   */
  acceptDecoded(chunks: Chunk[], waiter: Waiter, sender: Sender): Promise<void> {
    const refusal = this.refusal();
    if (refusal) throw refusal;
    this.#admitToShard(sender);
    const isLate = this.#streams !== undefined && chunks.some((chunk) => laneOf(chunk, this.#near) === late);
    const commits = isLate ? this.#lateCommits : this.#commits;
    if (commits.large.isFull(sender.tenantId)) throw isLate ? lateWaits() : slowDisk();
    this.#health.shares?.admit(sender);
    for (const chunk of chunks) this.#streams?.admit(laneOf(chunk, this.#near), sender);
    if (chunks.length === 0) {
      waiter.acknowledge();
      return Promise.resolve();
    }
    const isAtOnce = this.#isAcknowledgedAtOnce(waiter);
    let resolveTaken!: () => void;
    const taken = new Promise<void>((resolve) => {
      resolveTaken = resolve;
    });
    const onTaken = () => {
      if (isAtOnce) waiter.acknowledge();
      resolveTaken();
    };
    const now = this.#deps.clock.now();
    const since = this.#deps.clock.monotonic();
    const message = new LargeMessage(chunks, sender, onTaken, isAtOnce ? [] : [waiter], since, this.#near);
    if (waiter.receipt !== undefined) message.ask(waiter, sender);
    for (const chunk of chunks) this.#noteTimes(chunk, 0, now);
    this.#health.shares?.add(sender, message.bytes);
    for (const chunk of chunks) this.#streams?.add(laneOf(chunk, this.#near), sender, chunk.bytes);
    commits.push(message);
    return taken;
  }

  /** True while messages of `ingest.ack: store` have no answer. A stop waits for the answers before `close`. */
  get awaitsStore(): boolean {
    if (!this.#storeAcks) return false;
    return !this.#commits.isIdle || this.#storeAcks.waiting > 0;
  }

  /** Writes the gathered frames; afterwards no message is in flight. */
  async close(): Promise<void> {
    while (!this.#isIdle) await new Promise<void>((resolve) => this.#onIdle.push(resolve));
    this.#endChecks();
    this.#storeAcks?.end();
  }

  get #isIdle(): boolean {
    return this.#commits.isIdle && this.#lateCommits.isIdle;
  }

  #resumeIdle(): void {
    if (this.#isIdle) for (const resume of this.#onIdle.splice(0)) resume();
  }

  #isFull({ gathering: { live, late }, gatheredBytes }: Commits): boolean {
    return gatheredBytes > this.#deps.unsyncedBytesMax || live.count + late.count > limits.gatheredRowsMax;
  }

  /**
   * A late message with a point of the live lane's times is newer than the gathered live rows, so it gets its order
   * numbers after them. So does a large message.
   */
  #afterLive(): { mustWait: () => boolean } {
    const mustWait = () => {
      const { gathering, large } = this.#lateCommits;
      return (gathering.isMixed || large.length > 0) && this.#commits.gathering.messages > 0;
    };
    return { mustWait };
  }

  #gatheredBytes(): number {
    const { gathering } = this.#commits;
    const { gathering: mixed } = this.#lateCommits;
    return mixed === gathering ? gathering.bytes : gathering.bytes + mixed.bytes;
  }

  /** Throws the refusal of the stream that the decoded message needs; the message then leaves no row. */
  #admitToStream(sender: Sender | undefined): void {
    if (this.#streams === undefined) return;
    const { live: rows } = this.#commits.gathering;
    try {
      this.#streams.admit(areIn(rows, this.#mark, this.#near) ? live : late, sender);
    } catch (error) {
      rows.rollback(this.#mark);
      throw error;
    }
  }

  #admitToShard({ number }: Sender): void {
    const refusal = this.#refusalOf?.(number);
    if (refusal) throw refusal;
  }

  #charge<Source>(charge: Charge<Source>, source: Source, points: number, rows: Rows): void {
    try {
      charge(source, points, rows, this.#mark.count);
    } catch (error) {
      rows.rollback(this.#mark);
      throw error;
    }
  }

  /** Removes the last message from the live lane and returns true when the message belongs into the late lane. */
  #placeUnusual({ live }: Gathering, now: number): boolean {
    if (areIn(live, this.#mark, this.#near)) {
      this.#noteTimes(live, this.#mark.spans, now);
      return false;
    }
    live.rollback(this.#mark);
    return true;
  }

  /**
   * The late frame of a commit has the higher order. So a message that writes a point of an earlier message of the late
   * lane again follows it there: removes it from the live lane and returns true.
   */
  #followLate({ live }: Gathering): boolean {
    const { gathering: mixed } = this.#lateCommits;
    const { late, lateNames } = mixed;
    const { from, to } = this.#shared;
    for (const name of late.pointNames(mixed.lateNamed, from, to)) lateNames.add(name);
    mixed.lateNamed = late.spans().count;
    if (!live.pointNames(this.#mark.spans, from, to).some((name) => lateNames.has(name))) return false;
    live.rollback(this.#mark);
    return true;
  }

  #noteTimes(rows: Rows | Chunk, first: number, now: number): void {
    const { onOddTimes, aheadMsMax = dayMs } = this.#deps;
    if (onOddTimes !== undefined) reportOddTimes(rows, first, now, aheadMsMax, onOddTimes);
  }

  #commit(commits: Commits, points: number, waiter: Waiter): void {
    const { gathering } = commits;
    if (gathering.messages === 0) gathering.since = this.#deps.clock.monotonic();
    gathering.messages += 1;
    gathering.points += points;
    if (this.#isAcknowledgedAtOnce(waiter)) waiter.acknowledge();
    else gathering.waiters.push(waiter);
    commits.joined();
  }

  /** A receipt has the order number of the commit, so a message with a receipt waits for the commit. */
  #isAcknowledgedAtOnce({ receipt }: Waiter): boolean {
    return this.#deps.ack === 'memory' && receipt === undefined;
  }

  #write(commit: Commit, onEnd: () => void): void {
    const frames = commit.frames(this.#stamp, this.#deps.framesOf);
    if (commit instanceof LargeMessage) commit.onTaken();
    this.#append(frames).then(
      () => {
        this.#finish(commit, frames);
        this.#end(onEnd);
      },
      (fault: Fault) => {
        this.#refuse(commit, fault);
        this.#end(onEnd);
      },
    );
    // Late messages may have waited for the order numbers of these rows.
    if (this.#lateCommits !== this.#commits) this.#lateCommits.flush();
  }

  #end(onEnd: () => void): void {
    this.#streams?.committed();
    this.notices.appendEnded();
    onEnd();
  }

  /**
   * Points at server time are sorted by the time of their frame. That time must be after the arrival of the messages
   * and before their acknowledgement.
   */
  readonly #stamp: NewStamp = (firstPlace) => {
    return { order: this.#deps.orders.next(), micros: this.#deps.clock.micros(), firstPlace };
  };

  /** A fault of the disk becomes the Fault that the waiters get. */
  async #append(frames: JournalFrame[]): Promise<void> {
    const { journal, clock, onCommitted, onFailed, log } = this.#deps;
    const started = clock.monotonic();
    this.#health.writeBegan(started);
    try {
      await journal.append(frames);
    } catch (error) {
      if (!(error instanceof JournalError)) throw error;
      // A full disk is a state: the primary logs when it begins and ends.
      log[error.kind === 'full' ? 'debug' : 'error']('journal_append', { kind: error.kind, reason: messageOf(error) });
      if (error.kind === 'failed') onFailed(messageOf(error));
      const fault = error.kind === 'full' ? diskFull() : journalFailed();
      this.#health.writeFailed(fault);
      this.#check();
      throw fault;
    } finally {
      this.#health.writeEnded();
    }
    this.#metrics.synced(started);
    onCommitted();
  }

  #finish(commit: Commit, frames: readonly JournalFrame[]): void {
    const { waiters } = commit;
    this.#metrics.durable(commit);
    if (commit.askers.list.length > 0) this.#deps.receipts?.give(commit.askers, frames);
    if (this.#storeAcks) {
      this.notices.committed(commit, frames);
    } else {
      for (const waiter of waiters) waiter.acknowledge();
      this.#metrics.acknowledged(commit.messages, commit.since);
    }
  }

  #refuse(commit: Commit, fault: Fault): void {
    countRefused(this.#deps.metrics, fault, commit.messages, commit.waiters);
    for (const waiter of commit.waiters) waiter.refuse(fault);
  }

  #unsyncedBytes(): number {
    const { unsyncedBytes } = this.#commits;
    return this.#lateCommits === this.#commits ? unsyncedBytes : unsyncedBytes + this.#lateCommits.unsyncedBytes;
  }

  /** Runs ten times a second. */
  #check(): void {
    const { clock, journal, aheadMsMax = dayMs } = this.#deps;
    const now = clock.now();
    this.#near = nearDays(now);
    this.#shared = { from: nearDays(now - gatheredMsMax).from, to: nearDays(now + gatheredMsMax).to };
    this.#usual = { from: this.#near.from, to: Math.min(this.#near.to, now + aheadMsMax) };
    this.#storeAcks?.expire(journal.rowsWaiting(live) === 0);
    this.#streams?.check();
    this.#health.check();
    if (this.#health.refusal) this.#commits.large.stopWaiting();
  }
}

/** Returns the times of yesterday, today and tomorrow. */
function nearDays(now: number): TimeRange {
  const today = Math.floor(now / dayMs) * dayMs;
  return { from: today - dayMs, to: today + 2 * dayMs };
}
