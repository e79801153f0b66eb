/**
 * Opens the journal of a directory: takes the directory, reads what is durable, and repairs what a crash left. `adopt`
 * opens the journal of a worker that no longer exists, for shipping only.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { messageOf, StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { Backlog } from './backlog.ts';
import { Damage } from './damage.ts';
import { type Disk, errorCode, realDisk } from './disk.ts';
import { keepInstallation } from './identity.ts';
import { Journal, type JournalDeps } from './journal.ts';
import { Owner } from './owner.ts';
import { SegmentPool } from './pool.ts';
import { type LaneCursor, PositionFile, readPosition, startOfJournal } from './position.ts';
import { Quarantine } from './quarantine.ts';
import { recover, segmentFiles } from './recovery.ts';
import { late, live } from './segment.ts';
import { ShardBacklog } from './shard-backlog.ts';
import { ShipNotes } from './ship-notes.ts';
import { Suspects } from './suspects.ts';
import { Writer } from './writer.ts';

export interface OpenJournalDeps {
  dir: string;
  log: Log;
  metrics?: Metrics;
  disk?: Disk;
  clock?: Clock;
  /** A simulation passes its own. */
  scheduler?: Scheduler;
  segmentBytes: number;
  /** `none`: an append is not synced; for `ingest.ack: memory`. */
  durable?: 'sync' | 'none';
  /** True for the directory of a worker that no longer exists: its frames are shipped, and nothing is appended. */
  adopt?: boolean;
  /** Free bytes that a new segment must leave on the disk. */
  freeBytesMin?: number;
  quarantineBytesMax?: number;
  /** Rows that the store refused, until they are stored or proven bad. */
  suspectBytesMax?: number;
  /** Spare files that are kept for the next segments. */
  sparesMax?: number;
  /**
   * True when the caller holds the lock of the data directory: an earlier owner of this boot of this host has ended.
   * Otherwise an earlier owner gets time to notice this one, and its files are not recycled.
   */
  locked?: boolean;
  /** The id of the installation whose devices the rows are of; '' or absent: unknown, and not compared. */
  installation?: string | undefined;
  /** Bytes of shipped frames in full segments, above which segments are packed. */
  idleBytesMax?: number;
  /**
   * Called when another process has taken the directory: this process must end. An append rejects for this reason as
   * well.
   */
  onLost?: (reason: string) => void;
}

/** Throws a StartError that names the directory when the disk or a file of a later version prevents the opening. */
export async function openJournal(deps: OpenJournalDeps): Promise<Journal> {
  try {
    return await open(deps);
  } catch (error) {
    // A bug has no system error code and keeps its stack.
    if (error instanceof StartError || errorCode(error) === '') throw error;
    throw new StartError(`The journal ${deps.dir} cannot be opened: ${messageOf(error)}.`);
  }
}

/** What is opened before the frames are read. */
type OpenedDeps = Pick<
  JournalDeps,
  'positionFile' | 'quarantine' | 'suspects' | 'shardBacklog' | 'damage' | 'owner' | 'notes'
>;

async function open(deps: OpenJournalDeps): Promise<Journal> {
  const { dir, log, disk = realDisk, clock = systemClock, scheduler = systemScheduler, locked = false } = deps;
  await disk.makeDirectory(dir);
  // The owner's id is written before frames are read, so every frame that an earlier owner acknowledged is found.
  const epochMax = await newestEpoch(disk, dir);
  const owner = await Owner.take({ disk, dir, clock, scheduler, log, epochMax, locked });
  for (const name of await disk.list(dir)) if (name.endsWith('.tmp')) await disk.remove(`${dir}/${name}`);
  const quarantine = await Quarantine.open(disk, dir, deps.quarantineBytesMax ?? 1024 ** 3, clock);
  const damage = new Damage(disk, log, quarantine, deps.metrics);
  const suspects = await Suspects.open(disk, dir, deps.suspectBytesMax ?? 64 * 1024 ** 2, (name, bytes) =>
    damage.keep(name, 0, bytes),
  );
  const shardBacklog = await ShardBacklog.open(disk, dir, (name, bytes) => damage.keep(name, 0, bytes));
  const notes = await ShipNotes.open(disk, dir, log, owner);
  const positionFile = await PositionFile.open(disk, dir);
  try {
    return await openFrames(deps, { positionFile, quarantine, suspects, shardBacklog, damage, owner, notes });
  } catch (error) {
    // An orphan journal is opened again until that succeeds: each failed opening would keep a descriptor.
    await positionFile.close().catch(() => {});
    throw error;
  }
}

