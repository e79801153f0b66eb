/**
 * The format of a segment file. Little-endian.
 *
 * Limits: a frame starts at a multiple of 8 and its payload is below 2^30 bytes; a file is below 2^32 bytes and holds
 * below 2^32 commits; epoch and seq are below 2^32.
 *
 *   file    header (8 192) · frame · frame · … · stale bytes of an earlier use, or zeros
 *   header  two equal copies, at 0 and at 4 096: one bad sector of 4 096 bytes does not cost the salt of a segment.
 *           A copy has 2 048 bytes: magic 8 · version u32 · epoch u32 · seq u32 · salt 16 · createdMs f64 ·
 *           name length u16 · name · … · at 1 000: packed u8 · at 1 008: end f64 · … · crc u32
 *   frame   length u32 · payloadCrc u32 · order u64 · writtenMs f64 · rows u32 · commit u32 · lane u8 · flags u8
 *           · mark u16 · headCrc u32 · payload · zeros up to a multiple of 8
 *
 * Version 1 had both copies in one block of 4 096 bytes and its frames from there on. A file of a later version than
 * this one is never touched: the start is refused.
 *
 * headCrc covers the 36 bytes before it, payloadCrc among them, and is seeded with the salt and the frame's own
 * offset: neither stale bytes of a recycled file nor a write that went astray validate. The payload needs no seed of
 * its own: under a valid head only the right bytes match. A separate headCrc lets a reader trust `length` when only
 * the payload is bad, and search for the next frame at 8-byte steps without a checksum over megabytes at each step.
 *
 * Frames of one append share `commit`; the last carries `lastOfCommit`. The first frames of a segment are its `links`:
 * what the segments before it held and where they ended, as a rule one segment. So a full segment needs no walk at
 * start, its end is known exactly, and bytes after that end (left by a failed write) are never taken for frames.
 *
 * A packed segment (repack.ts) keeps only frames that wait. Each frame follows the u64 offset that it had in the
 * segment as it was written; cursors, links and headCrc use these offsets. `end` is where that segment ended.
 */
import { crc32 } from 'node:zlib';

export const segmentHeaderBytes = 8192;
export const packedPrefixBytes = 8;
export const frameHeaderBytes = 40;
const payloadBytesMax = 2 ** 30 - 1;

const copyBytes = 2048;
const copyOffsets = { 1: [0, 2048], 2: [0, 4096] } as const;
const frameOffsets = { 1: 4096, 2: segmentHeaderBytes } as const;
const packedAt = 1000;
const endAt = 1008;
const magic = Buffer.from('MILLJRN1', 'latin1');
/** The common first bytes of all versions' magics. */
const magicStartBytes = 7;
const formatVersion = 2;
const nameBytesMax = 512;
const frameMark = 0x4d4a;
/** Offset of the mark in the head of a frame. */
export const markOffset = 34;

export const frameFlags = { lastOfCommit: 1, link: 2 } as const;

/** Frames of a lane are shipped in the order of the journal; the lanes do not wait for each other. */
export type Lane = 0 | 1;
/** Rows of yesterday, today and tomorrow. */
export const live: Lane = 0;
/** All other rows: they touch many days, so they are shipped in larger units. */
export const late: Lane = 1;
export const lanes: readonly Lane[] = [live, late];
export const laneNames = ['live', 'late'] as const satisfies Record<Lane, string>;

interface SegmentHeader {
  epoch: number;
  seq: number;
  salt: Buffer;
  createdMs: number;
  /** The journal's directory, for an operator who finds the file somewhere else. */
  name: string;
  /** The end of the original segment; only for a packed segment. */
  packedEnd?: number;
}

/** The decoded header; `start` is the offset of the first frame. */
export type FoundHeader = (SegmentHeader & { start: number }) | 'newer' | undefined;

export function segmentName(epoch: number, seq: number): string {
  return `${epoch}-${seq}.seg`;
}

export function parseSegmentName(name: string): { epoch: number; seq: number } | undefined {
  const match = /^(\d{1,10})-(\d{1,10})\.seg$/.exec(name);
  return match ? { epoch: Number(match[1]), seq: Number(match[2]) } : undefined;
}

