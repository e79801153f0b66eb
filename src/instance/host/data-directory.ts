/**
 * The data directory, which one instance owns at a time. A start ends the processes that a killed run left. The owner
 * and its workers hold a kernel lock on the file `lock`: a worker that outlives a killed primary keeps the directory
 * locked until the worker ends. The content of `lock` names the owner (see `Owner`).
 */
import { randomBytes, randomUUID } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { makeDirectories } from '../../base/directories.ts';
import { messageOf, StartError } from '../../base/errors.ts';
import { tryLock } from '../../base/file-lock.ts';
import type { Log } from '../../base/log.ts';
import {
  endProcess,
  liveProcess,
  markOf,
  type ProcessMark,
  removeProcessFile,
  writeProcessFile,
} from '../../base/process-file.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { isUuid } from '../../base/uuid.ts';
import { hostFile, journalDirectory, restoringFile, runDirectory } from './data-files.ts';

/** The content of the file `lock`, padded to `ownerBytes` so that a full disk has room for the next owner. */
interface Owner extends ProcessMark {
  /** Random, new for each start. */
  instance: string;
  host: string;
}

/** The environment variable that gives a worker the id of its primary's instance. */
export const instanceVariable = 'MILLRACE_INSTANCE';
const ownerBytes = 512;
const leftoverWaitMsMax = 3000;
const lockRetryMs = 200;

/** The file of a process of an earlier instance, and its pid while that process runs. */
interface Leftover {
  file: string;
  pid: number | undefined;
}

export class DataDirectory {
  readonly path: string;
  readonly runPath: string;
  readonly journalPath: string;
  /** Inherited by workers; undefined before `take`. */
  lockDescriptor: number | undefined;
  /** The id of this start; empty when the disk had no room for it. */
  instance = '';

  constructor(dir: string) {
    this.path = resolve(dir);
    this.runPath = join(this.path, runDirectory);
    this.journalPath = join(this.path, journalDirectory);
    try {
      makeDirectories(this.runPath);
      makeDirectories(this.journalPath);
      // Other users may pass through the directory but not list it: as root the embedded PostgreSQL may have to run as
      // another user.
      chmodSync(this.path, 0o711);
      chmodSync(this.runPath, 0o700);
      chmodSync(this.journalPath, 0o700);
    } catch (error) {
      throw new StartError(
        `The data directory ${this.path} (DATA_DIR) cannot be used: ${messageOf(error)}. ` +
          'Name a directory that this user can make or write, on a disk that is not read-only.',
      );
    }
  }

  processFile(role: string): string {
    return join(this.runPath, `${role}.pid`);
  }

