/** When accepted sockets are read: after the kernel has no further ones, or when as many wait as may. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { limits } from '../../base/limits.ts';
import { Arrivals } from './arrivals.ts';

let arrivals: Arrivals;
let read: number[];

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setImmediate'] });
  arrivals = new Arrivals();
  read = [];
});

afterEach(() => vi.useRealTimers());

function accept(n: number): void {
  arrivals.add(() => read.push(n));
}

/** Runs what was due at the end of this turn of the loop. */
const endTurn = () => vi.advanceTimersToNextTimer();

test('nothing is read while each turn brings a connection; then a few in each turn, in order', () => {
  for (let n = 0; n < 20; n += 1) {
    accept(n);
    endTurn();
  }
  expect([read, arrivals.size]).toEqual([[], 20]);
  endTurn();
  expect(read).toEqual(Array.from({ length: limits.mqttArrivalsPerTurn }, (_, n) => n));
  accept(20);
  endTurn();
  expect(read).toHaveLength(limits.mqttArrivalsPerTurn);
  for (let n = 0; n < 3; n += 1) endTurn();
  expect([read, arrivals.size]).toEqual([Array.from({ length: 21 }, (_, n) => n), 0]);
  expect(vi.getTimerCount()).toBe(0);
});

test('connections that never stop wait only until as many wait as may', () => {
  const count = limits.mqttArrivalsMax + 100;
  for (let n = 0; n < count; n += 1) {
    accept(n);
    endTurn();
    expect(arrivals.size).toBeLessThanOrEqual(limits.mqttArrivalsMax);
  }
  expect(read).toEqual(read.toSorted((a, b) => a - b));
  expect(read.length).toBe(count - arrivals.size);
});

test('a socket that arrives while others begin to be read is read as well', () => {
  arrivals.add(() => accept(1));
  accept(2);
  endTurn();
  while (arrivals.size > 0) endTurn();
  expect([read, vi.getTimerCount()]).toEqual([[2, 1], 0]);
});
