/**
 * The stores of this instance: embedded engines that the primary starts and keeps running, or external ones by URL.
 * Nobody else can tell the difference.
 */
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Config } from './base/config.ts';
import { StartError } from './base/errors.ts';
import type { Log } from './base/log.ts';
import { type ClickHouse, openClickHouse } from './clickhouse/client.ts';
import { startEmbeddedClickHouse } from './clickhouse/embedded.ts';
import type { DataDirectory, Secrets } from './data-directory.ts';
import { clickhouseDirectory, type Engines, postgresDirectory, runDirectory } from './instance.ts';
import { openPostgres, type Postgres } from './postgres/client.ts';
import { startEmbeddedPostgres } from './postgres/embedded.ts';
import { Supervisor } from './supervisor.ts';

export interface RunningEngines {
  engines: Engines;
  /** What runs where, for the operator. */
  description: string;
  stop(): Promise<void>;
}

interface Parts {
  config: Config;
  data: DataDirectory;
  secrets: Secrets;
  log: Log;
  onCrashLoop: (reason: string) => void;
}

interface Embedded {
  url: string;
  port: number;
  stop(): Promise<void>;
  onExit(callback: (reason: string) => void): void;
}

export async function startEngines(parts: Parts): Promise<RunningEngines> {
  const { config, data, secrets } = parts;
  const { clickhouse, postgres } = config;
  const [house, server] = await Promise.all([
    clickhouse.url ? undefined : keepRunning('clickhouse', parts, startHouse(parts)),
    postgres.url ? undefined : keepRunning('postgres', parts, startServer(parts)),
  ]);
  const engines: Engines = {
    clickhouse: house
      ? { url: house.url, user: 'default', password: secrets.clickhousePassword }
      : { url: clickhouse.url, user: clickhouse.user, password: clickhouse.password },
    postgresUrl: server?.url ?? postgres.url,
  };
  // For operators and benchmarks: the way into the embedded stores.
  data.writePrivate(join('run', 'clickhouse.json'), JSON.stringify(engines.clickhouse));
  data.writePrivate(join('run', 'postgres.json'), JSON.stringify({ url: engines.postgresUrl }));
  return {
    engines,
    description: `ClickHouse ${house ? 'embedded' : 'external'}, PostgreSQL ${server ? 'embedded' : 'external'}`,
    stop: async () => {
      await Promise.all([house?.stop(), server?.stop()]);
    },
  };
}

/** A store that does not answer at the start is the operator's business: one line with its address. */
export async function checkAnswers(config: Config, clickhouse: ClickHouse, postgres: Postgres): Promise<void> {
  const [houseAnswers, postgresAnswers] = await Promise.all([clickhouse.ping(), answers(postgres)]);
  if (!houseAnswers)
    throw new StartError(`ClickHouse does not answer at ${hostOf(config.clickhouse.url)} (CLICKHOUSE_URL).`);
  if (!postgresAnswers) throw new StartError(`PostgreSQL does not answer at ${postgres.address} (DATABASE_URL).`);
}

/** True when Postgres takes a statement. */
export async function answers(postgres: Postgres): Promise<boolean> {
  try {
    await postgres.ping();
    return true;
  } catch {
    return false;
  }
}

export function openStores(engines: Engines, config: Config, log: Log): { clickhouse: ClickHouse; postgres: Postgres } {
  return {
    clickhouse: openClickHouse({ ...engines.clickhouse, ...clickHouseOptions(config), log }),
    postgres: openPostgres({ url: engines.postgresUrl, poolMax: config.postgres.poolMax, log }),
  };
}

/** What every client of ClickHouse that writes must know: also the commands that run beside an instance. */
export function clickHouseOptions({ clickhouse }: Config): { database: string; insertQuorum: string | undefined } {
  const { database, cluster, insertQuorum } = clickhouse;
  return { database, insertQuorum: cluster === '' ? undefined : insertQuorum };
}

/** For a command beside the instance: external by its settings, embedded by what the running instance wrote down. */
export function openClickHouseOf(config: Config, log: Log): ClickHouse {
  const { url, user, password } = config.clickhouse;
  const options = clickHouseOptions(config);
  if (url !== '') return openClickHouse({ url, user, password, ...options, log });
  try {
    const file = join(resolve(config.data.dir), runDirectory, 'clickhouse.json');
    const address = JSON.parse(readFileSync(file, 'utf8')) as Engines['clickhouse'];
    return openClickHouse({ ...address, ...options, log });
  } catch {
    throw new StartError('The embedded ClickHouse is not running: start Millrace first.');
  }
}

function startHouse({ config, data, secrets, log }: Parts): (port: number) => Promise<Embedded> {
  const { memoryBytesMax, sessions, nice, port: configured } = config.clickhouse.embedded;
  return (port) =>
    startEmbeddedClickHouse({
      dir: join(data.path, clickhouseDirectory),
      port: port || configured,
      password: secrets.clickhousePassword,
      memoryBytesMax,
      sessions,
      nice,
      runDir: data.runPath,
      log,
    });
}

function startServer({ config, data, secrets, log }: Parts): (port: number) => Promise<Embedded> {
  return (port) =>
    startEmbeddedPostgres({
      dir: join(data.path, postgresDirectory),
      port: port || config.postgres.embedded.port,
      password: secrets.postgresPassword,
      runDir: data.runPath,
      log,
    });
}

/** Starts again on the same port, so that the URL that everybody holds stays true. */
async function keepRunning(name: string, parts: Parts, start: (port: number) => Promise<Embedded>): Promise<Embedded> {
  let current = await start(0);
  let restarting: Promise<void> | undefined;
  const { port } = current;
  const watch = () => {
    supervisor.up();
    current.onExit((reason) => supervisor.died(reason));
  };
  const restart = async () => {
    current = await start(port);
    watch();
  };
  const supervisor = new Supervisor({
    name,
    log: parts.log,
    onCrashLoop: parts.onCrashLoop,
    restart: () => {
      restarting = restart();
      return restarting;
    },
  });
  watch();
  const stop = async () => {
    supervisor.stop();
    await restarting?.catch(() => {});
    await current.stop();
  };
  return { url: current.url, port, stop, onExit: () => {} };
}

function hostOf(url: string): string {
  return URL.parse?.(url)?.host ?? url.replace(/\/\/[^@/]*@/, '//');
}
