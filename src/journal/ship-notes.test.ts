/** The notes of shipping after a restart, and when their file is damaged. */
import { expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { systemClock } from '../base/clock.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { openJournal } from './open-journal.ts';
import { Owner } from './owner.ts';
import { ShipNotes, shipNotesFile } from './ship-notes.ts';

const dir = '/journal/worker-0';
let starts = 0;

function open(disk: SimDisk): Promise<ShipNotes> {
  starts += 1;
  return ShipNotes.open(disk, dir, log, { text: `${starts}`, earlierText: `${starts - 1}` });
}

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

test('notes hold for the next owner of the directory only', async () => {
  const disk = new SimDisk();
  const start = () => openJournal({ dir, disk, log, segmentBytes: 65_536, locked: true, sparesMax: 0 });
  const first = await start();
  const frame = { lane: 1 as const, order: 20n, rows: 1, parts: [Buffer.from('a')] };
  await first.append([frame]);
  first.notes.stored(20n, { from: 100, to: 200 }, 0n);
  await first.close();
  // A process that ends before it ships keeps the notes.
  await (await start()).close();
  const third = await start();
  expect(third.notes.rangesOf(20n)).toEqual([{ from: 100, to: 200 }]);
  await third.close();
  // An earlier version of Millrace, which has no notes, uses the directory.
  await Owner.take({ disk, dir, clock: systemClock, scheduler: systemScheduler, log, epochMax: 0, locked: true });
  const last = await start();
  expect([last.notes.isEmpty, last.notes.earlierMarks]).toEqual([true, []]);
  await last.close();
});

test('ranges of frames that are gone are forgotten: later frames may get their orders', async () => {
  const disk = new SimDisk();
  const before = await open(disk);
  before.stored(20n, { from: 100, to: 200 }, 0n);
  before.stored(30n, { from: 200, to: 300 }, 0n);
  await before.close();
  await (await open(disk)).keepUpTo(25n);
  expect((await open(disk)).rangesOf(20n)).toEqual([{ from: 100, to: 200 }]);
});
