/** The time for which telemetry would be accepted, computed from the reports of workers. */
import { beforeEach, expect, test } from 'vitest';
import { RefusalForecast } from './refusal-forecast.ts';

let now = 0;
let forecast: RefusalForecast;
const written = [0, 0];
const mega = 1_000_000;

beforeEach(() => {
  now = 0;
  written.fill(0);
  forecast = new RefusalForecast(() => now);
});

/** Reports once a second, as the primary does. */
function pass(seconds: number, bytesPerSecond: [number, number], left = 3_600 * mega, leftOnDisk = 1e15): void {
  for (let n = 0; n < seconds; n += 1) {
    now += 1_000;
    for (const worker of [0, 1]) written[worker]! += bytesPerSecond[worker]!;
    forecast.add([0, 1].map((worker) => ({ worker, written: written[worker]!, left, leftOnDisk })));
  }
}

test('the fullest journal decides, at its own rate', () => {
  pass(60, [mega, mega / 2]);
  expect(forecast.seconds).toBeCloseTo(3_600, -1);
  expect(forecast.sentence).toBe('At the present rate telemetry is accepted for about 60 minutes.');
});

test('a long time has no number, and no room is no time', () => {
  pass(60, [1_000, 0], 1e15);
  expect(forecast.sentence).toBe('At the present rate telemetry is accepted for more than a year.');
  pass(1, [1_000, 0], 0);
  expect(forecast.sentence).toBeUndefined();
});

test('the disk is shared by the journals', () => {
  pass(60, [mega, mega], 1e15, 7_200 * mega);
  expect(forecast.seconds).toBeCloseTo(3_600, -1);
});

test('the rate is that of the last five minutes', () => {
  pass(600, [100 * mega, 0]);
  pass(310, [mega, 0]);
  expect(forecast.seconds).toBeCloseTo(3_600, -1);
});

test('without telemetry there is no end, and without room it is now', () => {
  expect(forecast.seconds).toBe(Number.POSITIVE_INFINITY);
  pass(60, [0, 0]);
  expect(forecast.seconds).toBe(Number.POSITIVE_INFINITY);
  expect(forecast.sentence).toBeUndefined();
  pass(1, [0, 0], 0);
  expect(forecast.seconds).toBe(0);
});

test('a worker that was started again has a rate of its own', () => {
  pass(60, [mega, 0]);
  written[0] = 0;
  pass(20, [mega, 0]);
  expect(forecast.seconds).toBeCloseTo(3_600, -1);
});
