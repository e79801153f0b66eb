/** One child of the primary: its first messages, its last output, its counters, and its end within the deadline. */

import type { ChildProcess } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { silentLog as log } from '../../../test/harness/silent-log.ts';
import { limits } from '../../base/limits.ts';
import { Metrics, type Sample } from '../../base/metrics/metrics.ts';
import { metricsPage } from '../../base/metrics/metrics-page.ts';
import type { ToPrimary, ToWorker } from './messages.ts';
import { SupervisedChild } from './supervised-child.ts';

class FakeChild extends EventEmitter {
  pid: number | undefined = process.pid;
  connected = true;
  readonly received: ToWorker[] = [];
  readonly signals: string[] = [];

  send(message: ToWorker, sent: () => void): void {
    this.received.push(message);
    sent();
  }

  kill(signal: string): void {
    this.signals.push(signal);
  }

  say(message: ToPrimary): void {
    this.emit('message', message);
  }

  end(code: number | null, signal: string | null = null): void {
    this.connected = false;
    this.emit('exit', code, signal);
  }
}

let dir = '';
let forked: FakeChild[];
/** The process file, and the process that the next fork makes. */
let processFile: string;
let pid: number | undefined;
let changes: string[];
let messages: string[];
let deaths: number;
let child: SupervisedChild;

beforeEach(() => {
  vi.useFakeTimers();
  dir = mkdtempSync(join(tmpdir(), 'millrace-child-'));
  [forked, changes, messages, deaths] = [[], [], [], 0];
  [processFile, pid] = [join(dir, 'worker-0.pid'), process.pid];
  child = newChild();
  child.start();
});

function newChild(): SupervisedChild {
  return new SupervisedChild({
    name: 'worker-0',
    processFile,
    log,
    fork: () => {
      const fake = new FakeChild();
      fake.pid = pid;
      forked.push(fake);
      return fake as unknown as ChildProcess;
    },
    onForked: () => {},
    begin: () => [{ kind: 'drain' }],
    onMessage: ({ kind }) => messages.push(kind),
    onChange: () => changes.push(child.isReady ? 'ready' : (child.failure ?? 'starting')),
    onDeath: () => (deaths += 1),
  });
}

afterEach(() => {
  child.kill();
  vi.useRealTimers();
  rmSync(dir, { recursive: true });
});

test('says first what the owner wants, and serves once it says so', () => {
  const [first] = forked;
  first!.say({ kind: 'hello' });
  expect(first!.received).toEqual([{ kind: 'drain' }]);
  expect([child.isReady, child.failure]).toEqual([false, undefined]);
  first!.say({ kind: 'waiting', reason: 'no journal' });
  expect(child.failure).toBe('no journal');
  first!.say({ kind: 'ready' });
  expect([child.isReady, child.failure]).toEqual([true, undefined]);
  expect(changes).toEqual(['no journal', 'ready']);
});

test('dies for the reason that it gave last, and is started again without it', () => {
  forked[0]!.say({ kind: 'ready' });
  forked[0]!.say({ kind: 'died', message: 'x is undefined', suspects: [] });
  forked[0]!.end(70);
  expect([child.isReady, child.isRunning, child.failure]).toEqual([false, false, 'x is undefined (a bug)']);
  expect([changes.at(-1), messages, deaths]).toEqual(['x is undefined (a bug)', ['ready', 'died'], 1]);
  vi.advanceTimersByTime(limits.restartDelayMs);
  expect(forked).toHaveLength(2);
  forked[1]!.end(null, 'SIGKILL');
  expect(child.failure).toBe('signal SIGKILL');
});

/** What a process of the child counts, and how long its queue is. */
function samplesOf(messages: number, queue: number): Sample[] {
  const metrics = new Metrics();
  metrics.counter('messages_total', 'Messages.').add(messages);
  metrics.histogram('seconds', 'Time.', {}, [1]).observeMany(0.5, messages);
  metrics.gauge('queue', 'Queue.').set(queue);
  return metrics.snapshot();
}

/** The series of the page that this child alone makes. */
async function series(collected: Promise<Sample[]>): Promise<string[]> {
  return metricsPage([await collected], false)
    .split('\n')
    .filter((line) => /^\w+(total|count|queue) /.test(line));
}

test('what it has counted never falls: while it gives no answer, and over deaths', async () => {
  const nothing = await series(child.collect());
  expect(nothing).toEqual([]);
  const [first] = forked;
  first!.say({ kind: 'ready' });
  const answered = series(child.collect());
  first!.say({ kind: 'samples', id: 1, samples: samplesOf(5, 7) });
  expect(await answered).toEqual(['millrace_messages_total 5', 'millrace_seconds_count 5', 'millrace_queue 7']);
  const counts = ['millrace_messages_total 5', 'millrace_seconds_count 5'];
  const late = series(child.collect());
  vi.advanceTimersByTime(2_000);
  expect(await late).toEqual(counts);
  const dead = series(child.collect());
  first!.end(1);
  expect(await dead).toEqual(counts);
  expect(await series(child.collect())).toEqual(counts);
  for (const total of [7, 9]) {
    vi.advanceTimersByTime(limits.restartDelayMsMax);
    const next = forked.at(-1)!;
    next.say({ kind: 'ready' });
    const again = series(child.collect());
    const asked = next.received.at(-1) as Extract<ToWorker, { kind: 'collect' }>;
    next.say({ kind: 'samples', id: asked.id, samples: samplesOf(2, 1) });
    expect(await again).toEqual([
      `millrace_messages_total ${total}`,
      `millrace_seconds_count ${total}`,
      'millrace_queue 1',
    ]);
    next.end(1);
  }
});

test('a stop is no death, and what does not end in time is killed', async () => {
  const [first] = forked;
  first!.say({ kind: 'ready' });
  const drained = child.drain(5_000);
  expect(first!.received).toEqual([{ kind: 'drain' }]);
  vi.advanceTimersByTime(5_000);
  expect(first!.signals).toEqual(['SIGKILL']);
  first!.end(null, 'SIGKILL');
  await drained;
  vi.advanceTimersByTime(60_000);
  expect([forked.length, deaths, child.failure]).toEqual([1, 0, undefined]);
});

test('a child that the system cannot make for lack of file handles or processes is tried again', async () => {
  forked[0]!.end(1);
  pid = undefined;
  vi.advanceTimersByTime(limits.restartDelayMs);
  forked[1]!.emit('error', new Error('spawn node EMFILE'));
  expect([child.isRunning, child.failure]).toEqual([false, 'spawn node EMFILE']);
  pid = process.pid;
  vi.advanceTimersByTime(limits.restartDelayMsMax);
  expect(forked).toHaveLength(3);
  forked[2]!.say({ kind: 'ready' });
  expect([child.isReady, child.failure]).toEqual([true, undefined]);
});

test('a child whose process file cannot be written serves all the same', () => {
  child.kill();
  processFile = join(dir, 'missing', 'worker-0.pid');
  child = newChild();
  child.start();
  forked.at(-1)!.say({ kind: 'ready' });
  expect(child.isReady).toBe(true);
});
