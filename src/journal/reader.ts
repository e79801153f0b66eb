/**
 * Reads the frames of one segment file in bounded memory. A range without a valid frame becomes a gap: the reader
 * searches at steps of 8 bytes for the next valid frame. The caller decides what a gap means.
 */
import { crc32 } from 'node:zlib';
import { assert } from '../base/errors.ts';
import { type DiskFile, errorCode, readAround } from './disk.ts';
import {
  decodeFrameHead,
  type FrameHead,
  frameHeaderBytes,
  hasFrameMark,
  type Lane,
  markOffset,
  packedPrefixBytes,
  paddedBytes,
  segmentHeaderBytes,
} from './segment.ts';

export interface Frame extends FrameHead {
  kind: 'frame';
  offset: number;
  /** Offset of the next frame; in a packed file its offset in the original segment. */
  next: number;
  /** A slice of the reader's chunk. Empty for frames of a lane that was not requested. */
  payload: Buffer;
}

export interface Gap {
  kind: 'gap';
  from: number;
  to: number;
}

export interface ReadRange {
  seed: number;
  from: number;
  /** The reader stops at this offset. */
  end: number;
  /** Bytes of one read. */
  chunkBytes: number;
  /** True: one chunk serves all reads, and a payload is valid until the next call. False: payloads stay valid. */
  reuseChunk: boolean;
  /** Returns the memory of a chunk; absent: chunks are allocated. */
  takeChunk?: (bytes: number) => Buffer;
  /** Returns payloads of this lane only; of the other lane only the heads are read. */
  lane?: Lane;
  /** The file is packed: `from` is an offset of the original segment; `end` and gaps are offsets in the file. */
  packed?: boolean;
}

const empty: Buffer = Buffer.alloc(0);

export class FrameReader {
  readonly #file: DiskFile;
  readonly #range: ReadRange;
  #at: number;
  /** Offset in the file of the last frame found. */
  #foundAt = 0;
  #chunk: Buffer = empty;
  #chunkFrom = 0;
  /** A frame that was found at the end of a gap. */
  #found: Frame | undefined;

  constructor(file: DiskFile, range: ReadRange) {
    assert(range.from % 8 === 0, 'frames start at multiples of 8');
    this.#file = file;
    this.#range = range;
    this.#at = range.packed ? segmentHeaderBytes : range.from;
  }

  /** Returns the next frame or gap; undefined at the end. Two gaps never follow each other. */
  async next(): Promise<Frame | Gap | undefined> {
    if (this.#found) {
      const frame = this.#found;
      this.#found = undefined;
      return frame;
    }
    let from = this.#at;
    while (this.#at < this.#range.end) {
      const frame = await this.#frameHere();
      if (!frame) continue;
      if (frame.offset < this.#range.from) {
        // Happens only in a packed file. Damage before this frame is passed over as well.
        from = this.#at;
        continue;
      }
      if (this.#foundAt === from) return frame;
      this.#found = frame;
      return { kind: 'gap', from, to: this.#foundAt };
    }
    return from < this.#range.end ? { kind: 'gap', from, to: this.#range.end } : undefined;
  }

  /** Reads at the current offset and moves past the frame, past a bad payload, or by 8 bytes. */
  async #frameHere(): Promise<Frame | undefined> {
    const place = this.#at;
    const { seed, end, lane, packed } = this.#range;
    const prefix = packed ? packedPrefixBytes : 0;
    if (place + prefix + frameHeaderBytes > end) {
      this.#at = end;
      return undefined;
    }
    let at = await this.#ensure(place, prefix + frameHeaderBytes);
    const offset = packed ? Number(this.#chunk.readBigUInt64LE(at)) : place;
    const head = decodeFrameHead(this.#chunk, at + prefix, seed, offset);
    if (!head || place + prefix + frameHeaderBytes + head.length > end) {
      this.#skipToMark(place, at, prefix);
      return undefined;
    }
    const stored = paddedBytes(head.length);
    let payload = empty;
    if (lane === undefined || head.lane === lane) {
      at = (await this.#ensure(place, prefix + frameHeaderBytes + head.length)) + prefix + frameHeaderBytes;
      payload = this.#chunk.subarray(at, at + head.length);
    }
    this.#foundAt = place;
    this.#at = Math.min(place + prefix + stored, end);
    if (payload.length === head.length && crc32(payload) !== head.payloadCrc) return undefined;
    return { kind: 'frame', offset, next: offset + stored, payload, ...head };
  }

  /** Searches inside the chunk, without an await for each step. */
  #skipToMark(place: number, at: number, prefix: number): void {
    const chunk = this.#chunk;
    const last = chunk.length - prefix - frameHeaderBytes;
    const mark = prefix + markOffset;
    let step = at + 8;
    while (step <= last && !hasFrameMark(chunk, step + mark)) step += 8;
    this.#at = place + (step - at);
  }

  /** Loads [offset, offset + bytes) into the chunk; returns its start in the chunk. */
  async #ensure(offset: number, bytes: number): Promise<number> {
    const at = offset - this.#chunkFrom;
    if (at >= 0 && at + bytes <= this.#chunk.length) return at;
    const { end, chunkBytes, reuseChunk, takeChunk = Buffer.allocUnsafeSlow } = this.#range;
    const wanted = Math.max(bytes, Math.min(chunkBytes, end - offset));
    const room = this.#chunk.buffer.byteLength >= wanted && reuseChunk && this.#chunk !== empty;
    const chunk: Buffer = room ? Buffer.from(this.#chunk.buffer, 0, wanted) : takeChunk(wanted);
    let done: number;
    try {
      done = await this.#file.read(chunk, offset);
    } catch (error) {
      if (errorCode(error) !== 'EIO') throw error;
      // An unreadable sector costs its frames, not the segment: it reads as zeros, which are not a frame.
      await readAround(this.#file, chunk, offset);
      done = wanted;
    }
    chunk.fill(0, done);
    this.#chunk = chunk;
    this.#chunkFrom = offset;
    return 0;
  }
}
