/** CPU time and memory of processes, and idle time of the machine, from /proc. */
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { WaitView } from './load/wait-view.ts';
import { say } from './report.ts';

/** Linux counts CPU time in hundredths of a second for user space, with any kernel tick. */
const millisecondsPerTick = 10;
const pageBytes = 4096;
const idleShareMin = 0.85;
const settleMsMax = 20_000;

export function cpuMsOf(pid: number): number {
  const [user, system] = cpuTicksOf(pid);
  return (user + system) * millisecondsPerTick;
}

/**
 * Returns the CPU time of a process and its children, also of those that have ended: PostgreSQL has a process for each
 * connection.
 */
export function cpuMsOfFamily(pid: number): number {
  const [user, system, endedUser, endedSystem] = cpuTicksOf(pid);
  const own = (user + system + endedUser + endedSystem) * millisecondsPerTick;
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean);
    return children.reduce((sum, child) => sum + cpuMsOf(Number(child)), own);
  } catch {
    return own;
  }
}

/** User and system time of the process, and of its children that have ended; zeros when there is no such process. */
function cpuTicksOf(pid: number): [number, number, number, number] {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return [Number(fields[11]), Number(fields[12]), Number(fields[13]), Number(fields[14])];
  } catch {
    return [0, 0, 0, 0];
  }
}

export function residentBytesOf(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ')[1]) * pageBytes;
  } catch {
    return 0;
  }
}

export function residentBytesOfAll(pids: number[]): number {
  return pids.reduce((sum, pid) => sum + residentBytesOf(pid), 0);
}

/** Few things take less memory than a heap gives back meanwhile: then nothing is known, which is no small cost. */
export function growthOf(bytes: number): number {
  return bytes > 0 ? bytes : Number.NaN;
}

export function machineCpu(): { idle: number; total: number } {
  const line = readFileSync('/proc/stat', 'utf8').split('\n', 1)[0]!;
  const ticks = line.trim().split(/\s+/).slice(1).map(Number);
  return { idle: ticks[3]! + ticks[4]!, total: ticks.slice(0, 8).reduce((sum, n) => sum + n, 0) };
}

/** Returns the time that the processors of this machine have worked since its start, for any process or the kernel. */
export function busyMs(): number {
  const { idle, total } = machineCpu();
  return (total - idle) * millisecondsPerTick;
}

/** Returns the share of the processors that had nothing to do in the next second. */
export async function idleShare(): Promise<number> {
  const before = machineCpu();
  await sleep(1_000);
  const after = machineCpu();
  return (after.idle - before.idle) / Math.max(1, after.total - before.total);
}

/**
 * Waits until the round before has left nothing to do: merges of ClickHouse, checkpoints of PostgreSQL. Says so when
 * the machine is still busy after this time.
 */
export async function machineSettled(msMax = settleMsMax): Promise<void> {
  if (msMax <= 0) return;
  const deadline = performance.now() + msMax;
  const view = new WaitView('waiting until the machine is idle');
  let share = 0;
  try {
    for (let left = msMax; left > 0; left = deadline - performance.now()) {
      const idle = await idleShare();
      if (idle >= idleShareMin) return;
      share = Math.round(idle * 100);
      view.note(`${share} % idle, of ${idleShareMin * 100} % that are waited for`, {
        leastSeconds: 0,
        mostSeconds: left / 1000,
      });
    }
  } finally {
    view.end();
  }
  const waited = Math.round(msMax / 1000);
  say(
    `WARNING: after ${waited} s the machine is still busy (${share} % idle). The next figures are of a busy machine.`,
  );
}

/** Returns the CPU time of several roles at one moment: the difference of two results is the cost of a phase. */
export function cpuByRole(pids: Map<string, number>): Map<string, number> {
  return new Map([...pids].map(([role, pid]) => [role, role === 'postgres' ? cpuMsOfFamily(pid) : cpuMsOf(pid)]));
}

/** Returns the milliseconds between two moments; those of workers are added up. */
export function cpuBetween(before: Map<string, number>, after: Map<string, number>): Record<string, number> {
  return byKind([...after].map(([role, milliseconds]) => [role, milliseconds - (before.get(role) ?? 0)]));
}

/** Returns the resident bytes of several roles; those of workers are added up. */
export function residentByRole(pids: Map<string, number>): Record<string, number> {
  return byKind([...pids].map(([role, pid]) => [role, residentBytesOf(pid)]));
}

function byKind(figures: [role: string, value: number][]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const [role, value] of figures) {
    const name = role.startsWith('worker-') ? 'workers' : role;
    sums[name] = (sums[name] ?? 0) + value;
  }
  return sums;
}
