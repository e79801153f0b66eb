/** An engine whose log cannot be written: a full disk, a reader that left, and one that pauses. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, openSync, readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, engineMain, root, startEngine } from '../harness/engine.ts';

let engine: Engine;
let device: Device;

beforeAll(async () => {
  engine = await startEngine({ workers: 1 });
  device = await engine.api.createDevice('quiet');
  await engine.stop();
});

afterAll(() => engine?.destroy());

/** Starts the engine with the redirections of a shell. */
function startWith(redirections: string): ChildProcess {
  return spawn('sh', ['-c', `exec "$0" "$1" ${redirections}`, process.execPath, engineMain], {
    cwd: root,
    env: engine.environment,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
}

/** A worker that dies is an event: the log is written while the engine serves. */
async function servesAndStops(child: ChildProcess): Promise<void> {
  await eventually(async () => (await engine.readiness()) === 200, 60_000);
  await engine.kill('worker-0');
  await eventually(async () => (await engine.api.postTelemetry(device.token, '{"a":1}')) === 200, 30_000);
  const ended = once(child, 'exit');
  child.kill('SIGTERM');
  expect(await ended).toEqual([0, null]);
}

test('the disk of the log is full: the engine starts, serves, and stops in order', () =>
  servesAndStops(startWith('>/dev/full 2>/dev/full')));

test('the reader of the log leaves: the engine serves, and stops in order', async () => {
  const child = startWith('');
  await once(child.stderr!, 'data');
  child.stdout!.destroy();
  child.stderr!.destroy();
  await servesAndStops(child);
});

test('the reader of the log pauses: the engine starts and serves, and the lines come later', async () => {
  const path = join(engine.dataDir, 'log.fifo');
  execFileSync('mkfifo', [path]);
  const fifo = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  try {
    fill(fifo);
    const child = startWith(`2>'${path}'`);
    child.stdout!.resume();
    await eventually(async () => (await engine.readiness()) === 200, 60_000);
    let text = '';
    await eventually(() => {
      text += readAll(fifo);
      return text.includes('"event":"ready"');
    }, 10_000);
    expect(text).toContain('"event":"machine"');
    await servesAndStops(child);
  } finally {
    closeSync(fifo);
  }
});

test('a command whose output ends early ends without a stack', () => {
  const command = `"${process.execPath}" dist/config.js | head -n 1`;
  const { stdout, stderr } = spawnSync('sh', ['-c', command], { cwd: root, env: engine.environment, encoding: 'utf8' });
  expect(stdout).toMatch(/^setting +environment name/);
  expect(stderr).toBe('');
});

function fill(fifo: number): void {
  const piece = Buffer.from('\n'.repeat(4096));
  try {
    for (;;) writeSync(fifo, piece);
  } catch (error) {
    expect((error as NodeJS.ErrnoException).code).toBe('EAGAIN');
  }
}

function readAll(fifo: number): string {
  const piece = Buffer.alloc(65_536);
  let text = '';
  try {
    for (;;) text += piece.toString('utf8', 0, readSync(fifo, piece));
  } catch (error) {
    expect((error as NodeJS.ErrnoException).code).toBe('EAGAIN');
    return text;
  }
}
