import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { startEmptyClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { attachDetached, attachTriesMax, readPartsOnDisk } from './detached.ts';
import { startEmbeddedClickHouse } from './embedded.ts';
import type { Run } from './engine.ts';
import { Exception } from './exception.ts';

let embedded: TestClickHouse;
const noRows = { elapsedSeconds: 0, rowsRead: 0, bytesRead: 0 };

beforeAll(async () => {
  embedded = await startEmptyClickHouse();
});

afterAll(() => embedded.stop());

const ask = (sql: string) => embedded.ask(sql);

test('a part that a start without memory set aside is there again after the next start, a damaged one is left', async () => {
  await makeTable('flow', 3);
  const parts = await partsOf('flow');
  await embedded.server.stop();
  const [whole, damaged] = parts.slice(0, 2).map((path) => setAside(path, 'broken-on-start_'));
  writeFileSync(join(damaged!, 'data.bin'), 'no column');
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await ask('SELECT a FROM mill.flow ORDER BY a')).toBe('1\n3');
  expect(readdirSync(dirname(whole!))).toEqual([basename(damaged!).replace('broken-on-start', 'unreadable')]);
});

test('a part of a table without partitions is there again, an outdated one brings nothing back that was deleted', async () => {
  await ask('CREATE DATABASE IF NOT EXISTS mill');
  await ask('CREATE TABLE mill.few (a Int64) ENGINE = MergeTree ORDER BY a SETTINGS old_parts_lifetime = 480');
  await ask('SYSTEM STOP MERGES mill.few');
  for (const rows of ['(1), (2)', '(3)']) await ask(`INSERT INTO mill.few VALUES ${rows}`);
  await ask('SYSTEM START MERGES mill.few');
  await ask('DELETE FROM mill.few WHERE a = 1');
  const pathOf = async (name: string) =>
    (await ask(`SELECT path FROM system.parts WHERE table = 'few' AND name = '${name}'`)).replace(/\/$/, '');
  const [outdated, active] = [await pathOf('all_1_1_0'), await pathOf('all_2_2_0_3')];
  const removed = await pathOf('all_2_2_0');
  await embedded.server.stop();
  // The engine removes outdated parts after some minutes.
  rmSync(removed, { recursive: true });
  for (const path of [outdated, active]) setAside(path, 'broken-on-start_');
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await ask('SELECT a FROM mill.few ORDER BY a')).toBe('2\n3');
  expect(readdirSync(join(dirname(outdated), 'detached'))).toEqual(['outdated_all_1_1_0']);
});

test.each<[string, string[], string[]]>([
  ['is outdated', [], ['all_1_1_0_3']],
  ['is the only copy', ['all_1_1_0_3'], ['all_1_1_0_3', 'all_1_1_0']],
])('a part that was set aside with the part that replaces it %s', async (_, damaged, expected) => {
  const dir = mkdtempSync(join(tmpdir(), 'millrace-detached-'));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const folder = join(dir, 'store', 'abc', 'abcdef', 'detached');
  for (const name of ['all_1_1_0', 'all_1_1_0_3']) {
    mkdirSync(join(folder, `broken-on-start_${name}`), { recursive: true });
    mkdirSync(join(dirname(folder), name));
  }
  const onDisk = readPartsOnDisk(dir);
  const asked: string[] = [];
  const engine = {
    run: async ({ sql }: Run) => {
      const [, part] = /ATTACH PART '(.*)'/.exec(sql) ?? [];
      if (part !== undefined) asked.push(part);
      if (part !== undefined && damaged.includes(part)) throw new Exception(228, 'BAD_SIZE_OF_FILE_IN_DATA_PART', '');
      const detached = readdirSync(folder).map((name) => ({
        database: 'mill',
        table: 'held',
        path: join(folder, name),
      }));
      const text = part === undefined ? detached.map((each) => JSON.stringify(each)).join('\n') : '';
      return { ...noRows, body: Buffer.from(text) };
    },
  };
  await attachDetached(engine, silentLog, onDisk);
  expect(asked).toEqual(expected);
});

