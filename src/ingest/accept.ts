/**
 * Takes telemetry from every door. Decoded rows gather in a frame while the last frame is being synced. The frame then
 * goes to the journal in one write, and all its waiters are acknowledged in order (group commit). Nothing is
 * acknowledged before its rows are durable, and at every cap the caller is refused with a reason.
 *
 * Two lanes: live rows (yesterday, today and tomorrow), and late rows (all others), which touch many days and so are
 * shipped in larger units.
 */
import type { FineClock } from '../base/clock.ts';
import { assert, type Fault, messageOf, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics/metrics.ts';
import { sizeText } from '../base/size-text.ts';
import { type OddTime, type OddTimeKind, oddKindOf } from '../diagnostics/odd-time.ts';
import { type Journal, JournalError, type JournalFrame, type Lane, lanes, late, live } from '../journal/journal.ts';
import type { FrameStamp } from '../telemetry/block.ts';
import type { Chunk } from '../telemetry/decoded-chunk.ts';
import { type Mark, newMark, Rows } from '../telemetry/rows.ts';
import { BacklogShares, type Sender } from './backlog-shares.ts';
import { LargeQueue } from './large-queue.ts';
import type { OrderClock } from './order-number.ts';
import type { AckLevel } from './receipt.ts';
import { Askers, type Receipts } from './receipts.ts';
import { countRefused, StoreAcks, type Waiter } from './store-acks.ts';

export type { AckLevel, Waiter };

/** Decodes one message into `rows` and returns its data points; throws a Fault and leaves `rows` unchanged. */
export type Decode<Source> = (body: Uint8Array, source: Source, now: number, rows: Rows) => number;

/** Charges the sender for a decoded message. Throws a Fault above a limit; the message then leaves no row. */
type Charge<Source> = (source: Source, points: number) => void;

type OnOddTimes = (device: number, last: OddTime, count: number) => void;

export interface IngestDeps {
  journal: Journal;
  orders: OrderClock;
  clock: FineClock;
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
  /** Milliseconds ahead of the server from which a `ts` is odd. */
  aheadMsMax?: number;
  /** Called for accepted records with odd times: with one of them and the number of those of its device and kind. */
  onOddTimes?: OnOddTimes;
  /** Called after each commit, when there is something to ship. */
  onCommitted: () => void;
  /** Called when the journal cannot be written any more: the process must end. */
  onFailed: (reason: string) => void;
}

const dayMs = 86_400_000;
/**
 * A commit costs the same for one message and for a hundred. After a commit of this many messages the next commit waits
 * a little for more. After a smaller commit few more are expected; after a larger one enough have arrived.
 */
const lingerMessages = { min: 3, max: 64 };
const checkIntervalMs = 100;
const loopLagMsMax = 500;
/** After refusing for this long because of its lag, a starved process accepts messages until the next check. */
const lagRefusedMsMax = 2_000;

/** One write and one sync: its frames, and the waiters for them. */
interface Commit {
  readonly waiters: Waiter[];
  /** The waiters that asked for a receipt. */
  readonly askers: Askers;
  readonly messages: number;
  readonly points: number;
  readonly bytes: number;
  /** Arrival of the first message, monotonic. */
  readonly since: number;
  frames(stamp: NewStamp): JournalFrame[];
  /** Returns the waiters whose rows are in frames of this lane; in both lanes when the lane of a waiter is unknown. */
  waitersOf(lane: Lane | 'both'): readonly Waiter[];
}

/** Called once for each frame, in the order of the frames. */
type NewStamp = (firstPlace: number) => FrameStamp;

/** Small messages that share a commit. Two objects exist: one gathers while the other is written. */
class Gathering implements Commit {
  readonly live = new Rows();
  readonly late = new Rows();
  readonly waiters: Waiter[] = [];
  readonly askers = new Askers();
  /** The members of `waiters` whose rows are in the late lane; kept for `ingest.ack: store` only. */
  readonly lateWaiters = new Set<Waiter>();
  /** True when a message of the late lane has a record of the live lane's times, too. */
  isMixed = false;
  /** The points of such records, of the first `lateNamed` records of the late lane. */
  readonly lateNames = new Set<string>();
  lateNamed = 0;
  messages = 0;
  points = 0;
  since = 0;

  get bytes(): number {
    return this.live.bytes + this.late.bytes;
  }

  get full(): boolean {
    return (
      this.bytes >= limits.frameBytesMax ||
      this.live.count + this.late.count >= limits.frameRowsMax ||
      this.messages >= limits.frameWaitersMax
    );
  }

  frames(stamp: NewStamp): JournalFrame[] {
    const frames: JournalFrame[] = [];
    if (this.live.count > 0) frames.push(frameOf(this.live, live, stamp(0)));
    if (this.late.count > 0) frames.push(frameOf(this.late, late, stamp(0)));
    return frames;
  }

  waitersOf(lane: Lane | 'both'): readonly Waiter[] {
    if (lane === 'both') return [];
    if (lane === late) return [...this.lateWaiters];
    return this.lateWaiters.size === 0 ? this.waiters.slice() : this.waiters.filter((w) => !this.lateWaiters.has(w));
  }

  reset(): void {
    this.live.reset();
    this.late.reset();
    this.waiters.length = 0;
    this.askers.reset();
    this.lateWaiters.clear();
    if (this.isMixed) this.lateNames.clear();
    this.isMixed = false;
    this.lateNamed = 0;
    this.messages = 0;
    this.points = 0;
  }
}

function frameOf(rows: Rows, lane: Lane, stamp: FrameStamp): JournalFrame {
  return { lane, order: stamp.order, rows: rows.count, parts: rows.encode(stamp) };
}

/** One message that was decoded in a thread; each chunk becomes a frame. */
class LargeMessage implements Commit {
  readonly waiters: Waiter[];
  readonly askers = new Askers();
  readonly messages = 1;
  readonly points: number;
  readonly bytes: number;
  readonly since: number;
  readonly tenantId: string;
  readonly caller: string;
  /** Called when the rows have their order numbers. */
  readonly onTaken: () => void;
  readonly #chunks: Chunk[];
  readonly #near: Range;

  constructor(
    chunks: Chunk[],
    { tenantId, number }: Sender,
    onTaken: () => void,
    waiters: Waiter[],
    since: number,
    near: Range,
  ) {
    this.tenantId = tenantId;
    this.caller = String(number);
    this.onTaken = onTaken;
    this.#chunks = chunks;
    this.#near = near;
    this.waiters = waiters;
    this.since = since;
    this.points = chunks.reduce((sum, chunk) => sum + chunk.count, 0);
    this.bytes = chunks.reduce((sum, chunk) => sum + chunk.bytes, 0);
  }

  frames(newStamp: NewStamp): JournalFrame[] {
    let firstPlace = 0;
    return this.#chunks.map((chunk) => {
      const stamp = newStamp(firstPlace);
      firstPlace += chunk.records;
      const isNear = chunk.oldestTs >= this.#near.from && chunk.newestTs < this.#near.to;
      return { lane: isNear ? live : late, order: stamp.order, rows: chunk.count, parts: chunk.encode(stamp) };
    });
  }

  waitersOf(lane: Lane | 'both'): readonly Waiter[] {
    return lane === 'both' ? this.waiters : [];
  }

  ask(waiter: Waiter, sender: Sender): void {
    const records = this.#chunks.map((chunk) => ({ spans: chunk.spans(), from: 0, to: chunk.records }));
    this.askers.add(waiter, sender, undefined, records);
  }
}

