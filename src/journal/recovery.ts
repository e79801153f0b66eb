/**
 * Reads the files of earlier starts: finds the segments that are not fully shipped, cuts torn tails, and copies damaged
 * ranges to the quarantine, so that every valid frame before and after them is shipped. A segment is not read when none
 * of its frames is shipped and the link of the next segment names its end and contents. Damage of such a segment is
 * found while it is shipped.
 *
 * An append that a crash interrupted was never acknowledged. None of its frames is shipped, and their heads are
 * overwritten, so that no later start finds a part of a message.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { StartError } from '../base/errors.ts';
import { type Disk, type DiskFile, errorCode, isNoSpace, readAround, replaceWhole } from './disk.ts';
import { eraseHeads } from './erase-heads.ts';
import type { LaneCursor, Position } from './position.ts';
import { lostSegmentNote, quarantineDir } from './quarantine.ts';
import { type Frame, FrameReader, type Gap, type ReadRange } from './reader.ts';
import {
  addToShare,
  decodeLink,
  decodeSegmentHeader,
  type FoundHeader,
  frameFlags,
  frameHeaderBytes,
  isLink,
  type Link,
  lanes,
  linkBytes,
  linksMax,
  paddedBytes,
  parseSegmentName,
  saltSeed,
  segmentHeaderBytes,
} from './segment.ts';
import { newSegment, openToRead, type Segment } from './waiting-segment.ts';

interface RecoveryDeps {
  disk: Disk;
  dir: string;
  /** The clock of the installation, by whose times entries of the quarantine expire. */
  clock?: Clock;
  position: Position;
  /** True: recovery changes nothing on the disk. */
  readOnly?: boolean;
  /** Keeps the bytes of a damaged range. */
  onGap: (segment: Segment, gap: Gap) => Promise<void>;
  /** Called for a segment with an unreadable header; the file was moved to quarantine. */
  onLostSegment: (name: string) => void;
  /** Called when an interrupted append was dropped. */
  onTornCommit?: (segment: Segment, frames: number) => void;
  /** Called when the heads of a dropped append could not be overwritten. */
  onNotErased?: (segment: Segment, error: unknown) => void;
}

interface FoundSegment {
  segment: Segment;
  /** Offset at which each lane starts in the segment. */
  starts: [number, number];
}

interface Recovered {
  /** Segments with frames to ship, oldest first. */
  segments: FoundSegment[];
  /** Files without frames to ship. */
  sparePaths: string[];
  orderMax: bigint;
}

const walkChunkBytes = 4 * 1024 * 1024;

export async function recover(deps: RecoveryDeps): Promise<Recovered> {
  const { disk, dir, position } = deps;
  const result: Recovered = { segments: [], sparePaths: [], orderMax: position.orderHigh };
  if (!deps.readOnly) await noteLostSegments(deps);
  const candidates: FoundSegment[] = [];
  const links = new Map<string, Link>();
  for (const { name, epoch, seq } of await segmentFiles(disk, dir)) {
    const path = `${dir}/${name}`;
    if (lanes.every((lane) => hasPassed(epoch, seq, position.cursors[lane]))) {
      result.sparePaths.push(path);
      continue;
    }
    const opened = await openSegment(deps, name, epoch, seq);
    if (opened === 'lost') continue;
    if (!opened) {
      result.sparePaths.push(path);
      continue;
    }
    const { start } = opened.segment;
    const starts = lanes.map((lane) => laneStart(epoch, seq, position.cursors[lane], start)) as [number, number];
    candidates.push({ segment: opened.segment, starts });
    for (const link of opened.links) links.set(`${link.epoch}-${link.seq}`, link);
  }
  // Newest first: frames of a later start prove that this start already dropped an earlier interrupted append.
  let epochWithFrames = 0;
  for (const candidate of candidates.reverse()) {
    const { segment, starts } = candidate;
    const mayBeTorn = segment.epoch >= epochWithFrames;
    const link = links.get(`${segment.epoch}-${segment.seq}`);
    if (segment.packedBytes !== undefined) {
      await walk(deps, segment, starts, { knownEnd: segment.end, mayBeTorn: false }, result);
    } else if (link && starts.every((start) => start <= segment.start || start >= link.end)) {
      segment.end = link.end;
      segment.total = link.shares;
      // Of a segment that is not read, each lane waits completely or not at all.
      for (const lane of lanes) if (starts[lane] < link.end) segment.waiting[lane] = { ...link.shares[lane] };
    } else {
      await walk(deps, segment, starts, { knownEnd: link?.end, mayBeTorn: !link && mayBeTorn }, result);
    }
    for (const { orderMax } of segment.total) if (orderMax > result.orderMax) result.orderMax = orderMax;
    if (segment.total[0].frames + segment.total[1].frames > 0) {
      epochWithFrames = Math.max(epochWithFrames, segment.epoch);
    }
    if (segment.waiting[0].frames + segment.waiting[1].frames > 0) result.segments.unshift(candidate);
    else result.sparePaths.push(segment.path);
  }
  return result;
}

