/**
 * Ends the server that a previous run left in the data directory, before a new one starts. A process that merely has
 * its old pid is never touched. The lock file is never deleted, because PostgreSQL uses the file to check that no
 * backend of a killed server still has the shared memory.
 */
import {
  chownSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { StartError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { endProcess, liveProcess, startedTicksOf } from '../../base/process-file.ts';

/** The lines of postmaster.pid that matter here. */
interface PostmasterFile {
  pid: number;
  port: number;
  ready: boolean;
}

export function readPostmasterFile(dir: string): PostmasterFile | undefined {
  try {
    const lines = readFileSync(join(dir, 'postmaster.pid'), 'utf8').split('\n');
    // A negative pid means a single-user server.
    const pid = Math.abs(Number.parseInt(lines[0] ?? '', 10));
    if (!Number.isInteger(pid) || pid === 0) return undefined;
    return { pid, port: Number(lines[3]), ready: lines[7]?.trim() === 'ready' };
  } catch {
    return undefined;
  }
}

/** Ends every known server on `dir`. `processFile` names a server that was killed before it wrote its lock. */
export async function stopOrphan(dir: string, processFile: string, waitMsMax: number, log: Log): Promise<void> {
  const pids = new Set([readPostmasterFile(dir)?.pid, liveProcess(processFile)]);
  for (const pid of pids) {
    if (pid === undefined || !servesDirectory(pid, dir)) continue;
    log.warn('postgres_orphan_stopped', { pid, dir });
    // SIGINT: fast shutdown. SIGQUIT: immediate; the next start replays the write-ahead log.
    const gone = (await endProcess(pid, 'SIGINT', waitMsMax)) || (await endProcess(pid, 'SIGQUIT', waitMsMax));
    if (!gone) throw new StartError(`PostgreSQL of an earlier run (pid ${pid}) uses ${dir} and does not stop: end it.`);
  }
  disownLock(dir);
}

/** True when `pid` is a PostgreSQL server (or one of its backends) on this data directory. */
export function servesDirectory(pid: number, dir: string): boolean {
  if (pid === process.pid || startedTicksOf(pid) === undefined) return false;
  const words = wordsOf(pid);
  let program = basename(words[0] ?? '');
  try {
    program = basename(readlinkSync(`/proc/${pid}/exe`).replace(/ \(deleted\)$/, ''));
  } catch {
    // The process of another user is judged by its command line.
  }
  if (program !== 'postgres') return false;
  try {
    // The working directory of a server is its data directory, under any name that it had at the start.
    const [here, there] = [statSync(dir), statSync(`/proc/${pid}/cwd`)];
    return here.dev === there.dev && here.ino === there.ino;
  } catch {
    return words.includes(dir);
  }
}

function wordsOf(pid: number): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
  } catch {
    return [];
  }
}

/**
 * PostgreSQL refuses to start while the pid in its lock file exists, even if that is another program's or an unreaped
 * zombie's. An empty file, which a kill or a full disk leaves, is refused as well. PostgreSQL treats a lock that names
 * its own parent as stale, so the pid of this process is written there. The check of the shared memory remains.
 */
function disownLock(dir: string): void {
  const path = join(dir, 'postmaster.pid');
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found?.isFile()) return;
  if (!readPostmasterFile(dir) && (found.size > 0 || isServed(dir))) return;
  const rest = readFileSync(path, 'utf8').split('\n').slice(1);
  // A write in place could lose the other lines on a full disk.
  const written = `${path}.new`;
  try {
    writeFileSync(written, [process.pid, ...rest].join('\n'), { mode: found.mode });
    chownSync(written, found.uid, found.gid);
    renameSync(written, path);
  } catch (error) {
    rmSync(written, { force: true });
    throw error;
  }
}

/** True while any process serves the directory. An empty lock file does not name the shared memory to check. */
function isServed(dir: string): boolean {
  return readdirSync('/proc').some((name) => /^\d+$/.test(name) && servesDirectory(Number(name), dir));
}
