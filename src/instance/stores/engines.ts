/**
 * Opens the stores of this instance: embedded engines that the primary starts and keeps running, or external ones by
 * URL. Other code does not depend on the difference.
 */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join, resolve } from 'node:path';
import { messageOf, StartError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Metrics } from '../../base/metrics/metrics.ts';
import { endProcess, liveProcess } from '../../base/process-file.ts';
import { type Config, shardUrlsOf } from '../../base/settings/config.ts';
import { openClickHouse } from '../../clickhouse/client.ts';
import { startEmbeddedClickHouse } from '../../clickhouse/embedded/embedded.ts';
import { installedClickHouse } from '../../clickhouse/embedded/installed.ts';
import { calmCheckMsUsual } from '../../clickhouse/embedded/settings.ts';
import type { RelaySettings } from '../../clickhouse/inserts/relay-settings.ts';
import { type InsertRelay, startInsertRelay } from '../../clickhouse/inserts/start-relay.ts';
import { Shards } from '../../clickhouse/shards.ts';
import { openPostgres, type Postgres } from '../../postgres/client.ts';
import { installedPostgres } from '../../postgres/embedded/binaries.ts';
import { embeddedPostgresUrl, startEmbeddedPostgres } from '../../postgres/embedded/embedded.ts';
import type { InstanceState } from '../health/state.ts';
import type { DataDirectory } from '../host/data-directory.ts';
import { clickhouseDirectory, postgresDirectory, runDirectory } from '../host/data-files.ts';
import type { Secrets } from '../host/secrets.ts';
import { Supervisor } from '../lifecycle/supervisor.ts';

/** The addresses of the running engines. */
export interface Engines {
  /**
   * `relayUrls`: where the relay of this host takes the inserts of each shard (`clickhouse/inserts/relay.ts`); absent:
   * there is no relay.
   */
  clickhouse: { url: string; user: string; password: string; relayUrls?: readonly string[] };
  postgresUrl: string;
}

export interface RunningEngines {
  engines: Engines;
  /** A description of the stores for the operator. */
  description: string;
  /**
   * Resolves when each embedded engine has started, or has failed once. Rejects after a failure when `mustStart` is
   * set.
   */
  begun: Promise<void>;
  /** Returns the reason why an embedded engine does not run; undefined while it runs. */
  failure(store: 'clickhouse' | 'postgres'): string | undefined;
  /** Sets, for each shard, the least milliseconds between two joined inserts of this host into a table. */
  setInsertPace(everyMs: readonly number[]): void;
  stop(): Promise<void>;
}

interface Deps {
  config: Config;
  workers: number;
  data: DataDirectory;
  secrets: Secrets;
  log: Log;
  /** True for a first start, which serves no device yet: an engine that cannot start ends the start with its reason. */
  mustStart: boolean;
}

interface Embedded {
  stop(): Promise<void>;
  onExit(callback: (reason: string) => void): void;
}

/**
 * Returns as soon as the addresses are known, while the engines start. Throws StartError when an embedded engine is not
 * installed, as in the image without engines: no later try would find it.
 */
export async function startEngines(deps: Deps): Promise<RunningEngines> {
  const { config, workers, data, secrets, log } = deps;
  const { clickhouse, postgres } = config;
  if (clickhouse.url === '') installedClickHouse();
  if (postgres.url === '') installedPostgres();
  // A single worker has nothing to join.
  const relayed = clickhouse.url !== '' && clickhouse.joinInserts && workers > 1 ? shardUrlsOf(clickhouse) : [];
  const [clickhousePort, postgresPort, relays] = await Promise.all([
    clickhouse.embedded.port || freePort(),
    postgres.embedded.port || freePort(),
    Promise.all(relayed.map(async (url) => ({ url, port: await freePort() }))),
  ]);
  const ownClickHouse = clickhouse.url
    ? undefined
    : new KeptEngine('clickhouse', deps, clickHouseStarter(deps, clickhousePort));
  const ownPostgres = postgres.url ? undefined : new KeptEngine('postgres', deps, postgresStarter(deps, postgresPort));
  const pace: InsertPace = { everyMs: [], relay: undefined };
  const ownRelay =
    relays.length > 0
      ? new KeptEngine('inserts', { ...deps, mustStart: false }, relayStarter(deps, relays, pace))
      : undefined;
  const engines: Engines = {
    clickhouse: ownClickHouse
      ? { url: `http://127.0.0.1:${clickhousePort}`, user: 'default', password: secrets.clickhousePassword }
      : {
          ...{ url: clickhouse.url, user: clickhouse.user, password: clickhouse.password },
          ...(ownRelay && { relayUrls: relays.map(({ port }) => `http://127.0.0.1:${port}`) }),
        },
    postgresUrl: ownPostgres ? embeddedPostgresUrl(secrets.postgresPassword, postgresPort) : postgres.url,
  };
  writeForOperators(data, engines, log);
  const begun = Promise.all([ownClickHouse?.begin(), ownPostgres?.begin(), ownRelay?.begin()]).then(() => {});
  // A caller that ends because of an earlier failure never waits for this promise.
  begun.catch(() => {});
  return {
    engines,
    description: `ClickHouse ${ownClickHouse ? 'embedded' : 'external'}, PostgreSQL ${ownPostgres ? 'embedded' : 'external'}`,
    begun,
    failure: (store) => (store === 'clickhouse' ? ownClickHouse : ownPostgres)?.failure,
    setInsertPace: (everyMs) => {
      pace.everyMs = everyMs;
      pace.relay?.setPace(everyMs);
    },
    stop: async () => {
      await Promise.all([ownClickHouse?.stop(), ownPostgres?.stop(), ownRelay?.stop()]);
    },
  };
}