export async function segmentFiles(disk: Disk, dir: string): Promise<{ name: string; epoch: number; seq: number }[]> {
  const files: { name: string; epoch: number; seq: number }[] = [];
  for (const name of await disk.list(dir)) {
    const id = parseSegmentName(name);
    if (id) files.push({ name, ...id });
  }
  return files.sort((a, b) => a.epoch - b.epoch || a.seq - b.seq);
}

function hasPassed(epoch: number, seq: number, cursor: LaneCursor): boolean {
  return epoch < cursor.epoch || (epoch === cursor.epoch && seq < cursor.seq);
}

/** Returns the offset of the first unconfirmed frame of a lane; infinity when the cursor is past the segment. */
function laneStart(epoch: number, seq: number, cursor: LaneCursor, start: number): number {
  if (hasPassed(epoch, seq, cursor)) return Number.POSITIVE_INFINITY;
  return epoch === cursor.epoch && seq === cursor.seq ? Math.max(cursor.offset, start) : start;
}

/** Returns the segment with its links; undefined for a file that was being recycled. */
async function openSegment(
  deps: RecoveryDeps,
  name: string,
  epoch: number,
  seq: number,
): Promise<{ segment: Segment; links: Link[] } | undefined | 'lost'> {
  const { disk, dir } = deps;
  const path = `${dir}/${name}`;
  let file: DiskFile | undefined;
  try {
    file = await disk.open(path, 'read');
    const header = await readHeader(file);
    if (header === 'newer') {
      throw new StartError(`${path} was written by a later version of Millrace: start that version.`);
    }
    if (!header) {
      await keepLostSegment(deps, name, 'segment header damaged');
      return 'lost';
    }
    if (header.epoch !== epoch || header.seq !== seq) return undefined;
    const segment = newSegment(epoch, seq, path, saltSeed(header.salt), header.start);
    segment.sealed = true;
    if (header.packedEnd !== undefined) {
      segment.packedBytes = await file.size();
      segment.end = header.packedEnd;
      segment.spoiled = true;
    }
    return { segment, links: await readLinks(file, segment) };
  } catch (error) {
    // One bad sector (or one bad inode) costs at most its segment; the rest of the journal is shipped.
    if (errorCode(error) !== 'EIO') throw error;
    await keepLostSegment(deps, name, 'segment cannot be read');
    return 'lost';
  } finally {
    await file?.close();
  }
}

/** An unreadable sector reads as zeros: the other copy is in another sector. */
export async function readHeader(file: DiskFile): Promise<FoundHeader> {
  const bytes = Buffer.alloc(segmentHeaderBytes);
  await readAround(file, bytes, 0);
  return decodeSegmentHeader(bytes);
}

