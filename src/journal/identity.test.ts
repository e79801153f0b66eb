/** What a journal directory keeps about itself. */
import { expect, test } from 'vitest';
import { appendRandom, newLedger, open, ship } from '../../test/crash/journal-model.ts';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { Random } from '../../test/harness/random.ts';
import { readInstallation } from './identity.ts';

const dir = '/journal/worker-1';

test('rows of another installation are not shipped with this one; a journal without rows changes over', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const first = await open(disk, { installation: 'aaaa' });
  await appendRandom(first, ledger, new Random(1));
  await first.close();

  await expect(open(disk, { installation: 'bbbb' })).rejects.toThrow(
    'Rows of another installation wait in the journal',
  );
  expect(await readInstallation(dir, disk)).toBe('aaaa');
  // The id is unknown at a start without PostgreSQL and without known devices.
  const own = await open(disk, { installation: '' });
  for (const lane of [0, 1] as const) while (await ship(own, ledger, lane, 1_000));
  await own.close();

  const other = await open(disk, { installation: 'bbbb' });
  expect(other.empty).toBe(true);
  await other.close();
  expect(await readInstallation(dir, disk)).toBe('bbbb');
});

test('a journal of a version that kept no note takes the installation of the start, with its rows', async () => {
  const disk = new SimDisk();
  const first = await open(disk);
  await appendRandom(first, newLedger(), new Random(2));
  await first.close();
  const second = await open(disk, { installation: 'aaaa' });
  expect(second.empty).toBe(false);
  expect(await readInstallation(dir, disk)).toBe('aaaa');
  await second.close();
});
