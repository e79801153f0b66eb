/** Ownership of a data directory: real processes in one and in several pid namespaces, killed owners, a full disk. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { endProcess, liveProcess } from '../../src/base/process-file.ts';
import { eventually } from '../harness/api.ts';
import { root } from '../harness/engine.ts';

const module = pathToFileURL(join(root, 'dist', 'instance', 'host', 'data-directory.js')).href;
/** An ordinary user needs a user namespace to make others. */
const user = process.getuid?.() === 0 ? [] : ['--user', '--map-root-user'];
const otherContainer = ['unshare', ...user, '--pid', '--fork', '--kill-child', '--mount-proc'];

let home: string;
let started: Owner[] = [];

beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'millrace-lock-'));
});

afterEach(async () => {
  for (const owner of started) owner.kill();
  const worker = liveProcess(join(home, 'run', 'worker-0.pid'));
  if (worker !== undefined) await endProcess(worker, 'SIGKILL', 5000);
  started = [];
  rmSync(home, { recursive: true, force: true });
});

/** Takes the directory, prints `taken` or the reason of the refusal, then runs `then`. */
function script(dir: string, waitMs: number, then: string): string {
  return `
    const { DataDirectory } = await import(${JSON.stringify(module)});
    const log = { debug() {}, info() {}, warn() {}, error() {} };
    const data = new DataDirectory(${JSON.stringify(dir)});
    try { await data.take(log, ${waitMs}); } catch (error) { console.log('refused: ' + error.message); process.exit(1); }
    console.log('taken');
    ${then}`;
}

const stay = 'setInterval(() => {}, 1000);';

class Owner {
  output = '';
  ended = false;
  readonly #child: ChildProcess;

  constructor(options: { waitMs?: number; command?: string[]; then?: string; env?: NodeJS.ProcessEnv } = {}) {
    const { waitMs = 0, command = [], then = stay, env } = options;
    const [program, ...rest] = [...command, process.execPath, '--input-type=module', '-e', script(home, waitMs, then)];
    this.#child = spawn(program!, rest, { stdio: ['ignore', 'pipe', 'inherit'], ...(env && { env }) });
    this.#child.stdout!.on('data', (chunk: Buffer) => {
      this.output += chunk.toString();
    });
    this.#child.once('close', () => {
      this.ended = true;
    });
    started.push(this);
  }

  get taken(): boolean {
    return this.output.startsWith('taken');
  }

  async outcome(): Promise<string> {
    await eventually(() => this.output.includes('\n') || this.ended, 20_000);
    return this.output.trim();
  }

  /** Ends the process with SIGKILL, so that it cannot release anything. */
  kill(): void {
    this.#child.kill('SIGKILL');
  }
}

test('another container is refused with the reason, and owns the directory when the first owner is killed', async () => {
  const first = new Owner();
  expect(await first.outcome()).toBe('taken');
  const refused = new Owner({ command: otherContainer });
  expect(await refused.outcome()).toMatch(
    /^refused: The data directory .* is in use by process \d+ of host .*: stop it, or set DATA_DIR/,
  );
  const next = new Owner({ command: otherContainer, waitMs: 60_000 });
  first.kill();
  expect(await next.outcome()).toBe('taken');
  // In the other direction, too: a process outside of the container is refused.
  expect(await new Owner().outcome()).toMatch(/^refused: .* is in use by process \d+ of host/);
});

test('a second start beside the first in one pid namespace is refused at once', async () => {
  const first = new Owner();
  expect(await first.outcome()).toBe('taken');
  expect(await new Owner({ waitMs: 600_000 }).outcome()).toMatch(/^refused: .* is in use by process \d+: stop it/);
});

test('of many starts at one moment one owns the directory', async () => {
  const owners = Array.from({ length: 6 }, (_, i) => new Owner({ command: i % 2 === 0 ? [] : otherContainer }));
  const outcomes = await Promise.all(owners.map((owner) => owner.outcome()));
  expect(outcomes.filter((outcome) => outcome === 'taken')).toHaveLength(1);
  expect(outcomes.filter((outcome) => outcome.startsWith('refused: '))).toHaveLength(5);
});

test('a worker that outlives its killed primary keeps the directory until it is gone', async () => {
  const worker = 'process.send("up"); setInterval(() => {}, 1000);';
  const then = `
    const { spawn } = await import('node:child_process');
    const { writeProcessFile } = await import(${JSON.stringify(module.replace('instance/host/data-directory.js', 'base/process-file.js'))});
    const stdio = ['ignore', 'ignore', 'inherit', 'ipc', data.lockDescriptor];
    const worker = spawn(process.execPath, ['-e', ${JSON.stringify(worker)}], { stdio });
    writeProcessFile(data.processFile('worker-0'), worker.pid);
    worker.once('message', () => process.kill(process.pid, 'SIGKILL'));`;
  const first = new Owner({ then });
  await eventually(() => first.ended, 20_000);
  // A start in another pid namespace cannot end the worker. A start in the same one ends the worker and takes the lock.
  expect(await new Owner({ command: otherContainer, waitMs: 300 }).outcome()).toMatch(
    /a worker of it that has not ended/,
  );
  expect(await new Owner({ waitMs: 60_000 }).outcome()).toBe('taken');
});

test('a start on a full disk takes the directory again', () => {
  const steps = [
    'mount -t tmpfs -o size=256k tmpfs /mnt',
    '"$NODE" --input-type=module -e "$FIRST"',
    'cat /dev/zero > /mnt/fill 2>&-',
    '"$NODE" --input-type=module -e "$SECOND"',
  ];
  const env = {
    ...process.env,
    NODE: process.execPath,
    FIRST: script('/mnt/data', 0, 'data.release(); process.exit(0);'),
    SECOND: script('/mnt/data', 0, 'process.exit(data.instance === "" ? 1 : 0);'),
  };
  const command = ['unshare', ...user, '--mount', 'sh', '-c', steps.join('\n')];
  const { stdout, stderr, status } = spawnSync(command[0]!, command.slice(1), { encoding: 'utf8', env });
  expect({ stdout, stderr, status }).toEqual({ stdout: 'taken\ntaken\n', stderr: '', status: 0 });
});

test('without the program flock a start names the package to install', async () => {
  const refused = new Owner({ env: { PATH: join(home, 'nothing') } });
  expect(await refused.outcome()).toMatch(/^refused: .*"flock" is missing: install util-linux/);
});
