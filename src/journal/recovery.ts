/**
 * What earlier starts left behind: finds the segments that are not fully shipped, cuts torn tails, keeps damaged
 * stretches in quarantine and every valid frame around them. A segment whose end and contents are told by the link of
 * its successor and of which nothing is shipped yet is taken without a walk; damage in it is found when it is read.
 */
import type { Log } from '../base/log.ts';
import { newSegment, type Segment } from './backlog.ts';
import { type Disk, type DiskFile, isNoSpace, readWhole, replaceWhole } from './disk.ts';
import type { Cursor, Position } from './position.ts';
import { quarantineDir } from './quarantine.ts';
import { type Frame, FrameReader, type Gap } from './reader.ts';
import {
  addToShare,
  decodeLink,
  decodeSegmentHeader,
  frameFlags,
  frameHeaderBytes,
  type Link,
  lanes,
  linkBytes,
  linksMax,
  paddedBytes,
  parseSegmentName,
  saltSeed,
  segmentHeaderBytes,
} from './segment.ts';

export interface RecoveryOptions {
  disk: Disk;
  dir: string;
  position: Position;
  /** Keeps the bytes of a damaged stretch. */
  onGap: (segment: Segment, gap: Gap) => Promise<void>;
  /** A segment whose header is unreadable was moved to quarantine. */
  onLostSegment: (name: string) => void;
}

export interface Recovered {
  /** With something to ship, oldest first, and where each lane starts in it. */
  segments: { segment: Segment; starts: [number, number] }[];
  /** Files that hold nothing to ship. */
  sparePaths: string[];
  epochMax: number;
  orderMax: bigint;
}

const walkChunkBytes = 4 * 1024 * 1024;

export async function recover(options: RecoveryOptions): Promise<Recovered> {
  const { disk, dir, position } = options;
  const result: Recovered = {
    segments: [],
    sparePaths: [],
    epochMax: Math.max(position.cursors[0].epoch, position.cursors[1].epoch),
    orderMax: position.orderHigh,
  };
  const candidates: { segment: Segment; starts: [number, number] }[] = [];
  const links = new Map<string, Link>();
  for (const { name, epoch, seq } of await segmentFiles(disk, dir)) {
    result.epochMax = Math.max(result.epochMax, epoch);
    const path = `${dir}/${name}`;
    const starts = lanes.map((lane) => laneStart(epoch, seq, position.cursors[lane])) as [number, number];
    const passed = starts[0] === Number.POSITIVE_INFINITY && starts[1] === Number.POSITIVE_INFINITY;
    const opened = passed ? undefined : await openSegment(options, name, epoch, seq);
    if (opened === 'lost') continue;
    if (!opened) {
      result.sparePaths.push(path);
      continue;
    }
    candidates.push({ segment: opened.segment, starts });
    for (const link of opened.links) links.set(`${link.epoch}-${link.seq}`, link);
  }
  for (const candidate of candidates) {
    const { segment, starts } = candidate;
    const link = links.get(`${segment.epoch}-${segment.seq}`);
    if (link && starts.every((start) => start <= segmentHeaderBytes || start >= link.end)) {
      segment.end = link.end;
      segment.total = link.shares;
      // Of each lane all waits or nothing.
      for (const lane of lanes) if (starts[lane] < link.end) segment.waiting[lane] = { ...link.shares[lane] };
    } else {
      await walk(options, segment, starts, link?.end);
    }
    for (const { orderMax } of segment.total) if (orderMax > result.orderMax) result.orderMax = orderMax;
    if (segment.waiting[0].frames + segment.waiting[1].frames > 0) result.segments.push(candidate);
    else result.sparePaths.push(segment.path);
  }
  return result;
}

async function segmentFiles(disk: Disk, dir: string): Promise<{ name: string; epoch: number; seq: number }[]> {
  const files: { name: string; epoch: number; seq: number }[] = [];
  for (const name of await disk.list(dir)) {
    const id = parseSegmentName(name);
    if (id) files.push({ name, ...id });
  }
  return files.sort((a, b) => a.epoch - b.epoch || a.seq - b.seq);
}

/** Offset from which frames of a lane are not confirmed; infinity when the cursor has passed the segment. */
function laneStart(epoch: number, seq: number, cursor: Cursor): number {
  if (epoch !== cursor.epoch) return epoch < cursor.epoch ? Number.POSITIVE_INFINITY : segmentHeaderBytes;
  if (seq !== cursor.seq) return seq < cursor.seq ? Number.POSITIVE_INFINITY : segmentHeaderBytes;
  return Math.max(cursor.offset, segmentHeaderBytes);
}

/** The segment with its links; undefined for a file that was being recycled. */
async function openSegment(
  options: RecoveryOptions,
  name: string,
  epoch: number,
  seq: number,
): Promise<{ segment: Segment; links: Link[] } | undefined | 'lost'> {
  const { disk, dir } = options;
  const path = `${dir}/${name}`;
  const file = await disk.open(path, 'read');
  try {
    const bytes = Buffer.alloc(segmentHeaderBytes);
    await file.read(bytes, 0);
    const header = decodeSegmentHeader(bytes);
    if (!header) {
      await keepLostSegment(options, name);
      return 'lost';
    }
    if (header.epoch !== epoch || header.seq !== seq) return undefined;
    const segment = newSegment(epoch, seq, path, saltSeed(header.salt));
    segment.sealed = true;
    return { segment, links: await readLinks(file, segment.seed) };
  } finally {
    await file.close();
  }
}

