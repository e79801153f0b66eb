/**
 * Reads a journal directory for the commands of an operator, without a change and also while its worker runs: runs a
 * recovery on a disk that ignores every change.
 */
import { type Disk, type DiskFile, errorCode, realDisk, sizeOf } from './disk.ts';
import { readWriterId } from './identity.ts';
import { PositionFile, startOfJournal } from './position.ts';
import { type Frame, FrameReader, type Gap } from './reader.ts';
import { readHeader, recover } from './recovery.ts';
import { type LaneShare, parseSegmentName, saltSeed } from './segment.ts';

export interface SegmentReport {
  name: string;
  path: string;
  seed: number;
  /** Offset of the first frame, and the offset after the last frame. */
  start: number;
  end: number;
  /** Shares of the lanes: live, late. */
  waiting: [LaneShare, LaneShare];
  /** Offset of the first frame of each lane that ClickHouse does not have. */
  waitingFrom: [number, number];
}

export interface JournalInspection {
  dir: string;
  /** Undefined for a journal that never had a writer. */
  writer: number | undefined;
  /** Segments with frames that ClickHouse does not have, oldest first. */
  segments: SegmentReport[];
  /** Bytes of all files of segments, with spare ones. */
  fileBytes: number;
  /** Segments with a damaged header: none of their frames can be read. */
  lost: string[];
}

const readChunkBytes = 4 * 1024 * 1024;
const triesMax = 5;

export async function inspectJournal(dir: string, disk: Disk = realDisk): Promise<JournalInspection> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await inspectOnce(dir, disk);
    } catch (error) {
      // A running worker renames the files of confirmed segments.
      if (errorCode(error) !== 'ENOENT' || attempt === triesMax) throw error;
    }
  }
}

async function inspectOnce(dir: string, disk: Disk): Promise<JournalInspection> {
  const unchanged = ignoringChanges(disk);
  const lost: string[] = [];
  const { found: position = startOfJournal() } = await PositionFile.open(unchanged, dir);
  const onGap = async () => {};
  const onLostSegment = (name: string) => lost.push(name);
  const recovered = await recover({ disk: unchanged, dir, position, readOnly: true, onGap, onLostSegment });
  let fileBytes = 0;
  for (const name of await disk.list(dir)) {
    if (parseSegmentName(name) || /^spare-\d+$/.test(name)) fileBytes += await sizeOf(disk, `${dir}/${name}`);
  }
  const segments = recovered.segments.map(({ segment: { epoch, seq, path, seed, start, end, waiting }, starts }) => ({
    name: `${epoch}-${seq}`,
    path,
    seed,
    start,
    end,
    waiting,
    waitingFrom: starts,
  }));
  return { dir, writer: await readWriterId(dir, disk), segments, fileBytes, lost };
}

/**
 * Yields every frame of a segment and every range without a valid frame, in order. A payload is valid until the next
 * step.
 */
export async function* readSegment(
  { path, seed, start, end }: SegmentReport,
  disk: Disk = realDisk,
): AsyncGenerator<Frame | Gap> {
  const file = await disk.open(path, 'read');
  try {
    // A running worker may have packed the segment since the report, or recycled its file.
    const header = await readHeader(file);
    if (!header || header === 'newer' || saltSeed(header.salt) !== seed) return;
    const packed = header.packedEnd !== undefined;
    const to = packed ? await file.size() : end;
    const range = { seed, from: start, end: to, chunkBytes: readChunkBytes, reuseChunk: true, packed };
    const reader = new FrameReader(file, range);
    for (let step = await reader.next(); step; step = await reader.next()) yield step;
  } finally {
    await file.close();
  }
}

function ignoringChanges(disk: Disk): Disk {
  const nothing = async () => {};
  return {
    open: (path, mode) => (mode === 'read' ? disk.open(path, mode) : Promise.resolve(nowhere)),
    list: (dir) => disk.list(dir),
    rename: nothing,
    remove: nothing,
    makeDirectory: nothing,
    removeDirectory: nothing,
    syncDirectory: nothing,
    freeBytes: (dir) => disk.freeBytes(dir),
  };
}

const nowhere: DiskFile = {
  read: async () => 0,
  write: async () => {},
  sync: async () => {},
  size: async () => 0,
  truncate: async () => {},
  close: async () => {},
};
