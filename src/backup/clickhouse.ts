/**
 * The embedded ClickHouse of a backup. FREEZE links each table's parts under a second name at one moment, while inserts
 * and merges continue; the linked files never change, so they can be copied slowly. A restore makes the tables with the
 * statements of the backup, puts the parts into `detached`, and attaches them.
 */
import { mkdir, readdir, readFile, realpath, rm } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { StartError } from '../base/errors.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { type BackupFiles, copyBack, filesBelow, syncDirectories } from './files.ts';
import type { BackupFile, FrozenTable, Manifest } from './manifest.ts';

/**
 * The name has only letters, digits and underscores: ClickHouse escapes other characters in the name of the directory.
 */
const freezeName = 'millrace_backup';
const clickhousePath = 'clickhouse';
const freezeMsMax = 600_000;
const copiesMax = 4;

interface TableRow {
  name: string;
  engine: string;
  create: string;
  dataPaths: string[];
}

export interface Frozen extends FrozenTable {
  /** Directory of the frozen parts; undefined when the table has none. */
  dir: string | undefined;
  partNames: string[];
}

/** Freezes every table of the database, and first removes the frozen parts of an earlier backup. */
export async function freezeTables(clickhouse: ClickHouse, clickhouseDir: string): Promise<Frozen[]> {
  await removeFrozen(clickhouseDir);
  const tables = await readTables(clickhouse);
  for (const { name, engine } of tables) {
    if (!isStored(engine)) continue;
    await clickhouse.exec(
      `ALTER TABLE ${quoted(name)} FREEZE WITH NAME '${freezeName}'`,
      {},
      { timeoutMs: freezeMsMax },
    );
  }
  return await Promise.all(tables.map((table) => findFrozen(clickhouseDir, table)));
}

async function findFrozen(clickhouseDir: string, { name, engine, create, dataPaths }: TableRow): Promise<Frozen> {
  if (!isStored(engine)) return { name, create, stored: false, rows: 0, parts: 0, dir: undefined, partNames: [] };
  // The instance and this command may name the data directory by different links.
  const [path] = await Promise.all(dataPaths.map((each) => realpath(each)));
  const within = relative(await realpath(clickhouseDir), path ?? '..');
  if (dataPaths.length !== 1 || within.startsWith('..')) {
    throw new StartError(`The table ${name} has its data in ${dataPaths.join(', ')}, not below ${clickhouseDir}.`);
  }
  const dir = join(clickhouseDir, 'shadow', freezeName, within);
  const partNames = await readdir(dir).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  let rows = 0;
  for (const part of partNames) rows += Number(await readFile(join(dir, part, 'count.txt'), 'utf8'));
  return { name, create, stored: true, rows, parts: partNames.length, dir, partNames };
}

export async function copyFrozen(files: BackupFiles, tables: Frozen[], progress: () => void): Promise<void> {
  for (const { name, dir, partNames } of tables) {
    for (const part of partNames) {
      const paths = await filesBelow(join(dir!, part));
      // A part is some twenty small files, each of which is synced: a few at a time.
      await inParallel(paths, (path) =>
        files.copy(join(dir!, part, path), `${clickhousePath}/${name}/${part}/${path}`),
      );
      progress();
    }
  }
}

export async function removeFrozen(clickhouseDir: string): Promise<void> {
  await rm(join(clickhouseDir, 'shadow', freezeName), { recursive: true, force: true });
}

/**
 * Attaches tables to an engine without any table, which is stopped afterwards, because its merges are off. Throws when
 * a row is missing afterwards.
 */
export async function attachTables(
  clickhouse: ClickHouse,
  backupDir: string,
  { database, tables }: NonNullable<Manifest['clickhouse']>,
  files: readonly BackupFile[],
): Promise<void> {
  await clickhouse.exec(`CREATE DATABASE IF NOT EXISTS ${quoted(database)}`, {}, { withoutDatabase: true });
  // Views and distributed tables name others, which must exist.
  const inOrder = [...tables].sort((a, b) => Number(b.stored) - Number(a.stored));
  for (const { create } of inOrder) await clickhouse.exec(create);
  // A merge would drop rows that are overwritten or expired before they are counted.
  await clickhouse.exec('SYSTEM STOP MERGES');
  const paths = new Map((await readTables(clickhouse)).map(({ name, dataPaths }) => [name, dataPaths[0]!]));
  for (const { name, parts, rows } of tables) {
    if (parts === 0) continue;
    const dataPath = paths.get(name)!;
    const detached = join(dataPath, 'detached');
    await mkdir(detached, { recursive: true });
    await copyBack(backupDir, files, `${clickhousePath}/${name}/`, detached);
    await syncDirectories(detached);
    await clickhouse.exec(`ALTER TABLE ${quoted(name)} ATTACH PARTITION ALL`, {}, { timeoutMs: freezeMsMax });
    const attached = await attachedRows(clickhouse, name);
    if (attached !== rows) {
      throw new StartError(`The table ${name} has ${attached} rows after the restore, the backup has ${rows}.`);
    }
    await syncDirectories(dataPath);
  }
}

/** Returns the rows of the parts, as FREEZE counts them: before rows of one key are merged. */
async function attachedRows(clickhouse: ClickHouse, table: string): Promise<number> {
  const [row] = await clickhouse.rows<{ rows: string }>(
    `SELECT toString(sum(rows)) AS rows FROM system.parts
      WHERE database = currentDatabase() AND table = {table:String} AND active`,
    { table },
  );
  return Number(row?.rows ?? 0);
}

async function readTables(clickhouse: ClickHouse): Promise<TableRow[]> {
  return await clickhouse.rows<TableRow>(
    `SELECT name, engine, create_table_query AS create, data_paths AS dataPaths
       FROM system.tables WHERE database = currentDatabase() AND NOT is_temporary ORDER BY name`,
  );
}

function isStored(engine: string): boolean {
  return engine.endsWith('MergeTree');
}

function quoted(name: string): string {
  return `\`${name.replace(/[\\`]/g, '\\$&')}\``;
}

async function inParallel<Item>(items: Item[], work: (item: Item) => Promise<void>): Promise<void> {
  const waiting = [...items];
  const workers = Array.from({ length: Math.min(copiesMax, items.length) }, async () => {
    for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) await work(item);
  });
  await Promise.all(workers);
}
