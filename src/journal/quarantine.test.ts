/** Rows in quarantine and among the suspects, on a real directory and on one that is full or crashes. */

import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { Random } from '../../test/harness/random.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { type Disk, type DiskFile, realDisk } from './disk.ts';
import { openJournal } from './open-journal.ts';
import { listQuarantine, Quarantine, QuarantineFull, readQuarantined, removeQuarantined } from './quarantine.ts';
import { Suspects, SuspectsFull } from './suspects.ts';

let dir = '';

beforeEach(() => {
  dir = join(mkdtempSync(join(tmpdir(), 'quarantine-')), 'worker-0');
});

afterEach(() => rmSync(join(dir, '..'), { recursive: true }));

function refused(text: string, order = 12n) {
  return { reason: 'code 27', payload: Buffer.from(text), rows: 1, order, source: '1-1' };
}

test('the rows of one occasion are one file, and each is an entry until it is removed', async () => {
  const quarantine = await Quarantine.open(realDisk, dir, 10_000);
  await quarantine.add(Array.from({ length: 20 }, (_, i) => refused(`row ${i}`)));
  await quarantine.add([refused('one more')]);
  expect(readdirSync(join(dir, 'quarantine'))).toHaveLength(2);
  const entries = await listQuarantine(dir);
  expect(entries).toHaveLength(21);
  expect(entries[3]).toMatchObject({ kind: 'rows', reason: 'code 27', rows: 1, order: '12', source: '1-1' });
  const named = new Map(entries.map((entry) => [entry.name, entry]));
  expect(named.size).toBe(21);
  await removeQuarantined([entries[0]!, entries[1]!, entries[11]!]);
  const left = await listQuarantine(dir);
  const texts = await Promise.all(left.map((entry) => readQuarantined(entry)));
  expect(texts.map(String).sort()).toEqual(
    [...Array.from({ length: 20 }, (_, i) => `row ${i}`), 'one more'].filter((text) => !/ (0|1|11)$/.test(text)).sort(),
  );
  // A name means the same entry after the entries around it were removed.
  for (const entry of left)
    expect(String(await readQuarantined(named.get(entry.name)!))).toBe(String(await readQuarantined(entry)));
  await removeQuarantined(left);
  expect(readdirSync(join(dir, 'quarantine'))).toEqual([]);
});

test('a file is read once for all rows of one order number', async () => {
  let opens = 0;
  const open: Disk['open'] = (path, mode) => {
    opens += mode === 'read' && path.endsWith('.rows') ? 1 : 0;
    return realDisk.open(path, mode);
  };
  const quarantine = await Quarantine.open({ ...realDisk, open }, dir, 1_000_000);
  await quarantine.add(Array.from({ length: 50 }, (_, i) => refused(`row ${i}`)));
  opens = 0;
  expect(await quarantine.rowsOf(12n)).toHaveLength(50);
  expect(opens).toBe(1);
});

test('rows are found by their order number, also after a restart, until another process removes them', async () => {
  const first = await Quarantine.open(realDisk, dir, 10_000);
  await first.add([refused('a', 5n), refused('b', 7n), refused('c', 5n)]);
  const note = JSON.stringify({ kind: 'rows', order: 'no number' });
  writeFileSync(join(dir, 'quarantine', 'odd.json'), note);
  for (const quarantine of [first, await Quarantine.open(realDisk, dir, 10_000)]) {
    const found = await quarantine.rowsOf(5n);
    expect(found.map(({ payload, reason }) => `${payload} ${reason}`)).toEqual(['a code 27', 'c code 27']);
    expect(await quarantine.rowsOf(6n)).toEqual([]);
  }
  const [a] = await listQuarantine(dir).then((entries) => entries.filter(({ order }) => order === '5'));
  await removeQuarantined([a!]);
  expect((await first.rowsOf(5n)).map(({ payload }) => String(payload))).toEqual(['c']);
});

