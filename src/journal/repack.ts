/**
 * Packs a full segment with few waiting frames into a file that contains only these frames, so that a late frame does
 * not keep the disk space of its whole segment. The packed file takes the segment's name in one rename: a crash leaves
 * one of the two files, and each has every waiting frame. Frames keep their offsets (segment.ts), so cursors, links,
 * open units and the order of a lane do not change.
 */
import { randomBytes } from 'node:crypto';
import type { Disk, DiskFile } from './disk.ts';
import { type Frame, FrameReader, type Gap } from './reader.ts';
import { readHeader } from './recovery.ts';
import {
  encodeFrameHead,
  encodeSegmentHeader,
  frameHeaderBytes,
  isLink,
  type Lane,
  lanes,
  packedPrefixBytes,
  segmentHeaderBytes,
} from './segment.ts';
import { openToRead, type Segment } from './waiting-segment.ts';

interface RepackDeps {
  disk: Disk;
  segment: Segment;
  /** Returns the offset of the first waiting frame of a lane. */
  firstWaiting: (lane: Lane) => number;
  /** Keeps the bytes of a damaged range, which the packed file will not have. */
  onGap: (segment: Segment, gap: Gap) => Promise<void>;
  /** True while this process owns the journal. */
  mayReplace: () => Promise<boolean>;
}

const readChunkBytes = 1024 * 1024;
const writeBytes = 1024 * 1024;
const zeros = Buffer.alloc(8);

/**
 * Returns false when packing was no longer useful or not allowed. The caller prevents recycling of the segment
 * meanwhile.
 */
export async function repack(deps: RepackDeps): Promise<boolean> {
  const { disk, segment, mayReplace } = deps;
  const temporary = `${segment.path}.pack-${randomBytes(4).toString('hex')}.tmp`;
  try {
    const bytes = await writePacked(deps, temporary);
    const waiting = lanes.some((lane) => segment.waiting[lane].frames > 0);
    if (!waiting || bytes >= (segment.packedBytes ?? segment.end) || !(await mayReplace())) {
      await disk.remove(temporary);
      return false;
    }
    segment.generation += 1;
    try {
      await disk.rename(temporary, segment.path);
      segment.packedBytes = bytes;
      segment.spoiled = true;
      segment.gaps = [];
    } finally {
      segment.generation += 1;
    }
  } catch (error) {
    await disk.remove(temporary).catch(() => {});
    throw error;
  }
  // Until this sync a crash may restore the earlier file, which has all frames of the packed one.
  await disk.syncDirectory(segment.path.slice(0, segment.path.lastIndexOf('/')));
  return true;
}

/** Writes the packed file, durable except for its name; returns its size. */
async function writePacked(deps: RepackDeps, temporary: string): Promise<number> {
  const { disk, segment, firstWaiting, onGap } = deps;
  const starts = lanes.map(firstWaiting);
  const from = Math.min(...starts);
  const { file, packedBytes } = await openToRead(disk, segment);
  try {
    const header = await readHeader(file);
    if (!header || header === 'newer') throw new Error(`the header of ${segment.path} cannot be read`);
    const target = await disk.open(temporary, 'write');
    const packed = new PackedFile(target, segment.seed);
    try {
      const { epoch, seq, salt, createdMs, name } = header;
      await target.write([encodeSegmentHeader({ epoch, seq, salt, createdMs, name, packedEnd: segment.end })], 0);
      const { seed, start } = segment;
      const range = { seed, end: packedBytes ?? segment.end, chunkBytes: readChunkBytes, reuseChunk: true };
      const isPacked = packedBytes !== undefined;
      const links = new FrameReader(file, { ...range, from: start, packed: isPacked });
      for (let step = await links.next(); step?.kind === 'frame' && isLink(step); step = await links.next()) {
        await packed.add(step);
      }
      // Usually one lane waits: payloads of the other lane are not read.
      const only = starts[0] === Number.POSITIVE_INFINITY ? 1 : starts[1] === Number.POSITIVE_INFINITY ? 0 : undefined;
      const lane = only === undefined ? {} : { lane: only as Lane };
      const reader = new FrameReader(file, { ...range, from, packed: isPacked, ...lane });
      for (let step = await reader.next(); step; step = await reader.next()) {
        if (step.kind === 'gap') await onGap(segment, step);
        else if (!isLink(step) && step.offset >= starts[step.lane]!) await packed.add(step);
      }
      await packed.flush();
      await target.sync();
      return packed.bytes;
    } finally {
      await target.close();
    }
  } finally {
    await file.close();
  }
}

class PackedFile {
  readonly #file: DiskFile;
  readonly #seed: number;
  #parts: Buffer[] = [];
  #partBytes = 0;
  #written = segmentHeaderBytes;

  constructor(file: DiskFile, seed: number) {
    this.#file = file;
    this.#seed = seed;
  }

  get bytes(): number {
    return this.#written + this.#partBytes;
  }

  async add(frame: Frame): Promise<void> {
    const head = Buffer.alloc(packedPrefixBytes + frameHeaderBytes);
    head.writeBigUInt64LE(BigInt(frame.offset), 0);
    encodeFrameHead(head, packedPrefixBytes, frame, this.#seed, frame.offset);
    // The reader reuses its chunk.
    this.#parts.push(head, Buffer.from(frame.payload), zeros.subarray(0, -frame.length & 7));
    this.#partBytes += head.length + frame.length + (-frame.length & 7);
    if (this.#partBytes >= writeBytes) await this.flush();
  }

  async flush(): Promise<void> {
    if (this.#parts.length === 0) return;
    await this.#file.write(this.#parts, this.#written);
    this.#written += this.#partBytes;
    this.#parts = [];
    this.#partBytes = 0;
  }
}