export class Ingest {
  readonly #deps: IngestDeps;
  /** Undefined unless `ingest.ack` is `store`. */
  readonly #storeAcks: StoreAcks | undefined;
  /** Messages that were decoded in a thread, and messages with a time to live. */
  readonly #large: LargeQueue<LargeMessage>;
  readonly #messagesTotal: Counter;
  readonly #pointsTotal: Counter;
  readonly #ackSeconds: Histogram;
  readonly #syncSeconds: Histogram;
  readonly #checkTimer: NodeJS.Timeout;
  readonly #mark = newMark();
  #gathering = new Gathering();
  #spare = new Gathering();
  #writing: Commit | undefined;
  #writingSince = 0;
  #scheduled = false;
  /** True when the last commit was one of `#large`. */
  #wasLarge = false;
  #lastMessages = 0;
  #refusal: Fault | undefined;
  /** Undefined while less than half of the journal waits for ClickHouse. */
  #shares: BacklogShares | undefined;
  #fullUntil = 0;
  /** Monotonic time since when messages are refused for the lag of the event loop; 0 = not refused. */
  #laggingSince = 0;
  /** True when the last check was late as well. */
  #wasLate = false;
  #near: Range = { from: 0, to: 0 };
  /** Times outside this range are looked at: the times of the live lane that are not too far ahead. */
  #usual: Range = { from: 0, to: 0 };
  #lastCheck: number;
  #onIdle: (() => void)[] = [];

