/**
 * Attaches parts of tables that the engine set aside when it opened. An intact part that cannot be loaded for lack of
 * memory or file handles counts as broken, and its rows would be missing without an error. A row that another part also
 * has does no harm, because both tables keep one row of each key. Called before the server listens, so no delete is
 * carried out while such a part is missing. A kill at any moment leaves a part under a name that the next start
 * attaches.
 *
 * The engine also sets outdated parts aside: it keeps the sources of merges and mutations for minutes, and loads them
 * while it serves. A delete in `latest` leaves no marker, so an outdated part of a table without partitions would bring
 * deleted values back. A part is outdated when another part that was on the disk before the engine opened replaces it.
 */
import { readdir, rename, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { Log } from '../../base/log.ts';
import { serverCodes } from '../errors/server-codes.ts';
import { identifier, stringLiteral } from '../sql/literals.ts';
import { type Engine, ownRun } from './engine.ts';
import { exceptionFrom } from './exception.ts';
import { type PartName, partsIn, readPartName, replaces } from './rolled-back-parts.ts';
import { tableDirectories } from './table-files.ts';

interface Detached {
  database: string;
  table: string;
  path: string;
  /** The beginning of the name, with which the engine or an earlier start set the part aside. */
  reason: string;
  part: PartName;
  /** Starts that failed for the part. */
  tries: number;
}

/**
 * Selects parts under the engine's own names, and under the plain name that a part has between `rename` and the end of
 * `ATTACH PART`.
 */
const detachedQuery = `SELECT database, table, path FROM system.detached_parts
  WHERE reason IN ('broken-on-start', 'attaching', '')`;
const brokenOnStart = 'broken-on-start_';
/** A name that begins with another word, such as `unreadable_`, is not attached. */
const nameForm = /^(broken-on-start_|attaching_)?((?:all|\d+)_\d+_\d+_\d+(?:_\d+)?)(?:_try(\d+))?$/;
/** The partition of a table without partitions. */
const wholeTable = 'all';

/** Codes with which the engine refuses a part whose files are damaged: cut, overwritten or missing. */
const damageCodes = new Set([
  6, 26, 27, 32, 33, 38, 40, 41, 50, 72, 79, 107, 117, 128, 131, 226, 227, 228, 233, 246, 271, 432,
]);

/**
 * Files of a part that the engine never writes empty. A part with such an empty file fails with a code that is not
 * about damage.
 */
const neverEmpty = new Set([
  'checksums.txt',
  'columns.txt',
  'columns_substreams.txt',
  'count.txt',
  'default_compression_codec.txt',
  'metadata_version.txt',
  'serialization.json',
]);

/** Lack of memory, file handles, threads or disk space, by code or by the words of an error without a code. */
const shortageCodes = new Set<number>([
  serverCodes.cannotReadFromFileDescriptor,
  serverCodes.cannotWriteToFileDescriptor,
  serverCodes.cannotOpenFile,
  serverCodes.cannotAllocateMemory,
  serverCodes.memoryLimitExceeded,
  serverCodes.notEnoughSpace,
  serverCodes.cannotScheduleTask,
]);
const shortageForm = /bad_alloc|memory|too many open files|no space|resource temporarily unavailable/i;

/**
 * The starts that fail for a part whose reason is neither damage nor a shortage. Later starts open the engine without
 * the part.
 */
export const attachTriesMax = 10;

/** The parts of each table, by the end of the path of its directory. */
type PartsOnDisk = ReadonlyMap<string, readonly PartName[]>;

/** Called before the engine opens. `dir`: the data directory of the engine. */
export function readPartsOnDisk(dir: string): PartsOnDisk {
  return new Map(tableDirectories(dir).map((table) => [endOfPath(table), partsIn(table)]));
}

/** The engine may name the data directory by another path. */
function endOfPath(table: string): string {
  return join(basename(dirname(table)), basename(table));
}

/**
 * Throws unless each part is attached, outdated or unreadable: the process ends, and its next start tries again. A part
 * is unreadable when its files are damaged, or when `attachTriesMax` starts failed while the engine lacked nothing; the
 * part's name counts these starts. A merge on a full disk leaves damaged files (see write-check.ts), and the engine
 * loads the parts that it was made of. An unreadable part gets another name, so that no later start brings back rows
 * that were deleted meanwhile, and the log names the part.
 */
export async function attachDetached(engine: Pick<Engine, 'run'>, log: Log, onDisk: PartsOnDisk): Promise<void> {
  const unreadable = new Set<string>();
  for (const { database, table, path, reason, part, tries } of await detachedParts(engine)) {
    const named = (name: string) => join(dirname(path), name);
    const whole = named(part.name);
    const others = onDisk.get(endOfPath(dirname(dirname(path)))) ?? [];
    const isReplaced = others.some(
      (other) => other.name !== part.name && replaces(other, part) && !unreadable.has(named(other.name)),
    );
    if (isReplaced && part.partition === wholeTable && reason === brokenOnStart) {
      const kept = named(`outdated_${part.name}`);
      await rename(path, kept);
      log.warn('part_outdated', { database, table, path: kept });
      continue;
    }
    if (whole !== path) await rename(path, whole);
    try {
      await run(
        engine,
        `ALTER TABLE ${identifier(database)}.${identifier(table)} ATTACH PART ${stringLiteral(part.name)}`,
      );
      log.warn('part_attached', { database, table, part: part.name });
    } catch (error) {
      const { code, message } = exceptionFrom(error);
      const isShortage = shortageCodes.has(code) || shortageForm.test(message);
      const failed = tries + (isShortage ? 0 : 1);
      if (failed < attachTriesMax && !damageCodes.has(code) && !(await hasEmptyFile(whole))) {
        await rename(whole, named(`attaching_${part.name}_try${failed}`));
        log.error('part_not_attached', { database, table, part: part.name, tries: failed, reason: message });
        throw error;
      }
      const kept = named(`unreadable_${part.name}`);
      await rename(whole, kept);
      unreadable.add(whole);
      log.error('part_unreadable', { database, table, path: kept, reason: message });
    }
  }
}

async function hasEmptyFile(part: string): Promise<boolean> {
  for (const name of await readdir(part)) {
    if (neverEmpty.has(name) && (await stat(join(part, name))).size === 0) return true;
  }
  return false;
}

/** Returns a part that replaces another one before that one. */
async function detachedParts(engine: Pick<Engine, 'run'>): Promise<Detached[]> {
  const text = await run(engine, detachedQuery);
  const detached = text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Pick<Detached, 'database' | 'table' | 'path'>)
    .flatMap((each) => {
      const [, reason = '', name = '', tries = 0] = nameForm.exec(basename(each.path)) ?? [];
      const part = readPartName(name);
      return part === undefined ? [] : [{ ...each, reason, part, tries: Number(tries) }];
    });
  const blocks = ({ part }: Detached) => part.last - part.first;
  return detached.sort(
    (a, b) =>
      a.reason.length - b.reason.length ||
      blocks(b) - blocks(a) ||
      b.part.mutation - a.part.mutation ||
      b.part.level - a.part.level,
  );
}

async function run(engine: Pick<Engine, 'run'>, sql: string): Promise<string> {
  return new TextDecoder().decode((await engine.run(ownRun(sql, 'JSONEachRow'))).body);
}
