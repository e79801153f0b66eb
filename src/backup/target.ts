/**
 * The directory to which a backup is written. A mark in it, which the command keeps locked, says that the backup is not
 * complete. The mark is removed after the manifest is written. A killed command leaves its mark, which no command holds
 * then: the next backup into the directory removes the content beside such a mark.
 */
import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs';
import { realpath, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { printLine } from '../base/command.ts';
import { makeDirectories } from '../base/directories.ts';
import { messageOf, StartError } from '../base/errors.ts';
import { tryLock } from '../base/file-lock.ts';
import { manifestName } from './manifest.ts';

const markName = 'unfinished';
/** A directory with content is taken over only when its mark says so: a user may have a file of the same name. */
const markText = 'A backup of Millrace that is being written, or was killed.\n';
const removalsMax = 20;
const claimsMax = 5;

export class BackupTarget {
  readonly dir: string;
  readonly #mark: number;
  #removal: Promise<void> | undefined;

  private constructor(dir: string, mark: number) {
    this.dir = dir;
    this.#mark = mark;
  }

  /** Makes the directory, or takes one that is empty, or one with a backup that a killed command left unfinished. */
  static async claim(dir: string): Promise<BackupTarget> {
    if (existsSync(dir) && !statSync(dir).isDirectory()) {
      throw Object.assign(new Error(`ENOTDIR: ${dir} is not a directory`), { code: 'ENOTDIR' });
    }
    makeDirectories(dir, 0o700);
    const mark = await lockMark(dir);
    const target = new BackupTarget(dir, mark);
    const left = contentOf(dir).filter((name) => name !== markName);
    if (left.length > 0) {
      printLine(`Removes what an unfinished backup left in ${dir}`);
      await target.#empty();
    }
    return target;
  }

  /** Called when the manifest is durable. */
  complete(): void {
    rmSync(join(this.dir, markName), { force: true });
    closeSync(this.#mark);
  }

  /**
   * Removes the content, called after the last write has ended. A part of a backup is worth nothing, and takes the
   * space that the instance on the same disk may need. Repeated calls share one removal.
   */
  remove(): Promise<void> {
    this.#removal ??= this.#removeAll();
    return this.#removal;
  }

  async #removeAll(): Promise<void> {
    try {
      await this.#empty();
      rmSync(join(this.dir, markName), { force: true });
    } finally {
      closeSync(this.#mark);
    }
  }

  /** Removes all but the mark, until nothing is left. */
  async #empty(): Promise<void> {
    for (let removals = 1; ; removals += 1) {
      const names = contentOf(this.dir).filter((name) => name !== markName);
      if (names.length === 0) return;
      const remove = (name: string) => rm(join(this.dir, name), { recursive: true, force: true, maxRetries: 5 });
      const failed = (await Promise.allSettled(names.map(remove))).find(({ status }) => status === 'rejected');
      if (failed?.status === 'rejected' && removals >= removalsMax) {
        const reason = messageOf(failed.reason);
        throw new StartError(`${this.dir} has an unfinished backup that cannot be removed: ${reason}.`);
      }
    }
  }
}

/** Throws unless the directory is empty or has the mark of an unfinished backup. Returns the descriptor of the mark. */
async function lockMark(dir: string): Promise<number> {
  const path = join(dir, markName);
  for (let claims = 1; claims <= claimsMax; claims += 1) {
    const names = contentOf(dir);
    if (names.length > 0 && (!names.includes(markName) || names.includes(manifestName))) {
      throw new StartError(`${dir} is not empty: name a new directory.`);
    }
    const mark = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o600);
    if (!(await isLocked(mark, path, names.length > 0))) {
      closeSync(mark);
      throw new StartError(`Another backup writes to ${dir}: wait for its end, or name another directory.`);
    }
    // The command that held the mark may have ended meanwhile, and its directory is another one then.
    const isSame = existsSync(path) && statSync(path).ino === fstatSync(mark).ino;
    if (isSame && !existsSync(join(dir, manifestName))) {
      if (contentOf(dir).length > 1 && readFileSync(path, 'utf8') !== markText) {
        closeSync(mark);
        throw new StartError(`${dir} is not empty: name a new directory.`);
      }
      writeSync(mark, markText, 0);
      return mark;
    }
    closeSync(mark);
  }
  throw new StartError(`Another backup writes to ${dir}: wait for its end, or name another directory.`);
}

/** Some file systems have no locks: then only an empty directory is taken. */
async function isLocked(mark: number, path: string, isUsed: boolean): Promise<boolean> {
  try {
    return await tryLock(mark, path);
  } catch (error) {
    if (isUsed) throw error;
    return true;
  }
}

/** A volume of its own has a directory for lost files. */
function contentOf(dir: string): string[] {
  return readdirSync(dir).filter((name) => name !== 'lost+found');
}

/** True when `path`, which may not exist yet, is the existing directory `dir` or below it, by any link or mount. */
export async function isWithin(path: string, dir: string): Promise<boolean> {
  const { dev, ino } = await stat(dir);
  for (let at = await realExisting(path); ; at = dirname(at)) {
    const found = await stat(at);
    if (found.dev === dev && found.ino === ino) return true;
    if (dirname(at) === at) return false;
  }
}

/** The real path of the deepest directory of `path` that exists. */
async function realExisting(path: string): Promise<string> {
  for (let at = path; ; at = dirname(at)) {
    try {
      return await realpath(at);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || dirname(at) === at) throw error;
    }
  }
}