async function readLinks(
  file: DiskFile,
  { seed, start, packedBytes }: Pick<Segment, 'seed' | 'start' | 'packedBytes'>,
): Promise<Link[]> {
  const links: Link[] = [];
  const packed = packedBytes !== undefined;
  const end = packedBytes ?? start + linksMax * paddedBytes(linkBytes);
  const chunkBytes = Math.min(end, walkChunkBytes);
  const reader = new FrameReader(file, { seed, from: start, end, chunkBytes, reuseChunk: true, packed });
  for (let step = await reader.next(); step?.kind === 'frame' && isWholeLink(step); step = await reader.next()) {
    links.push(decodeLink(step.payload));
  }
  return links;
}

function isWholeLink(frame: Frame): boolean {
  return isLink(frame) && frame.length === linkBytes;
}

/** Without a header no frame can be verified, so the whole file is kept for an operator. */
async function keepLostSegment(deps: RecoveryDeps, name: string, reason: string): Promise<void> {
  const { disk, dir, onLostSegment, readOnly } = deps;
  if (!readOnly) {
    const target = quarantineDir(dir);
    await disk.makeDirectory(target);
    await disk.rename(`${dir}/${name}`, `${target}/lost-${name}.data`);
    await disk.syncDirectory(target);
    await disk.syncDirectory(dir);
    await noteLostSegment(deps, name, reason);
  }
  onLostSegment(name);
}

/** A full disk does not take the note, and must not prevent shipping: the next start makes the note. */
async function noteLostSegment(deps: RecoveryDeps, name: string, reason: string): Promise<void> {
  const { disk, dir, clock = systemClock } = deps;
  const note = lostSegmentNote(name, reason, new Date(clock.now()));
  try {
    await replaceWhole(disk, `${quarantineDir(dir)}/lost-${name}.json`, [note]);
  } catch (error) {
    if (!isNoSpace(error)) throw error;
  }
}

/** Makes the notes that an earlier start could not make, because the disk was full or the process was killed. */
async function noteLostSegments(deps: RecoveryDeps): Promise<void> {
  const names = new Set(await deps.disk.list(quarantineDir(deps.dir)));
  for (const file of names) {
    const name = /^lost-(.+)\.data$/.exec(file)?.[1];
    if (name === undefined || names.has(`lost-${name}.json`)) continue;
    await noteLostSegment(deps, name, 'segment could not be read');
    deps.onLostSegment(name);
  }
}

interface InnerGap {
  gap: Gap;
  before: Pick<Frame, 'commit' | 'flags'> | undefined;
  /** Commit of the frame after the gap. */
  after: number;
}

/** Counts waiting frames, finds an unknown end, and separates damage from an interrupted commit. */
async function walk(
  deps: RecoveryDeps,
  segment: Segment,
  starts: [number, number],
  { knownEnd, mayBeTorn }: { knownEnd: number | undefined; mayBeTorn: boolean },
  result: Pick<Recovered, 'orderMax'>,
): Promise<void> {
  const gaps: InnerGap[] = [];
  let tail: Gap | undefined;
  let before: InnerGap['before'];
  /** Frames of the commit that is being read; `segment.end` is the start of the commit or of the gap before it. */
  let commit: Omit<Frame, 'payload'>[] = [];
  const countCommit = () => {
    for (const frame of commit) if (!isLink(frame)) count(segment, frame, starts[frame.lane]);
    segment.end = commit.at(-1)?.next ?? segment.end;
    commit = [];
  };
  const { file, packedBytes } = await openToRead(deps.disk, segment);
  const packed = packedBytes !== undefined;
  try {
    if (deps.readOnly) await refusePackedMeanwhile(file, packed, segment.path);
    const end = packedBytes ?? knownEnd ?? (await file.size());
    const { seed, start } = segment;
    const range: ReadRange = { seed, from: start, end, chunkBytes: walkChunkBytes, reuseChunk: true, packed };
    const reader = new FrameReader(file, range);
    for (let step = await reader.next(); step; step = await reader.next()) {
      if (step.kind === 'gap') {
        tail = step;
        continue;
      }
      if (tail) gaps.push({ gap: tail, before, after: step.commit });
      tail = undefined;
      before = { commit: step.commit, flags: step.flags };
      if (commit.length > 0 && commit[0]!.commit !== step.commit) countCommit();
      const { payload: _, ...frame } = step;
      commit.push(frame);
    }
  } finally {
    await file.close();
  }
  const torn = mayBeTorn && wasCutShort(commit, gaps, deps.position.orderHigh);
  if (torn) {
    for (const { order } of commit) if (order > result.orderMax) result.orderMax = order;
    const last = commit[0]!.commit;
    while (gaps.length > 0 && gaps.at(-1)!.after === last) gaps.pop();
    await dropCommit(deps, segment, commit);
  } else {
    countCommit();
  }
  if (knownEnd !== undefined) segment.end = knownEnd;
  const shippedTo = packed ? 0 : Math.min(starts[0], starts[1]);
  for (const { gap } of gaps) if (gap.to > shippedTo) await deps.onGap(segment, gap);
  // Without a known end the last gap is the rest of an unfinished write, or stale bytes of an earlier use.
  if (tail && knownEnd !== undefined && tail.to > shippedTo) await deps.onGap(segment, tail);
}