test('a part whose attachment was interrupted by a kill is there again after the next start', async () => {
  await makeTable('cut', 3);
  const parts = await partsOf('cut');
  await embedded.server.stop();
  setAside(parts[0]!, '');
  setAside(parts[1]!, 'attaching_');
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await ask('SELECT a FROM mill.cut ORDER BY a')).toBe('1\n2\n3');
});

test('a part with an empty file, as a merge leaves it on a full disk, does not end the start', async () => {
  await makeTable('full', 2);
  const parts = await partsOf('full');
  await embedded.server.stop();
  const damaged = setAside(parts[0]!, 'broken-on-start_');
  writeFileSync(join(damaged, 'serialization.json'), '');
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await ask('SELECT a FROM mill.full ORDER BY a')).toBe('2');
  expect(readdirSync(dirname(damaged))).toEqual([basename(damaged).replace('broken-on-start', 'unreadable')]);
});

test('a part whose failed starts are counted in its name is attached by the next start', async () => {
  await makeTable('counted', 2);
  const parts = await partsOf('counted');
  await embedded.server.stop();
  const counted = setAside(parts[0]!, 'attaching_');
  renameSync(counted, `${counted}_try9`);
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await ask('SELECT a FROM mill.counted ORDER BY a')).toBe('1\n2');
});

test('a reason that is unknown ends the start, for ten starts; then the engine opens without the part', async () => {
  const { folder, start } = failingWith('nobody has seen this before');
  for (let n = 1; n < attachTriesMax; n += 1) {
    await expect(start()).rejects.toThrow('nobody has seen this before');
    expect(readdirSync(folder)).toEqual([`attaching_1_1_1_0_try${n}`]);
  }
  await start();
  expect(readdirSync(folder)).toEqual(['unreadable_1_1_1_0']);
});

test('a lack of memory ends every start, and the part stays for the next one', async () => {
  const { folder, start } = failingWith('std::bad_alloc');
  for (let n = 0; n <= attachTriesMax; n += 1) await expect(start()).rejects.toThrow('bad_alloc');
  expect(readdirSync(folder)).toEqual(['attaching_1_1_1_0_try0']);
});

/** A detached part, and starts of an engine that refuses to attach it. */
function failingWith(reason: string): { folder: string; start(): Promise<void> } {
  const folder = join(mkdtempSync(join(tmpdir(), 'millrace-detached-')), 'detached');
  mkdirSync(join(folder, 'broken-on-start_1_1_1_0'), { recursive: true });
  onTestFinished(() => rmSync(dirname(folder), { recursive: true }));
  const answers = (sql: string) => {
    const [path] = readdirSync(folder).map((name) => join(folder, name));
    if (!sql.startsWith('ALTER')) return JSON.stringify({ database: 'mill', table: 'held', path });
    throw new Exception(1001, 'STD_EXCEPTION', reason);
  };
  const engine = { run: async ({ sql }: Run) => ({ ...noRows, body: Buffer.from(answers(sql)) }) };
  return { folder, start: () => attachDetached(engine, silentLog, new Map()) };
}

/** A table with a part for each row. */
async function makeTable(name: string, rows: number): Promise<void> {
  await ask('CREATE DATABASE IF NOT EXISTS mill');
  await ask(`CREATE TABLE mill.${name} (a Int64) ENGINE = MergeTree PARTITION BY a ORDER BY a`);
  await ask(`INSERT INTO mill.${name} SELECT number + 1 FROM numbers(${rows})`);
}

/** Returns the paths of the parts, in the order of their rows. */
async function partsOf(table: string): Promise<string[]> {
  const text = await ask(`SELECT path FROM system.parts WHERE table = '${table}' AND active ORDER BY partition`);
  return text.split('\n').map((path) => path.replace(/\/$/, ''));
}

/** Moves a part as the engine does when it cannot load or is attaching the part. */
function setAside(path: string, prefix: string): string {
  const to = join(dirname(path), 'detached', `${prefix}${basename(path)}`);
  renameSync(path, to);
  return to;
}