  /** Locks the directory for this process and ends leftovers of a killed run. */
  async take(log: Log, waitMsMax: number): Promise<void> {
    const path = this.#lockPath;
    try {
      this.lockDescriptor = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o600);
    } catch (error) {
      throw new StartError(`The data directory ${this.path} (DATA_DIR) cannot be locked: ${messageOf(error)}.`);
    }
    if (!(await tryLock(this.lockDescriptor, path))) await this.#waitForLock(this.lockDescriptor, log, waitMsMax);
    // An earlier version holds the directory without a lock.
    this.#refuseHolder(this.processFile('primary'));
    this.#writeOwner(this.lockDescriptor, log);
    if (!writeProcessFile(this.processFile('primary'), process.pid)) log.warn('process_file_not_written', { path });
    await this.#endLeftovers(log, { hasLock: true });
  }

  /** Refuses a directory whose restore did not end. */
  checkRestored(): void {
    if (!existsSync(join(this.path, restoringFile))) return;
    throw new StartError(`A restore into ${this.path} did not finish: remove the directory and restore again.`);
  }

  /** Called after the last worker has ended. */
  release(): void {
    removeProcessFile(this.processFile('primary'));
    if (this.lockDescriptor !== undefined) closeSync(this.lockDescriptor);
    this.lockDescriptor = undefined;
  }

  get #lockPath(): string {
    return join(this.path, 'lock');
  }

  /** Workers of a killed primary hold the lock until they end, and so does a container that is being replaced. */
  async #waitForLock(descriptor: number, log: Log, waitMsMax: number): Promise<void> {
    await this.#endLeftovers(log, { hasLock: false });
    const owner = describeOwner(this.#lockPath);
    log.warn('data_directory_locked', { dir: this.path, owner, waitMsMax });
    const deadline = performance.now() + waitMsMax;
    while (!(await tryLock(descriptor, this.#lockPath))) {
      this.#refuseHolder(this.#lockPath);
      if (performance.now() >= deadline) {
        throw new StartError(
          `The data directory ${this.path} is in use by ${owner}, or by a worker of it that has not ended: stop it, ` +
            'or set DATA_DIR to another directory.',
        );
      }
      await systemScheduler.sleep(lockRetryMs);
    }
  }

  /** In one pid namespace a live holder is known at once. */
  #refuseHolder(markPath: string): void {
    const holder = liveProcess(markPath);
    if (holder === undefined || holder === process.pid) return;
    throw new StartError(
      `The data directory ${this.path} is in use by process ${holder}: stop it, or set DATA_DIR to another directory.`,
    );
  }

  /**
   * Ends processes of an earlier instance in this pid namespace. Leftovers are listed before the holder is read: a
   * start that won the lock meanwhile wrote its mark before its first fork, so its workers are never ended here.
   */
  async #endLeftovers(log: Log, { hasLock }: { hasLock: boolean }): Promise<void> {
    const leftovers: Leftover[] = [];
    for (const name of readdirSync(this.runPath)) {
      if (!/^(worker-\d+|analytics)\.pid$/.test(name)) continue;
      const file = join(this.runPath, name);
      leftovers.push({ file, pid: liveProcess(file) });
    }
    this.#refuseHolder(this.#lockPath);
    this.#refuseHolder(this.processFile('primary'));
    await Promise.all(leftovers.map((leftover) => this.#endLeftover(leftover, log, { hasLock })));
  }

  /** Overwrites in place: on a full disk only existing bytes can be written. */
  #writeOwner(descriptor: number, log: Log): void {
    const instance = randomBytes(12).toString('hex');
    const owner: Owner = { instance, host: hostname(), ...markOf(process.pid) };
    try {
      writeSync(descriptor, `${JSON.stringify(owner).padEnd(ownerBytes - 1)}\n`, 0);
      this.instance = instance;
    } catch (error) {
      log.warn('data_directory_owner_not_written', { dir: this.path, reason: messageOf(error) });
    }
  }

  /**
   * Workers without a primary end by themselves after a last commit. A journal may only be recovered after the end of
   * its writer: otherwise late acknowledgements would be missed.
   */
  async #endLeftover({ file, pid }: Leftover, log: Log, { hasLock }: { hasLock: boolean }): Promise<void> {
    if (pid !== undefined) {
      log.warn('leftover_ended', { file, leftover: pid });
      const gone = (await endProcess(pid, 'SIGTERM', leftoverWaitMsMax)) || (await endProcess(pid, 'SIGKILL', 1000));
      if (!gone) throw new StartError(`Process ${pid} of a previous run does not end; end it and start again.`);
      removeProcessFile(file);
    } else if (hasLock) {
      // Under the lock no writer is left; before that, the file may speak of a process in another pid namespace.
      removeProcessFile(file);
    }
  }

  /** Returns the id by which other hosts know this directory, made at the first start. */
  hostId(log: Log): string {
    try {
      const id = readFileSync(join(this.path, hostFile), 'utf8').trim();
      if (isUuid(id)) return id;
    } catch {
      // The first start of this version.
    }
    const made = randomUUID();
    try {
      this.keepPrivate(hostFile, made);
    } catch (error) {
      // A full disk must not end a start; the next one has another id.
      log.warn('host_id_unkept', { reason: messageOf(error) });
    }
    return made;
  }

  /** Readers find the whole old text or the whole new one, except after a power cut. */
  writePrivate(name: string, text: string): void {
    const path = join(this.path, name);
    writeFileSync(`${path}.new`, `${text}\n`, { mode: 0o600 });
    renameSync(`${path}.new`, path);
  }

  /** Like `writePrivate`, and durable when it returns. */
  keepPrivate(name: string, text: string): void {
    const path = join(this.path, name);
    writeFileSync(`${path}.new`, `${text}\n`, { mode: 0o600 });
    syncPath(`${path}.new`);
    renameSync(`${path}.new`, path);
    syncPath(dirname(path));
  }

  /** Returns the journals of worker slots that are not started any more, and no other journals. */
  orphanJournals(workers: number): string[] {
    const names = readdirSync(this.journalPath).filter((name) => /^worker-\d+$/.test(name));
    return names.filter((name) => Number(name.slice(7)) >= workers).map((name) => join(this.journalPath, name));
  }
}

function syncPath(path: string): void {
  const descriptor = openSync(path, constants.O_RDONLY);
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Called by a worker before it opens a journal: throws when another instance now owns the directory. Where flock does
 * not work (some network volumes) this check prevents workers of the earlier owner from taking a journal back.
 */
export function checkInstance(dir: string, instance: string | undefined): void {
  const owner = readOwner(join(dir, 'lock'));
  if (!instance || !owner || owner.instance === instance) return;
  throw new StartError(
    `The data directory ${dir} was taken by process ${owner.pid} of host ${owner.host}: stop one of the two instances.`,
  );
}

function readOwner(path: string): Owner | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as Owner;
  } catch {
    return undefined;
  }
}

function describeOwner(path: string): string {
  const owner = readOwner(path);
  return owner ? `process ${owner.pid} of host ${owner.host}` : 'another instance';
}
