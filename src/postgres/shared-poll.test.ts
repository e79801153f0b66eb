/** When a worker reads by itself, and when the poll of its host spares the read. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { systemClock as clock, hostMonotonic } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { type Polled, type PollResult, SharedPoll } from './shared-poll.ts';

let reads = 0;
let answers = true;
let polled: (result: PollResult) => void;
let poll: SharedPoll;
const nothingAt: number[] = [];

beforeEach(async () => {
  vi.useFakeTimers();
  [reads, answers] = [0, true];
  nothingAt.length = 0;
  const read = async () => {
    reads += 1;
    return answers;
  };
  const onNothing = (at: number) => nothingAt.push(at);
  poll = new SharedPoll({ kind: 'heads', clock, read, onNothing }, (handler) => {
    polled = handler;
  });
});

afterEach(async () => {
  await poll.stop();
  vi.useRealTimers();
});

/** The poll of the host: the number of the result, and what it found. */
async function host(number: number, ...found: Polled[]): Promise<void> {
  polled({ number, at: hostMonotonic(), found });
  await vi.advanceTimersByTimeAsync(0);
}

test('the first result is read; later ones only when they found rows of this kind', async () => {
  await poll.start();
  expect(reads).toBe(1);
  await host(7);
  expect(reads).toBe(2);
  for (let number = 8; number < 20; number += 1) {
    await host(number, 'credentials');
    await vi.advanceTimersByTimeAsync(limits.hostPollMs);
  }
  expect([reads, nothingAt.length]).toEqual([2, 12]);
  expect(Math.abs(nothingAt.at(-1)! - clock.monotonic())).toBeLessThan(1.1 * limits.hostPollMs);
  await host(20, 'heads');
  expect(reads).toBe(3);
});

test('a missed result, or one of a primary that started again, is read', async () => {
  await poll.start();
  await host(1);
  await host(3);
  expect(reads).toBe(3);
  await host(1);
  expect(reads).toBe(4);
});

test('what a store without an answer did not give is read with the next result', async () => {
  await poll.start();
  await host(1);
  answers = false;
  await host(2, 'heads');
  await host(3);
  expect(reads).toBe(4);
  answers = true;
  await host(4);
  await host(5);
  expect(reads).toBe(5);
});

test('rows that were committed while a read ran are read once more', async () => {
  await poll.start();
  await host(1);
  polled({ number: 2, at: hostMonotonic(), found: ['heads'] });
  polled({ number: 3, at: hostMonotonic(), found: [] });
  await vi.advanceTimersByTimeAsync(0);
  expect(reads).toBe(4);
});

test('without results the worker reads once a second, until a result arrives', async () => {
  await poll.start();
  await vi.advanceTimersByTimeAsync(3 * limits.hostPollMs);
  expect(reads).toBe(4);
  await host(1);
  await vi.advanceTimersByTimeAsync(limits.hostPollMs);
  expect(reads).toBe(5);
  await vi.advanceTimersByTimeAsync(limits.hostPollMs);
  expect(reads).toBe(6);
});

test('nothing is read before the start and after the stop', async () => {
  await host(1, 'heads');
  expect(reads).toBe(0);
  await poll.start();
  await poll.stop();
  await host(2, 'heads');
  await vi.advanceTimersByTimeAsync(3 * limits.hostPollMs);
  expect(reads).toBe(1);
});
