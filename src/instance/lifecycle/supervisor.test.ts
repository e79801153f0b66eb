/** Restarts: their delays, their number, their log lines, and the rule for a crash loop. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { Supervisor } from './supervisor.ts';

let lines: { level: string; event: string; reason?: string }[] = [];
let restarts: number[] = [];
let loops: string[] = [];
let outcome: () => Promise<void> = async () => {};
let supervisor: Supervisor;

const say = (level: string) => (event: string, fields?: object) => lines.push({ level, event, ...fields });
const log: Log = { debug: say('debug'), info: say('info'), warn: say('warn'), error: say('error') };

beforeEach(() => {
  vi.useFakeTimers();
  [lines, restarts, loops] = [[], [], []];
  outcome = async () => {};
  supervisor = new Supervisor({
    name: 'clickhouse',
    log,
    restart: () => {
      restarts.push(performance.now());
      return outcome();
    },
    onCrashLoop: (reason) => loops.push(reason),
  });
});

afterEach(() => {
  supervisor.stop();
  vi.useRealTimers();
});

test('a child that dies right after each start is restarted without end, later each time up to the maximum', async () => {
  outcome = async () => supervisor.died('signal SIGKILL');
  supervisor.up();
  supervisor.died('signal SIGKILL');
  await vi.advanceTimersByTimeAsync(10 * 60_000);
  const pauses = restarts.slice(1).map((at, i) => at - restarts[i]!);
  expect(pauses.slice(0, 4)).toEqual([400, 800, 1_600, 3_200]);
  expect(Math.max(...pauses)).toBe(limits.restartDelayMsMax);
  expect(restarts.length).toBeGreaterThan(20);
  // One line for each reason, whatever the number of attempts; further lines are in the debug log.
  expect(lines.filter(({ level, event }) => level === 'error' && event === 'child_died')).toHaveLength(1);
  expect(loops.length).toBe(restarts.length + 1 - (limits.crashLoopCount - 1));
  expect(supervisor.looping).toBe(true);
  expect(supervisor.failure).toBe('signal SIGKILL');
});

test('a start that fails counts as a death, and another reason is logged', async () => {
  outcome = () => Promise.reject(new Error('port taken'));
  supervisor.up();
  supervisor.died('exit code 1');
  await vi.advanceTimersByTimeAsync(5_000);
  expect(lines.filter(({ level }) => level === 'error').map(({ reason }) => reason)).toEqual([
    'exit code 1',
    'port taken',
  ]);
});

test('a child that worked for a while was killed from outside: it restarts soon, with one log line', async () => {
  for (let death = 0; death < 2 * limits.crashLoopCount; death += 1) {
    supervisor.up();
    await vi.advanceTimersByTimeAsync(limits.crashLoopAliveMs);
    supervisor.died('signal SIGKILL');
    await vi.advanceTimersByTimeAsync(limits.restartDelayMs);
    expect(restarts).toHaveLength(death + 1);
  }
  supervisor.up();
  supervisor.up();
  expect(loops).toEqual([]);
  expect(supervisor.looping).toBe(false);
  expect(supervisor.failure).toBeUndefined();
  expect(lines.filter(({ event }) => event === 'child_back')).toHaveLength(2 * limits.crashLoopCount);
});

test('after stop nothing is started', async () => {
  supervisor.died('exit code 1');
  supervisor.stop();
  supervisor.died('exit code 1');
  await vi.advanceTimersByTimeAsync(60_000);
  expect(restarts).toEqual([]);
});
