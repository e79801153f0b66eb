/** The clock that follows a measured time, under fake timers: `Date` and `performance` move apart. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { FollowedClock, hostMonotonic } from './clock.ts';

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

/** What makes `clock` read `time` now. */
function anchorOf(time: number): number {
  return time - hostMonotonic();
}

test('a step of the host has no effect on a clock that follows', () => {
  const clock = new FollowedClock();
  vi.setSystemTime(1_000_000);
  expect(clock.now()).toBe(1_000_000);
  clock.follow(anchorOf(5_000_000.5));
  vi.setSystemTime(9_000_000_000);
  expect(clock.now()).toBe(5_000_000);
  vi.advanceTimersByTime(250);
  expect(clock.now()).toBe(5_000_250);
});

test('a small correction back stands still until time has caught up; a step back is followed', () => {
  const clock = new FollowedClock();
  clock.follow(anchorOf(5_000_000));
  expect(clock.now()).toBe(5_000_000);
  clock.follow(anchorOf(4_999_950));
  expect(clock.now()).toBe(5_000_000);
  vi.advanceTimersByTime(60);
  expect(clock.now()).toBe(5_000_010);
  clock.follow(anchorOf(1_000_000));
  expect(clock.now()).toBe(1_000_000);
});
