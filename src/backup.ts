/**
 * `npm run backup -- DIR`: saves the running instance of DATA_DIR. The order loses nothing that was acknowledged
 * before the command began: first the journals (a frame is in the copy, or is in ClickHouse already), then
 * ClickHouse, then PostgreSQL, so that every device number and every delete that the other two know is in it. See
 * docs/durability.md#backup-and-restore.
 */
import { closeSync, constants, existsSync, openSync, readFileSync, rmSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { copyFrozen, type Frozen, freezeTables, removeFrozen } from './backup/clickhouse.ts';
import { BackupFiles, syncDirectories } from './backup/files.ts';
import { copyJournals, journalsPath } from './backup/journals.ts';
import { type Manifest, writeManifest } from './backup/manifest.ts';
import { tablePath, tablesLeftOut } from './backup/postgres.ts';
import { BackupTarget, isWithin } from './backup/target.ts';
import { printFailure, printLine, runCommand } from './base/command.ts';
import { type ControlConnection, openControl } from './base/control-socket.ts';
import { counted } from './base/counted.ts';
import { Bug, messageOf, StartError } from './base/errors.ts';
import { tryLock } from './base/file-lock.ts';
import { createLog } from './base/log.ts';
import { lowerPriority } from './base/priority.ts';
import { loadConfig } from './base/settings/config.ts';
import { sizeText } from './base/size-text.ts';
import { openClickHouse } from './clickhouse/client.ts';
import { clickhouseDirectory, journalDirectory, runDirectory, secretsFile } from './instance/host/data-files.ts';
import { controlPath, type HeldJournals, type InstanceDescription } from './instance/operators/control.ts';
import type { Engines } from './instance/stores/engines.ts';
import { dumpTables } from './postgres/dump.ts';
import { awaitStored } from './stream/await-stored.ts';

const usage = 'usage: npm run backup -- DIR (a directory that is new or empty)';
const journalTriesMax = 5;
const retryMs = 2_000;
/** The time for which ClickHouse may take what the streams hold. */
const streamMsMax = 60_000;
/** Ingest has precedence over a backup on a busy core. */
const nice = 10;
/** Errors of a full disk, of a place where this user may not write, and of a file instead of a directory. */
const targetCodes = new Set(['ENOSPC', 'EDQUOT', 'EROFS', 'EACCES', 'EPERM', 'ENOTDIR']);

/** A store that does not answer holds up the end of an interrupted backup for at most this time. */
const stopMsMax = 10_000;
/** Aborted by a signal. */
const interruption = new AbortController();
/** What an interruption has to remove; undefined before the command owns it, and after the manifest is written. */
let unfinished: { dataDir: string; target: BackupTarget; files?: BackupFiles } | undefined;

async function run([target, ...more]: string[]): Promise<void> {
  if (target === undefined || target.startsWith('-') || more.length > 0) throw new StartError(usage);
  const dataDir = resolve(loadConfig().data.dir);
  const dir = resolve(target);
  const control = await openControl(controlPath(dataDir));
  let lock: number | undefined;
  try {
    if (await isWithin(dir, dataDir)) throw new StartError(`${dir} is inside the data directory ${dataDir}.`);
    if (existsSync(dir) && (await isWithin(dataDir, dir))) throw new StartError(`${dataDir} is inside ${dir}.`);
    lock = await lockBackups(dataDir);
    unfinished = { dataDir, target: await BackupTarget.claim(dir) };
    interruption.signal.throwIfAborted();
    lowerPriority(nice);
    interruption.signal.addEventListener('abort', () => control.close());
    await save(control, unfinished);
  } catch (error) {
    await removeUnfinished(error);
    interruption.signal.throwIfAborted();
    if (!isOfTarget(error)) throw error;
    throw new StartError(`The backup cannot be written (${messageOf(error)}): free space, or name another directory.`);
  } finally {
    control.close();
    if (lock !== undefined) closeSync(lock);
  }
}

/** Frozen parts have one name, so a second backup at the same time would remove those of the first. */
async function lockBackups(dataDir: string): Promise<number> {
  const path = join(dataDir, runDirectory, 'backup.lock');
  const lock = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o600);
  if (await tryLock(lock, path)) return lock;
  throw new StartError(`Another backup of ${dataDir} runs: wait for its end.`);
}

async function removeUnfinished(reason: unknown): Promise<void> {
  if (!unfinished) return;
  const { dataDir, target, files } = unfinished;
  await files?.stop(reason);
  await removeFrozen(join(dataDir, clickhouseDirectory)).catch(() => {});
  await target.remove();
}

