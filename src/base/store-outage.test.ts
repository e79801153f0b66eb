/**
 * One process and a store: silent while the primary reports the outage, and not silent when only this process fails.
 */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Log } from './log.ts';
import { StoreOutage } from './store-outage.ts';

let lines: string[] = [];
let isUp = true;
/** The number of times that the outage has asked whether the primary reaches the store. */
let asked = 0;
let outage: StoreOutage;

const say = (event: string, fields: object = {}) =>
  lines.push([event, ...Object.entries(fields).map(([name, value]) => `${name}=${value}`)].join(' '));
const log: Log = { debug: () => {}, info: say, warn: say, error: say };

beforeEach(() => {
  vi.useFakeTimers();
  lines = [];
  isUp = true;
  asked = 0;
  outage = new StoreOutage({
    store: 'postgres',
    log,
    isUp: () => {
      asked += 1;
      return isUp;
    },
  });
});

afterEach(() => {
  vi.useRealTimers();
});

async function failFor(seconds: number): Promise<void> {
  for (let n = 0; n < seconds * 4; n += 1) {
    outage.failed({ reason: 'connect ECONNREFUSED' });
    await vi.advanceTimersByTimeAsync(250);
  }
}

test('an outage that the primary reports is no line of this process', async () => {
  await failFor(2);
  isUp = false;
  await failFor(600);
  isUp = true;
  await vi.advanceTimersByTimeAsync(60_000);
  outage.answered();
  expect(lines).toEqual([]);
});

test('a store that only this process cannot reach is one line, and one when it answers again', async () => {
  await failFor(120);
  expect(lines).toEqual(['postgres_away reason=connect ECONNREFUSED']);
  outage.answered();
  outage.answered();
  expect(lines).toEqual(['postgres_away reason=connect ECONNREFUSED', 'postgres_back awayMs=120000']);
  // The clock of a test also counts timers of other files, so the test counts what only this outage does at its timer.
  await vi.advanceTimersByTimeAsync(1_000);
  asked = 0;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(0);
});

test('a broken connection that is made again at once is no line', async () => {
  outage.failed({ reason: 'Connection terminated' });
  outage.answered();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(lines).toEqual([]);
});

test('a store that answers too late is named with the number of calls, but not during an outage', async () => {
  for (let n = 0; n < 10; n += 1) outage.slow({ reason: 'statement timeout' });
  await vi.advanceTimersByTimeAsync(10_000);
  expect(lines).toEqual(['postgres_slow reason=statement timeout calls=10']);
  outage.slow({ reason: 'no answer' });
  isUp = false;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(lines).toHaveLength(1);
});