/** Recovers the frames that wait, and makes the writer of new ones. */
async function openFrames(deps: OpenJournalDeps, opened: OpenedDeps): Promise<Journal> {
  const { dir, log, adopt = false, disk = realDisk, clock = systemClock, scheduler = systemScheduler } = deps;
  const { positionFile, damage, owner, notes } = opened;
  const position = positionFile.found ?? startOfJournal();
  const found = await recover({
    disk,
    dir,
    clock,
    position,
    onGap: (segment, gap) => damage.gap(segment, gap),
    onLostSegment: (name) => damage.lost(name),
    onTornCommit: (segment, frames) => log.info('journal_torn_commit', { segment: segment.path, frames }),
    onNotErased: (segment, error) =>
      log.warn('journal_torn_commit_not_erased', { segment: segment.path, reason: messageOf(error) }),
  });
  await notes.keepUpTo(found.orderMax);
  const backlog = new Backlog(disk, (segment, gap) => damage.gap(segment, gap));
  backlog.startAt(later(position.cursors[0], position.cursors[1]));
  for (const { segment, starts } of found.segments) {
    if (owner.contested) segment.spoiled = true;
    backlog.addRecovered(segment, starts);
  }
  if (deps.installation) {
    await keepInstallation(
      { disk, dir, isEmpty: backlog.empty && opened.suspects.entries === 0 && opened.shardBacklog.isEmpty },
      deps.installation,
    );
  }
  let writer: Writer | undefined;
  let pool: SegmentPool | undefined;
  const { segmentBytes, metrics } = deps;
  if (!adopt) {
    const { durable = 'sync', sparesMax = 4, freeBytesMin = 0 } = deps;
    const { epoch } = owner;
    pool = new SegmentPool({ disk, dir, log, clock, scheduler, epoch, segmentBytes, freeBytesMin, sparesMax, durable });
    for (const name of await disk.list(dir)) if (/^spare-\d+$/.test(name)) await pool.adoptSpare(`${dir}/${name}`);
    for (const path of found.sparePaths) {
      if (owner.contested) await disk.remove(path);
      else await pool.adoptSpare(path);
    }
    pool.prepareAhead();
    writer = new Writer({ log, clock, pool, backlog, owner, disk, scheduler, segmentBytes, orderMax: found.orderMax });
  }
  const free = await disk.freeBytes(dir);
  const { idleBytesMax = 4 * segmentBytes, onLost, freeBytesMin = 0 } = deps;
  const settings = { segmentBytes, idleBytesMax, freeBytesMin, onLost };
  const epoch = adopt ? undefined : owner.epoch;
  const world = { dir, log, disk, clock };
  const journal = new Journal(
    { ...world, epoch, backlog, ...opened, writer, pool, free, ...settings },
    found.orderMax,
    metrics,
  );
  const frames = backlog.lane(live).frames + backlog.lane(late).frames;
  if (frames > 0) log.info('journal_recovered', { dir, segments: found.segments.length, frames });
  return journal;
}

/** Returns the highest epoch in segments and the position. */
async function newestEpoch(disk: Disk, dir: string): Promise<number> {
  const cursors = (await readPosition(disk, dir))?.cursors ?? [];
  const files = await segmentFiles(disk, dir);
  return [...cursors, ...files].reduce((max, { epoch }) => Math.max(max, epoch), 0);
}

function later(a: LaneCursor, b: LaneCursor): LaneCursor {
  return (a.epoch - b.epoch || a.seq - b.seq || a.offset - b.offset) > 0 ? a : b;
}
