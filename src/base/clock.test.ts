/** The clock that follows a measured time, under fake timers: `Date` and `performance` move apart. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { FollowedClock, hostMonotonic, reachedAt, type TimeLine } from './clock.ts';

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

/** Returns the measurement after which a clock shows `time` where it showed `earlier`. */
function lineOf(time: number, earlier = time, aheadMs = 0): TimeLine {
  const monotonic = hostMonotonic() + aheadMs;
  return { anchor: time - monotonic, since: monotonic, earlierAnchor: earlier - monotonic };
}

test('a step of the host has no effect on a clock that follows', () => {
  const clock = new FollowedClock();
  vi.setSystemTime(1_000_000);
  expect(clock.now()).toBe(1_000_000);
  clock.follow(lineOf(5_000_000.5));
  vi.setSystemTime(9_000_000_000);
  expect(clock.now()).toBe(5_000_000);
  expect(clock.micros()).toBe(5_000_000_500);
  vi.advanceTimersByTime(250);
  expect(clock.now()).toBe(5_000_250);
});

test('a small correction back goes slowly until time has caught up; a step back is followed', () => {
  const clock = new FollowedClock();
  clock.follow(lineOf(5_000_000));
  clock.follow(lineOf(4_999_990, 5_000_000));
  let last = 0;
  for (let ms = 0; ms < 200; ms += 1) {
    expect(clock.micros()).toBeGreaterThan(last);
    last = clock.micros();
    vi.advanceTimersByTime(1);
  }
  expect(clock.now()).toBe(5_000_190);
  clock.follow(lineOf(1_000_000, 5_000_190));
  expect(clock.now()).toBe(1_000_000);
});

test('corrections that follow each other never turn time back', () => {
  const clock = new FollowedClock();
  const first = hostMonotonic();
  let line: TimeLine = { anchor: 5_000_000 - first, since: first, earlierAnchor: 5_000_000 - first };
  clock.follow(line);
  const corrections = [-87, -3, 40, -120, -0.5, 7, -60];
  let last = 0;
  for (let ms = 0; ms < 10_000; ms += 1) {
    expect(clock.micros()).toBeGreaterThan(last);
    last = clock.micros();
    const now = hostMonotonic();
    if (now >= reachedAt(line) && corrections.length > 0) {
      line = { anchor: line.anchor + corrections.shift()!, since: now + 100, earlierAnchor: line.anchor };
      clock.follow(line);
    }
    vi.advanceTimersByTime(1);
  }
  expect(corrections).toEqual([]);
  expect(clock.now() - hostMonotonic()).toBeCloseTo(line.anchor, -1);
});

test('two processes that receive a line at different moments never disagree', () => {
  for (const correction of [7.25, -7.25, 60_000, -60_000]) {
    const [prompt, late] = [new FollowedClock(), new FollowedClock()];
    for (const clock of [prompt, late]) clock.follow(lineOf(5_000_000));
    const line = lineOf(5_000_300 + correction, 5_000_300, 300);
    prompt.follow(line);
    for (let ms = 0; ms < 600; ms += 1) {
      if (ms === 290) late.follow(line);
      expect(late.micros()).toBe(prompt.micros());
      vi.advanceTimersByTime(1);
    }
    expect(Math.abs(prompt.now() - (5_000_600 + correction))).toBeLessThan(2);
  }
});
