import { readdirSync, renameSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { startEmbeddedClickHouse } from './embedded.ts';

let house: TestClickHouse;

beforeAll(async () => {
  house = await startTestClickHouse({}, false);
});

afterAll(() => house.stop());

const ask = (sql: string) => house.ask(sql);

test('a part that a start without memory set aside is there again after the next start, a damaged one is left', async () => {
  await ask('CREATE DATABASE mill');
  await ask('CREATE TABLE mill.flow (a Int64) ENGINE = MergeTree PARTITION BY a ORDER BY a');
  await ask('INSERT INTO mill.flow VALUES (1), (2), (3)');
  const parts = (await ask("SELECT path FROM system.parts WHERE table = 'flow' AND active ORDER BY partition")).split(
    '\n',
  );
  await house.server.stop();
  const [whole, damaged] = parts.slice(0, 2).map((path) => setAside(path.replace(/\/$/, '')));
  writeFileSync(join(damaged!, 'data.bin'), 'no column');
  house.server = await startEmbeddedClickHouse(house.options);
  expect(await ask('SELECT a FROM mill.flow ORDER BY a')).toBe('1\n3');
  expect(readdirSync(dirname(whole!))).toEqual([basename(damaged!).replace('broken-on-start', 'unreadable')]);
});

/** Moves a part as the engine does when it cannot load the part. */
function setAside(path: string): string {
  const to = join(dirname(path), 'detached', `broken-on-start_${basename(path)}`);
  renameSync(path, to);
  return to;
}
