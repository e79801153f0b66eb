/**
 * Stores that Millrace did not start: a ClickHouse, a PostgreSQL and a Redis of the test's own, each on a port that
 * stays the same when it is killed and started again. The engine sees nothing but their URLs.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { endProcess, liveProcess } from '../../src/base/process-file.ts';
import { eventually } from './api.ts';
import type { ClickhouseAddress } from './clickhouse-queries.ts';
import { copyDirectory, preparedData } from './data-directory.ts';
import { engineMain, inherited } from './engine.ts';
import { freePort, isPortOpen } from './ports.ts';

const startMsMax = 30_000;
/** The passwords of stores that are empty when they start. */
const ownPasswords = { clickhousePassword: 'stone-and-sluice', postgresPassword: 'stone-and-sluice' };

/** Runs in plain Node on the built code: starts one embedded engine, prints its URL, stops it on SIGTERM. */
const runner = `
const [, modulePath, functionName, options] = process.argv;
const silent = () => {};
const log = { debug: silent, info: silent, warn: silent, error: silent };
const module = await import(modulePath);
const store = await module[functionName]({ ...JSON.parse(options), log });
process.stdout.write(JSON.stringify({ url: store.url }) + '\\n');
process.once('SIGTERM', () => store.stop().then(() => process.exit(0)));
store.onExit(() => process.exit(9));
setInterval(() => {}, 60000);
`;

interface Store {
  url: string;
  /** SIGKILL; the store stays down until `start`. */
  kill(): Promise<void>;
  start(): Promise<void>;
  stop(): Promise<void>;
}

interface ClickHouseStore extends Store {
  address: () => ClickhouseAddress;
  /** `SIGSTOP` freezes the server, `SIGCONT` lets it run on. */
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void;
}

export interface Stores {
  clickhouse: ClickHouseStore;
  postgres: Store;
  redis: Store;
  stopAll(): Promise<void>;
}

/** Stops the stores of one `startStores` of this process. */
const stops = new Set<() => Promise<void>>();

/** Stops all stores of this process, in any state: when a run is interrupted. */
export async function stopStores(): Promise<void> {
  await Promise.all([...stops].map((stop) => stop()));
}

/** Starts stores with the schema and the first users, copied from `prepareData`; `empty`: without both. */
export async function startStores({ empty = false } = {}): Promise<Stores> {
  const directory = mkdtempSync(join(tmpdir(), 'millrace-stores-'));
  const passwords = (!empty && copyPrepared(directory)) || ownPasswords;
  const clickhouse = new BuiltStore('clickhouse', 'startEmbeddedClickHouse', directory, await freePort(), {
    password: passwords.clickhousePassword,
    memoryBytesMax: 1024 ** 3,
    freeDiskBytesMin: 64 * 1024 ** 2,
    sessions: 4,
    nice: 0,
  });
  const postgres = new BuiltStore('postgres', 'startEmbeddedPostgres', directory, await freePort(), {
    password: passwords.postgresPassword,
  });
  const redis = new RedisServer(directory, await freePort());
  const all = [clickhouse, postgres, redis];
  const stopAll = async (): Promise<void> => {
    await Promise.all(all.map((store) => store.stop()));
    rmSync(directory, { recursive: true, force: true });
    stops.delete(stopAll);
  };
  stops.add(stopAll);
  const starts = await Promise.allSettled(all.map((store) => store.start()));
  const failed = starts.find((start) => start.status === 'rejected');
  if (failed) {
    await stopAll();
    throw failed.reason;
  }
  return {
    clickhouse: Object.assign(clickhouse, {
      address: () => ({ url: clickhouse.url, user: 'default', password: passwords.clickhousePassword }),
    }),
    postgres,
    redis,
    stopAll,
  };
}

/** Starts a further ClickHouse, without tables, with the password of the one of `stores`: a shard. */
export async function startShard(stores: Stores): Promise<ClickHouseStore> {
  const directory = mkdtempSync(join(tmpdir(), 'millrace-shard-'));
  const { user, password } = stores.clickhouse.address();
  const shard = new BuiltStore('clickhouse', 'startEmbeddedClickHouse', directory, await freePort(), {
    password,
    memoryBytesMax: 1024 ** 3,
    freeDiskBytesMin: 64 * 1024 ** 2,
    sessions: 4,
    nice: 0,
  });
  const stop = async (): Promise<void> => {
    await shard.stop();
    rmSync(directory, { recursive: true, force: true });
    stops.delete(stop);
  };
  stops.add(stop);
  await shard.start();
  return Object.assign(shard, { address: () => ({ url: shard.url, user, password }) });
}

