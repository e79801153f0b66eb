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
import { assert, type Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { JournalError, type JournalFrame, type Lane, lanes, late, live } from '../journal/journal.ts';
import type { TakesFrames } from '../journal/seam.ts';
import type { TimeRange } from '../journal/ship-notes.ts';
import type { Chunk } from '../telemetry/decoded-chunk.ts';
import { newMark, type Rows } from '../telemetry/rows.ts';
import type { Sender } from './backlog-shares.ts';
import { type Commit, type FramesOf, Gathering, LargeMessage, type NewStamp } from './commit.ts';
import { checkIntervalMs, diskFull, JournalHealth, journalFailed, slowDisk } from './journal-health.ts';
import { LargeQueue } from './large-queue.ts';
import { type OnOddTimes, reportOddTimes } from './odd-times-of-records.ts';
import type { OrderClock } from './order-number.ts';
import type { AckLevel } from './receipt.ts';
import type { Receipts } from './receipts.ts';
import { countRefused, StoreAcks, type Waiter } from './store-acks.ts';
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
  /** Absent: as for a sync of the own disk, with `lingerMsMax`. */
  linger?: Linger;
  /** Returns why messages of this device are refused: too many rows wait for its shard. Absent: there is one server. */
  refusalOf?: (device: number) => Fault | undefined;
  /** As in `JournalHealth`. */
  streamRefusal?: (() => Fault | undefined) | undefined;
  /** Milliseconds ahead of the server from which a `ts` is odd. */
  aheadMsMax?: number;
  /** Called for accepted records with odd times: with one of them and the number of those of its device and kind. */
  onOddTimes?: OnOddTimes;
  /** Called after each commit, when there is something to ship. */
  onCommitted: () => void;
  /** Called when the journal cannot be written any more: the process must end. */
  onFailed: (reason: string) => void;
}

/**
 * A commit costs the same for one message and for a hundred. After a commit of so many messages the next commit waits
 * for more. After a smaller commit few more are expected; after a larger one enough have arrived.
 */
interface Linger {
  msMax: number;
  messagesMin: number;
  messagesMax: number;
}

/** A commit to a stream costs three servers a sync, so it pays to wait longer. */
export const streamLinger: Linger = { msMax: 4, messagesMin: 3, messagesMax: 1_000 };

export class Ingest {
  readonly #deps: IngestDeps;
  /** Undefined unless `ingest.ack` is `store`. */
  readonly #storeAcks: StoreAcks | undefined;
  /**
   * Notices of shipping during the append that runs, in order. Shipping may take the frames of an append before the
   * append returns, and their messages wait in `#storeAcks` only after the append: these notices are repeated then.
   */
  readonly #earlyNotices: (() => void)[] = [];
  /** Messages that were decoded in a thread, and messages with a time to live. */
  readonly #large: LargeQueue<LargeMessage>;
  readonly #messagesTotal: Counter;
  readonly #pointsTotal: Counter;
  readonly #ackSeconds: Histogram;
  readonly #syncSeconds: Histogram;
  readonly #scheduler: Scheduler;
  readonly #endChecks: () => void;
  readonly #mark = newMark();
  #gathering = new Gathering();
  #spare = new Gathering();
  #writing: Commit | undefined;
  #scheduled = false;
  /** True when the last commit was one of `#large`. */
  #wasLarge = false;
  #lastMessages = 0;
  readonly #linger: Linger;
  readonly #refusalOf: IngestDeps['refusalOf'];
  readonly #health: JournalHealth;
  /** Times of the live lane: yesterday, today and tomorrow. */
  #near: TimeRange = { from: 0, to: 0 };
  /** Times that need no inspection: those of the live lane that are not too far ahead. */
  #usual: TimeRange = { from: 0, to: 0 };
  #onIdle: (() => void)[] = [];

