/**
 * Keeps the durable frames that are not yet shipped: the segments in order, a cursor and counters for each lane, and
 * the open units. Frames are not indexed in memory: a unit is read back from the file (usually from the page cache), so
 * a backlog of hours costs a few hundred objects.
 */
import { assert } from '../base/errors.ts';
import { type Amounts, addAmounts, subtractAmounts } from './amounts.ts';
import type { Disk } from './disk.ts';
import { newUnit, type OpenUnit, type ShipUnit, type Take, type UnitLimits, UnitReader } from './open-unit.ts';
import type { LaneCursor } from './position.ts';
import type { Gap } from './reader.ts';
import { addToShare, type FrameHead, type Lane, lanes } from './segment.ts';
import { isWaiting, type Segment, segmentBytesOf, waitingBytes } from './waiting-segment.ts';

/** Frames that were taken, from the first unconfirmed frame of a lane on, in journal order. */
interface Taken extends Amounts {
  /**
   * Undefined: the frames are confirmed and wait for the frames before them. Neighbouring entries of this kind are
   * merged.
   */
  unit: ShipUnit | undefined;
  orderMax: bigint;
  writtenMsMax: number;
  takes: Take[];
}

interface LaneState {
  frames: number;
  rows: number;
  bytes: number;
  /** A time ≤ that of the oldest waiting frame. Meaningless when no frame waits. */
  oldestAtMs: number;
  /** An order < that of every waiting frame. Meaningless when no frame waits. */
  orderBefore: bigint;
  segment: Segment | undefined;
  offset: number;
  taken: Taken[];
  /** The sum over `taken`. */
  takenSum: Amounts;
  /** A time ≤ that of the oldest frame that was not taken. Meaningless when every frame was taken. */
  untakenAtMs: number;
  reading: boolean;
}

export class Backlog {
  readonly #reader: UnitReader;
  readonly #lanes: [LaneState, LaneState] = [newLane(), newLane()];
  #segments: Segment[] = [];
  #tail: LaneCursor = { epoch: 0, seq: 0, offset: 0 };

  /** `onGap` keeps the damaged bytes. A unit after the gap is returned only when `onGap` has succeeded. */
  constructor(disk: Disk, onGap: (segment: Segment, gap: Gap) => Promise<void>) {
    this.#reader = new UnitReader(disk, onGap);
  }

  lane(lane: Lane): Readonly<Pick<LaneState, 'frames' | 'rows' | 'bytes' | 'oldestAtMs' | 'orderBefore'>> {
    return this.#lanes[lane];
  }

  /** Returns the amounts of waiting frames that were not taken. */
  untaken(lane: Lane): Amounts & { oldestAtMs: number } {
    const { frames, rows, bytes, takenSum, untakenAtMs } = this.#lanes[lane];
    const left = { frames, rows, bytes, oldestAtMs: untakenAtMs };
    subtractAmounts(left, takenSum);
    return left;
  }

  /** Every frame up to this order was taken. Meaningless when every frame of the lane was taken. */
  takenTo(lane: Lane): bigint {
    const { taken, orderBefore } = this.#lanes[lane];
    return taken.findLast(({ frames }) => frames > 0)?.orderMax ?? orderBefore;
  }

  get empty(): boolean {
    return this.#lanes[0].frames + this.#lanes[1].frames === 0;
  }

  /** Adds a segment of an earlier start; `starts` is the offset of each lane's cursor in the segment. */
  addRecovered(segment: Segment, starts: [number, number]): void {
    this.add(segment);
    for (const lane of lanes) {
      const share = segment.waiting[lane];
      const state = this.#lanes[lane];
      if (share.frames === 0) continue;
      if (state.frames === 0) this.#startLane(state, segment, starts[lane], share.writtenMsMin, share.orderMin);
      addAmounts(state, share);
    }
  }

  add(segment: Segment): void {
    this.#segments.push(segment);
    this.#tail = { epoch: segment.epoch, seq: segment.seq, offset: segment.end };
  }

  /** Counts a frame that became durable at `offset`; the caller moves `segment.end`. */
  appended(
    segment: Segment,
    frame: Pick<FrameHead, 'lane' | 'rows' | 'length' | 'order' | 'writtenMs'>,
    offset: number,
  ) {
    const state = this.#lanes[frame.lane];
    if (state.frames === 0) this.#startLane(state, segment, offset, frame.writtenMs, frame.order);
    else if (framesUntaken(state) === 0) state.untakenAtMs = frame.writtenMs;
    state.frames += 1;
    state.rows += frame.rows;
    state.bytes += frame.length;
    addToShare(segment.total[frame.lane], frame);
    addToShare(segment.waiting[frame.lane], frame);
  }

