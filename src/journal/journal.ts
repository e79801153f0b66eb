/**
 * The journal of one worker. `append` makes frames durable. `next` returns them in order, lane by lane, until
 * `confirm`. The journal knows bytes, rows and order numbers, but not their meaning. One process owns a directory at a
 * time: see owner.ts.
 */
import { basename } from 'node:path';
import { assert, messageOf } from '../base/errors.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Backlog } from './backlog.ts';
import type { Disk } from './disk.ts';
import { installationFile } from './identity.ts';
import type { ShipUnit, UnitLimits } from './open-unit.ts';
import type { LaneCursor } from './position.ts';
import type { Quarantine } from './quarantine.ts';
import { Reclaimer, type ReclaimerDeps } from './reclaimer.ts';
import { type Lane, lanes, parseSegmentName } from './segment.ts';
import type { ShardBacklog } from './shard-backlog.ts';
import { type ShipNotes, shipNotesFile } from './ship-notes.ts';
import type { Suspects } from './suspects.ts';
import { JournalError, type JournalFrame, type Writer } from './writer.ts';

export { laneNames, lanes, late, live } from './segment.ts';
export type { JournalFrame, Lane, ShipUnit };
export { JournalError };

/** The content of a complete copy of a journal: these bytes never change while the journal is held. */
export interface JournalCut {
  dir: string;
  position: { cursors: [LaneCursor, LaneCursor]; orderHigh: string };
  /** Segments with frames that wait, each up to its last durable byte. */
  segments: { name: string; bytes: number }[];
}

const freeRefreshMs = 1000;

export interface JournalDeps extends ReclaimerDeps {
  dir: string;
  epoch: number | undefined;
  quarantine: Quarantine;
  suspects: Suspects;
  shardBacklog: ShardBacklog;
  notes: ShipNotes;
  writer: Writer | undefined;
  free: number;
  segmentBytes: number;
}

export class Journal {
  readonly #deps: JournalDeps;
  readonly #backlog: Backlog;
  readonly #writer: Writer | undefined;
  readonly #commits: Counter | undefined;
  readonly #commitBytes: Counter | undefined;
  #free: number;
  #freeReadMs: number;
  #closed = false;
  readonly #reclaimer: Reclaimer;
  readonly #orderRecovered: bigint | undefined;
  readonly #orderFound: bigint;

  constructor(deps: JournalDeps, orderFound: bigint, metrics: Metrics | undefined) {
    this.#deps = deps;
    this.#backlog = deps.backlog;
    this.#writer = deps.writer;
    this.#free = deps.free;
    this.#freeReadMs = deps.clock.monotonic();
    this.#orderFound = orderFound;
    this.#orderRecovered = this.empty ? undefined : this.orderShipped() + 1n;
    this.#commits = metrics?.counter('journal_commits_total', 'Group commits.');
    this.#commitBytes = metrics?.counter('journal_commit_bytes_total', 'Bytes of frames journaled.');
    const writer = this.#writer;
    if (writer) metrics?.counted('journal_write_errors_total', 'Failed journal writes.', () => writer.writeErrors);
    metrics?.observed(
      'journal_disk_free_bytes',
      'Free bytes of the disk of the journal.',
      () => this.freeBytes(),
      'max',
    );
    metrics?.observed('journal_degraded', '1: damage was found, see quarantine.', () => Number(this.degraded), 'max');
    metrics?.observed('journal_disk_bytes', 'Bytes of the journal on the disk, spare files too.', () => this.fileBytes);
    this.#reclaimer = new Reclaimer(deps, this, metrics);
  }

