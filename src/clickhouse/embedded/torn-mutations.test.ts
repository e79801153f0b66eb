import { readdirSync, readFileSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startEmptyClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { startEmbeddedClickHouse } from './embedded.ts';

let embedded: TestClickHouse;

beforeAll(async () => {
  embedded = await startEmptyClickHouse();
});

afterAll(() => embedded.stop());

const ask = (sql: string) => embedded.ask(sql);

test('the engine starts with torn entries of mutations, and later mutations are carried out', async () => {
  await ask('CREATE DATABASE mill');
  await ask('CREATE TABLE mill.flow (a Int64) ENGINE = MergeTree ORDER BY a SETTINGS old_parts_lifetime = 3600');
  await ask('INSERT INTO mill.flow SELECT number FROM numbers(9)');
  for (const a of [1, 2, 3]) await ask(`DELETE FROM mill.flow WHERE a = ${a}`);
  const [path] = (await ask("SELECT data_paths FROM system.tables WHERE name = 'flow' FORMAT TSVRaw")).match(
    /[^'[\]]+/,
  )!;
  await embedded.server.stop();
  const entries = () => readdirSync(path!).filter((name) => name.startsWith('mutation_'));
  const [whole, empty, half] = entries().sort();
  truncateSync(join(path!, empty!), 0);
  truncateSync(join(path!, half!), readFileSync(join(path!, half!)).length / 2);
  embedded.server = await startEmbeddedClickHouse(embedded.options);
  expect(await ask('SELECT groupArray(a) FROM (SELECT a FROM mill.flow ORDER BY a)')).toBe('[0,4,5,6,7,8]');
  expect(entries()).toEqual([whole]);
  await ask('DELETE FROM mill.flow WHERE a = 4');
  expect(await ask('SELECT groupArray(a) FROM (SELECT a FROM mill.flow ORDER BY a)')).toBe('[0,5,6,7,8]');
});