async function save(control: ControlConnection, owned: NonNullable<typeof unfinished>): Promise<void> {
  const { dataDir, target } = owned;
  const { dir } = target;
  const began = new Date();
  const { version, config } = await control.ask<InstanceDescription>('describe');
  const files = new BackupFiles(dir, config.backup.bytesPerSecondMax);
  owned.files = files;
  interruption.signal.addEventListener('abort', () => void files.stop(interruption.signal.reason));
  printLine(`Backup of ${dataDir} to ${dir}`);
  if (config.stream.url !== '') await awaitStored(config.stream, streamMsMax);
  const { journals, bytes } = await saveJournals(control, dataDir, files);
  printLine(`  journal      ${counted(journals.length, 'worker')}, ${sizeText(bytes)}`);

  const frozen = config.clickhouse.url ? undefined : await freeze(dataDir, config.clickhouse.database);
  try {
    const postgres = config.postgres.url ? undefined : await savePostgres(dataDir, files);
    printLine(
      postgres
        ? `  postgresql   ${counted(postgres.tables.length, 'table')}, ${sizeText(sumBelow(files, 'postgres/'))}`
        : '  postgresql   external: save it with its own tools, after this command has ended',
    );
    if (frozen) await saveFrozen(files, frozen);
    else printLine('  clickhouse   external: save it with its own tools, after this command and before PostgreSQL');

    await files.writeWhole('secrets.json', readFileSync(join(dataDir, secretsFile)));
    await files.writeWhole('settings.json', `${JSON.stringify(config, null, 2)}\n`);
    await syncDirectories(dir);
    const manifest: Manifest = {
      format: 1,
      version,
      began: began.toISOString(),
      ended: new Date().toISOString(),
      ...(frozen && { clickhouse: { database: config.clickhouse.database, tables: frozen.map(withoutFiles) } }),
      ...(postgres && { postgres }),
      journals,
      files: files.written,
    };
    interruption.signal.throwIfAborted();
    await writeManifest(dir, manifest);
    // The backup is complete: nothing that follows removes it.
    unfinished = undefined;
    target.complete();
  } finally {
    // The next backup removes frozen parts that stay.
    if (frozen) await removeFrozen(join(dataDir, clickhouseDirectory)).catch(() => {});
  }
  const seconds = (Date.now() - began.getTime()) / 1000;
  printLine(`Done: ${counted(files.written.length, 'file')}, ${sizeText(files.bytes)} in ${seconds.toFixed(1)} s.`);
  printLine(`Restore it with: DATA_DIR=<empty directory> npm run restore -- ${dir}`);
}

/** A worker that ends during the copy recycles its segments: all of them are then copied again. */
async function saveJournals(
  control: ControlConnection,
  dataDir: string,
  files: BackupFiles,
): Promise<{ journals: string[]; bytes: number }> {
  for (let attempt = 1; ; attempt += 1) {
    let reason = 'a worker ended, or the disk ran full';
    try {
      const { id, cuts } = await control.ask<HeldJournals>('holdJournals');
      const journals = await copyJournals(files, join(dataDir, journalDirectory), cuts).finally(async () => {
        reason = (await control.ask<boolean>('releaseJournals', id)) ? '' : reason;
      });
      if (reason === '') return { journals, bytes: files.bytes };
    } catch (error) {
      if (isOfTarget(error)) throw error;
      reason = messageOf(error);
    }
    interruption.signal.throwIfAborted();
    if (attempt === journalTriesMax) throw new StartError(`The journals cannot be copied: ${reason}`);
    printLine(`  journal      again: ${reason}`);
    rmSync(join(files.dir, journalsPath), { recursive: true, force: true });
    files.forget(`${journalsPath}/`);
    await sleep(retryMs, undefined, { signal: interruption.signal });
  }
}

async function freeze(dataDir: string, database: string): Promise<Frozen[]> {
  const engine = readRunFile<Engines['clickhouse']>(dataDir, 'clickhouse.json');
  const clickhouse = openClickHouse({ ...engine, database, log: createLog('warn', 'backup') });
  try {
    return await freezeTables(clickhouse, join(dataDir, clickhouseDirectory));
  } catch (error) {
    throw unsaved('ClickHouse', error);
  } finally {
    await clickhouse.close();
  }
}

async function savePostgres(dataDir: string, files: BackupFiles) {
  const { url } = readRunFile<{ url: string }>(dataDir, 'postgres.json');
  return await dumpTables(url, (table) => files.create(tablePath(table)), tablesLeftOut).catch((error: unknown) => {
    throw unsaved('PostgreSQL', error);
  });
}

/** Returns the error of a store as a sentence; a fault of the target directory is no fault of the store. */
function unsaved(store: string, error: unknown): unknown {
  if (error instanceof StartError || error instanceof Bug || isOfTarget(error)) return error;
  const advice = 'when /readyz says "ready", call this again';
  return new StartError(`The embedded ${store} cannot be saved (${messageOf(error)}): ${advice}.`);
}

function isOfTarget(error: unknown): boolean {
  return targetCodes.has((error as NodeJS.ErrnoException | null)?.code ?? '');
}

async function saveFrozen(files: BackupFiles, frozen: Frozen[]): Promise<void> {
  const parts = frozen.reduce((sum, table) => sum + table.parts, 0);
  const before = files.bytes;
  let done = 0;
  let shownMs = performance.now();
  await copyFrozen(files, frozen, () => {
    done += 1;
    if (performance.now() - shownMs < 5_000) return;
    shownMs = performance.now();
    printLine(`  clickhouse   ${done} of ${parts} parts, ${sizeText(files.bytes - before)}`);
  });
  printLine(
    `  clickhouse   ${counted(frozen.length, 'table')}, ${counted(parts, 'part')}, ${sizeText(files.bytes - before)}`,
  );
}

function withoutFiles({ name, create, stored, rows, parts }: Frozen) {
  return { name, create, stored, rows, parts };
}

function readRunFile<Content>(dataDir: string, name: string): Content {
  return JSON.parse(readFileSync(join(dataDir, runDirectory, name), 'utf8')) as Content;
}

function sumBelow(files: BackupFiles, prefix: string): number {
  return files.written.reduce((sum, { path, bytes }) => (path.startsWith(prefix) ? sum + bytes : sum), 0);
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => {
    if (interruption.signal.aborted) process.exit(1);
    const reason = new StartError(`${signal}: the backup is not complete and is removed.`);
    interruption.abort(reason);
    setTimeout(() => {
      void removeUnfinished(reason)
        .catch(printFailure)
        .finally(() => process.exit(1));
    }, stopMsMax).unref();
  });
}

runCommand(run);
