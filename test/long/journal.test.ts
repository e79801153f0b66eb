/** Power losses at many more places than in the short tests, and at other places in each run. */
import { test } from 'vitest';
import { failedWriteLosesNothing, powerLossLosesNothing } from '../crash/journal-crash.ts';

test('power loss at random places of random loads loses nothing that was acknowledged', async () => {
  await powerLossLosesNothing({ numRuns: 500 });
});

test('a failed write and a power loss together lose nothing that was acknowledged', async () => {
  await failedWriteLosesNothing({ numRuns: 500 });
});