  constructor(deps: IngestDeps) {
    this.#deps = deps;
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
    const capHelp = 'Limit of that; telemetry is refused there. Each worker has its own.';
    metrics.observed('journal_backlog_bytes_max', capHelp, () => backlogBytesMax);
    const freeHelp = 'Telemetry is refused while the disk of the journal has less free bytes.';
    metrics.observed('journal_disk_free_bytes_min', freeHelp, () => freeDiskBytesMin, 'max');
    metrics.observed('ingest_unsynced_bytes', 'Bytes that wait for a sync.', () => this.#unsyncedBytes());
    this.#lastCheck = clock.monotonic();
    this.#check();
    this.#checkTimer = setInterval(() => this.#check(), checkIntervalMs);
    this.#checkTimer.unref();
  }

  /** Returns the reason why telemetry is refused now; undefined when it is accepted. */
  refusal(): Fault | undefined {
    if (this.#refusal) return this.#refusal;
    const { live, late } = this.#gathering;
    const written = this.#writing instanceof Gathering ? this.#writing.bytes : 0;
    // Large messages have a cap of their own (`LargeQueue`). They refuse no other message.
    if (live.bytes + late.bytes + written > this.#deps.unsyncedBytesMax) return slowDisk();
    if (live.count + late.count > limits.gatheredRowsMax) return slowDisk();
    return this.#storeAcks?.refusal();
  }

  /**
   * Accepts one message and returns its data points; `waiter` gets the outcome later. Throws the decoder's Fault, the
   * refusal, or the fault of `charge`; then `waiter` is not called. What the server writes itself has no `sender`, and
   * counts for no share of the journal.
   */
  accept<Source>(
    decode: Decode<Source>,
    body: Uint8Array,
    source: Source,
    waiter: Waiter,
    charge?: Charge<Source>,
    sender?: Sender,
  ): number {
    const refusal = this.refusal();
    if (refusal) throw refusal;
    const gathering = this.#gathering;
    const shares = sender && this.#shares;
    const bytesBefore = shares === undefined ? 0 : gathering.bytes;
    if (shares !== undefined) shares.admit(sender!);
    const now = this.#deps.clock.now();
    gathering.live.mark(this.#mark);
    let points = decode(body, source, now, gathering.live);
    if (charge !== undefined) this.#charge(charge, source, points, gathering.live);
    if (points === 0) {
      waiter.acknowledge();
      return 0;
    }
    const isUsual = isNear(gathering.live, this.#mark, this.#usual) && gathering.live.converted.length === 0;
    let lane: Lane = live;
    let first = this.#mark.spans;
    const isLate = !isUsual && this.#placeUnusual(gathering, now);
    if (isLate || (gathering.isMixed && this.#followLate(gathering))) {
      lane = late;
      first = gathering.late.spans().count;
      points = decode(body, source, now, gathering.late);
      gathering.isMixed ||= hasTimeIn(gathering.late, first, this.#near);
      // The times of a message that follows another one are noted already.
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
    return this.#refusal ? undefined : this.#large.room(tenantId);
  }

  /**
   * Accepts a message that was decoded in a thread, as a commit of its own. Resolves when the message has its order
   * numbers: messages that are accepted after that get higher ones. With `ingest.ack: memory` the message is
   * acknowledged then. Messages that were accepted before this call get lower order numbers.
   */
  acceptDecoded(chunks: Chunk[], waiter: Waiter, sender: Sender): Promise<void> {
    const refusal = this.refusal();
    if (refusal) throw refusal;
    if (this.#large.isFull(sender.tenantId)) throw slowDisk();
    this.#shares?.admit(sender);
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
    this.#shares?.add(sender, message.bytes);
    if (!this.#writing && !this.#scheduled) this.#schedule();
    return taken;
  }

  /** Called when a unit was stored: acknowledges waiters of `ingest.ack: store`. */
  shipped(): void {
    const { journal } = this.#deps;
    for (const lane of lanes) this.#storeAcks?.shipped(lane, journal.laneShipped(lane));
  }

  /** Called when frames were stored before earlier ones of their lane. */
  storedApart(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#storeAcks?.storedApart(lane, orders);
  }

  /** Called when rows of these frames are suspects: refuses waiters of `ingest.ack: store`. */
  suspected(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#storeAcks?.refused(lane, orders);
  }

  /** Writes the gathered frames; afterwards no message is in flight. */
  async close(): Promise<void> {
    while (this.#writing || this.#waiting) await new Promise<void>((resolve) => this.#onIdle.push(resolve));
    clearInterval(this.#checkTimer);
  }

  get #waiting(): boolean {
    return this.#gathering.messages > 0 || this.#large.length > 0;
  }

  #charge<Source>(charge: Charge<Source>, source: Source, points: number, rows: Rows): void {
    try {
      charge(source, points);
    } catch (error) {
      rows.rollback(this.#mark);
      throw error;
    }
  }

  /** Removes the last message from the live lane and returns true when the message belongs into the late lane. */
  #placeUnusual({ live }: Gathering, now: number): boolean {
    if (isNear(live, this.#mark, this.#near)) {
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

  /** Reports the odd times of accepted records from the span `first` on. */
  #noteTimes(rows: Rows | Chunk, first: number, now: number): void {
    const { onOddTimes, aheadMsMax = dayMs } = this.#deps;
    if (onOddTimes === undefined) return;
    const { converted } = rows;
    const spans = rows.spans();
    const found = new OddTimesFound(onOddTimes);
    for (let i = first; i < spans.count; i += 1) {
      const kind = oddKindOf(spans.ts[i]!, now, aheadMsMax);
      if (kind !== undefined) found.add(spans.device[i]!, kind, spans.ts[i]!);
    }
    for (const { span, ts, unit } of converted) if (span >= first) found.add(spans.device[span]!, unit, ts);
    found.end();
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
    const { lingerMsMax } = this.#deps;
    const paysToWait = this.#lastMessages >= lingerMessages.min && this.#lastMessages < lingerMessages.max;
    if (lingerMsMax > 0 && paysToWait) setTimeout(this.#flush, lingerMsMax);
    else setImmediate(this.#flush);
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
    const frames = commit.frames(this.#stamp);
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
    this.#writingSince = started;
    try {
      await journal.append(frames);
    } catch (error) {
      if (!(error instanceof JournalError)) throw error;
      // A full disk is a state: the primary logs when it begins and ends.
      log[error.kind === 'full' ? 'debug' : 'error']('journal_append', { kind: error.kind, reason: messageOf(error) });
      if (error.kind === 'failed') onFailed(messageOf(error));
      this.#fullUntil = clock.monotonic() + 1000;
      this.#check();
      throw error.kind === 'full' ? diskFull() : unavailable('journal_failed', 'The journal could not be written.');
    } finally {
      this.#writingSince = 0;
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

  /** Checks slow signals ten times a second, so that a message costs one comparison. */
  #check(): void {
    const { clock, journal, backlogBytesMax, freeDiskBytesMin, unsyncedMsMax, aheadMsMax } = this.#deps;
    const now = clock.monotonic();
    const lagMs = now - this.#lastCheck - checkIntervalMs;
    this.#lastCheck = now;
    // One late check may be a process that did not run for a moment: a sync that ended meanwhile went unnoticed.
    const isLate = lagMs > loopLagMsMax;
    const isLagging = isLate && this.#wasLate;
    this.#wasLate = isLate;
    if (isLate && this.#writingSince > 0) this.#writingSince = Math.min(now, this.#writingSince + lagMs);
    const today = Math.floor(clock.now() / dayMs) * dayMs;
    this.#near = { from: today - dayMs, to: today + 2 * dayMs };
    this.#usual = { from: this.#near.from, to: Math.min(this.#near.to, clock.now() + (aheadMsMax ?? dayMs)) };
    this.#storeAcks?.expire(journal.rowsWaiting(live) === 0);
    // Hysteresis of ten percent keeps the refusal from toggling at its threshold.
    const slack = this.#refusal ? 0.9 : 1;
    if (journal.backlogDiskBytes > backlogBytesMax * slack) this.#refusal = backlogFull(backlogBytesMax);
    else if (journal.freeBytes() * slack < freeDiskBytesMin) this.#refusal = diskBelow(freeDiskBytesMin);
    else if (now < this.#fullUntil) this.#refusal = diskFull();
    else if (this.#writingSince > 0 && now - this.#writingSince > unsyncedMsMax) this.#refusal = slowDisk();
    else if (isLagging && this.#isLagRefused(now)) this.#refusal = loopLag();
    else this.#refusal = undefined;
    if (this.#refusal) this.#large.stopWaiting();
    if (this.#refusal?.reason !== 'loop_lag') this.#laggingSince = 0;
    this.#shareBacklog();
  }

  /** The journal ends at its own limit, or where the disk does. */
  #shareBacklog(): void {
    const { journal, backlogBytesMax, freeDiskBytesMin } = this.#deps;
    const waiting = journal.backlogDiskBytes;
    const onDisk = Math.max(0, journal.freeBytes() - freeDiskBytesMin);
    const half = Math.min(backlogBytesMax, waiting + onDisk) / 2;
    if (waiting <= half) {
      this.#shares = undefined;
      return;
    }
    this.#shares ??= new BacklogShares();
    this.#shares.update(2 * half - waiting, waiting - half);
  }

  #isLagRefused(now: number): boolean {
    if (this.#laggingSince === 0) this.#laggingSince = now;
    return now - this.#laggingSince < lagRefusedMsMax;
  }
}

/** Joins the odd times of neighbouring records of one device and kind into one report. */
class OddTimesFound {
  readonly #report: OnOddTimes;
  #device = 0;
  #last: OddTime | undefined = undefined;
  #count = 0;

  constructor(report: OnOddTimes) {
    this.#report = report;
  }

  add(device: number, kind: OddTimeKind, ts: number): void {
    if (device !== this.#device || kind !== this.#last?.kind) this.end();
    this.#device = device;
    this.#last = { kind, ts };
    this.#count += 1;
  }

  end(): void {
    if (this.#last !== undefined) this.#report(this.#device, this.#last, this.#count);
    this.#last = undefined;
    this.#count = 0;
  }
}

/** Times of the live lane: yesterday, today and tomorrow. */
interface Range {
  readonly from: number;
  readonly to: number;
}

/** True when all records after `mark` are within the range. */
function isNear(rows: Rows, mark: Mark, { from, to }: Range): boolean {
  const { ts, count } = rows.spans();
  for (let i = mark.spans; i < count; i += 1) if (ts[i]! < from || ts[i]! >= to) return false;
  return true;
}

/** True when a record from `first` on is within the range. */
function hasTimeIn(rows: Rows, first: number, { from, to }: Range): boolean {
  const { ts, count } = rows.spans();
  for (let i = first; i < count; i += 1) if (ts[i]! >= from && ts[i]! < to) return true;
  return false;
}

function loopLag(): Fault {
  return unavailable('loop_lag', 'This server is overloaded; send again.');
}

function slowDisk(): Fault {
  return unavailable('journal_slow', 'The disk of the journal is too slow for what comes in; send again.');
}

function diskFull(): Fault {
  return unavailable('disk_full', 'The disk of the journal is full; free space or add to it (DATA_DIR).', 5);
}

function diskBelow(bytesMin: number): Fault {
  const message =
    `The disk of the journal is full: less than ${sizeText(bytesMin)} are free (JOURNAL_FREE_DISK_BYTES_MIN); ` +
    'free space or add to it (DATA_DIR).';
  return unavailable('disk_full', message, 5);
}

function backlogFull(bytesMax: number): Fault {
  const message =
    `ClickHouse has not taken data for so long that the journal holds its limit of ${sizeText(bytesMax)} ` +
    '(JOURNAL_BACKLOG_BYTES_MAX).';
  return unavailable('backlog_full', message, 5);
}