async function readLinks(file: DiskFile, seed: number): Promise<Link[]> {
  const links: Link[] = [];
  const end = segmentHeaderBytes + linksMax * paddedBytes(linkBytes);
  const range = { seed, from: segmentHeaderBytes, end, chunkBytes: end, reuseChunk: true };
  const reader = new FrameReader(file, range);
  for (let step = await reader.next(); step?.kind === 'frame' && isLink(step); step = await reader.next()) {
    links.push(decodeLink(step.payload));
  }
  return links;
}

function isLink(frame: Frame): boolean {
  return (frame.flags & frameFlags.link) > 0 && frame.length === linkBytes;
}

/** Without a header no frame of the file can be told from garbage: the whole file is kept for a human. */
async function keepLostSegment({ disk, dir, onLostSegment }: RecoveryOptions, name: string): Promise<void> {
  const target = quarantineDir(dir);
  await disk.makeDirectory(target);
  await disk.rename(`${dir}/${name}`, `${target}/lost-${name}.data`);
  const note = { kind: 'gap', reason: 'segment header damaged', rows: 0, order: '0', bytes: 0, crc: 0 };
  await replaceWhole(disk, `${target}/lost-${name}.json`, [
    Buffer.from(`${JSON.stringify({ ...note, at: new Date().toISOString(), source: name })}\n`),
  ]);
  await disk.syncDirectory(dir);
  onLostSegment(name);
}

interface InnerGap {
  gap: Gap;
  before: Pick<Frame, 'commit' | 'flags'> | undefined;
  /** Commit of the frame behind it. */
  after: number;
}

/** Counts what waits, finds the end when it is not known, and sorts damage from a torn tail. */
async function walk(
  options: RecoveryOptions,
  segment: Segment,
  starts: [number, number],
  knownEnd: number | undefined,
): Promise<void> {
  const file = await options.disk.open(segment.path, 'read');
  const gaps: InnerGap[] = [];
  let tail: Gap | undefined;
  let before: InnerGap['before'];
  let lastCommit = 0;
  try {
    const end = knownEnd ?? (await file.size());
    const range = { seed: segment.seed, from: segmentHeaderBytes, end, chunkBytes: walkChunkBytes, reuseChunk: true };
    const reader = new FrameReader(file, range);
    for (let step = await reader.next(); step; step = await reader.next()) {
      if (step.kind === 'gap') {
        tail = step;
        continue;
      }
      if (tail) gaps.push({ gap: tail, before, after: step.commit });
      tail = undefined;
      before = { commit: step.commit, flags: step.flags };
      lastCommit = step.commit;
      segment.end = step.next;
      if (!(step.flags & frameFlags.link)) count(segment, step, starts[step.lane]);
    }
  } finally {
    await file.close();
  }
  if (knownEnd !== undefined) segment.end = knownEnd;
  const shippedTo = Math.min(starts[0], starts[1]);
  for (const inner of gaps) {
    if (inner.gap.to <= shippedTo) continue;
    if (knownEnd === undefined && isTornCommit(inner, lastCommit)) segment.gaps.push(inner.gap);
    else await options.onGap(segment, inner.gap);
  }
  // Without a known end the last gap is what an unfinished write left, or the stale bytes of an earlier use.
  if (tail && knownEnd !== undefined && tail.to > shippedTo) await options.onGap(segment, tail);
}

function count(segment: Segment, frame: Frame, start: number): void {
  addToShare(segment.total[frame.lane], frame);
  if (frame.offset >= start) addToShare(segment.waiting[frame.lane], frame);
}

/**
 * The sectors of one write reach the disk in any order, so the last commit, never acknowledged, may have a hole with
 * whole frames behind it. A hole is such a one when all of it lies inside the last commit.
 */
function isTornCommit({ before, after }: InnerGap, lastCommit: number): boolean {
  if (after !== lastCommit) return false;
  if (!before) return lastCommit === 0;
  return (
    before.commit === lastCommit || (before.commit === lastCommit - 1 && (before.flags & frameFlags.lastOfCommit) > 0)
  );
}

/** A new epoch for each start: names of segments are never used twice, whatever else was lost. */
export async function nextEpoch(disk: Disk, dir: string, epochMax: number, log: Log): Promise<number> {
  const path = `${dir}/epoch`;
  const text = (await readWhole(disk, path))?.toString('latin1').trim() ?? '';
  const stored = /^\d{1,10}$/.test(text) ? Number(text) : 0;
  const epoch = Math.max(stored, epochMax) + 1;
  try {
    await replaceWhole(disk, path, [Buffer.from(`${epoch}\n`)]);
  } catch (error) {
    // A full disk must not keep the start from shipping. Names and position tell the epoch too, once it is used.
    if (!isNoSpace(error)) throw error;
    log.warn('journal_epoch_not_written', { dir, epoch });
  }
  return epoch;
}

/** The bytes of a gap, for quarantine. */
export async function readGap(disk: Disk, segment: Segment, gap: Gap): Promise<Buffer> {
  const file = await disk.open(segment.path, 'read');
  const bytes = Buffer.alloc(gap.to - gap.from);
  const step = frameHeaderBytes * 1024;
  try {
    for (let at = 0; at < bytes.length; at += step) {
      // What cannot be read at all stays zeros.
      await file.read(bytes.subarray(at, at + step), gap.from + at).catch(() => 0);
    }
  } finally {
    await file.close();
  }
  return bytes;
}