/** Copies the prepared stores and returns their passwords; undefined when none were prepared. */
function copyPrepared(directory: string): typeof ownPasswords | undefined {
  const prepared = process.env[preparedData];
  if (prepared === undefined) return undefined;
  for (const store of ['clickhouse', 'postgres']) {
    copyDirectory(join(prepared, store), join(directory, store));
  }
  return JSON.parse(readFileSync(join(prepared, 'secrets.json'), 'utf8')) as typeof ownPasswords;
}

/** Settings of an engine on these stores instead of embedded ones. */
export function storeSettings({ clickhouse, postgres }: Stores): Record<string, string> {
  const { password } = clickhouse.address();
  return { CLICKHOUSE_URL: clickhouse.url, CLICKHOUSE_PASSWORD: password, DATABASE_URL: postgres.url };
}

/** Settings of one of several hosts on these stores. */
export function hostSettings(stores: Stores): Record<string, string> {
  return { MILLRACE_CONFIG: 'config/cluster.yaml', ...storeSettings(stores), REDIS_URL: stores.redis.url };
}

class BuiltStore implements Store {
  url = '';
  readonly #name: string;
  readonly #functionName: string;
  readonly #directory: string;
  readonly #port: number;
  readonly #options: object;
  #child: ChildProcess | undefined;

  constructor(name: string, functionName: string, directory: string, port: number, options: object) {
    this.#name = name;
    this.#functionName = functionName;
    this.#directory = directory;
    this.#port = port;
    this.#options = options;
  }

  get #runDir(): string {
    return join(this.#directory, `run-${this.#name}`);
  }

  async start(): Promise<void> {
    const module = join(dirname(engineMain), this.#name, 'embedded', 'embedded.js');
    const options = {
      dir: join(this.#directory, this.#name),
      runDir: this.#runDir,
      port: this.#port,
      ...this.#options,
    };
    const child = spawn(
      process.execPath,
      ['--input-type=module', '-e', runner, '--', module, this.#functionName, JSON.stringify(options)],
      { env: inherited(), stdio: ['ignore', 'pipe', 'inherit'] },
    );
    this.#child = child;
    const [line] = (await Promise.race([
      once(child.stdout!, 'data', { signal: AbortSignal.timeout(startMsMax) }),
      once(child, 'exit').then(([code]) => {
        throw new Error(`${this.#name} ended with ${code} at its start`);
      }),
    ])) as [Buffer];
    this.url = (JSON.parse(line.toString()) as { url: string }).url;
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    process.kill(this.#pid, signal);
  }

  get #pid(): number {
    const pid = liveProcess(join(this.#runDir, `${this.#name}.pid`));
    if (pid === undefined) throw new Error(`${this.#name} is not running`);
    return pid;
  }

  async kill(): Promise<void> {
    await endProcess(this.#pid, 'SIGKILL', 5_000);
    await this.#gone('SIGKILL');
  }

  async stop(): Promise<void> {
    await this.#gone('SIGTERM');
    const pid = liveProcess(join(this.#runDir, `${this.#name}.pid`));
    if (pid !== undefined) await endProcess(pid, 'SIGKILL', 5_000);
  }

  async #gone(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, 'exit');
    child.kill(signal);
    await exit;
  }
}

export class RedisServer implements Store {
  readonly url: string;
  readonly #directory: string;
  readonly #port: number;
  #child: ChildProcess | undefined;

  constructor(directory: string, port: number) {
    this.url = `redis://127.0.0.1:${port}`;
    this.#directory = join(directory, 'redis');
    this.#port = port;
  }

  async start(): Promise<void> {
    mkdirSync(this.#directory, { recursive: true });
    const options = ['--port', String(this.#port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'];
    this.#child = spawn('redis-server', [...options, '--dir', this.#directory], { stdio: 'ignore' });
    await eventually(() => isPortOpen(this.#port), startMsMax);
  }

  kill(): Promise<void> {
    return this.#end('SIGKILL');
  }

  stop(): Promise<void> {
    return this.#end('SIGTERM');
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, 'exit');
    child.kill(signal);
    await exit;
  }
}
