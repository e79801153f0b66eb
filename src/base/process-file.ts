/**
 * A small file with the pid and start time of the process in a role. After `kill -9` a successor can distinguish a
 * process that Millrace left from an unrelated one with the same pid. A pid is meaningful only in one pid namespace of
 * one boot, so the file names both. A file of another namespace or boot names no live process.
 */
import { readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';

export interface ProcessMark {
  pid: number;
  /** Clock ticks since boot at which the process started (/proc/<pid>/stat, field 22). */
  startedTicks: string;
  /** Boot and pid namespace in which `pid` counts; earlier versions did not write it. */
  where?: string;
}

/** Identifies the running kernel: differs between hosts and between two boots of one host. */
export function bootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();
  } catch {
    return '';
  }
}

let here: string | undefined;

function whereAmI(): string {
  if (here === undefined) {
    try {
      here = `${bootId()} ${readlinkSync('/proc/self/ns/pid')}`;
    } catch {
      here = '';
    }
  }
  return here;
}

/** Returns the start time of a live process; undefined when there is none, or a zombie. */
export function startedTicksOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? undefined : fields[19];
  } catch {
    return undefined;
  }
}

export function markOf(pid: number): ProcessMark {
  return { pid, startedTicks: startedTicksOf(pid) ?? '', where: whereAmI() };
}

/**
 * Returns false when the file cannot be written: no room on the disk, no free file handle. The process runs already,
 * and a full disk must not prevent a start that would empty it. The file helps to end leftovers sooner; the lock of the
 * data directory keeps two owners apart.
 */
export function writeProcessFile(path: string, pid: number): boolean {
  try {
    writeFileSync(path, JSON.stringify(markOf(pid)));
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined) throw error;
    return false;
  }
}

export function removeProcessFile(path: string): void {
  rmSync(path, { force: true });
}

/** Returns the live process that wrote `path`; undefined when that process has ended. */
export function liveProcess(path: string): number | undefined {
  try {
    const { pid, startedTicks, where } = JSON.parse(readFileSync(path, 'utf8')) as ProcessMark;
    if (where !== undefined && where !== whereAmI()) return undefined;
    return startedTicks !== '' && startedTicksOf(pid) === startedTicks ? pid : undefined;
  } catch {
    return undefined;
  }
}
/** Ends a process and waits for its end. Resolves with false when the process does not end. */
export async function endProcess(pid: number, signal: NodeJS.Signals, waitMsMax: number): Promise<boolean> {
  const started = startedTicksOf(pid);
  if (started === undefined) return true;
  try {
    process.kill(pid, signal);
  } catch {
    return startedTicksOf(pid) !== started;
  }
  const deadline = performance.now() + waitMsMax;
  while (performance.now() < deadline) {
    if (startedTicksOf(pid) !== started) return true;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return false;
}