export function encodeSegmentHeader(header: SegmentHeader): Buffer {
  const copy = Buffer.alloc(copyBytes);
  magic.copy(copy, 0);
  copy.writeUInt32LE(formatVersion, 8);
  copy.writeUInt32LE(header.epoch, 12);
  copy.writeUInt32LE(header.seq, 16);
  header.salt.copy(copy, 20, 0, 16);
  copy.writeDoubleLE(header.createdMs, 36);
  const name = Buffer.from(header.name, 'utf8').subarray(0, nameBytesMax);
  copy.writeUInt16LE(name.length, 44);
  name.copy(copy, 46);
  if (header.packedEnd !== undefined) {
    copy[packedAt] = 1;
    copy.writeDoubleLE(header.packedEnd, endAt);
  }
  copy.writeUInt32LE(crc32(copy.subarray(0, copyBytes - 4)), copyBytes - 4);
  const bytes = Buffer.alloc(segmentHeaderBytes);
  for (const offset of copyOffsets[formatVersion]) copy.copy(bytes, offset);
  return bytes;
}

/**
 * Decodes the header from an intact copy; undefined when both are damaged. `newer`: made by a later version of
 * Millrace.
 */
export function decodeSegmentHeader(bytes: Buffer): FoundHeader {
  let newer = false;
  for (const version of [1, 2] as const) {
    for (const offset of copyOffsets[version]) {
      const copy = bytes.subarray(offset, offset + copyBytes);
      if (copy.length < copyBytes) continue;
      if (isNewer(copy)) newer = true;
      if (!copy.subarray(0, 8).equals(magic) || copy.readUInt32LE(8) !== version) continue;
      if (crc32(copy.subarray(0, copyBytes - 4)) !== copy.readUInt32LE(copyBytes - 4)) continue;
      return {
        epoch: copy.readUInt32LE(12),
        seq: copy.readUInt32LE(16),
        salt: Buffer.from(copy.subarray(20, 36)),
        createdMs: copy.readDoubleLE(36),
        name: copy.toString('utf8', 46, 46 + Math.min(copy.readUInt16LE(44), nameBytesMax)),
        start: frameOffsets[version],
        ...(version > 1 && copy[packedAt] === 1 && { packedEnd: copy.readDoubleLE(endAt) }),
      };
    }
  }
  return newer ? 'newer' : undefined;
}

function isNewer(copy: Buffer): boolean {
  if (!copy.subarray(0, magicStartBytes).equals(magic.subarray(0, magicStartBytes))) return false;
  const digit = copy[magicStartBytes]!;
  const versionOfMagic = magic[magicStartBytes]!;
  if (digit !== versionOfMagic) return digit > versionOfMagic && digit <= 0x39;
  const version = copy.readUInt32LE(8);
  // A flipped bit usually makes a larger number than any version.
  return version > formatVersion && version <= 255;
}

export interface FrameHead {
  length: number;
  payloadCrc: number;
  order: bigint;
  writtenMs: number;
  rows: number;
  commit: number;
  lane: Lane;
  flags: number;
}

/** The seed of a file's frames; mixed with the offset of each. */
export function saltSeed(salt: Buffer): number {
  return crc32(salt);
}

export function paddedBytes(payloadBytes: number): number {
  return frameHeaderBytes + ((payloadBytes + 7) & ~7);
}

export function encodeFrameHead(into: Buffer, at: number, head: FrameHead, seed: number, fileOffset: number): void {
  into.writeUInt32LE(head.length, at);
  into.writeUInt32LE(head.payloadCrc, at + 4);
  into.writeBigUInt64LE(head.order, at + 8);
  into.writeDoubleLE(head.writtenMs, at + 16);
  into.writeUInt32LE(head.rows, at + 24);
  into.writeUInt32LE(head.commit, at + 28);
  into[at + 32] = head.lane;
  into[at + 33] = head.flags;
  into.writeUInt16LE(frameMark, at + markOffset);
  into.writeUInt32LE(crc32(into.subarray(at, at + 36), (seed ^ fileOffset) >>> 0), at + 36);
}

/** True when the mark of a frame is at this offset. */
export function hasFrameMark(bytes: Buffer, at: number): boolean {
  return bytes[at] === (frameMark & 0xff) && bytes[at + 1] === frameMark >> 8;
}

