/** Runs of `npm run bench` in tests: the built command, the files of its result, and the processes that it starts. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { root } from './engine.ts';

const timeoutMs = 240_000;

/** Several test files may build at once: the first one compiles, the others find nothing to do. */
export function buildBench(): void {
  const config = 'tsconfig.bench.json';
  execFileSync('flock', [config, 'npx', 'tsc', '-p', config], { stdio: 'inherit' });
}

interface BenchOptions {
  env?: NodeJS.ProcessEnv;
  /** The directory in which the command is called. */
  cwd?: string;
  /** True: the command has a process group of its own, as in a terminal. */
  isGroup?: boolean;
}

/** A command that runs. */
export class BenchRun {
  readonly child: ChildProcess;
  #printed = '';
  readonly #closed: Promise<[number]>;

  constructor(words: readonly string[], { env = {}, cwd = root, isGroup = false }: BenchOptions = {}) {
    this.child = spawn(process.execPath, [join(root, 'dist-bench/bench/main.js'), ...words], {
      cwd,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: isGroup,
      timeout: timeoutMs,
      killSignal: 'SIGKILL',
    });
    for (const stream of [this.child.stdout!, this.child.stderr!])
      stream.on('data', (bytes: Buffer) => {
        this.#printed += bytes.toString();
      });
    this.#closed = once(this.child, 'close') as Promise<[number]>;
  }

  /** All that the command has printed so far. */
  get printed(): string {
    return this.#printed;
  }

  /** Returns the exit code, when all that the command printed was read. */
  async code(): Promise<number> {
    return (await this.#closed)[0];
  }

  /** Sends a signal to the command, or to its whole group as a terminal does. */
  signal(signal: NodeJS.Signals, isToGroup = false): void {
    process.kill(isToGroup ? -this.child.pid! : this.child.pid!, signal);
  }
}

/** Runs a command to its end. */
export async function runBench(
  words: readonly string[],
  options?: BenchOptions,
): Promise<{ printed: string; code: number }> {
  const run = new BenchRun(words, options);
  const code = await run.code();
  return { printed: run.printed, code };
}

interface TakenResult {
  path: string;
  /** The JSON file. */
  file: { result: Record<string, unknown> } & Record<string, unknown>;
  page: string;
}

/** Removes the files of the result that a run has named, and returns them. */
export function takeResult(printed: string): TakenResult {
  const [, path = ''] = /written to (.+)$/m.exec(printed) ?? [];
  expect(path, printed).not.toBe('');
  const pagePath = path.replace(/json$/, 'html');
  expect(existsSync(pagePath)).toBe(true);
  const file = JSON.parse(readFileSync(path, 'utf8')) as TakenResult['file'];
  const page = readFileSync(pagePath, 'utf8');
  rmSync(path);
  rmSync(pagePath);
  return { path, file, page };
}

/** Returns the commands of all processes that have this word in their command, environment or directory. */
export function marked(word: string): string[] {
  return [...processesOf(word).values()];
}

export function pidsOf(word: string, command: string): number[] {
  return [...processesOf(word)].flatMap(([pid, each]) => (each.includes(command) ? [pid] : []));
}

function processesOf(word: string): Map<number, string> {
  const found = readdirSync('/proc').flatMap((pid): [number, string][] => {
    if (!/^\d+$/.test(pid)) return [];
    try {
      const [command, environment] = ['cmdline', 'environ'].map((file) => readFileSync(`/proc/${pid}/${file}`, 'utf8'));
      // Redis writes its title over its environment.
      const places = [command!, environment!, readlinkSync(`/proc/${pid}/cwd`)];
      return places.some((place) => place.includes(word)) ? [[Number(pid), command!.replaceAll('\0', ' ')]] : [];
    } catch {
      // The process has ended.
      return [];
    }
  });
  return new Map(found);
}