test('the cap counts what is there now: room that an operator made is used without a restart', async () => {
  const quarantine = await Quarantine.open(realDisk, dir, 1000);
  await quarantine.add([refused('x'.repeat(600))]);
  await expect(quarantine.add([refused('y'.repeat(600))])).rejects.toBeInstanceOf(QuarantineFull);
  await removeQuarantined(await listQuarantine(dir));
  await quarantine.add([refused('y'.repeat(600))]);
  expect(quarantine.entries).toBe(1);
  await removeQuarantined(await listQuarantine(dir));
  await quarantine.refresh();
  expect([quarantine.entries, quarantine.bytes]).toEqual([0, 0]);
});

test('entries of the earlier form, two files a row, are listed, read, counted and removed', async () => {
  mkdirSync(join(dir, 'quarantine'), { recursive: true });
  const payload = Buffer.from('old row');
  const note = {
    kind: 'rows',
    reason: 'code 6',
    rows: 1,
    order: '5',
    bytes: 7,
    crc: crc32(payload),
    at: '2026-01-01T00:00:00Z',
  };
  writeFileSync(join(dir, 'quarantine', 'rows-5-1.data'), payload);
  writeFileSync(join(dir, 'quarantine', 'rows-5-1.json'), JSON.stringify(note));
  const quarantine = await Quarantine.open(realDisk, dir, 1000);
  expect([quarantine.entries, quarantine.bytes]).toEqual([1, 7]);
  const [entry] = await listQuarantine(dir);
  expect(String(await readQuarantined(entry!))).toBe('old row');
  await removeQuarantined([entry!]);
  expect(readdirSync(join(dir, 'quarantine'))).toEqual([]);
});

test('entries expire by their age, and say how many rows that was', async () => {
  const quarantine = await Quarantine.open(realDisk, dir, 10_000);
  await quarantine.add([refused('a'), refused('b')]);
  await quarantine.addGap('1-2', 4096, Buffer.alloc(10));
  expect(await quarantine.expire(Date.now() - 1000)).toEqual({ entries: 0, rows: 0 });
  expect(await quarantine.expire(Date.now() + 1000)).toEqual({ entries: 3, rows: 2 });
  expect(readdirSync(join(dir, 'quarantine'))).toEqual([]);
  expect([quarantine.entries, quarantine.bytes]).toEqual([0, 0]);
});

test('entries expire by the clock of the installation, also on a host whose own clock is wrong', async () => {
  const now = Date.now() + 365 * 86_400_000;
  const clock = { now: () => now, monotonic: () => performance.now() };
  const quarantine = await Quarantine.open(realDisk, dir, 10_000, clock);
  await quarantine.add([refused('a')]);
  await quarantine.addGap('1-2', 4096, Buffer.alloc(10));
  expect(await quarantine.expire(now - 1000)).toEqual({ entries: 0, rows: 0 });
  const opened = await Quarantine.open(realDisk, dir, 10_000, clock);
  expect(await opened.expire(now - 1000)).toEqual({ entries: 0, rows: 0 });
  expect(await opened.expire(now + 1000)).toEqual({ entries: 2, rows: 1 });
});

test('a damaged record is listed as damaged, its neighbours are read, and it can be removed', async () => {
  const disk = new SimDisk();
  const quarantine = await Quarantine.open(disk, '/j', 10_000);
  await quarantine.add([refused('first'), refused('second'), refused('third')]);
  const [path] = disk.paths();
  const content = disk.content(path!);
  content[content.indexOf('second')]! ^= 1;
  const entries = await listQuarantine('/j', disk);
  expect(entries.map(({ kind }) => kind)).toEqual(['rows', 'gap', 'rows']);
  expect(String(await readQuarantined(entries[2]!, disk))).toBe('third');
  await removeQuarantined([entries[0]!, entries[1]!], disk);
  expect((await listQuarantine('/j', disk)).map(({ name }) => name)).toEqual([entries[2]!.name]);
});

