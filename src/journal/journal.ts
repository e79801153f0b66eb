/**
 * The journal of one worker. `append` makes frames durable. `next` returns them in order, lane by lane, until
 * `confirm`. The journal knows bytes, rows and order numbers, but not their meaning. One process owns a directory at a
 * time: see owner.ts.
 */
import { basename } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { systemClock } from '../base/clock.ts';
import { assert, messageOf, StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { Backlog, type Segment, type ShipUnit, type UnitLimits } from './backlog.ts';
import { type Disk, errorCode, isNoSpace, realDisk } from './disk.ts';
import { Owner } from './owner.ts';
import { SegmentPool } from './pool.ts';
import { type LaneCursor, PositionFile, readPosition, startOfJournal } from './position.ts';
import { Quarantine } from './quarantine.ts';
import type { Gap } from './reader.ts';
import { readGap, recover, segmentFiles } from './recovery.ts';
import { repack } from './repack.ts';
import { type Lane, lanes, parseSegmentName } from './segment.ts';
import { ShipNotes, shipNotesFile } from './ship-notes.ts';
import { Suspects } from './suspects.ts';
import { JournalError, type JournalFrame, Writer } from './writer.ts';

export { laneNames, lanes, late, live } from './segment.ts';
export type { JournalFrame, Lane, ShipUnit };
export { JournalError };

export interface OpenJournalDeps {
  dir: string;
  log: Log;
  metrics?: Metrics;
  disk?: Disk;
  clock?: Clock;
  segmentBytes: number;
  /** `none`: an append is not synced; for `ingest.ack: memory`. */
  durable?: 'sync' | 'none';
  /** True for the directory of a worker that no longer exists: its frames are shipped, and nothing is appended. */
  adopt?: boolean;
  /** Free bytes that a new segment must leave on the disk. */
  freeBytesMin?: number;
  quarantineBytesMax?: number;
  /** Rows that the store refused, until they are stored or proven bad. */
  suspectBytesMax?: number;
  /** Spare files that are kept for the next segments. */
  sparesMax?: number;
  /**
   * True when the caller holds the lock of the data directory: an earlier owner of this boot of this host has ended.
   * Otherwise an earlier owner gets time to notice this one, and its files are not recycled.
   */
  locked?: boolean;
  /** Bytes of shipped frames in full segments, above which segments are packed. */
  idleBytesMax?: number;
  /**
   * Called when another process has taken the directory: this process must end. An append rejects for this reason as
   * well.
   */
  onLost?: (reason: string) => void;
}

/** The content of a complete copy of a journal: these bytes never change while the journal is held. */
export interface JournalCut {
  dir: string;
  position: { cursors: [LaneCursor, LaneCursor]; orderHigh: string };
  /** Segments with frames that wait, each up to its last durable byte. */
  segments: { name: string; bytes: number }[];
}

const freeRefreshMs = 1000;
/** Pause after packing failed (a full or failing disk). */
const repackRetryMs = 10_000;

/** Throws a StartError that names the directory when the disk or a file of a later version prevents the opening. */
export async function openJournal(deps: OpenJournalDeps): Promise<Journal> {
  try {
    return await open(deps);
  } catch (error) {
    // A bug has no system error code and keeps its stack.
    if (error instanceof StartError || errorCode(error) === '') throw error;
    throw new StartError(`The journal ${deps.dir} cannot be opened: ${messageOf(error)}.`);
  }
}

async function open(deps: OpenJournalDeps): Promise<Journal> {
  const { dir, log, adopt = false, disk = realDisk, clock = systemClock, locked = false } = deps;
  await disk.makeDirectory(dir);
  // The owner's id is written before frames are read, so every frame that an earlier owner acknowledged is found.
  const epochMax = await newestEpoch(disk, dir);
  const owner = await Owner.take({ disk, dir, clock, log, epochMax, locked });
  for (const name of await disk.list(dir)) if (name.endsWith('.tmp')) await disk.remove(`${dir}/${name}`);
  const quarantine = await Quarantine.open(disk, dir, deps.quarantineBytesMax ?? 1024 ** 3, clock);
  const damage = new Damage(disk, log, quarantine, deps.metrics);
  const suspects = await Suspects.open(disk, dir, deps.suspectBytesMax ?? 64 * 1024 ** 2, (name, bytes) =>
    damage.keep(name, 0, bytes),
  );
  const notes = await ShipNotes.open(disk, dir, log, owner);
  const positionFile = await PositionFile.open(disk, dir);
  const position = positionFile.found ?? startOfJournal();
  const found = await recover({
    disk,
    dir,
    position,
    onGap: (segment, gap) => damage.gap(segment, gap),
    onLostSegment: (name) => damage.lost(name),
    onTornCommit: (segment, frames) => log.info('journal_torn_commit', { segment: segment.path, frames }),
    onNotErased: (segment, error) =>
      log.warn('journal_torn_commit_not_erased', { segment: segment.path, reason: messageOf(error) }),
  });
  await notes.keepUpTo(found.orderMax);
  const backlog = new Backlog(disk, (segment, gap) => damage.gap(segment, gap));
  backlog.startAt(later(position.cursors[0], position.cursors[1]));
  for (const { segment, starts } of found.segments) {
    if (owner.contested) segment.spoiled = true;
    backlog.addRecovered(segment, starts);
  }
  let writer: Writer | undefined;
  let pool: SegmentPool | undefined;
  const { segmentBytes, metrics } = deps;
  if (!adopt) {
    const { durable = 'sync', sparesMax = 4, freeBytesMin = 0 } = deps;
    const { epoch } = owner;
    pool = new SegmentPool({ disk, dir, log, clock, epoch, segmentBytes, freeBytesMin, sparesMax, durable });
    for (const name of await disk.list(dir)) if (/^spare-\d+$/.test(name)) await pool.adoptSpare(`${dir}/${name}`);
    for (const path of found.sparePaths) {
      if (owner.contested) await disk.remove(path);
      else await pool.adoptSpare(path);
    }
    pool.prepareAhead();
    writer = new Writer({ log, clock, pool, backlog, owner, disk, segmentBytes, orderMax: found.orderMax });
  }
  const free = await disk.freeBytes(dir);
  const { idleBytesMax = 4 * segmentBytes, onLost, freeBytesMin = 0 } = deps;
  const kept = { positionFile, quarantine, suspects, damage, owner, notes };
  const settings = { segmentBytes, idleBytesMax, freeBytesMin, onLost };
  const epoch = adopt ? undefined : owner.epoch;
  const world = { dir, log, disk, clock };
  const journal = new Journal(
    { ...world, epoch, backlog, ...kept, writer, pool, free, ...settings },
    found.orderMax,
    metrics,
  );
  const { frames: now } = backlog.lane(0);
  const { frames: apart } = backlog.lane(1);
  if (now + apart > 0) log.info('journal_recovered', { dir, segments: found.segments.length, frames: now + apart });
  return journal;
}

/** Returns the highest epoch in segments and the position. */
async function newestEpoch(disk: Disk, dir: string): Promise<number> {
  const cursors = (await readPosition(disk, dir))?.cursors ?? [];
  const files = await segmentFiles(disk, dir);
  return [...cursors, ...files].reduce((max, { epoch }) => Math.max(max, epoch), 0);
}

interface JournalDeps {
  dir: string;
  log: Log;
  disk: Disk;
  clock: Clock;
  epoch: number | undefined;
  backlog: Backlog;
  positionFile: PositionFile;
  quarantine: Quarantine;
  suspects: Suspects;
  damage: Damage;
  notes: ShipNotes;
  writer: Writer | undefined;
  pool: SegmentPool | undefined;
  free: number;
  freeBytesMin: number;
  owner: Owner;
  segmentBytes: number;
  idleBytesMax: number;
  onLost: ((reason: string) => void) | undefined;
}

export class Journal {
  readonly #deps: JournalDeps;
  readonly #backlog: Backlog;
  readonly #writer: Writer | undefined;
  readonly #commits: Counter | undefined;
  readonly #commitBytes: Counter | undefined;
  #free: number;
  #freeReadMs: number;
  #persisting: Promise<void> | undefined;
  #persistingNext: Promise<void> | undefined;
  #closed = false;
  #packing: Promise<void> | undefined;
  #packNotBeforeMs = Number.NEGATIVE_INFINITY;
  readonly #packed: Counter | undefined;
  readonly #orderRecovered: bigint | undefined;
  readonly #orderFound: bigint;
  #orderDone: bigint;
  /** The promise of the hold resolves when the hold ends. */
  #held: { ended: Promise<void>; end: () => void } | undefined;

  constructor(deps: JournalDeps, orderFound: bigint, metrics: Metrics | undefined) {
    this.#deps = deps;
    this.#backlog = deps.backlog;
    this.#writer = deps.writer;
    this.#free = deps.free;
    this.#freeReadMs = deps.clock.monotonic();
    this.#orderFound = orderFound;
    this.#orderRecovered = this.empty ? undefined : this.orderShipped() + 1n;
    this.#orderDone = this.orderShipped();
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
    this.#packed = metrics?.counter(
      'journal_packed_total',
      'Segments that were packed: only their waiting frames were kept.',
    );
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
    return this.#persist();
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
        (error) => this.#deps.log.warn('journal_free_bytes_failed', { error: messageOf(error) }),
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
    return this.#orderDone;
  }

  /** Returns the order up to which every row, of both lanes and of the suspects, is stored or in quarantine. */
  orderShipped(): bigint {
    let order = this.orderMax;
    for (const lane of lanes) {
      const { frames, orderBefore } = this.#backlog.lane(lane);
      if (frames > 0 && orderBefore < order) order = orderBefore;
    }
    const { orderMin } = this.#deps.suspects;
    return orderMin !== undefined && orderMin <= order ? orderMin - 1n : order;
  }

  /** Returns the order up to which every frame of this lane is confirmed. Rows of these frames may be suspects. */
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

  /** True when no frame waits in either lane and no row is a suspect. */
  get empty(): boolean {
    return this.#backlog.empty && this.#deps.suspects.entries === 0;
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

  /** Notes of shipping about frames that are not confirmed. */
  get notes(): ShipNotes {
    return this.#deps.notes;
  }

  /**
   * Holds the journal until `endHold`: no segment is recycled, packed or removed, so that a backup can copy the files
   * of the cut. Appends and shipping continue. Confirmed segments keep their disk space meanwhile, so a nearly full
   * disk ends the hold.
   */
  hold(): JournalCut {
    assert(!this.#held, 'a journal is held once');
    let end = () => {};
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    this.#held = { ended, end };
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
    const held = this.#held;
    if (!held) return false;
    this.#held = undefined;
    held.end();
    if (!this.#closed) void this.#persist();
    return true;
  }

  /** Waits for the append in flight, and writes the position. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#writer?.close();
    await this.#packing;
    await this.#persist();
    await this.#deps.notes.close();
    await this.#deps.positionFile.close();
  }

  /** Closes and removes an adopted directory whose frames are all confirmed. Its quarantine stays. */
  async discard(): Promise<void> {
    assert(!this.#writer && this.empty, 'an adopted, empty journal is discarded');
    const { disk, dir } = this.#deps;
    await this.#held?.ended;
    await this.close();
    if (!(await this.#deps.owner.holds())) throw new Error(this.#deps.owner.lostReason);
    const names = await disk.list(dir);
    // Segments first: a crash in between leaves a position after all of them.
    for (const name of names)
      if (parseSegmentName(name) || name.startsWith('spare-')) await disk.remove(`${dir}/${name}`);
    await disk.syncDirectory(dir);
    for (const name of ['position', 'epoch', 'writer', shipNotesFile]) await disk.remove(`${dir}/${name}`);
    for (const name of ['suspects', 'quarantine']) {
      if (await isEmptyDirectory(disk, dir, name)) await disk.removeDirectory(`${dir}/${name}`);
    }
    if ((await disk.list(dir)).length === 0) await disk.removeDirectory(dir);
  }

  /** Writes the position, one write at a time; units confirmed meanwhile go with the next write. */
  #persist(): Promise<void> {
    if (!this.#persisting) {
      this.#persisting = this.#persistOnce().finally(() => {
        this.#persisting = undefined;
      });
      return this.#persisting;
    }
    this.#persistingNext ??= this.#persisting.then(() => {
      this.#persistingNext = undefined;
      return this.#persist();
    });
    return this.#persistingNext;
  }

  async #persistOnce(): Promise<void> {
    const { positionFile, log, pool, freeBytesMin, owner, onLost } = this.#deps;
    if (!(await owner.holds())) {
      onLost?.(owner.lostReason);
      return;
    }
    const confirmed = this.#backlog.confirmedSegments();
    const shipped = this.orderShipped();
    let written = true;
    try {
      await positionFile.write({ cursors: this.#backlog.cursors(), orderHigh: this.orderMax });
      this.#orderDone = shipped;
    } catch (error) {
      log.error('journal_position_failed', { error: messageOf(error) });
      // Without a stored position rows may be shipped again, so segments stay. On a full disk, however, segments must
      // be removed.
      if (!isNoSpace(error)) return;
      written = false;
    }
    if (this.#held) {
      if (written && this.freeBytes() >= 2 * freeBytesMin) return;
      log.warn('journal_hold_ended', { reason: 'the disk runs full' });
      this.#held.end();
      this.#held = undefined;
    }
    // Writing the position may have taken longer than the lease. Segments that a later owner has found belong to that
    // owner.
    if (confirmed.length > 0 && !(await owner.holds())) {
      onLost?.(owner.lostReason);
      return;
    }
    this.#backlog.remove(confirmed);
    for (const segment of confirmed) {
      if (pool && written) await pool.recycle(segment);
      else await this.#removeFile(segment.path);
    }
    if (written) this.#packWhenIdle();
  }

  /** Packs one segment at a time, while appends and shipping continue. */
  #packWhenIdle(): void {
    const { clock, idleBytesMax } = this.#deps;
    if (this.#packing || this.#closed || this.#held || clock.monotonic() < this.#packNotBeforeMs) return;
    const segment = this.#backlog.segmentToPack(idleBytesMax);
    if (!segment) return;
    segment.packing = true;
    this.#packing = this.#pack(segment).finally(() => {
      segment.packing = false;
      this.#packing = undefined;
      if (this.#closed) return;
      // The segment may have been confirmed meanwhile, and further segments may need packing.
      if (this.#backlog.confirmedSegments().length > 0) void this.#persist();
      else this.#packWhenIdle();
    });
  }

  async #pack(segment: Segment): Promise<void> {
    const { disk, damage, owner, log, clock } = this.#deps;
    try {
      const packed = await repack({
        disk,
        segment,
        firstWaiting: (lane) => this.#backlog.firstWaiting(segment, lane),
        onGap: (damaged, gap) => damage.gap(damaged, gap),
        mayReplace: async () => (await owner.holds()) && !this.#held,
      });
      if (packed) this.#packed?.add(1);
      else this.#packNotBeforeMs = clock.monotonic() + repackRetryMs;
    } catch (error) {
      log.warn('journal_pack_failed', { path: segment.path, reason: messageOf(error) });
      this.#packNotBeforeMs = clock.monotonic() + repackRetryMs;
    }
  }

  async #removeFile(path: string): Promise<void> {
    try {
      await this.#deps.disk.remove(path);
    } catch (error) {
      this.#deps.log.warn('journal_remove_failed', { path, error: messageOf(error) });
    }
  }
}