  /**
   * Writes all frames in one write and resolves when they are durable. One append runs at a time. Rejects with
   * JournalError.
   */
  async append(frames: readonly JournalFrame[]): Promise<void> {
    const writer = this.#writer;
    assert(writer && !this.#closed, 'an open journal of this process is appended to');
    const done = writer.append(frames);
    const bytes = writer.unsyncedBytes;
    await done;
    this.#commits?.add(1);
    this.#commitBytes?.add(bytes);
  }

  /**
   * Returns the next frames of a lane; undefined when there are none. Several units may be open at once. The position
   * of the lane moves past a unit when that unit and all earlier ones are confirmed.
   */
  next(lane: Lane, limits: UnitLimits): Promise<ShipUnit | undefined> {
    assert(!this.#closed, 'an open journal is read');
    return this.#backlog.next(lane, limits);
  }

  /**
   * Called when the unit is stored. Resolves when the position is written; a failed write means only that rows may be
   * sent again.
   */
  confirm(unit: ShipUnit): Promise<void> {
    this.#backlog.confirm(unit);
    return this.#reclaimer.persist();
  }

  rowsWaiting(lane: Lane): number {
    return this.#backlog.lane(lane).rows;
  }

  /** Returns the waiting rows that no open unit holds. */
  rowsUntaken(lane: Lane): number {
    return this.#backlog.untaken(lane).rows;
  }

  /** Like `oldestWaitingAt`, for frames that no open unit holds. */
  oldestUntakenAt(lane: Lane): number | undefined {
    const { frames, oldestAtMs } = this.#backlog.untaken(lane);
    return frames > 0 ? oldestAtMs : undefined;
  }

  bytesWaiting(lane: Lane): number {
    return this.#backlog.lane(lane).bytes;
  }

  /** Clock time of the oldest waiting frame, or a little earlier. */
  oldestWaitingAt(lane: Lane): number | undefined {
    const { frames, oldestAtMs } = this.#backlog.lane(lane);
    return frames > 0 ? oldestAtMs : undefined;
  }

  oldestUnshippedMs(nowMs: number): number {
    let oldest = nowMs;
    for (const lane of lanes) oldest = Math.min(oldest, this.oldestWaitingAt(lane) ?? nowMs);
    return nowMs - oldest;
  }

  /** Bytes of waiting frames. */
  get backlogBytes(): number {
    return this.#backlog.lane(0).bytes + this.#backlog.lane(1).bytes;
  }

  /** Bytes that waiting frames occupy on the disk: never far above twice `backlogBytes` plus a few segments. */
  get backlogDiskBytes(): number {
    return this.#backlog.diskBytes;
  }

  /** Bytes of all files of segments. */
  get fileBytes(): number {
    const { pool, segmentBytes } = this.#deps;
    return this.#backlog.fileBytes(segmentBytes) + (pool?.files ?? 0) * segmentBytes;
  }

  /** Bytes of the append in flight. */
  get unsyncedBytes(): number {
    return this.#writer?.unsyncedBytes ?? 0;
  }

  /** Free bytes of the disk, at most a second old. */
  freeBytes(): number {
    const now = this.#deps.clock.monotonic();
    if (now - this.#freeReadMs >= freeRefreshMs) {
      this.#freeReadMs = now;
      this.#deps.disk.freeBytes(this.#deps.dir).then(
        (bytes) => {
          this.#free = bytes;
        },
        (error) => this.#deps.log.warn('journal_free_bytes_failed', { reason: messageOf(error) }),
      );
    }
    return this.#free;
  }

  /** The highest order number that was ever durable in this journal. New order numbers are higher. */
  get orderMax(): bigint {
    return this.#writer?.orderMax ?? this.#orderFound;
  }

  /**
   * `orderMax`, or the highest order of the append in flight, which may be durable already. Decreases when that append
   * fails.
   */
  get orderBegun(): bigint {
    return this.#writer?.orderBegun ?? this.#orderFound;
  }

  /**
   * Increases by one with each opening of this directory; undefined for an orphan journal, whose openings are not
   * counted.
   */
  get epoch(): number | undefined {
    return this.#deps.epoch;
  }

  /** An order ≤ the smallest one that this start ships again; undefined when no frame waited. */
  get orderRecovered(): bigint | undefined {
    return this.#orderRecovered;
  }

  /** No start of this directory ships a row with an order up to this one. `orderDone` ≤ `orderShipped`. */
  get orderDone(): bigint {
    return this.#reclaimer.orderDone;
  }

  /** Returns the order up to which every row, of both lanes and beside them, is stored or in quarantine. */
  orderShipped(): bigint {
    let order = this.orderMax;
    for (const lane of lanes) {
      const { frames, orderBefore } = this.#backlog.lane(lane);
      if (frames > 0 && orderBefore < order) order = orderBefore;
    }
    const { orderHeld } = this;
    return orderHeld !== undefined && orderHeld <= order ? orderHeld - 1n : order;
  }

  /** Lowest order of rows beside the lanes: suspects, and rows that wait for a shard; undefined when there are none. */
  get orderHeld(): bigint | undefined {
    let least: bigint | undefined;
    for (const { orderMin } of [this.#deps.suspects, this.#deps.shardBacklog]) {
      if (orderMin !== undefined && (least === undefined || orderMin < least)) least = orderMin;
    }
    return least;
  }

  /** Returns the order up to which every frame of this lane is confirmed. Rows of these frames may wait beside it. */
  laneShipped(lane: Lane): bigint {
    const { frames, orderBefore } = this.#backlog.lane(lane);
    return frames > 0 ? orderBefore : this.orderMax;
  }

  /** Returns the order up to which every frame of this lane was taken, confirmed or not. */
  laneTaken(lane: Lane): bigint {
    return this.#backlog.untaken(lane).frames > 0 ? this.#backlog.takenTo(lane) : this.orderMax;
  }

  /**
   * True when no frame with an order up to this one waits or is being written. The caller must know frames that are not
   * yet appended.
   */
  isShipped(order: bigint): boolean {
    const inFlight = this.#writer?.orderInFlight;
    if (inFlight !== undefined && inFlight <= order) return false;
    return this.empty || this.orderShipped() >= order;
  }

  /** True when no frame waits in either lane and no row beside them. */
  get empty(): boolean {
    const { suspects, shardBacklog } = this.#deps;
    return this.#backlog.empty && suspects.entries === 0 && shardBacklog.isEmpty;
  }

  /** True from the begin of `close` on. */
  get isClosed(): boolean {
    return this.#closed;
  }

  /** True when damage was found since the start: bytes that could not be shipped are in quarantine. */
  get degraded(): boolean {
    return this.#deps.damage.found;
  }

  /** True when two writes in a row failed, or another process owns the directory: this process must end. */
  get failed(): boolean {
    return this.#deps.owner.lost || (this.#writer?.failed ?? false);
  }

  get quarantine(): Quarantine {
    return this.#deps.quarantine;
  }

  /** Refused rows, beside the lanes. */
  get suspects(): Suspects {
    return this.#deps.suspects;
  }

  /** Rows that wait for a shard, beside the lanes. */
  get shardBacklog(): ShardBacklog {
    return this.#deps.shardBacklog;
  }

  /** Notes of shipping about frames that are not confirmed. */
  get notes(): ShipNotes {
    return this.#deps.notes;
  }

  /**
   * Holds the journal until `endHold`, so that a backup can copy the files of the cut. Appends and shipping continue. A
   * nearly full disk ends the hold.
   */
  hold(): JournalCut {
    this.#reclaimer.hold();
    const segments = this.#backlog
      .waitingSegments()
      .map(({ path, packedBytes, end }) => ({ name: basename(path), bytes: packedBytes ?? end }));
    return {
      dir: this.#deps.dir,
      position: { cursors: this.#backlog.cursors(), orderHigh: this.orderMax.toString() },
      segments,
    };
  }

  /** Releases segments that were confirmed during the hold. Returns false when the hold had ended before. */
  endHold(): boolean {
    return this.#reclaimer.endHold();
  }

  /** Waits for the append in flight, and writes the position. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#writer?.close();
    await this.#reclaimer.packed();
    await this.#reclaimer.persist();
    await this.#deps.notes.close();
    await this.#deps.positionFile.close();
  }

  /** Closes and removes an adopted directory whose frames are all confirmed. Its quarantine stays. */
  async discard(): Promise<void> {
    assert(!this.#writer && this.empty, 'an adopted, empty journal is discarded');
    const { disk, dir } = this.#deps;
    await this.#reclaimer.holdEnded();
    await this.close();
    if (!(await this.#deps.owner.holds())) throw new Error(this.#deps.owner.lostReason);
    const names = await disk.list(dir);
    // Segments first: a crash in between leaves a position after all of them.
    for (const name of names)
      if (parseSegmentName(name) || name.startsWith('spare-')) await disk.remove(`${dir}/${name}`);
    await disk.syncDirectory(dir);
    for (const name of ['position', 'epoch', 'writer', installationFile, shipNotesFile])
      await disk.remove(`${dir}/${name}`);
    for (const name of ['suspects', 'shards', 'quarantine']) {
      if (await isEmptyDirectory(disk, dir, name)) await disk.removeDirectory(`${dir}/${name}`);
    }
    if ((await disk.list(dir)).length === 0) await disk.removeDirectory(dir);
  }
}

async function isEmptyDirectory(disk: Disk, dir: string, name: string): Promise<boolean> {
  return (await disk.list(dir)).includes(name) && (await disk.list(`${dir}/${name}`)).length === 0;
}
