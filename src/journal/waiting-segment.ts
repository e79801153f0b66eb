/** A segment with frames that wait, as the backlog keeps it: where its file is, what it has, and what of it waits. */
import type { Disk, DiskFile } from './disk.ts';
import type { Gap } from './reader.ts';
import { emptyShare, frameHeaderBytes, type LaneShare, packedPrefixBytes, segmentHeaderBytes } from './segment.ts';

export interface Segment {
  epoch: number;
  seq: number;
  path: string;
  /** Seed of the checksums of its frames. */
  seed: number;
  /** Offset of its first frame. */
  start: number;
  /** No frame at or after this offset is durable. */
  end: number;
  /** No frame will be added. */
  sealed: boolean;
  /** A write failed, or another process may still write to the file: the file is removed, not recycled. */
  spoiled: boolean;
  /**
   * Size of a file that holds only frames that wait (repack.ts). Offsets are those of the segment as it was written.
   */
  packedBytes: number | undefined;
  /** Odd while its file is being replaced by another; a reader that met a change opens the file again. */
  generation: number;
  /** The file is being packed and must not be recycled meanwhile. */
  packing: boolean;
  total: [LaneShare, LaneShare];
  waiting: [LaneShare, LaneShare];
  /** Gaps that are in quarantine, or that are known to be a torn commit. */
  gaps: Gap[];
}

export function newSegment(
  epoch: number,
  seq: number,
  path: string,
  seed: number,
  start = segmentHeaderBytes,
): Segment {
  return {
    epoch,
    seq,
    path,
    seed,
    start,
    end: start,
    sealed: false,
    spoiled: false,
    packedBytes: undefined,
    generation: 0,
    packing: false,
    total: [emptyShare(), emptyShare()],
    waiting: [emptyShare(), emptyShare()],
    gaps: [],
  };
}

/** Opens the file of a segment, which a packed file may replace at any time. `packedBytes` is of the opened file. */
export async function openToRead(
  disk: Disk,
  segment: Segment,
): Promise<{ file: DiskFile; packedBytes: number | undefined }> {
  for (;;) {
    const { generation, packedBytes } = segment;
    const file = await disk.open(segment.path, 'read');
    if (generation === segment.generation && generation % 2 === 0) return { file, packedBytes };
    await file.close();
  }
}

export function isWaiting({ waiting }: Segment): boolean {
  return waiting[0].frames > 0 || waiting[1].frames > 0;
}

export function segmentBytesOf({ packedBytes, end }: Segment): number {
  return packedBytes ?? end;
}

/** Returns the bytes of waiting frames, with heads, prefixes and padding, rounded up. */
export function waitingBytes({ waiting }: Segment): number {
  const frames = waiting[0].frames + waiting[1].frames;
  return waiting[0].bytes + waiting[1].bytes + frames * (packedPrefixBytes + frameHeaderBytes + 8);
}
