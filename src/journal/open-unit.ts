/**
 * Reads the frames of a unit from the files of segments into memory, which is used again when the unit is confirmed.
 * Damaged stretches are passed to `onGap` before the unit continues after them.
 */
import { BufferPool } from '../base/buffer-pool.ts';
import type { Amounts } from './amounts.ts';
import type { Disk } from './disk.ts';
import { FrameReader, type Gap } from './reader.ts';
import { frameHeaderBytes, isLink, type Lane, late } from './segment.ts';
import { openToRead, type Segment } from './waiting-segment.ts';

/** A range of frames of one lane, in journal order. */
export interface ShipUnit {
  readonly lane: Lane;
  readonly payloads: Buffer[];
  readonly frames: number;
  readonly rows: number;
  readonly bytes: number;
  readonly orderMin: bigint;
  readonly orderMax: bigint;
  /** Order number of each payload. */
  readonly orders: bigint[];
  /** Times at which the first and the last frame were journaled. */
  readonly writtenMsMin: number;
  readonly writtenMsMax: number;
}

export interface UnitLimits {
  rowsMax: number;
  bytesMax: number;
}

/** The frames that a unit took from one segment. */
export interface Take extends Amounts {
  segment: Segment;
  nextOffset: number;
}

export interface OpenUnit extends ShipUnit {
  payloads: Buffer[];
  frames: number;
  rows: number;
  bytes: number;
  orderMin: bigint;
  orderMax: bigint;
  writtenMsMin: number;
  writtenMsMax: number;
  takes: Take[];
  /** The memory of the payloads, of a unit of the live lane. */
  chunks: Buffer[];
}

const readBytesMin = 64 * 1024;
const readBytesMax = 16 * 1024 * 1024;
const sparseReadBytes = 1024 * 1024;

export class UnitReader {
  readonly #disk: Disk;
  readonly #onGap: (segment: Segment, gap: Gap) => Promise<void>;
  /** Memory of the payloads of units that are confirmed. */
  readonly #chunks = new BufferPool({ countMax: 2, bytesMax: readBytesMax });

  /** `onGap` keeps the damaged bytes. A unit after the gap is continued only when `onGap` has succeeded. */
  constructor(disk: Disk, onGap: (segment: Segment, gap: Gap) => Promise<void>) {
    this.#disk = disk;
    this.#onGap = onGap;
  }

  /**
   * Adds frames of one segment to the unit. Returns true when every waiting frame of the segment was taken or found
   * damaged.
   */
  async take(unit: OpenUnit, segment: Segment, from: number, share: Amounts, limits: UnitLimits): Promise<boolean> {
    // The writer may append to the segment meanwhile: `end` and `share` must be read in the same turn.
    const end = segment.end;
    const take: Take = { segment, frames: 0, rows: 0, bytes: 0, nextOffset: end };
    const { file, packedBytes } = await openToRead(this.#disk, segment);
    const packed = packedBytes !== undefined;
    const sparse = !packed && share.bytes * 2 < end - from;
    let whole = true;
    try {
      const chunkBytes = sparse
        ? sparseReadBytes
        : bytesToRead(share, limits.rowsMax - unit.rows, limits.bytesMax - unit.bytes);
      const { seed } = segment;
      const range = { seed, from, end: packedBytes ?? end, chunkBytes, reuseChunk: sparse, lane: unit.lane, packed };
      const reader = new FrameReader(file, { ...range, takeChunk: (bytes) => this.#takeChunk(unit, bytes) });
      while (take.frames < share.frames) {
        const step = await reader.next();
        if (!step) {
          // Frames are missing: their gaps are in quarantine.
          take.nextOffset = end;
          break;
        }
        if (step.kind === 'gap') {
          await this.#onGap(segment, step);
          continue;
        }
        if (step.lane !== unit.lane || isLink(step)) continue;
        const full = unit.rows + step.rows > limits.rowsMax || unit.bytes + step.length > limits.bytesMax;
        if (full && unit.frames > 0) {
          whole = false;
          take.nextOffset = step.offset;
          break;
        }
        // A view would keep the whole chunk in memory, most of which is other frames.
        unit.payloads.push(sparse ? Buffer.from(step.payload) : step.payload);
        unit.orders.push(step.order);
        if (unit.frames === 0) {
          unit.orderMin = step.order;
          unit.writtenMsMin = step.writtenMs;
        }
        unit.orderMax = step.order;
        unit.writtenMsMax = step.writtenMs;
        unit.frames += 1;
        unit.rows += step.rows;
        unit.bytes += step.length;
        take.frames += 1;
        take.rows += step.rows;
        take.bytes += step.length;
        take.nextOffset = step.next;
      }
    } finally {
      await file.close();
    }
    if (whole) ({ frames: take.frames, rows: take.rows, bytes: take.bytes } = share);
    unit.takes.push(take);
    return whole;
  }

  /** A unit of the late lane may be open for long without its payloads: it keeps no memory of its own. */
  #takeChunk(unit: OpenUnit, bytes: number): Buffer {
    if (unit.lane === late) return Buffer.allocUnsafeSlow(bytes);
    const chunk = this.#chunks.take(bytes);
    unit.chunks.push(chunk);
    return chunk;
  }

  /** Called when the payloads of the unit are not used any more. */
  release(unit: OpenUnit): void {
    for (const chunk of unit.chunks.splice(0)) this.#chunks.give(chunk);
  }
}

export function newUnit(lane: Lane): OpenUnit {
  return {
    lane,
    payloads: [],
    orders: [],
    frames: 0,
    rows: 0,
    bytes: 0,
    orderMin: 0n,
    orderMax: 0n,
    writtenMsMin: 0,
    writtenMsMax: 0,
    takes: [],
    chunks: [],
  };
}

/** Estimates the bytes of a unit from the mean size of the waiting frames. */
function bytesToRead(share: Amounts, rowsLeft: number, bytesLeft: number): number {
  const stored = share.bytes + share.frames * (frameHeaderBytes + 8);
  const byRows = (stored * Math.max(1, rowsLeft)) / Math.max(1, share.rows);
  const wanted = Math.ceil(Math.min(stored, byRows, bytesLeft * 1.1));
  return Math.min(Math.max(wanted + 4096, readBytesMin), readBytesMax);
}
