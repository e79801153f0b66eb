/**
 * Keeps the file of known devices current. The primary of an instance owns one writer, and no other process writes the
 * file. The writer follows the log of credential changes in PostgreSQL and reads it once a second while PostgreSQL
 * answers. The writer reads all devices when there is no file, when the file is of another database, when the database
 * lacks the mark of the file, or when the log may no longer reach back to its cursor. A mark is committed after the
 * changes were read and before they are appended. An append is durable before the cursor moves, so a crash repeats
 * changes and never misses one. A new file replaces the old one by a rename when it has the changes that were committed
 * during the scan; until then the old file is kept current too.
 */
import { randomBytes } from 'node:crypto';
import { dirname } from 'node:path';
import type { Clock } from '../../base/clock.ts';
import { Fault, messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { Metrics } from '../../base/metrics/metrics.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { type Disk, type DiskFile, isNoSpace, realDisk } from '../../journal/disk.ts';
import type { Queries } from '../../postgres/client.ts';
import { isAway } from '../../postgres/postgres-error.ts';
import {
  changesSince,
  isLater,
  type LoggedChange,
  type LogPlace,
  placeAt,
  readSettled,
} from '../sql/credential-log-store.ts';
import { insertMark, nextMark, readSettledOfFile } from '../sql/known-file-store.ts';
import {
  findUnchanged,
  listProfileVersions,
  lookUpLogins,
  lookUpProfileTransports,
  scanLogins,
} from '../sql/look-up-store.ts';
import {
  blockBytesMax,
  blockHeadBytes,
  Digester,
  decodeBlockHead,
  decodeHeader,
  decodeMark,
  decodeRecordHead,
  encodeBlock,
  encodeDevice,
  encodeGone,
  encodeHeader,
  encodeMark,
  encodeProfile,
  endBytesMax,
  headerBytes,
  isDamagedEnd,
  isOfOtherHistory,
  isWholeBlock,
  markBytes,
  readAt,
  timelineOf,
} from './known-devices-file.ts';

interface KnownDevicesWriterDeps {
  path: string;
  postgres: Queries;
  /** Returns the 16 bytes that identify the database; the same on every host and after every restart. */
  source: () => Promise<Buffer>;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  disk?: Disk;
  /** A file that has doubled and grown by this many bytes is rewritten from a scan. */
  growthBytes?: number;
  /** Changes written ahead that are remembered. */
  aheadMax?: number;
}

/** Where in the log of changes a file is complete, and since when. */
interface Place {
  cursor: bigint;
  at: number;
}

/** A file that is open for writing. */
interface OpenFile extends Place {
  /** What the file has of the log: later than `cursor` while an old transaction runs. */
  seen: LogPlace;
  file: DiskFile;
  digester: Digester;
  source: Buffer;
  timeline: number;
  /** The last mark that the file has; 0 = none. */
  mark: number;
  bytes: number;
  base: number;
  /** Ids of changes after `seen` that the file has, because they were written ahead of others. */
  ahead: Set<number>;
  /** Where the next changes begin that may be written ahead; undefined = at `seen`. */
  aheadFrom: LogPlace | undefined;
  /** True when records follow the last block that has the present place. */
  hasNewer: boolean;
  /** The versions of the profiles that the file has. */
  profiles: Map<string, number>;
  profilesCheckedMs: number;
}

const otherDatabase = 'another database answers than at the beginning of the scan';
/** Passes over the changes since a scan. A pass reads what was changed during the one before. */
const missedPassesMax = 8;
const noId = '00000000-0000-0000-0000-000000000000';

export class KnownDevicesWriter {
  readonly #deps: KnownDevicesWriterDeps;
  readonly #disk: Disk;
  readonly #written;
  #file: OpenFile | undefined;
  /** Monotonic time at which the file was known to be complete. */
  #currentMs: number | undefined;
  /** Stops the timer of the next round. */
  #stopTimer = () => {};
  #running: Promise<void> | undefined;
  /** The database that answered last; read again after each failure, because another database may answer then. */
  #source: Buffer | undefined;
  #failure: string | undefined;
  /** Monotonic time before which no new file is begun. */
  #rebuildFromMs = Number.NEGATIVE_INFINITY;
  #stopped = false;

  constructor(deps: KnownDevicesWriterDeps) {
    this.#deps = deps;
    this.#disk = deps.disk ?? realDisk;
    const { metrics, clock } = deps;
    this.#written = metrics.counter('known_devices_written_total', 'Records written to the file of known devices.');
    metrics.observed(
      'known_devices_age_seconds',
      'Time since the file of known devices was up to date; -1 before the first time in this run.',
      () => (this.#currentMs === undefined ? -1 : (clock.monotonic() - this.#currentMs) / 1000),
    );
    metrics.observed('known_devices_file_bytes', 'Size of the file of known devices.', () => this.#file?.bytes ?? 0);
  }

  /** Returns at once; PostgreSQL may be unavailable. */
  start(): void {
    this.#running = this.#round().finally(() => {
      if (!this.#stopped) this.#stopTimer = systemScheduler.after(limits.credentialPollMs, () => this.start());
    });
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopTimer();
    await this.#running;
    await this.#file?.file.close();
    this.#file = undefined;
  }

  async #round(): Promise<void> {
    const { log, clock } = this.#deps;
    // What is committed while the round reads may be missing in the file.
    const beganMs = clock.monotonic();
    let isRebuilding = false;
    try {
      if (!(await this.#follow())) {
        if (beganMs < this.#rebuildFromMs) return;
        isRebuilding = true;
        await this.#rebuild();
      }
      this.#currentMs = beganMs;
      if (this.#failure !== undefined) log.info('known_devices_written_again');
      this.#failure = undefined;
    } catch (error) {
      this.#source = undefined;
      // An error of the disk has a system code, as a lost connection has before it is made a Fault.
      if (error instanceof Fault && isAway(error)) return;
      if (isRebuilding) this.#rebuildFromMs = clock.monotonic() + limits.knownRebuildPauseMs;
      const reason = messageOf(error);
      if (this.#failure !== reason) log.warn('known_devices_unwritten', { reason });
      this.#failure = reason;
    }
  }

  /** Appends the changes since the cursor. Returns false when only a new file can be current. */
  async #follow(): Promise<boolean> {
    const { postgres, clock } = this.#deps;
    this.#file ??= await this.#open();
    const file = this.#file;
    if (!file) return false;
    // When the round ends, the file has all changes that were committed before this time.
    const now = clock.now();
    const settled = await readSettledOfFile(postgres, file.digester.file);
    this.#source ??= await this.#deps.source();
    if (isOfOtherHistory(settled, file) || settled.next < file.seen.next) {
      // A file whose mark the database lacks may have changes that the database lost, and a worker cannot compare the
      // mark while PostgreSQL does not answer. Any other file answers until there is a new one, because a standby that
      // took over may not answer steadily yet.
      if (settled.mark < file.mark) await this.#abandon(file);
      return false;
    }
    if (!file.source.equals(this.#source)) return false;
    const ageMs = now - file.at;
    if (ageMs > limits.credentialChangesKeptMs / 2 || ageMs < -limits.credentialChangesKeptMs / 2) return false;
    // The cursor moves with the last block: blocks lost in a crash are read from the log again.
    for await (const records of this.#changes(file, settled)) {
      if (!(await this.#append(file, records, file))) return false;
    }
    const profiles = await this.#changedProfiles(file);
    const isChanged = file.hasNewer || profiles.length > 0;
    // A block without records only keeps the cursor recent, and is written rarely.
    noteSeen(file, settled);
    // After the clock was set back, later changes would seem to be older than the file.
    const isRecent = now >= file.at && now - file.at < limits.knownMarkMs;
    if (!isChanged && isRecent) file.cursor = settled.transaction;
    else if (!(await this.#append(file, profiles, { cursor: settled.transaction, at: now }))) return false;
    return file.bytes < file.base * 2 + (this.#deps.growthBytes ?? limits.knownGrowthBytes);
  }

  /**
   * Gives the records of the changes until `settled`, a page at a time: a million changes at once would be 200 MB.
   * While pages follow, changes of other devices go ahead of new devices: such a change may revoke a credential.
   */
  async *#changes(file: OpenFile, settled: LogPlace): AsyncGenerator<Buffer[]> {
    const { postgres, clock } = this.#deps;
    const { aheadMax = limits.knownAheadMax } = this.#deps;
    let aheadMs = Number.NEGATIVE_INFINITY;
    for await (const page of changesSince(postgres, file.seen, limits.knownPageRows, settled)) {
      const isDue = clock.monotonic() - aheadMs >= limits.knownAheadMs && file.ahead.size <= aheadMax / 2;
      if (page.place && isDue) {
        yield* this.#changesAhead(file, aheadMax);
        aheadMs = clock.monotonic();
      }
      const changes = page.changes.filter(({ id }) => !file.ahead.delete(id));
      if (changes.length > 0) yield await this.#recordsOf(file, changes);
      // A round that fails later goes on from here.
      if (page.place) noteSeen(file, page.place);
    }
  }

  /** Gives the records of the changes since the last call, except those of new devices. */
  async *#changesAhead(file: OpenFile, aheadMax: number): AsyncGenerator<Buffer[]> {
    const { postgres } = this.#deps;
    const settled = await readSettled(postgres);
    const from = file.aheadFrom ?? file.seen;
    for await (const page of changesSince(postgres, from, limits.knownPageRows, settled)) {
      const ids = page.changes.map(({ credentialsId }) => credentialsId);
      const unchanged = ids.length === 0 ? undefined : await findUnchanged(postgres, ids);
      const changed = page.changes.filter((change) => {
        return unchanged?.get(change.credentialsId) !== change.deviceId && !file.ahead.has(change.id);
      });
      if (changed.length > 0) yield await this.#recordsOf(file, changed);
      // Reached after the append has succeeded.
      for (const { id } of changed) file.ahead.add(id);
      file.aheadFrom = page.place ?? settled;
      if (file.ahead.size >= aheadMax) return;
    }
  }

  /** Returns records of what the credentials of the changes are now. */
  async #recordsOf({ digester }: OpenFile, changes: LoggedChange[]): Promise<Buffer[]> {
    const ids = [...new Set(changes.map(({ credentialsId }) => credentialsId))];
    const logins = await lookUpLogins(this.#deps.postgres, ids);
    const found = new Set(logins.map(({ credentialsId }) => credentialsId));
    const gone = ids.filter((id) => !found.has(id)).map((id) => encodeGone(digester.credentials(id)));
    return [...gone, ...logins.map((login) => encodeDevice(login, digester))];
  }

  /** Returns the profiles that the file lacks. Profile changes are not in the log, and profiles are few. */
  async #changedProfiles(file: OpenFile): Promise<Buffer[]> {
    const { postgres, clock } = this.#deps;
    if (clock.monotonic() - file.profilesCheckedMs < limits.knownProfilesCheckMs) return [];
    const versions = await listProfileVersions(postgres);
    const changed = versions.filter(({ id, version }) => file.profiles.get(id) !== version).map(({ id }) => id);
    const records: Buffer[] = [];
    for (let i = 0; i < changed.length; i += limits.knownPageRows) {
      const profiles = await lookUpProfileTransports(postgres, changed.slice(i, i + limits.knownPageRows));
      for (const profile of profiles) records.push(encodeProfile(profile));
    }
    file.profiles = new Map(versions.map(({ id, version }) => [id, version]));
    file.profilesCheckedMs = clock.monotonic();
    return records;
  }

  /**
   * Appends records, which are durable when this resolves. The blocks, and the file from then on, have this place.
   * Returns false when the database lacks the mark of the file.
   */
  async #append(file: OpenFile, records: Buffer[], place: Place): Promise<boolean> {
    const [{ cursor, at }, hasNewer] = [place, place === file];
    const mark = await nextMark(this.#deps.postgres, file.digester.file, file.mark);
    if (mark === undefined) return false;
    // Also when only a part of the records can be written: the file may have this mark from here on.
    file.mark = mark;
    try {
      for (const block of inBlocks([encodeMark(mark), ...records]))
        await this.#write(file, encodeBlock(block, { cursor, at, base: file.base }));
      this.#written.add(records.length);
    } catch (error) {
      Object.assign(file, nothingWritten());
      // A new file that could not be written is removed by its maker.
      if (file !== this.#file) throw error;
      if (!isNoSpace(error)) await this.#abandon(file);
      else await file.file.truncate(file.bytes).catch(() => {});
      throw error;
    }
    Object.assign(file, { cursor, at, hasNewer });
    return true;
  }

  async #write(file: OpenFile, block: Buffer): Promise<void> {
    await file.file.write([block], file.bytes);
    await file.file.sync();
    file.bytes += block.length;
  }

  /** Removes a file that may lack changes. After an I/O error a failed sync may have dropped earlier writes. */
  async #abandon({ file }: OpenFile): Promise<void> {
    this.#file = undefined;
    await file.close().catch(() => {});
    await this.#disk.remove(this.#deps.path).catch(() => {});
    await this.#disk.syncDirectory(dirname(this.#deps.path)).catch(() => {});
  }

  /** Opens the file of an earlier run, cut after its last whole block. Returns undefined when no file can be used. */
  async #open(): Promise<OpenFile | undefined> {
    const { path, log } = this.#deps;
    let file: DiskFile;
    try {
      file = await this.#disk.open(path, 'read');
      await file.close();
      file = await this.#disk.open(path, 'write');
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code;
      if (code === 'ENOENT') return undefined;
      // The file belongs to another user, as after a copy: a new file takes its place.
      if (code !== 'EACCES' && code !== 'EPERM') throw error;
      log.warn('known_devices_file_damaged', { reason: messageOf(error) });
      return undefined;
    }
    try {
      const header = decodeHeader(await readAt(file, 0, headerBytes));
      const size = await file.size();
      const open: OpenFile | undefined = header && {
        file,
        digester: new Digester(header.key),
        source: header.source,
        timeline: header.timeline,
        mark: 0,
        bytes: headerBytes,
        base: 0,
        cursor: 0n,
        seen: placeAt(0n),
        hasNewer: true,
        at: 0,
        ...nothingWritten(),
      };
      while (open && open.bytes + blockHeadBytes <= size) {
        const head = decodeBlockHead(await readAt(file, open.bytes, blockHeadBytes));
        if (head.bytes > blockBytesMax || open.bytes + blockHeadBytes + head.bytes > size) break;
        const block = await readAt(file, open.bytes, blockHeadBytes + head.bytes);
        if (!isWholeBlock(block)) break;
        if (head.bytes > 0 && decodeRecordHead(block, blockHeadBytes)?.kind === 'mark') {
          open.mark = decodeMark(block, blockHeadBytes);
        }
        Object.assign(open, { cursor: head.cursor, seen: placeAt(head.cursor), at: head.at, base: head.base });
        open.bytes += blockHeadBytes + head.bytes;
      }
      const end = open && (await readAt(file, open.bytes, Math.min(endBytesMax, size - open.bytes)));
      if (open && end && !isDamagedEnd(end, open.base)) {
        if (size > open.bytes) await file.truncate(open.bytes);
        return open;
      }
      log.warn('known_devices_file_damaged', { offset: open?.bytes ?? 0, bytes: size });
    } catch (error) {
      log.warn('known_devices_file_damaged', { reason: messageOf(error) });
    }
    await file.close().catch(() => {});
    return undefined;
  }

  /** Writes all devices into a new file, and then what the log has of the changes that were made meanwhile. */
  async #rebuild(): Promise<void> {
    const { path, postgres, clock, log } = this.#deps;
    const temporary = `${path}.tmp`;
    const startMs = clock.monotonic();
    await this.#disk.makeDirectory(dirname(path));
    await this.#disk.remove(temporary);
    const source = await this.#deps.source();
    const settled = await readSettled(postgres);
    const [cursor, timeline] = [settled.transaction, timelineOf(settled)];
    const at = clock.now();
    const key = randomBytes(32);
    const file = await this.#disk.open(temporary, 'write');
    const digester = new Digester(key);
    const seen: LogPlace = settled;
    const start = { source, timeline, mark: 0, bytes: headerBytes, base: 0, cursor, seen, hasNewer: true, at };
    const next: OpenFile = { ...start, file, digester, ...nothingWritten() };
    let [devices, unsyncedFrom] = [0, 0];
    try {
      await file.write([encodeHeader({ key, source, timeline })], 0);
      await this.#writeScanned(next, await this.#changedProfiles(next));
      for (let after: string | undefined = noId; after !== undefined; ) {
        const page: Awaited<ReturnType<typeof scanLogins>> = await scanLogins(postgres, after, limits.knownPageRows);
        await this.#writeScanned(
          next,
          page.rows.map((row) => encodeDevice(row, next.digester)),
        );
        devices += page.rows.length;
        after = page.rows.length < limits.knownPageRows ? undefined : page.last;
        if (after !== undefined && this.#stopped) throw new Error('stopped');
        // The former file waits for each sync.
        if (next.bytes - unsyncedFrom > limits.knownUnsyncedBytesMax) {
          await file.sync();
          unsyncedFrom = next.bytes;
        }
        await this.#followFormer();
      }
      next.mark = await insertMark(postgres, digester.file);
      next.base = next.bytes + blockHeadBytes + markBytes;
      await this.#writeScanned(next, [encodeMark(next.mark)]);
      await file.sync();
      await this.#appendMissed(next);
      await this.#disk.rename(temporary, path);
    } catch (error) {
      await file.close().catch(() => {});
      await this.#disk.remove(temporary).catch(() => {});
      if (this.#stopped) return;
      throw error;
    }
    await this.#file?.file.close().catch(() => {});
    this.#file = next;
    try {
      await this.#disk.syncDirectory(dirname(path));
    } catch (error) {
      // A crash could bring the former file back, without the changes from here on.
      await this.#abandon(next);
      throw error;
    }
    this.#written.add(devices);
    log.info('known_devices_scanned', { devices, bytes: next.bytes, ms: Math.round(clock.monotonic() - startMs) });
    await this.#follow();
  }

  /** Appends what changed during the scan, profiles included: PostgreSQL may fail right after the rename. */
  async #appendMissed(next: OpenFile): Promise<void> {
    const { postgres } = this.#deps;
    const append = async (records: Buffer[]) => {
      if (!(await this.#append(next, records, next))) throw new Error(otherDatabase);
    };
    for (let [pass, isBehind] = [1, true]; isBehind; pass += 1) {
      const settled = await readSettledOfFile(postgres, next.digester.file);
      if (isOfOtherHistory(settled, next) || settled.next < next.seen.next) throw new Error(otherDatabase);
      isBehind = false;
      for await (const page of changesSince(postgres, next.seen, limits.knownPageRows, settled)) {
        if (page.place && this.#stopped) throw new Error('stopped');
        isBehind ||= page.place !== undefined && pass < missedPassesMax;
        if (page.changes.length > 0) await append(await this.#recordsOf(next, page.changes));
        // During the last pass the former file gets no change that the new one could lack.
        if (isBehind) await this.#followFormer();
      }
      noteSeen(next, settled);
    }
    next.profilesCheckedMs = Number.NEGATIVE_INFINITY;
    await append(await this.#changedProfiles(next));
  }

  /** Writes scanned records without a sync. */
  async #writeScanned(next: OpenFile, records: Buffer[]): Promise<void> {
    for (const part of inBlocks(records)) {
      const block = encodeBlock(part, next);
      await next.file.write([block], next.bytes);
      next.bytes += block.length;
    }
  }

  /** A scan may take a minute; the file in use must stay current meanwhile. */
  async #followFormer(): Promise<void> {
    const { clock } = this.#deps;
    if (this.#file && clock.now() - this.#file.at >= limits.credentialPollMs) await this.#follow();
  }
}

/** Notes that the file has all changes until this place. */
function noteSeen(file: OpenFile, place: LogPlace): void {
  file.seen = place;
  if (file.aheadFrom && isLater(file.aheadFrom, place)) return;
  file.aheadFrom = undefined;
  file.ahead.clear();
}

/**
 * Returns the state of a new file, of one that was opened, and of one whose last append failed: the log is read again
 * from `seen` on, and all profiles are written again.
 */
function nothingWritten(): Pick<OpenFile, 'ahead' | 'aheadFrom' | 'profiles' | 'profilesCheckedMs'> {
  return {
    ahead: new Set(),
    aheadFrom: undefined,
    profiles: new Map(),
    profilesCheckedMs: Number.NEGATIVE_INFINITY,
  };
}

/** Gives one block at least, which may be empty. */
function* inBlocks(records: Buffer[]): Generator<Buffer[]> {
  let part: Buffer[] = [];
  let bytes = 0;
  for (const record of records) {
    if (bytes + record.length > blockBytesMax) {
      yield part;
      [part, bytes] = [[], 0];
    }
    part.push(record);
    bytes += record.length;
  }
  yield part;
}