  #startLane(state: LaneState, segment: Segment, offset: number, writtenMs: number, order: bigint): void {
    assert(state.taken.length === 0, 'no frame of an empty lane is given out');
    state.segment = segment;
    state.offset = offset;
    state.oldestAtMs = writtenMs;
    state.untakenAtMs = writtenMs;
    state.orderBefore = order - 1n;
  }

  /**
   * Returns the next frames of a lane, undefined when there are none. Several units of a lane may be open; the caller
   * bounds their number.
   */
  async next(lane: Lane, limits: UnitLimits): Promise<ShipUnit | undefined> {
    const state = this.#lanes[lane];
    assert(!state.reading, 'one unit of a lane is read at a time');
    while (framesUntaken(state) > 0) {
      state.reading = true;
      let unit: OpenUnit;
      try {
        unit = await this.#gather(lane, state, limits);
      } finally {
        state.reading = false;
      }
      const { orderMax, writtenMsMax, takes } = unit;
      const taken: Taken = { unit, orderMax, writtenMsMax, takes, frames: 0, rows: 0, bytes: 0 };
      for (const take of takes) addAmounts(taken, take);
      state.taken.push(taken);
      addAmounts(state.takenSum, taken);
      if (unit.frames > 0) {
        state.untakenAtMs = writtenMsMax;
        return unit;
      }
      // Every frame up to here was damaged and is in quarantine: the lane continues after these frames.
      const before = state.taken.at(-2);
      taken.orderMax = before?.orderMax ?? state.orderBefore;
      taken.writtenMsMax = before?.writtenMsMax ?? state.oldestAtMs;
      this.confirm(unit);
    }
    return undefined;
  }

  /**
   * Called when the unit is stored: this process does not take its frames again, and their payloads must not be used
   * any more. The lane moves past the unit when all earlier units are confirmed.
   */
  confirm(unit: ShipUnit): void {
    const { lane } = unit;
    this.#reader.release(unit as OpenUnit);
    const state = this.#lanes[lane];
    const { taken } = state;
    const at = taken.findIndex((other) => other.unit === unit);
    assert(at >= 0, 'an open unit of its lane is confirmed');
    taken[at]!.unit = undefined;
    if (at + 1 < taken.length && !taken[at + 1]!.unit) mergeTaken(taken, at);
    if (at > 0 && !taken[at - 1]!.unit) mergeTaken(taken, at - 1);
    if (taken[0]!.unit) return;
    const first = taken.shift()!;
    subtractAmounts(state.takenSum, first);
    this.#pass(lane, state, first);
  }

  /** Moves the lane past its first frames. */
  #pass(lane: Lane, state: LaneState, { orderMax, writtenMsMax, takes }: Taken): void {
    state.orderBefore = orderMax;
    state.oldestAtMs = writtenMsMax;
    for (const take of takes) {
      subtractAmounts(state, take);
      subtractAmounts(take.segment.waiting[lane], take);
      state.segment = take.segment;
      state.offset = take.nextOffset;
    }
    if (state.frames === 0) {
      state.segment = undefined;
      return;
    }
    const from = this.#segments.indexOf(state.segment!);
    if (this.#segments[from]!.waiting[lane].frames > 0) return;
    const later = this.#segments.find((segment, i) => i > from && segment.waiting[lane].frames > 0)!;
    const share = later.waiting[lane];
    state.segment = later;
    state.offset = later.start;
    state.oldestAtMs = share.writtenMsMin;
    state.orderBefore = share.orderMin - 1n;
  }

  cursors(): [LaneCursor, LaneCursor] {
    const last = this.#segments.at(-1);
    if (last) this.#tail = { epoch: last.epoch, seq: last.seq, offset: last.end };
    const cursor = ({ frames, segment, offset }: LaneState): LaneCursor =>
      frames === 0 ? this.#tail : { epoch: segment!.epoch, seq: segment!.seq, offset };
    return [cursor(this.#lanes[0]), cursor(this.#lanes[1])];
  }

  /** Sets the position of an empty journal. Called before the first segment is added. */
  startAt(tail: LaneCursor): void {
    this.#tail = tail;
  }

  /** Returns sealed segments without a frame that waits. */
  confirmedSegments(): Segment[] {
    return this.#segments.filter((segment) => segment.sealed && !segment.packing && !isWaiting(segment));
  }

  /**
   * Bytes that waiting frames occupy on the disk: full segments count as a whole, the segment being written only with
   * its waiting bytes.
   */
  get diskBytes(): number {
    let bytes = 0;
    for (const segment of this.#segments) {
      if (isWaiting(segment)) bytes += segment.sealed ? segmentBytesOf(segment) : waitingBytes(segment);
    }
    return bytes;
  }

  /** Bytes of all segment files, of which each has at least `segmentBytes` unless it is packed. */
  fileBytes(segmentBytes: number): number {
    let bytes = 0;
    for (const { packedBytes, end } of this.#segments) bytes += packedBytes ?? Math.max(segmentBytes, end);
    return bytes;
  }

  /**
   * Returns the segment whose packing frees most, when full segments hold more than `bytesMax` bytes of shipped frames.
   */
  segmentToPack(bytesMax: number): Segment | undefined {
    let sum = 0;
    let most: Segment | undefined;
    let mostBytes = 0;
    for (const segment of this.#segments) {
      if (!segment.sealed || !isWaiting(segment)) continue;
      const frameBytes = segmentBytesOf(segment) - segment.start;
      const bytes = Math.max(0, frameBytes - waitingBytes(segment));
      sum += bytes;
      if (bytes * 2 < frameBytes || bytes <= mostBytes) continue;
      most = segment;
      mostBytes = bytes;
    }
    return sum > bytesMax ? most : undefined;
  }

  /** Offset of the first waiting frame of a lane in this segment; infinity when there is none. */
  firstWaiting(segment: Segment, lane: Lane): number {
    if (segment.waiting[lane].frames === 0) return Number.POSITIVE_INFINITY;
    const { segment: first, offset } = this.#lanes[lane];
    return segment === first ? offset : segment.start;
  }

  /** Segments with waiting frames, oldest first. */
  waitingSegments(): Segment[] {
    return this.#segments.filter(({ waiting }) => waiting[0].frames + waiting[1].frames > 0);
  }

  remove(segments: readonly Segment[]): void {
    if (segments.length > 0) this.#segments = this.#segments.filter((segment) => !segments.includes(segment));
  }

  async #gather(lane: Lane, state: LaneState, limits: UnitLimits): Promise<OpenUnit> {
    const unit = newUnit(lane);
    const last = state.taken.at(-1)?.takes.at(-1);
    const first = last?.segment ?? state.segment!;
    const offset = last?.nextOffset ?? state.offset;
    for (const segment of this.#segments.slice(this.#segments.indexOf(first))) {
      const share = untakenShare(state, lane, segment);
      if (share.frames === 0) continue;
      const from = segment === first ? offset : segment.start;
      if (!(await this.#reader.take(unit, segment, from, share, limits))) break;
      if (unit.rows >= limits.rowsMax || unit.bytes >= limits.bytesMax) break;
    }
    return unit;
  }
}

function newLane(): LaneState {
  return {
    frames: 0,
    rows: 0,
    bytes: 0,
    oldestAtMs: 0,
    orderBefore: 0n,
    segment: undefined,
    offset: 0,
    taken: [],
    takenSum: { frames: 0, rows: 0, bytes: 0 },
    untakenAtMs: 0,
    reading: false,
  };
}

function framesUntaken({ frames, takenSum }: LaneState): number {
  return frames - takenSum.frames;
}

/** Returns the amounts of waiting frames in the segment that were not taken. */
function untakenShare({ taken }: LaneState, lane: Lane, segment: Segment): Amounts {
  const { frames, rows, bytes } = segment.waiting[lane];
  const share = { frames, rows, bytes };
  for (const { takes } of taken) {
    for (const take of takes) if (take.segment === segment) subtractAmounts(share, take);
  }
  return share;
}

/** Merges two confirmed neighbours, so that the list after a long unit stays short. */
function mergeTaken(taken: Taken[], at: number): void {
  const [first, second] = taken.splice(at, 2) as [Taken, Taken];
  const takes = [...first.takes];
  for (const take of second.takes) {
    const last = takes.at(-1);
    if (last?.segment !== take.segment) {
      takes.push(take);
      continue;
    }
    const both: Take = { ...take };
    addAmounts(both, last);
    takes[takes.length - 1] = both;
  }
  const merged: Taken = { ...second, takes };
  addAmounts(merged, first);
  taken.splice(at, 0, merged);
}
