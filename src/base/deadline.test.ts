import { getEventListeners } from 'node:events';
import { afterEach, expect, test, vi } from 'vitest';
import { Deadline } from './deadline.ts';

afterEach(() => vi.useRealTimers());

test('a call is aborted when its time is over', () => {
  vi.useFakeTimers();
  const deadline = new Deadline(1_000);
  vi.advanceTimersByTime(999);
  expect(deadline.signal.aborted).toBe(false);
  vi.advanceTimersByTime(1);
  expect([deadline.signal.aborted, deadline.isOver]).toEqual([true, true]);
});

test('a call is aborted when its caller leaves, or has left, and its time is not over then', () => {
  const caller = new AbortController();
  const deadline = new Deadline(60_000, caller.signal);
  expect(deadline.signal.aborted).toBe(false);
  caller.abort();
  const late = new Deadline(60_000, caller.signal);
  for (const each of [deadline, late]) {
    expect([each.signal.aborted, each.isOver]).toEqual([true, false]);
    each.end();
  }
});

test('nothing is left of a call that has ended', () => {
  vi.useFakeTimers();
  const caller = new AbortController();
  const deadline = new Deadline(1_000, caller.signal);
  deadline.end();
  expect(vi.getTimerCount()).toBe(0);
  expect(getEventListeners(caller.signal, 'abort')).toEqual([]);
  caller.abort();
  expect(deadline.signal.aborted).toBe(false);
});
