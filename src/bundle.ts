/**
 * `npm run bundle [-- --log FILE] [--out FILE]`: writes one archive for a report of a fault: settings, versions,
 * machine, processes, metrics, readiness, waiting rows, schemas, and the end of a log. Nothing in it is telemetry, a
 * password, a token or an e-mail address. Works with and without a running instance; `contents.txt` names what is
 * missing.
 */

import { closeSync, fstatSync, openSync, readFileSync, readSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { columns } from './base/columns.ts';
import { parseWords, printLine, runCommand } from './base/command.ts';
import { messageOf, StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { type Config, type ConfigReading, checkedConfig, readConfig } from './base/settings/config.ts';
import { describeUnknown } from './base/settings/setting-names.ts';
import { shownValue } from './base/settings/settings.ts';
import { ownVersion } from './base/version.ts';
import type { ClickHouse } from './clickhouse/client.ts';
import { clickHouseFacts, clickHouseSchema, clickHouseTables } from './clickhouse/server-facts.ts';
import { judgeMachine, readMachine } from './instance/host/machine.ts';
import { openPostgresOf, openShardsOf } from './instance/stores/engines.ts';
import { postgresFacts, postgresSchema, postgresTables } from './postgres/server-facts.ts';
import { machineFacts, processFacts } from './support/facts.ts';
import { journalTable } from './support/journal-table.ts';
import { at, findInstance, type RunningInstance } from './support/running-instance.ts';
import { logLines, secretsOf, withoutSecrets } from './support/secrets.ts';
import { withSystemDatabase } from './support/store-check.ts';
import { type TarFile, tar } from './support/tar.ts';

const usage = 'usage: npm run bundle -- [--log FILE] [--out FILE.tar.gz]';
const fileBytesMax = 4 * 1024 * 1024;
const archiveBytesMax = 20 * 1024 * 1024;
const logLinesMax = 2_000;
const answerMsMax = 10_000;
const log = createLog('error', 'bundle');

async function run(words: string[]): Promise<void> {
  const { options, others } = parseWords(words, ['log', 'out'], usage);
  if (others.length > 0) throw new StartError(usage);
  const { log: logFile, out } = options;
  const reading = readConfig();
  const config = checkedConfig(reading);
  const running = await findInstance(config);
  const bundle = new Bundle(secretsOf(config, running?.config, reading.settings));
  await bundle.add('settings.txt', () => settingsText(reading, running));
  await bundle.add('versions.json', () => json({ millrace: ownVersion(), running: running?.version, ...packages() }));
  await bundle.add('machine.json', () => json(machineFacts(resolve(config.data.dir))));
  await bundle.add('checks.txt', () => checksText(config));
  await bundle.add('processes.json', async () => json(await processFacts(config)));
  await bundle.add('readyz.json', () => fetched(running, '/readyz'));
  await bundle.add('metrics.txt', () => fetched(running, '/metrics'));
  await bundle.add('journal.txt', async () => (await journalTable(config)).join('\n'));
  await bundle.add('clickhouse.json', async () => json(await clickHouseState(config)));
  await bundle.add('postgres.json', async () => json(await postgresState(config)));
  if (logFile !== undefined) await bundle.add('log.ndjson', () => logLines(endOf(logFile), logLinesMax).join('\n'));
  const now = new Date();
  const archive = bundle.archive(now.getTime());
  if (archive.length > archiveBytesMax) throw new StartError(`The archive would have ${archive.length} bytes.`);
  const path = resolve(out ?? `millrace-bundle-${now.toISOString().replace(/[:.]/g, '-')}.tar.gz`);
  // An existing file is not replaced.
  writeFileSync(path, archive, { mode: 0o600, flag: 'wx' });
  printLine(`${path}: ${Math.ceil(archive.length / 1024)} KiB`);
  for (const line of bundle.contents) printLine(`  ${line}`);
  if (logFile === undefined) printLine('Add the log with --log FILE: without it a fault is often not found.');
  printLine(`Secrets, tokens and e-mail addresses are masked. Read it before you send it: tar -xzOf ${path} | less`);
}

/** Collects text files, each without secrets and with a cap. */
class Bundle {
  readonly contents: string[] = [];
  readonly #files: TarFile[] = [];
  readonly #secrets: string[];

  constructor(secrets: string[]) {
    this.#secrets = secrets;
  }

  /** A file that cannot be made is named in the list of contents, with its reason. */
  async add(name: string, make: () => string | Promise<string>): Promise<void> {
    try {
      const text = withoutSecrets(await make(), this.#secrets);
      const content = Buffer.from(`${text.trimEnd()}\n`).subarray(-fileBytesMax);
      this.#files.push({ name: `millrace-bundle/${name}`, content });
      this.contents.push(`${name.padEnd(18)} ${content.length} bytes`);
    } catch (error) {
      this.contents.push(withoutSecrets(`${name.padEnd(18)} missing: ${messageOf(error)}`, this.#secrets));
    }
  }

  archive(nowMs: number): Buffer {
    const content = Buffer.from(`${this.contents.join('\n')}\n`);
    return gzipSync(tar([...this.#files, { name: 'millrace-bundle/contents.txt', content }], nowMs));
  }
}

/** Returns what `npm run config` shows, and where the running instance differs. */
function settingsText({ settings, unknown }: ConfigReading, running: RunningInstance | undefined): string {
  const rows = settings.map((setting) => {
    const { path, name, unit, from } = setting;
    const own = running && shownValue({ ...setting, value: at(running.config, path) });
    const value = shownValue(setting);
    return [path, name, value || '-', unit ?? '-', from, own === undefined || own === value ? '' : `running: ${own}`];
  });
  const table = columns([['setting', 'environment name', 'value', 'unit', 'from', 'running instance'], ...rows]);
  return [...table, '', ...unknown.map(describeUnknown)].join('\n');
}

/** Returns the versions of the installed packages. */
function packages(): { packages: Record<string, string> } {
  const own = readPackage('package.json') as { dependencies: Record<string, string> };
  const versions = Object.keys(own.dependencies).map((name) => {
    try {
      return [name, (readPackage(`node_modules/${name}/package.json`) as { version: string }).version];
    } catch {
      return [name, 'not found'];
    }
  });
  return { packages: Object.fromEntries(versions) };
}

function readPackage(path: string): unknown {
  return JSON.parse(readFileSync(new URL(`../${path}`, import.meta.url), 'utf8'));
}

function checksText(config: Config): string {
  const found = judgeMachine(readMachine(resolve(config.data.dir)), config, config.workers || availableParallelism());
  return found.map(({ level, subject, says }) => `${level} ${subject}: ${says}`).join('\n');
}

async function fetched(running: RunningInstance | undefined, path: string): Promise<string> {
  if (!running) throw new Error('no instance runs on this DATA_DIR');
  if (running.monitorUrl === undefined) throw new Error('MONITOR_BIND_PORT is 0, so its port is not known');
  const response = await fetch(`${running.monitorUrl}${path}`, { signal: AbortSignal.timeout(answerMsMax) });
  return await response.text();
}

async function clickHouseState(config: Config): Promise<object> {
  const { database } = config.clickhouse;
  const shards = openShardsOf(withSystemDatabase(config), log);
  try {
    return await Promise.all(shards.all.map((clickhouse) => serverState(clickhouse, database)));
  } finally {
    await shards.close();
  }
}

async function serverState(clickhouse: ClickHouse, database: string): Promise<object> {
  const { version } = await clickHouseFacts(clickhouse);
  const [schema, tables] = await Promise.all([
    clickHouseSchema(clickhouse, database),
    clickHouseTables(clickhouse, database),
  ]);
  return { version, schema, tables };
}

async function postgresState(config: Config): Promise<object> {
  const postgres = openPostgresOf(config, log);
  try {
    const { version, connectionsMax } = await postgresFacts(postgres);
    return { version, connectionsMax, schema: await postgresSchema(postgres), tables: await postgresTables(postgres) };
  } finally {
    await postgres.close();
  }
}

/** Returns the last bytes of a file, from the beginning of a line. */
function endOf(path: string): string {
  const descriptor = openSync(path, 'r');
  try {
    const { size } = fstatSync(descriptor);
    const bytes = Buffer.alloc(Math.min(size, fileBytesMax));
    readSync(descriptor, bytes, 0, bytes.length, size - bytes.length);
    const text = bytes.toString('utf8');
    return size > bytes.length ? text.slice(text.indexOf('\n') + 1) : text;
  } finally {
    closeSync(descriptor);
  }
}

function json(value: object): string {
  return JSON.stringify(value, null, 2);
}

runCommand(run);
