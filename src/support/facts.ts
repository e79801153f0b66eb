/**
 * Reads facts of this machine and of the processes of an instance, for a report of a fault. Reads files of Linux only.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, freemem, loadavg, release, totalmem, uptime } from 'node:os';
import { join, resolve } from 'node:path';
import { liveProcess } from '../base/process-file.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Config } from '../base/settings/config.ts';
import { usableMemoryBytes } from '../base/usable-memory.ts';
import { runDirectory } from '../instance/host/data-files.ts';

/** Files whose whole content is a short fact. */
const kernelFiles = [
  '/proc/sys/net/core/somaxconn',
  '/proc/sys/net/ipv4/tcp_max_syn_backlog',
  '/proc/sys/net/ipv4/ip_local_port_range',
  '/proc/sys/fs/file-max',
  '/proc/sys/vm/overcommit_memory',
  '/proc/sys/vm/swappiness',
  '/sys/fs/cgroup/memory.max',
  '/sys/fs/cgroup/memory.current',
  '/sys/fs/cgroup/cpu.max',
  '/sys/fs/cgroup/cpu.stat',
  '/sys/kernel/mm/transparent_hugepage/enabled',
];
const ticksPerSecond = 100;
const sampleMs = 1_000;

export function machineFacts(dataDir: string): object {
  return {
    kernel: release(),
    system: /^PRETTY_NAME="(.*)"$/m.exec(read('/etc/os-release'))?.[1] ?? '',
    arch: arch(),
    node: process.version,
    nodeVersions: process.versions,
    processor: cpus()[0]?.model ?? '',
    processors: availableParallelism(),
    memoryBytes: totalmem(),
    usableMemoryBytes: usableMemoryBytes(),
    freeMemoryBytes: freemem(),
    load: loadavg(),
    uptimeSeconds: Math.round(uptime()),
    limits: read('/proc/self/limits').split('\n'),
    files: Object.fromEntries(kernelFiles.map((path) => [path, read(path).trim()])),
    mount: mountOf(dataDir),
  };
}

/** Returns the mount of a directory: that of the longest mount point above it. */
function mountOf(dir: string): string {
  const mounts = read('/proc/self/mounts').split('\n');
  const points = mounts.filter((line) => {
    const point = line.split(' ')[1];
    return point !== undefined && `${dir}/`.startsWith(point === '/' ? '/' : `${point}/`);
  });
  const [device = '', point = '', type = '', options = ''] =
    points
      .sort((a, b) => a.split(' ')[1]!.length - b.split(' ')[1]!.length)
      .at(-1)
      ?.split(' ') ?? [];
  return `${device.replace(/^.*[/:]/, '')} at ${point}: ${type} (${options})`;
}

interface ProcessFacts {
  role: string;
  pid: number;
  residentBytes: number;
  threads: number;
  openFiles: number;
  cpuSeconds: number;
  /** The share of one processor that the process used in the last second. */
  cpuPercent: number;
}

/** Waits a second, to measure the processor time. */
export async function processFacts(config: Config): Promise<ProcessFacts[]> {
  const dir = join(resolve(config.data.dir), runDirectory);
  const pids = pidsOf(dir);
  const before = pids.map(({ pid }) => cpuSecondsOf(pid));
  const began = performance.now();
  if (pids.length > 0) await systemScheduler.sleep(sampleMs);
  const seconds = (performance.now() - began) / 1000;
  return pids.map(({ role, pid }, n) => {
    const status = read(`/proc/${pid}/status`);
    const cpuSeconds = cpuSecondsOf(pid);
    return {
      role,
      pid,
      residentBytes: Number(/^VmRSS:\s+(\d+)/m.exec(status)?.[1] ?? 0) * 1024,
      threads: Number(/^Threads:\s+(\d+)/m.exec(status)?.[1] ?? 0),
      openFiles: list(`/proc/${pid}/fd`).length,
      cpuSeconds,
      cpuPercent: Math.round(((cpuSeconds - before[n]!) / seconds) * 100),
    };
  });
}

function pidsOf(runDir: string): { role: string; pid: number }[] {
  return list(runDir).flatMap((file) => {
    const pid = file.endsWith('.pid') ? liveProcess(join(runDir, file)) : undefined;
    return pid === undefined ? [] : [{ role: file.slice(0, -'.pid'.length), pid }];
  });
}

function cpuSecondsOf(pid: number): number {
  const stat = read(`/proc/${pid}/stat`);
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11] ?? 0) + Number(fields[12] ?? 0)) / ticksPerSecond;
}

function list(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