/** Decodes a frame's head at `at` in `bytes`, which is at `fileOffset` in the file; undefined when it is not a head. */
export function decodeFrameHead(bytes: Buffer, at: number, seed: number, fileOffset: number): FrameHead | undefined {
  // The mark is compared first: it excludes nearly every wrong offset without a checksum.
  if (!hasFrameMark(bytes, at + markOffset)) return undefined;
  if (crc32(bytes.subarray(at, at + 36), (seed ^ fileOffset) >>> 0) !== bytes.readUInt32LE(at + 36)) return undefined;
  const lane = bytes[at + 32]!;
  const length = bytes.readUInt32LE(at);
  if (lane > 1 || length > payloadBytesMax) return undefined;
  return {
    length,
    payloadCrc: bytes.readUInt32LE(at + 4),
    order: bytes.readBigUInt64LE(at + 8),
    writtenMs: bytes.readDoubleLE(at + 16),
    rows: bytes.readUInt32LE(at + 24),
    commit: bytes.readUInt32LE(at + 28),
    lane: lane as Lane,
    flags: bytes[at + 33]!,
  };
}

export function crcOfParts(parts: readonly Uint8Array[]): number {
  let crc = 0;
  for (const part of parts) crc = crc32(part, crc);
  return crc;
}

/** The frames of one lane in a segment. */
export interface LaneShare {
  frames: number;
  rows: number;
  bytes: number;
  orderMin: bigint;
  orderMax: bigint;
  writtenMsMin: number;
}

export function emptyShare(): LaneShare {
  return { frames: 0, rows: 0, bytes: 0, orderMin: 0n, orderMax: 0n, writtenMsMin: 0 };
}

export function addToShare(share: LaneShare, frame: Pick<FrameHead, 'rows' | 'length' | 'order' | 'writtenMs'>): void {
  if (share.frames === 0) {
    share.orderMin = frame.order;
    share.writtenMsMin = frame.writtenMs;
  }
  share.frames += 1;
  share.rows += frame.rows;
  share.bytes += frame.length;
  share.orderMax = frame.order;
}

/** True for a frame that is a link, and not rows. */
export function isLink({ flags }: Pick<FrameHead, 'flags'>): boolean {
  return (flags & frameFlags.link) > 0;
}

/** The payload of a link frame. */
export interface Link {
  epoch: number;
  seq: number;
  end: number;
  shares: [LaneShare, LaneShare];
}

const shareBytes = 48;
export const linkBytes = 16 + 2 * shareBytes;
/** Links at the start of one segment; segments without a link must be read at the next start. */
export const linksMax = 16;

export function encodeLink(link: Link): Buffer {
  const bytes = Buffer.alloc(linkBytes);
  bytes.writeUInt32LE(link.epoch, 0);
  bytes.writeUInt32LE(link.seq, 4);
  bytes.writeDoubleLE(link.end, 8);
  for (const lane of lanes) {
    const share = link.shares[lane];
    const at = 16 + lane * shareBytes;
    bytes.writeDoubleLE(share.frames, at);
    bytes.writeDoubleLE(share.rows, at + 8);
    bytes.writeDoubleLE(share.bytes, at + 16);
    bytes.writeBigUInt64LE(share.orderMin, at + 24);
    bytes.writeBigUInt64LE(share.orderMax, at + 32);
    bytes.writeDoubleLE(share.writtenMsMin, at + 40);
  }
  return bytes;
}

export function decodeLink(bytes: Buffer): Link {
  const share = (lane: Lane): LaneShare => {
    const at = 16 + lane * shareBytes;
    return {
      frames: bytes.readDoubleLE(at),
      rows: bytes.readDoubleLE(at + 8),
      bytes: bytes.readDoubleLE(at + 16),
      orderMin: bytes.readBigUInt64LE(at + 24),
      orderMax: bytes.readBigUInt64LE(at + 32),
      writtenMsMin: bytes.readDoubleLE(at + 40),
    };
  };
  return {
    epoch: bytes.readUInt32LE(0),
    seq: bytes.readUInt32LE(4),
    end: bytes.readDoubleLE(8),
    shares: [share(0), share(1)],
  };
}
