/** Reads from /proc what a process and its children use, such as PostgreSQL and its backends. */
import { readFileSync } from 'node:fs';

interface Usage {
  residentBytes: number;
  cpuSeconds: number;
}

/** Linux gives times to user space in this unit, whatever the kernel counts in. */
const ticksPerSecond = 100;

/**
 * Returns undefined when the process has ended. Memory that the processes share counts once; ended children count for
 * CPU.
 */
export function usageOfTree(pid: number): Usage | undefined {
  const parent = usageOf(pid);
  if (parent === undefined) return undefined;
  const children = childrenOf(pid).flatMap((child) => usageOf(child) ?? []);
  const all = [parent, ...children];
  const own = all.reduce((sum, { ownBytes }) => sum + ownBytes, 0);
  return {
    residentBytes: own + Math.max(...all.map(({ sharedBytes }) => sharedBytes)),
    cpuSeconds: children.reduce((sum, { seconds }) => sum + seconds, parent.seconds + parent.endedSeconds),
  };
}

interface OneUsage {
  ownBytes: number;
  sharedBytes: number;
  seconds: number;
  /** CPU time of children that have ended. */
  endedSeconds: number;
}

function usageOf(pid: number): OneUsage | undefined {
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'latin1');
    const bytes = (name: string) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1] ?? 0);
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // The name of the program, in parentheses, may contain spaces.
    const fields = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .map(Number);
    const [user = 0, system = 0, endedUser = 0, endedSystem = 0] = fields.slice(11, 15);
    return {
      ownBytes: bytes('RssAnon'),
      sharedBytes: bytes('RssFile') + bytes('RssShmem'),
      seconds: (user + system) / ticksPerSecond,
      endedSeconds: (endedUser + endedSystem) / ticksPerSecond,
    };
  } catch {
    return undefined;
  }
}

function childrenOf(pid: number): number[] {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}
