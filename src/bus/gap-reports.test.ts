import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from './bus.ts';
import { IpcBus } from './ipc.ts';
import { type Port, portPair } from './port.ts';

let hub: Port;
let bus: IpcBus;
let reports: number[];
let begunMs: number;

beforeEach(() => {
  vi.useFakeTimers();
  begunMs = Date.now();
  const [ours, theirs] = portPair();
  hub = theirs;
  bus = new IpcBus(ours, busCounters(new Metrics()));
  reports = [];
  bus.onReconnect(() => reports.push(Date.now() - begunMs));
});

afterEach(async () => {
  await bus.close();
  expect(vi.getTimerCount()).toBe(0);
  vi.useRealTimers();
});

function gap(): void {
  hub.send({ millrace: 'bus', verb: 'gap', lost: 1 }, () => {});
}

async function gaps(count: number, everyMs: number): Promise<void> {
  for (let n = 0; n < count; n += 1) {
    gap();
    await vi.advanceTimersByTimeAsync(everyMs);
  }
}

test('a flood of gaps is reported at once, then ever more rarely, and once after its end', async () => {
  await gaps(2_000, 50);
  const paused = reports.slice(1).map((at, n) => at - reports[n]!);
  expect(reports[0]).toBeLessThan(100);
  expect(paused.slice(0, 3).map((ms) => Math.round(ms / 500))).toEqual([1, 2, 4]);
  expect(paused.at(-1)).toBeGreaterThanOrEqual(limits.busGapPauseMsMax);
  expect(reports.length).toBeLessThan(11);
  const before = reports.length;
  await vi.advanceTimersByTimeAsync(10 * limits.busGapPauseMsMax);
  expect(reports.length).toBe(before + 1);
});

test('single gaps are reported at once, also the next one after a flood and a quiet time', async () => {
  await gaps(3, 2_500);
  expect(reports).toHaveLength(3);
  await gaps(100, 50);
  await vi.advanceTimersByTimeAsync(3 * limits.busGapPauseMsMax);
  const before = reports.length;
  await gaps(2, limits.busGapPauseMsMin + 10);
  expect(reports).toHaveLength(before + 2);
});