/** Handles each damaged range that a read finds: `Damage` keeps the bytes in quarantine, counts and logs them. */
class Damage {
  readonly #disk: Disk;
  readonly #log: Log;
  readonly #quarantine: Quarantine;
  readonly #count: Counter | undefined;
  found = false;

  constructor(disk: Disk, log: Log, quarantine: Quarantine, metrics: Metrics | undefined) {
    this.#disk = disk;
    this.#log = log;
    this.#quarantine = quarantine;
    this.#count = metrics?.counter('journal_corrupt_total', 'Damaged stretches found in segments.');
  }

  async gap(segment: Segment, gap: Gap): Promise<void> {
    if (segment.gaps.some((known) => known.from <= gap.from && gap.to <= known.to)) return;
    this.found = true;
    const name = `${segment.epoch}-${segment.seq}`;
    await this.#quarantine.addGap(name, gap.from, await readGap(this.#disk, segment, gap));
    segment.gaps.push(gap);
    this.#count?.add(1);
    this.#log.error('journal_corrupt', { segment: name, from: gap.from, to: gap.to });
  }

  /** Keeps unreadable bytes in quarantine. */
  async keep(name: string, from: number, bytes: Buffer): Promise<void> {
    this.found = true;
    if ((await this.#quarantine.addGap(name, from, bytes)) === 'known') return;
    this.#count?.add(1);
    this.#log.error('journal_corrupt', { segment: name, from, to: from + bytes.length });
  }

  lost(name: string): void {
    this.found = true;
    this.#count?.add(1);
    this.#log.error('journal_corrupt', { segment: name, reason: 'header' });
  }
}

async function isEmptyDirectory(disk: Disk, dir: string, name: string): Promise<boolean> {
  return (await disk.list(dir)).includes(name) && (await disk.list(`${dir}/${name}`)).length === 0;
}

function later(a: LaneCursor, b: LaneCursor): LaneCursor {
  return (a.epoch - b.epoch || a.seq - b.seq || a.offset - b.offset) > 0 ? a : b;
}
