/**
 * Power losses while a journal is written: short forms are in `journal.test.ts`, long ones in
 * `test/long/journal.test.ts`.
 */
import fc from 'fast-check';
import { expect } from 'vitest';
import { JournalError, type ShipUnit } from '../../src/journal/journal.ts';
import { Random } from '../harness/random.ts';
import { appendRandom, checkRecovered, type Ledger, newLedger, open, ship, shipApart } from './journal-model.ts';
import { SimDisk } from './sim-disk.ts';

/** Appends, ships and restarts until the power fails. */
async function run(disk: SimDisk, ledger: Ledger, random: Random, steps: number): Promise<void> {
  // Half of the runs pack every segment of which half is shipped.
  const options = random.next() < 0.5 ? { idleBytesMax: 0 } : {};
  // A third of the runs confirm units in any order.
  const apart = random.next() < 0.33;
  let units: ShipUnit[] = [];
  let journal = await open(disk, options);
  for (let step = 0; step < steps && !disk.crashed; step += 1) {
    const choice = random.next();
    if (choice < 0.65) await appendRandom(journal, ledger, random).catch(unlessFull);
    else if (choice < 0.95 && apart) await shipApart(journal, ledger, random, units);
    else if (choice < 0.95) await ship(journal, ledger, random.next() < 0.7 ? 0 : 1);
    else {
      await journal.close();
      units = [];
      journal = await open(disk, options);
    }
  }
}

function unlessFull(error: unknown): void {
  if (!(error instanceof JournalError && error.kind === 'full')) throw error;
}

/** Runs until the disk fails, after which no operation ends, or until the run has ended. */
async function runUntilCrash(disk: SimDisk, ledger: Ledger, random: Random, steps: number): Promise<void> {
  let done = false;
  let failure: unknown;
  run(disk, ledger, random, steps).then(
    () => (done = true),
    (error) => {
      failure = error;
      done = true;
    },
  );
  while (!done && !disk.crashed) await new Promise((resolve) => setImmediate(resolve));
  await new Promise((resolve) => setImmediate(resolve));
  if (failure) throw failure;
}

export async function crashOnce(seed: number, crashAt: number, steps: number, failAt = 0): Promise<boolean> {
  const disk = new SimDisk();
  let writes = 0;
  disk.fault = (operation, path) => {
    if (operation !== 'write' || !path.endsWith('.seg')) return undefined;
    writes += 1;
    return writes === failAt ? (seed % 3 === 0 ? 'ENOSPC' : 'EIO') : undefined;
  };
  const ledger = newLedger();
  disk.crashAt = crashAt;
  const random = new Random(seed);
  await runUntilCrash(disk, ledger, random, steps);
  const image = disk.crash(random.next() < 0.2 ? undefined : new Random(seed * 31 + crashAt));
  const journal = await checkRecovered(image, ledger);
  expect(journal.degraded, 'a crash alone is no damage').toBe(false);
  // Uses the same directory again and checks that a second crash loses no frame in it.
  if (journal.orderMax > ledger.order) ledger.order = journal.orderMax;
  for (let i = 0; i < 3; i += 1) await appendRandom(journal, ledger, random);
  await checkRecovered(image.crash(new Random(seed + 7)), ledger);
  return disk.crashed;
}

interface Runs {
  numRuns: number;
  seed?: number;
}

const upTo = (max: number) => fc.integer({ min: 1, max });

/** The power fails at a random place of a random load. */
export async function powerLossLosesNothing(runs: Runs): Promise<void> {
  await fc.assert(
    fc.asyncProperty(upTo(1e6), upTo(400), async (seed, crashAt) => {
      await crashOnce(seed, crashAt, 120);
    }),
    runs,
  );
}

/** A write fails, and the power fails before or after it. */
export async function failedWriteLosesNothing(runs: Runs): Promise<void> {
  await fc.assert(
    fc.asyncProperty(upTo(1e6), upTo(400), upTo(60), async (seed, crashAt, failAt) => {
      await crashOnce(seed, crashAt, 120, failAt);
    }),
    runs,
  );
}
