/**
 * The machine of an engine, made smaller or slower while the engine runs: a disk that can be filled, a clock that can
 * be set, limits of memory and files, and processes that are stopped. `close` restores everything.
 */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statfsSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const diskBytes = 6 * 1024 * 1024 * 1024;
const fillerName = 'filler';
const libraryNames = [
  '/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1',
  '/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1',
];

/** A step of the clock has reached every process by then, and each has measured its offset to the database again. */
const clockSettleMs = 15_000;

export class Machine {
  readonly #home: string;
  /** Undefined when this process may not mount. */
  readonly disk: string | undefined;
  readonly #clockLibrary = libraryNames.find((name) => existsSync(name));
  readonly #clockFile: string;
  readonly #stopped = new Set<number>();
  #clockOffsetMs = 0;
  #clockSetAt = Number.NEGATIVE_INFINITY;
  #clockEpoch = 0;

  constructor() {
    this.#home = mkdtempSync(join(tmpdir(), 'millrace-machine-'));
    // The embedded PostgreSQL may run as another user, and reads the clock file too.
    chmodSync(this.#home, 0o711);
    this.#clockFile = join(this.#home, 'clock');
    this.#writeClock();
    this.disk = this.#mount();
  }

  #mount(): string | undefined {
    const directory = join(this.#home, 'disk');
    mkdirSync(directory);
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${diskBytes},mode=0711`, 'tmpfs', directory], {
        stdio: 'pipe',
      });
      return directory;
    } catch {
      return undefined;
    }
  }

  get hasClock(): boolean {
    return this.#clockLibrary !== undefined;
  }

  /** The environment with which a process reads this machine's clock. */
  get environment(): Record<string, string> {
    if (this.#clockLibrary === undefined) return {};
    return {
      LD_PRELOAD: this.#clockLibrary,
      FAKETIME_TIMESTAMP_FILE: this.#clockFile,
      FAKETIME_CACHE_DURATION: '1',
      // Timers continue as they do when an operator sets the clock.
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      FAKETIME_DONT_RESET: '1',
      // All processes share the lock that the library takes to change the times of files: a process that is killed
      // while it holds that lock stops every other one.
      NO_FAKE_STAT: '1',
    };
  }

  /** The number of the clock's present setting; -1 while some processes may still have the previous one. */
  clockEpoch(): number {
    return performance.now() - this.#clockSetAt < clockSettleMs ? -1 : this.#clockEpoch;
  }

  get clockOffsetMs(): number {
    return this.#clockOffsetMs;
  }

  /** Sets the clock to the true time plus `offsetMs`. */
  setClock(offsetMs: number): void {
    this.#clockOffsetMs = offsetMs;
    this.#clockSetAt = performance.now();
    this.#clockEpoch += 1;
    this.#writeClock();
  }

  #writeClock(): void {
    const seconds = (this.#clockOffsetMs / 1000).toFixed(3);
    writeFileSync(`${this.#clockFile}.new`, `${this.#clockOffsetMs < 0 ? '' : '+'}${seconds}\n`, { mode: 0o644 });
    renameSync(`${this.#clockFile}.new`, this.#clockFile);
  }

  /** Fills the disk except for `bytesLeft` bytes. */
  fillDisk(bytesLeft: number): void {
    if (this.disk === undefined) return;
    const { bavail, bsize } = statfsSync(this.disk);
    const chunk = Buffer.alloc(4 * 1024 * 1024);
    const file = openSync(join(this.disk, fillerName), 'a');
    try {
      for (let left = bavail * bsize - bytesLeft; left > 0; left -= chunk.length) {
        writeSync(file, chunk, 0, Math.min(left, chunk.length));
      }
    } catch (error) {
      // The engine writes at the same time, and may take the last of it.
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    } finally {
      closeSync(file);
    }
  }

  freeDisk(): void {
    if (this.disk !== undefined) rmSync(join(this.disk, fillerName), { force: true });
  }

  /** Stops a process, with its children or alone. The returned function resumes them. */
  stop(pid: number, withChildren: boolean): () => void {
    const pids = withChildren ? processTree(pid) : [pid];
    for (const each of pids) {
      this.#stopped.add(each);
      signal(each, 'SIGSTOP');
    }
    return () => {
      for (const each of pids) {
        this.#stopped.delete(each);
        signal(each, 'SIGCONT');
      }
    };
  }

  /**
   * Limits the memory of a process and its children to what they have and `bytesMore`. The returned function undoes the
   * limit.
   */
  limitMemory(pid: number, bytesMore: number): () => void {
    return limit(pid, 'as', (each) => memoryBytes(each) + bytesMore);
  }

  /** Lets a process and its children open only `more` further files. The returned function undoes the limit. */
  limitFiles(pid: number, more: number): () => void {
    return limit(pid, 'nofile', (each) => openFiles(each) + more);
  }

  close(): void {
    for (const pid of this.#stopped) signal(pid, 'SIGCONT');
    if (this.disk !== undefined) execFileSync('umount', ['--lazy', this.disk]);
    rmSync(this.#home, { recursive: true, force: true });
  }
}

/** Sets a soft limit of a process tree; processes that have ended are ignored. */
function limit(pid: number, name: 'as' | 'nofile', most: (pid: number) => number): () => void {
  const undo: (() => void)[] = [];
  for (const each of processTree(pid)) {
    const before = prlimit(['--pid', `${each}`, `--${name}`, '--output', 'SOFT', '--noheadings', '--raw'])?.trim();
    const value = most(each);
    if (!before || value === 0) continue;
    if (prlimit(['--pid', `${each}`, `--${name}=${value}:`]) === undefined) continue;
    undo.push(() => void prlimit(['--pid', `${each}`, `--${name}=${before}:`]));
  }
  return () => {
    for (const one of undo) one();
    // Children that came meanwhile inherited the limit.
    const ofRoot = prlimit(['--pid', `${pid}`, `--${name}`, '--output', 'SOFT', '--noheadings', '--raw'])?.trim();
    if (ofRoot) for (const each of processTree(pid)) prlimit(['--pid', `${each}`, `--${name}=${ofRoot}:`]);
  };
}

function prlimit(args: string[]): string | undefined {
  try {
    return execFileSync('prlimit', args, { stdio: 'pipe', encoding: 'utf8' });
  } catch {
    return undefined;
  }
}

function memoryBytes(pid: number): number {
  return Number(/VmSize:\s+(\d+) kB/.exec(readQuietly(`/proc/${pid}/status`))?.[1] ?? 0) * 1024;
}

function openFiles(pid: number): number {
  try {
    return readdirSync(`/proc/${pid}/fd`).length;
  } catch {
    return 0;
  }
}

/** Returns a process and all of its descendants. */
function processTree(root: number): number[] {
  const children = new Map<number, number[]>();
  for (const name of readdirSync('/proc')) {
    const pid = Number(name);
    if (!Number.isInteger(pid)) continue;
    const stat = readQuietly(`/proc/${pid}/stat`);
    const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
    children.set(parent, [...(children.get(parent) ?? []), pid]);
  }
  const tree = [root];
  for (const pid of tree) tree.push(...(children.get(pid) ?? []));
  return tree;
}

function readQuietly(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

function signal(pid: number, name: 'SIGSTOP' | 'SIGCONT'): void {
  try {
    process.kill(pid, name);
  } catch {
    // The process has ended.
  }
}
