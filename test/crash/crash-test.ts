/**
 * A crash run as a test, short or long: the forbidden outcomes, and the number of faults below which the run proves
 * nothing.
 */
import { afterAll, expect, test } from 'vitest';
import { type CrashOptions, type CrashOutcome, crashRun } from '../../bench/crash.ts';

interface CrashTest {
  timeout: number;
  options: Omit<CrashOptions, 'say' | 'signal'>;
}

export function testCrashRun(name: string, { timeout, options }: CrashTest): void {
  let run: Promise<CrashOutcome> | undefined;

  // A run that is out of time must still restore the machine.
  afterAll(async () => {
    await run?.catch(() => {});
  }, 120_000);

  // Never retried: a retry would hide a loss.
  test(name, { retry: 0, timeout }, async ({ signal }) => {
    const seed = Number(process.env['CRASH_SEED'] ?? options.seed);
    run = crashRun({ ...options, seed, say: () => {}, signal });
    const { sums, stillWaiting, ends, live, late, turns, deletes, faults, log } = await run;
    // The seed is part of the failure: CRASH_SEED=<seed> repeats the same faults.
    const nothing = Object.fromEntries(Object.keys(sums).map((sum) => [sum, 0]));
    const isGood = { seed, log, ...nothing, stillWaiting: [], ends: [] };
    // A failure shows the account of deletes, because one sum holds three kinds of their faults.
    expect({ seed, log, ...sums, stillWaiting, ends }, JSON.stringify(deletes)).toEqual(isGood);
    // A run in which little happened proves little.
    expect(live.acknowledged).toBeGreaterThanOrEqual(options.acknowledgedMin);
    expect(late.acknowledged).toBeGreaterThan(0);
    expect(turns.acknowledged).toBeGreaterThanOrEqual(options.turnsMin);
    const { devicesDeleted, seriesDeleted, rangesDeleted, gone } = deletes;
    expect(devicesDeleted + seriesDeleted + rangesDeleted).toBeGreaterThanOrEqual(options.deletesMin);
    expect(gone).toBeGreaterThan(0);
    expect(Object.values(faults).reduce((sum, n) => sum + n, 0)).toBeGreaterThanOrEqual(options.faultsMin);
  });
}
