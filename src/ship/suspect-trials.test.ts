/** Work of the trials beside their rounds: entries of the quarantine expire. */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { systemClock } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { openJournal } from '../journal/open-journal.ts';
import { listQuarantine, removeQuarantined } from '../journal/quarantine.ts';
import { Trials } from './suspect-trials.ts';

test('entries of the quarantine expire only while the clock is trusted, by the trusted time', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'trials-'));
  const journal = await openJournal({ dir: join(dir, 'worker-0'), log, segmentBytes: 1024 * 1024, durable: 'none' });
  const refused = { reason: 'code 27', payload: Buffer.from('row'), rows: 1, order: 12n };
  await journal.quarantine.add([refused]);
  // The clock of the process is a year ahead.
  let skippedMs = 0;
  const clock = {
    now: () => systemClock.now() + 365 * dayMs,
    monotonic: () => performance.now() + skippedMs,
    micros: () => 0,
  };
  let time: number | undefined;
  let asked = 0;
  const expiryTime = async () => {
    asked += 1;
    return time;
  };
  const sleep = () => new Promise<void>((resolve) => setTimeout(resolve, 5));
  const deps = { journal, clock, log, metrics: new Metrics(), sleep, quarantineKeptDays: 30, expiryTime };
  const shards = { all: [{}] };
  const trials = new Trials({ ...deps, shards, controls: [{}], onSettled() {} } as unknown as ConstructorParameters<
    typeof Trials
  >[0]);
  trials.start();
  await vi.waitFor(() => expect(asked).toBe(1), 20_000);
  expect(journal.quarantine.entries).toBe(1);
  time = systemClock.now();
  skippedMs = 4_000_000;
  await vi.waitFor(() => expect(asked).toBe(2), 20_000);
  expect(journal.quarantine.entries).toBe(1);
  time = systemClock.now() + 31 * dayMs;
  skippedMs = 8_000_000;
  await vi.waitFor(() => expect(journal.quarantine.entries).toBe(0), 20_000);
  await trials.stop();
  await journal.close();
  rmSync(dir, { recursive: true });
});

test('entries that an operator removes are noticed within seconds', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'trials-'));
  const path = join(dir, 'worker-0');
  const journal = await openJournal({ dir: path, log, segmentBytes: 1024 * 1024, durable: 'none' });
  await journal.quarantine.add([{ reason: 'code 27', payload: Buffer.from('row'), rows: 1, order: 12n }]);
  const rests: number[] = [];
  const sleep = (ms: number) =>
    new Promise<void>((resolve) => {
      rests.push(ms);
      setTimeout(resolve, 5);
    });
  const clock = { now: () => systemClock.now(), monotonic: () => 0, micros: () => 0 };
  const deps = { journal, clock, log, metrics: new Metrics(), sleep, quarantineKeptDays: 0 };
  const shards = { all: [{}] };
  const trials = new Trials({ ...deps, shards, controls: [{}], onSettled() {} } as unknown as ConstructorParameters<
    typeof Trials
  >[0]);
  trials.start();
  await vi.waitFor(() => expect(rests).not.toEqual([]), 20_000);
  await removeQuarantined(await listQuarantine(path));
  await vi.waitFor(() => expect(journal.quarantine.entries).toBe(0), 20_000);
  expect(rests[0]).toBeLessThanOrEqual(5_000);
  await vi.waitFor(() => expect(rests.at(-1)).toBe(60_000), 20_000);
  await trials.stop();
  await journal.close();
  rmSync(dir, { recursive: true });
});
