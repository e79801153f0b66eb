/** Rows that wait for a shard, on a disk that crashes. */
import { expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { Random } from '../../test/harness/random.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { openJournal } from './open-journal.ts';
import { listQuarantine } from './quarantine.ts';
import { listShardFiles, ShardBacklog } from './shard-backlog.ts';

const most = { rowsMax: 1_000, bytesMax: 1_000_000 };

const open = (disk: SimDisk) => ShardBacklog.open(disk, '/j', async () => {});

function rows(texts: string[], orderMin: bigint) {
  return { payloads: texts.map((text) => Buffer.from(text)), rows: texts.length, orderMin, mapVersion: 1 };
}

async function waiting(backlog: ShardBacklog, shard: number): Promise<string[]> {
  const found: string[] = [];
  for (let unit = await backlog.next(shard, most); unit; unit = await backlog.next(shard, most)) {
    found.push(...unit.payloads.map(String));
    await backlog.settle(unit);
  }
  return found;
}

test('rows survive any crash, hold back what counts as shipped, and leave when they are stored', async () => {
  const disk = new SimDisk();
  const openOn = (on: SimDisk) => openJournal({ dir: '/j', disk: on, log, segmentBytes: 64 * 1024 });
  const journal = await openOn(disk);
  await journal.append([{ lane: 0, order: 10n, rows: 2, parts: [Buffer.from('frame')] }]);
  const unit = await journal.next(0, most);
  await journal.shardBacklog.add(1, rows(['a'], 10n));
  await journal.confirm(unit!);
  expect([journal.laneShipped(0), journal.orderShipped(), journal.empty]).toEqual([10n, 9n, false]);
  for (let seed = 1; seed <= 20; seed += 1) {
    const found = await openOn(disk.crash(new Random(seed)));
    expect([found.orderHeld, found.orderShipped(), found.orderRecovered]).toEqual([10n, 9n, 10n]);
    expect([found.shardBacklog.rowsOf(1), found.shardBacklog.holds(0)]).toEqual([1, false]);
    expect(await waiting(found.shardBacklog, 1)).toEqual(['a']);
    expect([found.orderShipped(), found.empty]).toEqual([10n, true]);
  }
});

test('each shard has its own rows, in the order of their arrival', async () => {
  const disk = new SimDisk();
  const backlog = await open(disk);
  await backlog.add(1, rows(['a', 'b'], 5n));
  await backlog.add(2, rows(['c'], 3n));
  await backlog.add(1, rows(['d'], 7n));
  expect([backlog.rows, backlog.rowsOf(1), backlog.bytesOf(2), backlog.orderMin]).toEqual([4, 3, 1, 3n]);
  const listed = await listShardFiles('/j', disk);
  expect(listed.map((file) => [file.shard, file.rows])).toEqual([
    [1, 3],
    [2, 1],
  ]);
  expect(await waiting(await open(disk.crash(undefined)), 1)).toEqual(['a', 'b', 'd']);
  expect(await waiting(backlog, 2)).toEqual(['c']);
  expect([backlog.shards(), backlog.orderMin]).toEqual([[1], 5n]);
});

test('small units share a file, also when a crash meets the joining', async () => {
  const disk = new SimDisk();
  const backlog = await open(disk);
  for (let n = 0; n < 50; n += 1) {
    await backlog.add(1, rows([`row ${n}`], BigInt(100 - n)));
    const found = await open(disk.crash(new Random(n)));
    // A crash between the new file and the removal of the old one repeats rows, and loses none.
    expect(new Set(await waiting(found, 1)).size).toBe(n + 1);
  }
  expect(disk.paths().filter((path) => path.endsWith('.rows'))).toHaveLength(1);
  expect([backlog.rowsOf(1), backlog.orderMin]).toEqual([50, 51n]);
});

test('a unit that was not stored comes again, and later rows follow in a file of their own', async () => {
  const backlog = await open(new SimDisk());
  await backlog.add(1, rows(['a'], 1n));
  const unit = await backlog.next(1, most);
  await backlog.add(1, rows(['b'], 2n));
  expect(await backlog.next(1, most)).toBeUndefined();
  backlog.giveBack(unit!);
  expect(await waiting(backlog, 1)).toEqual(['a', 'b']);
});

test('a full disk refuses rows, and keeps those that are there', async () => {
  const disk = new SimDisk();
  const backlog = await open(disk);
  await backlog.add(1, rows(['a'], 1n));
  const paths = disk.paths();
  for (const failing of ['write', 'sync', 'rename', 'syncDirectory']) {
    disk.fault = (operation) => (operation === failing ? 'ENOSPC' : undefined);
    await expect(backlog.add(1, rows(['b'], 2n))).rejects.toThrow('ENOSPC');
    expect(disk.paths(), failing).toEqual(paths);
  }
  disk.fault = () => undefined;
  expect([backlog.rowsOf(1), await waiting(await open(disk.crash(undefined)), 1)]).toEqual([1, ['a']]);
});

test('an opening removes what a crash left, and no file of another kind', async () => {
  const disk = new SimDisk();
  const backlog = await open(disk);
  await backlog.add(1, rows(['a'], 1n));
  for (const name of ['1-9-1-1-1-1.rows.tmp', '1-9-1-1.later'])
    await (await disk.open(`/j/shards/${name}`, 'write')).close();
  const found = await open(disk);
  expect(disk.paths().map((path) => path.slice('/j/shards/'.length))).toEqual(['1-1-1-1-1-1.rows', '1-9-1-1.later']);
  expect(await waiting(found, 1)).toEqual(['a']);
});

test('a damaged file goes to the quarantine, and the other files are stored', async () => {
  const disk = new SimDisk();
  const journal = await openJournal({ dir: '/j', disk, log, segmentBytes: 64 * 1024 });
  const { shardBacklog } = journal;
  await shardBacklog.add(1, rows(['damaged'], 1n));
  const taken = await shardBacklog.next(1, most);
  await shardBacklog.add(1, rows(['whole'], 2n));
  shardBacklog.giveBack(taken!);
  const [path] = disk.paths().filter((each) => each.endsWith('.rows'));
  const content = disk.content(path!);
  content[content.indexOf('damaged')]! ^= 1;
  expect(await waiting(shardBacklog, 1)).toEqual(['whole']);
  expect((await listQuarantine('/j', disk)).map(({ kind }) => kind)).toEqual(['gap']);
  expect(journal.empty).toBe(true);
});