/** Writes the addresses and passwords of the stores, for operators and benchmarks. A full disk must not end a start. */
function writeForOperators(data: DataDirectory, engines: Engines, log: Log): void {
  try {
    data.writePrivate(join(runDirectory, 'clickhouse.json'), JSON.stringify(engines.clickhouse));
    data.writePrivate(join(runDirectory, 'postgres.json'), JSON.stringify({ url: engines.postgresUrl }));
  } catch (error) {
    log.warn('run_file_unwritten', { reason: messageOf(error) });
  }
}

interface StoreClientsDeps {
  engines: Engines;
  config: Config;
  log: Log;
  metrics: Metrics;
  /** The stores as the primary sees them. */
  parts: () => InstanceState['parts'];
}

export function openStores({ engines, config, log, metrics, parts }: StoreClientsDeps): {
  shards: Shards;
  postgres: Postgres;
} {
  const isUp = (store: string) => () => parts()[store] === 'up';
  const { poolMax } = config.postgres;
  const behindPooler = config.postgres.url !== '' && config.postgres.behindPooler;
  return {
    shards: openShards(config, engines.clickhouse, log, isUp),
    postgres: openPostgres({ url: engines.postgresUrl, poolMax, behindPooler, log, metrics, isUp: isUp('postgres') }),
  };
}

/** Returns the options of every ClickHouse client that writes, also in commands that run beside an instance. */
function clickHouseOptions({ clickhouse }: Config): {
  database: string;
  cluster: string;
  insertQuorum: string | undefined;
} {
  const { database, cluster, insertQuorum } = clickhouse;
  return { database, cluster, insertQuorum: cluster === '' ? undefined : insertQuorum };
}

/** The name of a shard in the state of the instance, as in `clickhouse-1`; the first one is `clickhouse`. */
export function shardName(shard: number): 'clickhouse' | `clickhouse-${number}` {
  return shard === 0 ? 'clickhouse' : `clickhouse-${shard}`;
}

function openShards(
  config: Config,
  first: Engines['clickhouse'],
  log: Log,
  isUp: (store: string) => () => boolean = () => () => true,
): Shards {
  const servers = serversOf(config, first);
  return new Shards(
    servers.map((server, shard) => {
      const ofShard = { isUp: isUp(shardName(shard)), ...(servers.length > 1 && { shard }) };
      return openClickHouse({ ...server, ...clickHouseOptions(config), ...ofShard, log });
    }),
  );
}

interface ShardAddress {
  url: string;
  user: string;
  password: string;
  relayUrl?: string;
}

function serversOf(config: Config, { relayUrls, ...first }: Engines['clickhouse']): ShardAddress[] {
  const { user, password } = config.clickhouse;
  const [, ...others] = shardUrlsOf(config.clickhouse);
  return [first, ...others.map((url) => ({ url, user, password }))].map((server, shard) => {
    const relayUrl = relayUrls?.[shard];
    return { ...server, ...(relayUrl !== undefined && { relayUrl }) };
  });
}

/** Returns what a thread needs to open the shards for reads, in their order. */
export function shardServers(
  config: Config,
  engines: Engines,
): { url: string; user: string; password: string; database: string }[] {
  const { database } = config.clickhouse;
  return serversOf(config, engines.clickhouse).map(({ url, user, password }) => ({ url, user, password, database }));
}

/**
 * Opens ClickHouse for a command beside the instance: external by its settings, embedded by the file of the running
 * instance. The map of several shards is not read.
 */
export function openShardsOf(config: Config, log: Log): Shards {
  const { url, user, password } = config.clickhouse;
  if (url !== '') return openShards(config, { url, user, password }, log);
  const dir = resolve(config.data.dir);
  try {
    const file = join(dir, runDirectory, 'clickhouse.json');
    const address = JSON.parse(readFileSync(file, 'utf8')) as Engines['clickhouse'];
    return openShards(config, address, log);
  } catch {
    throw notRunning('ClickHouse', dir);
  }
}