/** A running owner may have packed the segment since its header was read; the file then counts as removed. */
async function refusePackedMeanwhile(file: DiskFile, packed: boolean, path: string): Promise<void> {
  const header = await readHeader(file);
  if (!header || header === 'newer' || (header.packedEnd !== undefined) === packed) return;
  throw Object.assign(new Error(`${path} was replaced while it was read`), { code: 'ENOENT' });
}

function count(segment: Segment, frame: Omit<Frame, 'payload'>, start: number): void {
  addToShare(segment.total[frame.lane], frame);
  if (frame.offset >= start) addToShare(segment.waiting[frame.lane], frame);
}

/**
 * The sectors of one write reach the disk in any order, so the last commit before a crash may lack any of its frames.
 * Such a commit was not acknowledged. A commit that the position names as durable is damaged, not interrupted: its
 * remaining frames are shipped.
 */
function wasCutShort(commit: readonly Omit<Frame, 'payload'>[], gaps: readonly InnerGap[], orderHigh: bigint): boolean {
  const last = commit.at(-1);
  if (!last || commit.some(({ order }) => order > 0n && order <= orderHigh)) return false;
  if ((last.flags & frameFlags.lastOfCommit) === 0) return true;
  return gaps.some((gap) => isInside(gap, last.commit));
}

/** True when the whole gap lies inside this commit, the last one. */
function isInside({ before, after }: InnerGap, commit: number): boolean {
  if (after !== commit) return false;
  if (!before) return commit === 0;
  return before.commit === commit || (before.commit === commit - 1 && (before.flags & frameFlags.lastOfCommit) > 0);
}

async function dropCommit(
  { disk, readOnly, onTornCommit, onNotErased }: RecoveryDeps,
  segment: Segment,
  commit: readonly Omit<Frame, 'payload'>[],
): Promise<void> {
  onTornCommit?.(segment, commit.length);
  if (readOnly) return;
  try {
    await eraseHeads(
      disk,
      segment.path,
      commit.map(({ offset }) => offset),
    );
  } catch (error) {
    onNotErased?.(segment, error);
  }
}

/** Returns the bytes of a gap, for quarantine. */
export async function readGap(disk: Disk, segment: Segment, gap: Gap): Promise<Buffer> {
  const file = await disk.open(segment.path, 'read');
  const bytes = Buffer.alloc(gap.to - gap.from);
  const step = frameHeaderBytes * 1024;
  try {
    for (let at = 0; at < bytes.length; at += step) {
      // Unreadable bytes stay zeros.
      await file.read(bytes.subarray(at, at + step), gap.from + at).catch(() => 0);
    }
  } finally {
    await file.close();
  }
  return bytes;
}