  constructor(deps: IngestDeps) {
    this.#deps = deps;
    this.#refusalOf = deps.refusalOf;
    this.#linger = deps.linger ?? { msMax: deps.lingerMsMax, messagesMin: 3, messagesMax: 64 };
    this.#large = new LargeQueue(deps.unsyncedBytesMax);
    const { metrics, clock } = deps;
    this.#messagesTotal = metrics.counter('ingest_messages_total', 'Messages made durable.');
    this.#pointsTotal = metrics.counter('ingest_datapoints_total', 'Data points made durable.');
    this.#ackSeconds = metrics.histogram(
      'ingest_ack_seconds',
      'From the first message of a commit to its acknowledgement.',
    );
    this.#syncSeconds = metrics.histogram('wal_fsync_seconds', 'Write and sync of one commit.');
    if (deps.ack === 'store') {
      const onAcknowledged = (messages: number, since: number) =>
        this.#ackSeconds.observeMany((clock.monotonic() - since) / 1000, messages);
      this.#storeAcks = new StoreAcks({ clock, metrics, timeoutMs: deps.storeAckMsMax, onAcknowledged });
    }
    const { journal, backlogBytesMax, freeDiskBytesMin } = deps;
    const backlog = () => journal.backlogDiskBytes;
    metrics.observed('journal_backlog_bytes', 'Bytes of segments that hold what waits for ClickHouse.', backlog);
    const capHelp =
      'Limit of these bytes, of all journals. Each worker refuses telemetry when its own journal is full.';
    metrics.observed('journal_backlog_bytes_max', capHelp, () => backlogBytesMax);
    const freeHelp = 'Telemetry is refused while the disk of the journal has less free bytes.';
    metrics.observed('journal_disk_free_bytes_min', freeHelp, () => freeDiskBytesMin, 'max');
    metrics.observed('ingest_unsynced_bytes', 'Bytes that wait for a sync.', () => this.#unsyncedBytes());
    this.#health = new JournalHealth(deps);
    this.#check();
    this.#scheduler = deps.scheduler ?? systemScheduler;
    this.#endChecks = this.#scheduler.every(checkIntervalMs, () => this.#check());
  }