/** Opens PostgreSQL for a command beside the instance, as `openShardsOf` opens ClickHouse. */
export function openPostgresOf(config: Config, log: Log): Postgres {
  const options = { poolMax: 1, log };
  const { url: external, behindPooler } = config.postgres;
  if (external !== '') return openPostgres({ url: external, behindPooler, ...options });
  const dir = resolve(config.data.dir);
  try {
    const file = join(dir, runDirectory, 'postgres.json');
    const { url } = JSON.parse(readFileSync(file, 'utf8')) as { url: string };
    return openPostgres({ url, ...options });
  } catch {
    throw notRunning('PostgreSQL', dir);
  }
}

function notRunning(store: string, dir: string): StartError {
  return new StartError(
    `No embedded ${store} runs in ${dir}: start Millrace, or set DATA_DIR to the data directory of the instance.`,
  );
}

function clickHouseStarter({ config, data, secrets, log }: Deps, port: number): () => Promise<Embedded> {
  const { memoryBytesMax, sessions, nice } = config.clickhouse.embedded;
  return () =>
    startEmbeddedClickHouse({
      dir: join(data.path, clickhouseDirectory),
      port,
      password: secrets.clickhousePassword,
      memoryBytesMax,
      freeDiskBytesMin: config.ingest.journal.freeDiskBytesMin,
      sessions,
      nice,
      calmCheckMs: calmCheckMsUsual,
      runDir: data.runPath,
      log,
      logLevel: config.log.level,
    });
}

/** The pace of inserts, which a restarted relay gets again. */
interface InsertPace {
  everyMs: readonly number[];
  relay: InsertRelay | undefined;
}

function relayStarter({ data }: Deps, servers: RelaySettings['servers'], pace: InsertPace): () => Promise<Embedded> {
  return async () => {
    const processFile = data.processFile('inserts');
    pace.relay = await startInsertRelay({ servers, processFile });
    pace.relay.setPace(pace.everyMs);
    return pace.relay;
  };
}

function postgresStarter({ data, secrets, log }: Deps, port: number): () => Promise<Embedded> {
  return () =>
    startEmbeddedPostgres({
      dir: join(data.path, postgresDirectory),
      port,
      password: secrets.postgresPassword,
      runDir: data.runPath,
      log,
    });
}

/**
 * Keeps one embedded engine, or the relay, running: restarts it on the same port after each death. A store that cannot
 * run degrades the service and never ends it.
 */
class KeptEngine {
  readonly #name: string;
  readonly #deps: Deps;
  readonly #start: () => Promise<Embedded>;
  readonly #supervisor: Supervisor;
  #current: Embedded | undefined;
  #starting: Promise<void> | undefined;
  #stopped = false;

  constructor(name: string, deps: Deps, start: () => Promise<Embedded>) {
    this.#name = name;
    this.#deps = deps;
    this.#start = start;
    this.#supervisor = new Supervisor({ name, log: deps.log, restart: () => this.#attempt() });
  }

  get failure(): string | undefined {
    const { failure } = this.#supervisor;
    return failure === undefined ? undefined : `${failure.replace(/\.$/, '')}; Millrace starts it again`;
  }

  async begin(): Promise<void> {
    try {
      await this.#attempt();
    } catch (error) {
      if (this.#deps.mustStart) throw error;
      this.#supervisor.died(messageOf(error));
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#supervisor.stop();
    const unfinished = this.#current ? undefined : this.#starting;
    if (unfinished) {
      // A start may replay a log for minutes. The process file identifies a process that must be ended.
      const pid = liveProcess(this.#deps.data.processFile(this.#name));
      if (pid !== undefined && !(await endProcess(pid, 'SIGINT', stopMsMax)))
        await endProcess(pid, 'SIGKILL', stopMsMax);
      await unfinished.catch(() => {});
    }
    await this.#current?.stop();
  }

  #attempt(): Promise<void> {
    this.#starting = this.#startOnce().finally(() => {
      this.#starting = undefined;
    });
    return this.#starting;
  }

  async #startOnce(): Promise<void> {
    const current = await this.#start();
    this.#current = current;
    if (this.#stopped) return;
    this.#supervisor.up();
    current.onExit((reason) => {
      this.#current = undefined;
      this.#supervisor.died(reason);
    });
  }
}

const stopMsMax = 5_000;

/**
 * Returns a port below those that Linux assigns to outgoing connections: no such connection takes the port while the
 * engine is down.
 */
async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(20_000, 32_000);
    const probe = createServer().listen({ port, host: '127.0.0.1', exclusive: true });
    try {
      await once(probe, 'listening');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EADDRINUSE') continue;
      throw error;
    }
    probe.close();
    await once(probe, 'close');
    return port;
  }
}
