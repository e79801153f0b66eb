/**
 * Runs a PostgreSQL server of this instance on loopback: made at the first start, stopped with the instance; its owner
 * starts it again after a crash. All of its files are below `dir`: `cluster/` is the data directory, `init-*` one that
 * is being made.
 */
import type { ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chownSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import type { Client as PgClient } from 'pg';
import { exitReason } from '../../base/child-exit.ts';
import { messageOf, StartError } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { endProcess, removeProcessFile, writeProcessFile } from '../../base/process-file.ts';
import { usableMemoryBytes } from '../../base/usable-memory.ts';
import { Client } from '../driver.ts';
import { sqlStateOf } from '../postgres-error.ts';
import { type Binaries, findBinaries } from './binaries.ts';
import { chooseLauncher, type Launcher, launch, own } from './launch.ts';
import { readPostmasterFile, stopOrphan } from './orphan.ts';

interface EmbeddedPostgresDeps {
  dir: string;
  /** 0 = any free one. A restart after a crash passes the earlier port, so that the URL stays. */
  port: number;
  password: string;
  /** Directory of the process file. */
  runDir: string;
  log: Log;
  connectionsMax?: number;
}

export interface EmbeddedPostgres {
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  /** Fast shutdown: open transactions are rolled back, committed ones are on disk. */
  stop(): Promise<void>;
  /** Called once if the server ends without `stop`. */
  onExit(callback: (reason: string) => void): void;
}

const user = 'millrace';
const database = 'millrace';

export async function startEmbeddedPostgres(deps: EmbeddedPostgresDeps): Promise<EmbeddedPostgres> {
  const dir = resolve(deps.dir);
  try {
    return await start(dir, deps);
  } catch (error) {
    // A call of the file system failed: no room, read-only, no permission.
    if ((error as NodeJS.ErrnoException).syscall === undefined) throw error;
    throw new StartError(`The embedded PostgreSQL in ${dir} cannot be started: ${withAdvice(messageOf(error))}.`);
  }
}

async function start(dir: string, deps: EmbeddedPostgresDeps): Promise<EmbeddedPostgres> {
  const { runDir, log } = deps;
  const cluster = join(dir, 'cluster');
  const processFile = join(runDir, 'postgres.pid');
  mkdirSync(dir, { recursive: true, mode: 0o700 });
  mkdirSync(runDir, { recursive: true });

  const binaries = findBinaries();
  await stopOrphan(cluster, processFile, limits.postgresStopMsMax, log);
  const launcher = chooseLauncher(binaries.postgres, dirname(dir));
  own(dir, launcher);
  removeHalfMade(dir);
  if (!existsSync(cluster)) await makeCluster(binaries, launcher, dir, deps.password);

  const server = await startServer(binaries, launcher, cluster, processFile, deps);
  const url = embeddedPostgresUrl(deps.password, server.port);
  try {
    await ensureDatabase(url, dir);
  } catch (error) {
    await server.stop();
    throw error;
  }
  const stop = async () => {
    await server.stop();
    removeProcessFile(processFile);
  };
  return { url, port: server.port, pid: server.pid, stop, onExit: server.onExit };
}

/** Returns the URL of the server before the server runs, so that its clients can be made while it starts. */
export function embeddedPostgresUrl(password: string, port: number): string {
  return `postgresql://${user}:${encodeURIComponent(password)}@127.0.0.1:${port}/${database}`;
}

/**
 * Removes what a start that was killed in initdb has left. The real name appears by one rename, complete and synced.
 */
function removeHalfMade(dir: string): void {
  for (const name of readdirSync(dir)) {
    if (name.startsWith('init-')) rmSync(join(dir, name), { recursive: true, force: true });
  }
}

async function makeCluster(binaries: Binaries, launcher: Launcher, dir: string, password: string): Promise<void> {
  const made = join(dir, `init-${randomBytes(4).toString('hex')}`);
  const passwordFile = `${made}-password`;
  mkdirSync(made, { mode: 0o700 });
  writeFileSync(passwordFile, `${password}\n`, { mode: 0o600 });
  for (const path of [made, passwordFile]) chownSync(path, launcher.uid, launcher.gid);
  const args = ['-D', made, '-U', user, '-E', 'UTF8', '--locale=C', '--auth=scram-sha-256', '--pwfile', passwordFile];
  try {
    const child = launch(launcher, binaries.initdb, [...args, '--no-instructions', '--set=timezone=UTC']);
    const complaint = lastLines(child);
    const { code, signal } = await exitOf(child, limits.postgresStartMsMax);
    if (code !== 0) {
      const reason = complaint() || `initdb ended with ${signal ?? `exit code ${code}`}`;
      throw new StartError(`The embedded PostgreSQL in ${dir} cannot be created: ${withAdvice(reason)}.`);
    }
    renameSync(made, join(dir, 'cluster'));
  } finally {
    rmSync(passwordFile, { force: true });
    rmSync(made, { recursive: true, force: true });
  }
}

interface Server {
  pid: number;
  port: number;
  stop(): Promise<void>;
  onExit(callback: (reason: string) => void): void;
}

async function startServer(
  binaries: Binaries,
  launcher: Launcher,
  cluster: string,
  processFile: string,
  deps: EmbeddedPostgresDeps,
): Promise<Server> {
  const deadline = performance.now() + limits.postgresStartMsMax;
  for (;;) {
    const port = deps.port || (await freePort());
    const child = launch(launcher, binaries.postgres, serverArguments(cluster, port, deps.connectionsMax ?? 200));
    const complaint = lastLines(child, deps.log);
    if (child.pid) writeProcessFile(processFile, child.pid);
    if (await becomesReady(child, cluster, deadline)) return serverOf(child, port);
    const reason = complaint();
    await endChild(child);
    const portTaken = /could not bind|could not create.*listen/i.test(reason);
    // A backend of a killed server may need a moment to notice and end, and a server that was just starting is found
    // late. A lock file that cannot be written or read, as on a full disk, is a fault of its own.
    const dirTaken = /shared memory block.*in use|lock file ".*" (already exists|is empty)/i.test(reason);
    if ((dirTaken || (portTaken && deps.port === 0)) && performance.now() < deadline) {
      await sleep(100);
      await stopOrphan(cluster, processFile, limits.postgresStopMsMax, deps.log);
      continue;
    }
    if (portTaken) {
      throw new StartError(`Port ${port} of the embedded PostgreSQL is taken: set POSTGRES_EMBEDDED_PORT.`);
    }
    const why = reason === '' ? 'it gives no reason' : withAdvice(reason);
    throw new StartError(`The embedded PostgreSQL in ${cluster} does not start: ${why}.`);
  }
}

/** Returns a 48th of the usable memory, between 256 MB and 1 GB. */
function sharedMegabytes(): number {
  return Math.floor(Math.min(1_024, Math.max(256, usableMemoryBytes() / 48 / 1024 ** 2)));
}

function serverArguments(cluster: string, port: number, connectionsMax: number): string[] {
  const settings = {
    listen_addresses: '127.0.0.1',
    port,
    // Socket paths are limited to 107 characters and nothing here needs one.
    unix_socket_directories: '',
    max_connections: connectionsMax,
    // Memory is taken when pages are first used. Lists of a million devices read indexes of 400 MB, which the kernel
    // would copy each time.
    shared_buffers: `${sharedMegabytes()}MB`,
    // systemd removes what a user has in /dev/shm when the user signs out (RemoveIPC), and then the server would refuse
    // every new connection. The memory is part of the server's own; files in the cluster are for more than that.
    dynamic_shared_memory_type: 'mmap',
    min_dynamic_shared_memory: '8MB',
    work_mem: '4MB',
    maintenance_work_mem: '64MB',
    fsync: 'on',
    synchronous_commit: 'on',
    // Without replicas the WAL for them would only cost log volume and processes.
    wal_level: 'minimal',
    // After a checkpoint whole pages go to the log again, so there must not be several checkpoints a minute under load.
    max_wal_size: '2GB',
    checkpoint_timeout: '15min',
    max_wal_senders: 0,
    max_logical_replication_workers: 0,
    io_method: 'sync',
    // Pages are mostly in memory, where the random reads of an index cost little.
    random_page_cost: 1.1,
    // A list of a million devices that no index narrows is looked at by two processes.
    max_parallel_workers_per_gather: 1,
    jit: 'off',
    // A client that died must not keep its locks.
    client_connection_check_interval: '2s',
    idle_in_transaction_session_timeout: '60s',
    // Callers report failed statements, whose text and keys may contain secrets.
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_error_verbosity: 'terse',
    log_checkpoints: 'off',
    log_line_prefix: '',
    log_destination: 'stderr',
    logging_collector: 'off',
  };
  return ['-D', cluster, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])];
}