test('suspects survive any crash, are found again in the journal, and hold back what counts as shipped', async () => {
  const disk = new SimDisk();
  const open = (on: SimDisk) => openJournal({ dir: '/j', disk: on, log, segmentBytes: 64 * 1024 });
  const journal = await open(disk);
  await journal.append([{ lane: 0, order: 10n, rows: 1, parts: [Buffer.from('frame')] }]);
  const unit = await journal.next(0, { rowsMax: 10, bytesMax: 1000 });
  await journal.suspects.add([
    { payload: Buffer.from('a'), rows: 1, order: 10n, reason: 'code 27' },
    { payload: Buffer.from('b'), rows: 1, order: 9n, reason: 'code 27' },
  ]);
  await journal.confirm(unit!);
  expect([journal.laneShipped(0), journal.orderShipped(), journal.isShipped(9n), journal.empty]).toEqual([
    10n,
    8n,
    false,
    false,
  ]);

  for (let seed = 1; seed <= 20; seed += 1) {
    const found = await open(disk.crash(new Random(seed)));
    expect([found.suspects.entries, found.suspects.orderMin, found.orderShipped()]).toEqual([2, 9n, 8n]);
    // Deletes must be carried out again after these rows are stored.
    expect(found.orderRecovered).toBe(9n);
  }
  const [first, second] = journal.suspects.list();
  expect((await journal.suspects.read([first!, second!])).map(String)).toEqual(['a', 'b']);
  await journal.suspects.settle([second!]);
  expect([journal.orderShipped(), journal.empty]).toEqual([9n, false]);
  const later = await open(disk.crash(undefined));
  expect((await later.suspects.read(later.suspects.list())).map(String)).toEqual(['a']);
  await journal.suspects.settle([first!]);
  expect([journal.orderShipped(), journal.empty]).toEqual([10n, true]);
  expect(disk.paths().filter((path) => path.includes('suspects'))).toEqual([]);
});

test('suspects have a cap, and a full disk refuses them without harm', async () => {
  const disk = new SimDisk();
  const suspects = await Suspects.open(disk, '/j', 10, async () => {});
  const row = { payload: Buffer.from('123456'), rows: 1, order: 1n, reason: '' };
  await suspects.add([row]);
  await expect(suspects.add([row])).rejects.toBeInstanceOf(SuspectsFull);
  disk.fault = (operation) => (operation === 'write' ? 'ENOSPC' : undefined);
  const other = await Suspects.open(disk, '/other', 10, async () => {});
  await expect(other.add([row])).rejects.toMatchObject({ code: 'ENOSPC' });
  expect(other.entries).toBe(0);
  disk.fault = () => undefined;
  await other.add([row]);
  expect((await Suspects.open(disk, '/other', 10, async () => {})).entries).toBe(1);
});

test('a bad sector below the rows that were set aside costs the rows on it, and no start', async () => {
  const rows = ['a', 'b', 'c', 'd'].map((text, i) => refused(text.repeat(3000), BigInt(10 + i)));
  const journal = await openJournal({ dir, log, segmentBytes: 65_536 });
  await journal.suspects.add(rows);
  await journal.quarantine.add(rows);
  const [first] = journal.suspects.list();
  await journal.close();
  let isBad = true;
  const disk: Disk = {
    ...realDisk,
    open: async (path, mode) => {
      const file = await realDisk.open(path, mode);
      if (!path.endsWith('.rows') || mode !== 'read') return file;
      const read: DiskFile['read'] = async (into, position) => {
        if (isBad && position < 8192 && position + into.length > 4096) {
          throw Object.assign(new Error('EIO: i/o error, read'), { code: 'EIO' });
        }
        return file.read(into, position);
      };
      return { read, size: () => file.size(), close: () => file.close() } as DiskFile;
    },
  };
  const quarantine = await listQuarantine(dir, disk);
  expect(String(await readQuarantined(quarantine[0]!, disk))).toBe('a'.repeat(3000));
  // The damage is found while the suspects are tried: the other files continue, and the rest of this file stays for the
  // next start.
  isBad = false;
  const running = await Suspects.open(disk, dir, 1e6, async () => {});
  isBad = true;
  const found = await running.read(running.list());
  expect(found.map((payload) => payload?.toString()[0])).toEqual(['a', undefined, undefined, undefined]);
  await running.settle([running.list()[0]!]);
  expect(running.entries).toBe(3);
  const later = await openJournal({ dir, log, segmentBytes: 65_536, disk });
  expect(later.suspects.list().map(({ order }) => order)).toEqual([first!.order]);
  expect(later.degraded).toBe(true);
  await later.close();
  const again = await Suspects.open(realDisk, dir, 1e6, () => Promise.reject(new Error('damage was kept before')));
  expect(again.entries).toBe(1);
});