  /** Returns the reason why telemetry is refused now; undefined when it is accepted. */
  refusal(): Fault | undefined {
    const { refusal } = this.#health;
    if (refusal) return refusal;
    const { live, late } = this.#gathering;
    const written = this.#writing instanceof Gathering ? this.#writing.bytes : 0;
    // Large messages have a cap of their own (`LargeQueue`). They refuse no other message.
    if (live.bytes + late.bytes + written > this.#deps.unsyncedBytesMax) return slowDisk();
    if (live.count + late.count > limits.gatheredRowsMax) return slowDisk();
    return this.#storeAcks?.refusal();
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
    const gathering = this.#gathering;
    const shares = sender && this.#health.shares;
    const bytesBefore = shares === undefined ? 0 : gathering.bytes;
    if (shares !== undefined) shares.admit(sender!);
    gathering.live.mark(this.#mark);
    let points = decode(body, source, now, gathering.live);
    if (charge !== undefined) this.#charge(charge, source, points, gathering.live);
    if (points === 0) {
      waiter.acknowledge();
      return 0;
    }
    const isUsual = areIn(gathering.live, this.#mark, this.#usual) && gathering.live.converted.length === 0;
    let lane: Lane = live;
    let first = this.#mark.spans;
    const isLate = !isUsual && this.#placeUnusual(gathering, now);
    if (isLate || (gathering.isMixed && this.#followLate(gathering))) {
      lane = late;
      first = gathering.late.spans().count;
      points = decode(body, source, now, gathering.late);
      gathering.isMixed ||= hasTimeIn(gathering.late, first, this.#near);
      // `#placeUnusual` has noted the times of a message that `#followLate` moves here.
      if (isLate) this.#noteTimes(gathering.late, first, now);
      if (this.#storeAcks) gathering.lateWaiters.add(waiter);
    }
    if (shares !== undefined) shares.add(sender!, gathering.bytes - bytesBefore);
    if (waiter.receipt !== undefined && sender !== undefined) {
      const spans = (lane === live ? gathering.live : gathering.late).spans();
      gathering.askers.add(waiter, sender, lane, [{ spans, from: first, to: spans.count }]);
    }
    this.#commit(gathering, points, waiter);
    return points;
  }

  /**
   * The threads that decode wait for this before each body of the tenant; undefined: there is room. While telemetry is
   * refused no body waits, so that its sender gets the refusal in time.
   */
  roomForLarge(tenantId: string): Promise<void> | undefined {
    return this.#health.refusal ? undefined : this.#large.room(tenantId);
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
    if (this.#large.isFull(sender.tenantId)) throw slowDisk();
    this.#health.shares?.admit(sender);
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
    this.#large.push(message, this.#gathering.messages > 0);
    this.#health.shares?.add(sender, message.bytes);
    if (!this.#writing && !this.#scheduled) this.#schedule();
    return taken;
  }

  /** Called when a lane has passed frames, after `stored`. */
  shipped(): void {
    const { journal } = this.#deps;
    for (const lane of lanes) this.#storeAcks?.shipped(lane, journal.laneShipped(lane));
  }

  /** Called when frames are in ClickHouse: acknowledges waiters of `ingest.ack: store`. */
  stored(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#notify((acks) => acks.stored(lane, orders));
  }

  /** Called when rows of these frames are suspects: refuses waiters of `ingest.ack: store`. */
  suspected(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#notify((acks) => acks.refused(lane, orders));
  }

  /** Called when rows of these frames wait for their shard: refuses waiters of `ingest.ack: store`. */
  delayed(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#notify((acks) => acks.delayed(lane, orders));
  }

  /** Calls `notify` now, and once more when the append that runs has returned. */
  #notify(notify: (acks: StoreAcks) => void): void {
    const acks = this.#storeAcks;
    if (acks === undefined) return;
    if (this.#writing) this.#earlyNotices.push(() => notify(acks));
    notify(acks);
  }

  /** True while messages of `ingest.ack: store` have no answer. A stop waits for the answers before `close`. */
  get awaitsStore(): boolean {
    if (!this.#storeAcks) return false;
    return this.#writing !== undefined || this.#waiting || this.#storeAcks.waiting > 0;
  }

  /** Writes the gathered frames; afterwards no message is in flight. */
  async close(): Promise<void> {
    while (this.#writing || this.#waiting) await new Promise<void>((resolve) => this.#onIdle.push(resolve));
    this.#endChecks();
    this.#storeAcks?.end();
  }

  get #waiting(): boolean {
    return this.#gathering.messages > 0 || this.#large.length > 0;
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
  #followLate(gathering: Gathering): boolean {
    const { live, late, lateNames } = gathering;
    const { from, to } = this.#near;
    for (const name of late.pointNames(gathering.lateNamed, from, to)) lateNames.add(name);
    gathering.lateNamed = late.spans().count;
    if (!live.pointNames(this.#mark.spans, from, to).some((name) => lateNames.has(name))) return false;
    live.rollback(this.#mark);
    return true;
  }

  #noteTimes(rows: Rows | Chunk, first: number, now: number): void {
    const { onOddTimes, aheadMsMax = dayMs } = this.#deps;
    if (onOddTimes !== undefined) reportOddTimes(rows, first, now, aheadMsMax, onOddTimes);
  }

  #commit(gathering: Gathering, points: number, waiter: Waiter): void {
    if (gathering.messages === 0) gathering.since = this.#deps.clock.monotonic();
    gathering.messages += 1;
    gathering.points += points;
    if (this.#isAcknowledgedAtOnce(waiter)) waiter.acknowledge();
    else gathering.waiters.push(waiter);
    if (this.#writing) return;
    if (gathering.full) this.#flush();
    else if (!this.#scheduled) this.#schedule();
  }

  /** A receipt has the order number of the commit, so a message with a receipt waits for the commit. */
  #isAcknowledgedAtOnce({ receipt }: Waiter): boolean {
    return this.#deps.ack === 'memory' && receipt === undefined;
  }

  /**
   * Schedules a commit at the end of this turn of the event loop, or a little later when more messages are expected.
   */
  #schedule(): void {
    this.#scheduled = true;
    const { msMax, messagesMin, messagesMax } = this.#linger;
    const paysToWait = this.#lastMessages >= messagesMin && this.#lastMessages < messagesMax;
    if (msMax > 0 && paysToWait) this.#scheduler.after(msMax, this.#flush);
    else this.#scheduler.soon(this.#flush);
  }

  readonly #flush = (): void => {
    this.#scheduled = false;
    if (this.#writing || !this.#waiting) return;
    // Large messages and the gathered ones take turns, so that a stream of large ones delays no other message.
    const isTurn = this.#gathering.messages === 0 || !this.#wasLarge;
    const large = isTurn ? this.#large.shift() : undefined;
    this.#wasLarge = large !== undefined;
    const commit = large ?? this.#gathering;
    if (!large) {
      this.#gathering = this.#spare;
      this.#large.release();
    }
    this.#writing = commit;
    const frames = commit.frames(this.#stamp, this.#deps.framesOf);
    large?.onTaken();
    this.#append(frames).then(
      () => this.#finish(commit, frames),
      (fault: Fault) => this.#refuse(commit, fault),
    );
  };

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
    this.#syncSeconds.observe((clock.monotonic() - started) / 1000);
    onCommitted();
  }

  #finish(commit: Commit, frames: readonly JournalFrame[]): void {
    const { waiters } = commit;
    this.#messagesTotal.add(commit.messages);
    this.#pointsTotal.add(commit.points);
    this.#lastMessages = commit.messages;
    if (commit.askers.list.length > 0) this.#deps.receipts?.give(commit.askers, frames);
    if (this.#storeAcks) {
      for (const lane of lanes) {
        const own = frames.filter((frame) => frame.lane === lane);
        this.#storeAcks.add(commit.waitersOf(lane), own, commit.since);
      }
      this.#storeAcks.add(commit.waitersOf('both'), frames, commit.since);
      for (const notify of this.#earlyNotices) notify();
      this.shipped();
    } else {
      for (const waiter of waiters) waiter.acknowledge();
      this.#ackSeconds.observeMany((this.#deps.clock.monotonic() - commit.since) / 1000, commit.messages);
    }
    this.#release(commit);
  }

  #refuse(commit: Commit, fault: Fault): void {
    countRefused(this.#deps.metrics, fault, commit.messages, commit.waiters);
    for (const waiter of commit.waiters) waiter.refuse(fault);
    this.#release(commit);
  }

  #release(commit: Commit): void {
    assert(this.#writing === commit, 'one commit at a time');
    this.#writing = undefined;
    this.#earlyNotices.length = 0;
    if (commit instanceof Gathering) {
      commit.reset();
      this.#spare = commit;
    }
    if (!this.#waiting) {
      for (const resume of this.#onIdle.splice(0)) resume();
    } else if (!this.#scheduled) {
      if (this.#gathering.full) this.#flush();
      else this.#schedule();
    }
  }

  #unsyncedBytes(): number {
    return this.#gathering.bytes + this.#large.bytes + (this.#writing?.bytes ?? 0);
  }

  /** Runs ten times a second. */
  #check(): void {
    const { clock, journal, aheadMsMax = dayMs } = this.#deps;
    const now = clock.now();
    const today = Math.floor(now / dayMs) * dayMs;
    this.#near = { from: today - dayMs, to: today + 2 * dayMs };
    this.#usual = { from: this.#near.from, to: Math.min(this.#near.to, now + aheadMsMax) };
    this.#storeAcks?.expire(journal.rowsWaiting(live) === 0);
    this.#health.check();
    if (this.#health.refusal) this.#large.stopWaiting();
  }
}