/** Returns false when the server ended instead, or took too long. */
async function becomesReady(child: ChildProcess, cluster: string, deadline: number): Promise<boolean> {
  while (isRunning(child) && performance.now() < deadline) {
    const file = readPostmasterFile(cluster);
    if (file?.pid === child.pid && file?.ready) return true;
    await sleep(10);
  }
  return false;
}

function serverOf(child: ChildProcess, port: number): Server {
  let stopping = false;
  let reason: string | undefined;
  let notify: ((reason: string) => void) | undefined;
  child.once('exit', (code, signal) => {
    if (stopping) return;
    reason = exitReason(code, signal);
    notify?.(reason);
  });
  return {
    pid: child.pid!,
    port,
    stop() {
      stopping = true;
      return endChild(child);
    },
    onExit(callback) {
      notify = callback;
      if (reason !== undefined) callback(reason);
    },
  };
}

/**
 * Ends the server. SIGINT rolls back and makes a checkpoint; SIGQUIT leaves the rest to recovery. PostgreSQL ends its
 * own stuck children.
 */
async function endChild(child: ChildProcess): Promise<void> {
  if (!isRunning(child)) return;
  const gone = new Promise((done) => child.once('exit', done));
  if (await endProcess(child.pid!, 'SIGINT', limits.postgresStopMsMax)) return void (await gone);
  if (await endProcess(child.pid!, 'SIGQUIT', limits.postgresStopMsMax)) return void (await gone);
  child.kill('SIGKILL');
  await gone;
}

