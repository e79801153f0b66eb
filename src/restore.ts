/**
 * `npm run restore -- DIR`: makes DATA_DIR, which must be empty, from a backup. Everything is checked before anything
 * is written; until the end a mark in the directory keeps it from being started. The next start replays the journals.
 */
import { randomUUID } from 'node:crypto';
import { existsSync, readdirSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { attachTables } from './backup/clickhouse.ts';
import { copyBack, syncDirectories, syncPath } from './backup/files.ts';
import { journalsPath } from './backup/journals.ts';
import { checkFiles, type Manifest, readManifest } from './backup/manifest.ts';
import { loadDump } from './backup/postgres.ts';
import { isWithin } from './backup/target.ts';
import { printLine, runCommand } from './base/command.ts';
import { counted } from './base/counted.ts';
import { StartError } from './base/errors.ts';
import { createLog, type Log } from './base/log.ts';
import { type Config, loadConfig } from './base/settings/config.ts';
import { sizeText } from './base/size-text.ts';
import { openClickHouse } from './clickhouse/client.ts';
import { startEmbeddedClickHouse } from './clickhouse/embedded/embedded.ts';
import { DataDirectory } from './instance/host/data-directory.ts';
import {
  clickhouseDirectory,
  journalDirectory,
  postgresDirectory,
  restoredFile,
  restoringFile,
  secretsFile,
} from './instance/host/data-files.ts';
import { type Secrets, secretsIn } from './instance/host/secrets.ts';
import type { Restored } from './instance/stores/restored-stores.ts';
import { openPostgres } from './postgres/client.ts';
import { startEmbeddedPostgres } from './postgres/embedded/embedded.ts';
import { migratePostgres } from './postgres/migrate.ts';

const usage = 'usage: DATA_DIR=<empty directory> npm run restore -- DIR (a directory that `npm run backup` made)';

async function run([source, ...more]: string[]): Promise<void> {
  if (source === undefined || source.startsWith('-') || more.length > 0) throw new StartError(usage);
  const began = performance.now();
  const config = loadConfig();
  const dir = resolve(source);
  const dataDir = resolve(config.data.dir);
  const manifest = await readManifest(dir);
  if (await isWithin(dataDir, dir)) throw new StartError(`The data directory ${dataDir} is inside the backup ${dir}.`);
  checkTarget(dataDir, config, manifest);
  const total = manifest.files.reduce((sum, { bytes }) => sum + bytes, 0);
  printLine(`Restore of ${dir} (Millrace ${manifest.version}, ${manifest.began}) into ${dataDir}`);
  await checkFiles(dir, manifest, () => {});
  printLine(`  checked      ${manifest.files.length} files, ${sizeText(total)}`);

  const log = createLog('warn', 'restore');
  const data = new DataDirectory(dataDir);
  await writeFile(join(dataDir, restoringFile), `${dir}\n`, { mode: 0o600 });
  // After a power cut nothing of the restore is there without the mark.
  await syncPath(join(dataDir, restoringFile));
  await syncPath(dataDir);
  await data.take(log, 0);
  try {
    await fill({ data, dir, manifest, config, log });
    const restored: Restored = {
      backup: dir,
      began: manifest.began,
      restored: new Date().toISOString(),
      id: randomUUID(),
      pending: true,
    };
    data.keepPrivate(restoredFile, JSON.stringify(restored));
    await syncDirectories(join(dataDir, journalDirectory));
    await rm(join(dataDir, restoringFile));
    await syncPath(dataDir);
  } finally {
    data.release();
  }
  printLine(
    `Done in ${((performance.now() - began) / 1000).toFixed(1)} s. Start it with: DATA_DIR=${dataDir} npm start`,
  );
}

function checkTarget(dataDir: string, config: Config, { clickhouse, postgres }: Manifest): void {
  const found = existsSync(dataDir) ? readdirSync(dataDir).filter((name) => name !== 'lost+found') : [];
  if (found.includes(restoringFile)) {
    throw new StartError(`An earlier restore into ${dataDir} did not finish: remove the directory and restore again.`);
  }
  if (found.length > 0) {
    throw new StartError(`The data directory ${dataDir} (DATA_DIR) is not empty: restore into a new one.`);
  }
  checkStore(clickhouse !== undefined, 'ClickHouse', 'CLICKHOUSE_URL', config.clickhouse.url);
  checkStore(postgres !== undefined, 'PostgreSQL', 'DATABASE_URL', config.postgres.url);
  if (clickhouse && clickhouse.database !== config.clickhouse.database) {
    throw new StartError(
      `The backup is of the ClickHouse database ${clickhouse.database}: set CLICKHOUSE_DATABASE to it.`,
    );
  }
}

/** Throws when the backup contains a store that the settings name as external, or lacks one that they do not name. */
function checkStore(isSaved: boolean, name: string, setting: string, url: string): void {
  if (isSaved && url !== '') throw new StartError(`The backup contains ${name}: restore it without ${setting}.`);
  if (!isSaved && url === '')
    throw new StartError(`The backup is of an instance with an external ${name}: set ${setting}.`);
}

/** What the steps of a restore use. */
interface Restore {
  data: DataDirectory;
  /** The directory of the backup. */
  dir: string;
  manifest: Manifest;
  config: Config;
  secrets: Secrets;
  log: Log;
}

async function fill({ data, dir, manifest, config, log }: Omit<Restore, 'secrets'>): Promise<void> {
  await copyBack(dir, manifest.files, secretsFile, join(data.path, secretsFile));
  const { secrets } = secretsIn(data);
  await restoreJournals(data, dir, manifest);
  const restore = { data, dir, manifest, config, secrets, log };
  if (manifest.clickhouse) await restoreClickHouse(restore, manifest.clickhouse);
  if (manifest.postgres) await restorePostgres(restore, manifest.postgres);
}

async function restoreJournals(data: DataDirectory, dir: string, { files, journals }: Manifest): Promise<void> {
  await copyBack(dir, files, `${journalsPath}/`, data.journalPath);
  // A journal that was empty has no file in the backup.
  for (const name of journals) await mkdir(join(data.journalPath, name), { recursive: true, mode: 0o700 });
  printLine(`  journal      ${counted(journals.length, 'worker')}`);
}

async function restoreClickHouse(
  { data, dir, manifest, config, secrets, log }: Restore,
  saved: NonNullable<Manifest['clickhouse']>,
): Promise<void> {
  const { memoryBytesMax, sessions } = config.clickhouse.embedded;
  const { freeDiskBytesMin } = config.ingest.journal;
  const engine = await startEmbeddedClickHouse({
    ...{ dir: join(data.path, clickhouseDirectory), runDir: data.runPath, port: 0, log },
    ...{ password: secrets.clickhousePassword, memoryBytesMax, freeDiskBytesMin, sessions },
    ...{ nice: 0, calmCheckMs: 0 },
  });
  const client = openClickHouse({ ...engine, database: saved.database, log });
  try {
    await attachTables(client, dir, saved, manifest.files);
  } finally {
    await client.close();
    await engine.stop();
  }
  printLine(`  clickhouse   ${tablesText(saved.tables)}`);
}

async function restorePostgres(
  { data, dir, secrets, log }: Restore,
  saved: NonNullable<Manifest['postgres']>,
): Promise<void> {
  const server = await startEmbeddedPostgres({
    ...{ dir: join(data.path, postgresDirectory), runDir: data.runPath, port: 0 },
    ...{ password: secrets.postgresPassword, log },
  });
  const client = openPostgres({ url: server.url, poolMax: 2, log });
  try {
    await migratePostgres(client, { log, only: saved.migrations });
    await loadDump(client, server.url, dir, saved);
  } finally {
    await client.close();
    await server.stop();
  }
  printLine(`  postgresql   ${tablesText(saved.tables)}`);
}

function tablesText(tables: readonly { rows: number }[]): string {
  const rows = tables.reduce((sum, table) => sum + table.rows, 0);
  return `${counted(tables.length, 'table')}, ${counted(rows, 'row')}`;
}

runCommand(async (words) => {
  await run(words);
  process.exit(0);
});
