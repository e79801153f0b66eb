/** The notes of shipping after a restart, and when their file is damaged. */
import { expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { silentLog as log } from '../../test/harness/clickhouse-server.ts';
import { ShipNotes, shipNotesFile } from './ship-notes.ts';

const dir = '/journal/worker-0';
const open = (disk: SimDisk) => ShipNotes.open(disk, dir, log);

test('ranges hold for frames up to their order, are united, and are forgotten with the frames', async () => {
  const disk = new SimDisk();
  const before = await open(disk);
  expect([before.isEmpty, before.unfinished('late')]).toEqual([true, undefined]);
  before.stored(20n, { from: 100, to: 200 }, 0n);
  before.stored(20n, { from: 200, to: 300 }, 0n);
  before.stored(10n, { from: 0, to: 50 }, 0n);
  before.takesLong('late', 400);
  before.takesLong('wide', 100);
  before.ended('wide');
  await before.close();
  const after = await open(disk);
  expect(after.rangesOf(10n)).toEqual([
    { from: 0, to: 50 },
    { from: 100, to: 300 },
  ]);
  expect([after.rangesOf(11n), after.rangesOf(21n)]).toEqual([[{ from: 100, to: 300 }], []]);
  expect([after.unfinished('late'), after.unfinished('wide')]).toEqual([400, undefined]);
  after.stored(30n, { from: 7, to: 8 }, 20n);
  expect(after.rangesOf(10n)).toEqual([{ from: 7, to: 8 }]);
});

test('a damaged file says nothing', async () => {
  const disk = new SimDisk();
  const before = await open(disk);
  before.stored(20n, { from: 100, to: 200 }, 0n);
  await before.close();
  const path = `${dir}/${shipNotesFile}`;
  const content = disk.content(path);
  content[content.indexOf('200')] = 0x39;
  expect((await open(disk)).isEmpty).toBe(true);
  disk.cut(path, 3);
  expect((await open(disk)).isEmpty).toBe(true);
  disk.fault = (operation) => (operation === 'open' ? 'EIO' : undefined);
  expect((await open(disk)).isEmpty).toBe(true);
});
