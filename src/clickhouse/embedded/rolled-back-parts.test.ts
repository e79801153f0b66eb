import { readdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startEmptyClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { startEmbeddedClickHouse } from './embedded.ts';

let embedded: TestClickHouse;

beforeAll(async () => {
  embedded = await startEmptyClickHouse();
  await ask('CREATE DATABASE mill');
});

afterAll(() => embedded.stop());

const ask = (sql: string) => embedded.ask(sql);
const rowsOf = (table: string) => ask(`SELECT groupArray(a) FROM (SELECT a FROM mill.${table} ORDER BY a)`);

/** Makes a table of three parts whose merge failed after its part had got its name. Returns the path of that part. */
async function failedMerge(table: string): Promise<string> {
  await ask(`CREATE TABLE mill.${table} (a Int64) ENGINE = MergeTree ORDER BY a SETTINGS old_parts_lifetime = 3600`);
  for (const a of [1, 2, 3]) await ask(`INSERT INTO mill.${table} SELECT ${a}`);
  await ask(`OPTIMIZE TABLE mill.${table} FINAL`);
  const path = (await ask(`SELECT path FROM system.parts WHERE table = '${table}' AND active`)).replace(/\/$/, '');
  await embedded.server.stop();
  renameSync(path, outside(path));
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await rowsOf(table)).toBe('[1,2,3]');
  return path;
}

const outside = (path: string) => join(embedded.options.dir, path.split('/').slice(-2).join('_'));

async function restartWith(path: string): Promise<void> {
  await embedded.server.stop();
  renameSync(outside(path), path);
  embedded.server = await startEmbeddedClickHouse(embedded.options);
}

test('the engine opens when sources of a failed merge were merged again; every row is there once', async () => {
  const path = await failedMerge('merged');
  await ask('INSERT INTO mill.merged SELECT 4');
  // Without its first source the next merge overlaps the failed one.
  await ask("ALTER TABLE mill.merged DETACH PART 'all_1_1_0'");
  await ask('OPTIMIZE TABLE mill.merged FINAL');
  await ask("ALTER TABLE mill.merged ATTACH PART 'all_1_1_0'");
  await restartWith(path);
  expect(await rowsOf('merged')).toBe('[1,2,3,4]');
  expect(readdirSync(join(path, '..', 'detached'))).toEqual(['rolled-back_all_1_3_1']);
});

test('a row that was deleted after a failed merge stays deleted', async () => {
  const path = await failedMerge('mutated');
  await ask('DELETE FROM mill.mutated WHERE a = 2');
  await restartWith(path);
  expect(await rowsOf('mutated')).toBe('[1,3]');
});

test('parts that replace each other stay where they are', async () => {
  const path = await failedMerge('sound');
  await restartWith(path);
  expect(await rowsOf('sound')).toBe('[1,2,3]');
  expect(readdirSync(join(path, '..', 'detached'))).toEqual([]);
});
