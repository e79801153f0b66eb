import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { silentLog, startTestClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { attachDetached } from './detached.ts';
import { startEmbeddedClickHouse } from './embedded.ts';
import type { Run } from './engine.ts';
import { Exception } from './exception.ts';

let house: TestClickHouse;
const noRows = { elapsedSeconds: 0, rowsRead: 0, bytesRead: 0 };

beforeAll(async () => {
  house = await startTestClickHouse({}, false);
});

afterAll(() => house.stop());

const ask = (sql: string) => house.ask(sql);

test('a part that a start without memory set aside is there again after the next start, a damaged one is left', async () => {
  await makeTable('flow', 3);
  const parts = await partsOf('flow');
  await house.server.stop();
  const [whole, damaged] = parts.slice(0, 2).map((path) => setAside(path, 'broken-on-start_'));
  writeFileSync(join(damaged!, 'data.bin'), 'no column');
  house.server = await startEmbeddedClickHouse(house.options);
  expect(await ask('SELECT a FROM mill.flow ORDER BY a')).toBe('1\n3');
  expect(readdirSync(dirname(whole!))).toEqual([basename(damaged!).replace('broken-on-start', 'unreadable')]);
});

test('a part whose attachment was interrupted by a kill is there again after the next start', async () => {
  await makeTable('cut', 3);
  const parts = await partsOf('cut');
  await house.server.stop();
  setAside(parts[0]!, '');
  setAside(parts[1]!, 'attaching_');
  house.server = await startEmbeddedClickHouse(house.options);
  expect(await ask('SELECT a FROM mill.cut ORDER BY a')).toBe('1\n2\n3');
});

test('a part that cannot be attached for another reason than damage ends the start, and stays for the next one', async () => {
  const part = join(mkdtempSync(join(tmpdir(), 'millrace-detached-')), 'detached', 'broken-on-start_1_1_1_0');
  mkdirSync(part, { recursive: true });
  const answers = (sql: string) => {
    if (!sql.startsWith('ALTER')) return JSON.stringify({ database: 'mill', table: 'held', path: part });
    throw new Exception(1001, 'STD_EXCEPTION', 'nobody has seen this before');
  };
  const engine = { run: async ({ sql }: Run) => ({ ...noRows, body: Buffer.from(answers(sql)) }) };
  await expect(attachDetached(engine, silentLog)).rejects.toThrow('nobody has seen this before');
  expect(readdirSync(dirname(part))).toEqual(['1_1_1_0']);
  rmSync(dirname(dirname(part)), { recursive: true });
});

/** A table with a part for each row. */
async function makeTable(name: string, rows: number): Promise<void> {
  await ask('CREATE DATABASE IF NOT EXISTS mill');
  await ask(`CREATE TABLE mill.${name} (a Int64) ENGINE = MergeTree PARTITION BY a ORDER BY a`);
  await ask(`INSERT INTO mill.${name} SELECT number + 1 FROM numbers(${rows})`);
}

/** Paths of the parts, in the order of their rows. */
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
