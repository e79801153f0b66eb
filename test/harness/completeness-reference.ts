/**
 * Completeness in plain JavaScript, as docs/rest.md#reports words it, one missing point after the other. It shares no
 * code with `src`.
 */
import { hourMs } from '../../src/base/durations.ts';
import type { RefPoint } from './report-reference.ts';

const dayMs = 24 * hourMs;

interface Expected {
  interval: number | undefined;
  /** Times within the range. */
  present: number[];
  missing: number[];
}

interface RefRange {
  startTs: number;
  endTs: number;
  now: number;
}

/** Returns what is expected of one key, by device. Devices without a point are absent. */
export function referenceSeries(points: RefPoint[], range: RefRange): Map<number, Expected> {
  const byDevice = new Map<number, number[]>();
  for (const { device, ts } of points) byDevice.set(device, [...(byDevice.get(device) ?? []), ts]);
  const found = new Map<number, Expected>();
  for (const [device, all] of byDevice) {
    const expected = expectedOf(all, range);
    if (expected !== undefined) found.set(device, expected);
  }
  return found;
}

export interface RefGap {
  startTs: number;
  endTs: number;
  points: number;
}

interface RefGaps {
  interval: number | undefined;
  present: number;
  gaps: RefGap[];
  late: (RefGap & { arrivedTs: number })[];
}

/** Returns the gaps of a series (docs/rest.md#completeness); undefined = no point is near. `late`: arrival − ts. */
export function referenceGaps(
  points: { ts: number; late: number }[],
  range: RefRange,
  lateMs?: number,
): RefGaps | undefined {
  const times = points.map(({ ts }) => ts);
  const expected = expectedOf(times, range);
  if (expected === undefined) return undefined;
  const { interval, present, missing } = expected;
  const gaps: RefGap[] = [];
  for (const due of missing) {
    const last = gaps.at(-1);
    if (last && due === last.endTs + interval!) Object.assign(last, { endTs: due, points: last.points + 1 });
    else gaps.push({ startTs: due, endTs: due, points: 1 });
  }
  const limit = lateMs ?? (interval === undefined ? Number.POSITIVE_INFINITY : 2 * interval);
  const late: RefGaps['late'] = [];
  let isRun = false;
  for (const { ts, late: ms } of points.filter((point) => present.includes(point.ts)).sort((a, b) => a.ts - b.ts)) {
    if (ms > limit) {
      const run = isRun ? late.pop()! : { startTs: ts, endTs: ts, points: 0, arrivedTs: 0 };
      late.push({ ...run, endTs: ts, points: run.points + 1, arrivedTs: Math.max(run.arrivedTs, ts + ms) });
    }
    isRun = ms > limit;
  }
  return { interval, present: present.length, gaps, late };
}

function expectedOf(all: number[], { startTs, endTs, now }: RefRange): Expected | undefined {
  const windowMs = Math.min(dayMs, Math.max(hourMs, endTs - startTs));
  const horizon = Math.min(now, endTs + windowMs);
  const sorted = [...new Set(all)].sort((a, b) => a - b);
  let times = sorted.filter((ts) => ts >= startTs - windowMs && ts < horizon);
  if (times.length < 9) {
    const older = sorted.filter((ts) => ts < startTs - windowMs && ts >= startTs - windowMs - 30 * dayMs);
    times = [...older.slice(-64), ...times];
  }
  if (times.length === 0) return undefined;
  const inRange = (ts: number) => ts >= startTs && ts < endTs;
  const present = times.filter(inRange);
  const interval = intervalOf(times);
  if (interval === undefined) return { interval, present, missing: [] };
  const missing: number[] = [];
  times.forEach((ts, n) => {
    const next = times[n + 1] ?? horizon;
    for (let due = ts + interval; next - due >= interval / 2; due += interval) if (inRange(due)) missing.push(due);
  });
  return { interval, present, missing };
}

function intervalOf(times: number[]): number | undefined {
  const steps = times.slice(1).map((ts, n) => ts - times[n]!);
  const median = [...steps].sort((a, b) => a - b)[Math.ceil(steps.length / 2) - 1];
  if (median === undefined || steps.length < 8) return undefined;
  const near = steps.filter((step) => Math.abs(step - median) <= median / 4);
  return near.length > steps.length / 2 ? median : undefined;
}
