/**
 * Gives back the disk space of confirmed frames: writes the position, recycles or removes segments without waiting
 * frames, and packs segments of which few frames wait. While the journal is held, only the position is written.
 */
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Backlog } from './backlog.ts';
import type { Damage } from './damage.ts';
import { type Disk, isNoSpace } from './disk.ts';
import type { Owner } from './owner.ts';
import type { SegmentPool } from './pool.ts';
import type { PositionFile } from './position.ts';
import { repack } from './repack.ts';
import type { Segment } from './waiting-segment.ts';

/** Pause after packing failed (a full or failing disk). */
const repackRetryMs = 10_000;

export interface ReclaimerDeps {
  log: Log;
  disk: Disk;
  clock: Clock;
  backlog: Backlog;
  positionFile: PositionFile;
  damage: Damage;
  /** Undefined for an adopted journal, whose segments are removed. */
  pool: SegmentPool | undefined;
  freeBytesMin: number;
  owner: Owner;
  idleBytesMax: number;
  onLost: ((reason: string) => void) | undefined;
}

/** The journal, as its reclaimer sees it. */
interface ReclaimedJournal {
  readonly orderMax: bigint;
  readonly isClosed: boolean;
  orderShipped(): bigint;
  freeBytes(): number;
}

export class Reclaimer {
  readonly #deps: ReclaimerDeps;
  readonly #journal: ReclaimedJournal;
  readonly #packed: Counter | undefined;
  #persisting: Promise<void> | undefined;
  #persistingNext: Promise<void> | undefined;
  #packing: Promise<void> | undefined;
  #packNotBeforeMs = Number.NEGATIVE_INFINITY;
  #orderDone: bigint;
  /** The promise of the hold resolves when the hold ends. */
  #held: { ended: Promise<void>; end: () => void } | undefined;

  constructor(deps: ReclaimerDeps, journal: ReclaimedJournal, metrics: Metrics | undefined) {
    this.#deps = deps;
    this.#journal = journal;
    this.#orderDone = journal.orderShipped();
    this.#packed = metrics?.counter(
      'journal_packed_total',
      'Segments that were packed: only their waiting frames were kept.',
    );
  }

  /** The order up to which every row was shipped when the position was last written. */
  get orderDone(): bigint {
    return this.#orderDone;
  }

  /**
   * Recycles, packs and removes no segment until `endHold`. Confirmed segments keep their disk space meanwhile, so a
   * nearly full disk ends the hold.
   */
  hold(): void {
    assert(!this.#held, 'a journal is held once');
    let end = () => {};
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    this.#held = { ended, end };
  }

  /** Releases segments that were confirmed during the hold. Returns false when the hold had ended before. */
  endHold(): boolean {
    const held = this.#held;
    if (!held) return false;
    this.#held = undefined;
    held.end();
    if (!this.#journal.isClosed) void this.persist();
    return true;
  }

  /** Resolves when the journal is not held. */
  async holdEnded(): Promise<void> {
    await this.#held?.ended;
  }

  /** Resolves when no segment is being packed. */
  async packed(): Promise<void> {
    await this.#packing;
  }

  /** Writes the position, one write at a time; units confirmed meanwhile go with the next write. */
  persist(): Promise<void> {
    if (!this.#persisting) {
      this.#persisting = this.#persistOnce().finally(() => {
        this.#persisting = undefined;
      });
      return this.#persisting;
    }
    this.#persistingNext ??= this.#persisting.then(() => {
      this.#persistingNext = undefined;
      return this.persist();
    });
    return this.#persistingNext;
  }

  async #persistOnce(): Promise<void> {
    const { backlog, positionFile, log, pool, freeBytesMin, owner, onLost } = this.#deps;
    if (!(await owner.holds())) {
      onLost?.(owner.lostReason);
      return;
    }
    const confirmed = backlog.confirmedSegments();
    const shipped = this.#journal.orderShipped();
    let written = true;
    try {
      await positionFile.write({ cursors: backlog.cursors(), orderHigh: this.#journal.orderMax });
      this.#orderDone = shipped;
    } catch (error) {
      log.error('journal_position_failed', { reason: messageOf(error) });
      // Without a stored position rows may be shipped again, so segments stay. On a full disk, however, segments must
      // be removed.
      if (!isNoSpace(error)) return;
      written = false;
    }
    if (this.#held) {
      if (written && this.#journal.freeBytes() >= 2 * freeBytesMin) return;
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
    backlog.remove(confirmed);
    for (const segment of confirmed) {
      if (pool && written) await pool.recycle(segment);
      else await this.#removeFile(segment.path);
    }
    if (written) this.#packWhenIdle();
  }

  /** Packs one segment at a time, while appends and shipping continue. */
  #packWhenIdle(): void {
    const { backlog, clock, idleBytesMax } = this.#deps;
    if (this.#packing || this.#journal.isClosed || this.#held || clock.monotonic() < this.#packNotBeforeMs) return;
    const segment = backlog.segmentToPack(idleBytesMax);
    if (!segment) return;
    segment.packing = true;
    this.#packing = this.#pack(segment).finally(() => {
      segment.packing = false;
      this.#packing = undefined;
      if (this.#journal.isClosed) return;
      // The segment may have been confirmed meanwhile, and further segments may need packing.
      if (backlog.confirmedSegments().length > 0) void this.persist();
      else this.#packWhenIdle();
    });
  }

  async #pack(segment: Segment): Promise<void> {
    const { backlog, disk, damage, owner, log, clock } = this.#deps;
    try {
      const packed = await repack({
        disk,
        segment,
        firstWaiting: (lane) => backlog.firstWaiting(segment, lane),
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
      this.#deps.log.warn('journal_remove_failed', { path, reason: messageOf(error) });
    }
  }
}
