import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { startEmptyClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { CalmMerges } from './calm-merges.ts';
import type { Run } from './engine.ts';

let embedded: TestClickHouse;
/** What the clock and the CPU counter of the engine show, in milliseconds. */
let now = 0;
let cpuMs = 0;

beforeAll(async () => {
  embedded = await startEmptyClickHouse();
  await ask('CREATE DATABASE mill');
});

afterAll(() => embedded.stop());

beforeEach(async () => {
  await ask('DROP TABLE IF EXISTS mill.day SYNC');
  // ClickHouse itself begins no merge of this table.
  await ask(`CREATE TABLE mill.day (day UInt8, a Int64) ENGINE = MergeTree PARTITION BY day ORDER BY a
    SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, old_parts_lifetime = 480`);
});

const ask = (sql: string) => embedded.ask(sql);

function calmMerges(freeDiskBytesMin = 0): CalmMerges {
  const run = async ({ sql, settings, defaultFormat }: Run) => {
    const own = [...settings].map(([name, value]) => `${name} = ${value}`).join(', ');
    const sent = defaultFormat === 'Null' ? `${sql} SETTINGS ${own}` : `${sql} FORMAT ${defaultFormat}`;
    const body = new TextEncoder().encode(await ask(sent));
    return { body, elapsedSeconds: 0, rowsRead: 0, bytesRead: 0 };
  };
  const stopMerges = async () => void (await ask('SYSTEM STOP MERGES'));
  const deps = { engine: { run, stopMerges }, nice: 10, freeDiskBytesMin, log: silentLog };
  return new CalmMerges({ ...deps, cpuMs: () => cpuMs, monotonic: () => now });
}

/** Passes half a minute, in which the engine took this share of a core. */
async function pass(merges: CalmMerges, share: number): Promise<void> {
  now += 30_000;
  cpuMs += share * 30_000;
  await merges.check();
}

async function insert(parts: number, rows: number, day = 1): Promise<void> {
  for (let part = 0; part < parts; part += 1)
    await ask(`INSERT INTO mill.day SELECT ${day}, number FROM numbers(${rows})`);
}

const partsOf = async (day: number) =>
  Number(await ask(`SELECT count() FROM system.parts WHERE active AND table = 'day' AND partition = '${day}'`));

test('the parts of a partition become one part once the engine is calm, and not while it is busy', async () => {
  await insert(6, 100);
  const merges = calmMerges();
  await pass(merges, 0.5);
  expect(await partsOf(1)).toBe(6);
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(1);
  expect(await ask('SELECT count(), sum(a) FROM mill.day')).toBe('600\t29700');
});

test('the partition with the most parts is merged first, one partition at a time', async () => {
  await insert(4, 100, 1);
  await insert(6, 100, 2);
  const merges = calmMerges();
  await pass(merges, 0.01);
  expect([await partsOf(1), await partsOf(2)]).toEqual([4, 1]);
  await pass(merges, 0.01);
  expect([await partsOf(1), await partsOf(2)]).toEqual([1, 1]);
});

test('a large part is merged again only with half as many rows as it has, and few parts are left', async () => {
  await insert(1, 1_000);
  await insert(4, 100);
  const merges = calmMerges();
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(5);
  await insert(1, 100);
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(1);
  await insert(2, 1_500);
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(3);
});

test('a partition whose merge fails is left alone for ten minutes, and others are merged meanwhile', async () => {
  await insert(6, 100);
  await ask('DROP TABLE IF EXISTS mill.other SYNC');
  await ask(`CREATE TABLE mill.other AS mill.day`);
  for (let part = 0; part < 4; part += 1) await ask('INSERT INTO mill.other VALUES (1, 1)');
  await ask('SYSTEM STOP MERGES mill.day');
  const merges = calmMerges();
  await pass(merges, 0.01);
  await ask('SYSTEM START MERGES mill.day');
  for (let half = 0; half < 19; half += 1) await pass(merges, 0.01);
  expect(await ask("SELECT count() FROM system.parts WHERE active AND table = 'other'")).toBe('1');
  expect(await partsOf(1)).toBe(6);
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(1);
});

test('nothing is merged in a table with an unfinished mutation, which is no failure', async () => {
  await insert(4, 100);
  await ask('SYSTEM STOP MERGES mill.day');
  await ask('ALTER TABLE mill.day DELETE WHERE a < 0 SETTINGS mutations_sync = 0');
  const merges = calmMerges();
  await pass(merges, 0.01);
  await ask("KILL MUTATION WHERE table = 'day'");
  await ask('SYSTEM START MERGES mill.day');
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(1);
});

test('a server that makes calm merges checks by itself', async () => {
  const calm = await startEmptyClickHouse({ calmCheckMs: 200 });
  try {
    await calm.ask(`CREATE TABLE day (a Int64) ENGINE = MergeTree ORDER BY a
      SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1`);
    for (let part = 0; part < 6; part += 1) await calm.ask(`INSERT INTO day VALUES (${part})`);
    const parts = "SELECT count() FROM system.parts WHERE active AND table = 'day'";
    await expect.poll(() => calm.ask(parts), { interval: 500 }).toBe('1');
  } finally {
    await calm.stop();
  }
});

test('nothing is merged while the disk lacks the space for it', async () => {
  await insert(4, 100);
  await pass(calmMerges(2 ** 60), 0.01);
  expect(await partsOf(1)).toBe(4);
});

test('the end of the engine ends a merge that runs, and no other one begins', async () => {
  await insert(10, 1_000_000);
  const merges = calmMerges();
  const passed = pass(merges, 0.01);
  await expect.poll(() => ask('SELECT count() FROM system.merges'), { interval: 1 }).toBe('1');
  expect(await merges.end(10_000)).toBe(true);
  await passed;
  expect(await partsOf(1)).toBe(10);
  await ask('SYSTEM START MERGES');
  await pass(merges, 0.01);
  expect(await partsOf(1)).toBe(10);
});