function isRunning(child: ChildProcess): boolean {
  return child.pid !== undefined && child.exitCode === null && child.signalCode === null;
}

async function exitOf(
  child: ChildProcess,
  msMax: number,
): Promise<{ code: number | null; signal: NodeJS.Signals | null }> {
  const timer = setTimeout(() => child.kill('SIGKILL'), msMax);
  try {
    return await new Promise((done, fail) => {
      child.once('error', fail);
      child.once('close', (code, signal) => done({ code, signal }));
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Logs the output of the child; the returned function returns the last complaint. */
function lastLines(child: ChildProcess, log?: Log): () => string {
  let complaint = '';
  child.on('error', (error) => {
    complaint = error.message;
  });
  // A process that could not be made has no output.
  if (!child.stderr) return () => complaint;
  createInterface({ input: child.stderr }).on('line', (line) => {
    const [, severity, text] = /^(?:initdb: )?(LOG|WARNING|ERROR|FATAL|PANIC|error):\s+(.*)$/.exec(line) ?? [];
    if (text === undefined || severity === undefined) return;
    if (severity === 'LOG') {
      log?.debug('postgres_log', { text });
      // The reason why a port cannot be bound comes as LOG; the FATAL line after it says less.
      if (!/could not bind/.test(text)) return;
    } else if (!/terminating connection due to administrator command/.test(text)) {
      // The server sends this message to each connection that is still closing when it stops.
      log?.warn('postgres_log', { severity, text });
    }
    if (complaint.length < 500 && !complaint.includes(text)) complaint += complaint ? `; ${text}` : text;
  });
  return () => complaint;
}

/** Makes the database. Success also proves that this instance's server answers on that port, with its password. */
async function ensureDatabase(url: string, dir: string): Promise<void> {
  try {
    await withClient(url.replace(/[^/]*$/, 'postgres'), async (client) => {
      const { rowCount } = await client.query('select 1 from pg_database where datname = $1', [database]);
      if (rowCount === 0) await client.query(`create database ${database}`);
    });
  } catch (error) {
    const state = sqlStateOf(error);
    if (state !== '28P01') {
      const what = state === undefined ? 'does not answer' : 'cannot be used';
      throw new StartError(`The embedded PostgreSQL in ${dir} ${what}: ${withAdvice(messageOf(error))}.`);
    }
    throw new StartError(
      `The embedded PostgreSQL in ${dir} was created with another password: restore the secrets.json that belongs to it.`,
    );
  }
}

/** A full disk ends a write with an error, or in the middle. */
function withAdvice(reason: string): string {
  const isFull = /no space left|wrote only \d+ of \d+ bytes/i.test(reason);
  return isFull ? `${reason}: free space on the disk of DATA_DIR, or enlarge it` : reason;
}

async function withClient(url: string, use: (client: PgClient) => Promise<unknown>): Promise<void> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 10_000, query_timeout: 30_000 });
  client.on('error', () => {});
  try {
    await client.connect();
    await use(client);
  } finally {
    await client.end().catch(() => {});
  }
}

function freePort(): Promise<number> {
  return new Promise((done, fail) => {
    const probe = createServer();
    probe.once('error', fail);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number };
      probe.close(() => done(port));
    });
  });
}

function sleep(ms: number): Promise<void> {
  return new Promise((done) => setTimeout(done, ms));
}
