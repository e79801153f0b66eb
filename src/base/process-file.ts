/**
 * Which process runs in a role: a small file with its pid and start time, so that a successor after `kill -9` can
 * tell a leftover of ours from a stranger that got the same pid.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';

export interface ProcessMark {
  pid: number;
  /** Clock ticks since boot at which the process started (/proc/<pid>/stat, field 22). */
  startedTicks: string;
}

/** Start time of a live process, undefined when there is none (or it is a zombie). */
export function startedTicksOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? undefined : fields[19];
  } catch {
    return undefined;
  }
}

export function writeProcessFile(path: string, pid: number): void {
  writeFileSync(path, JSON.stringify({ pid, startedTicks: startedTicksOf(pid) ?? '' } satisfies ProcessMark));
}

export function removeProcessFile(path: string): void {
  rmSync(path, { force: true });
}

/** The live process that wrote `path`; undefined when it is gone or the pid now belongs to another. */
export function liveProcess(path: string): number | undefined {
  try {
    const { pid, startedTicks } = JSON.parse(readFileSync(path, 'utf8')) as ProcessMark;
    return startedTicks !== '' && startedTicksOf(pid) === startedTicks ? pid : undefined;
  } catch {
    return undefined;
  }
}

/** Ends a process and waits until it is really gone. False when it would not go. */
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
