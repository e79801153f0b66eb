/**
 * Main module of the analytics process: reports on a separate address, so that a heavy report never touches ingest.
 * Builds its parts, listens, and stops them in the reverse order. One of all hosts' processes updates ClickHouse's copy
 * of device data.
 */
import { analyticsDoor } from './analytics/door.ts';
import { ApiKeys } from './auth/api-keys.ts';
import { type Auth, openAuth } from './auth/auth.ts';
import { FailedSignIns } from './auth/failed-sign-ins.ts';
import { openJwt } from './auth/jwt.ts';
import { costOf, PasswordHasher } from './auth/password.ts';
import { Proxies } from './auth/transport.ts';
import { systemClock as clock } from './base/clock.ts';
import { messageOf, StartError } from './base/errors.ts';
import { filesForConnections } from './base/file-limit.ts';
import { limits } from './base/limits.ts';
import { createLog, type Log } from './base/log.ts';
import { Metrics } from './base/metrics/metrics.ts';
import { processMetrics } from './base/metrics/process-metrics.ts';
import { systemScheduler } from './base/scheduler.ts';
import type { Bus } from './bus/bus.ts';
import { openBus } from './bus/open.ts';
import type { Shards } from './clickhouse/shards.ts';
import { Started } from './instance/lifecycle/started.ts';
import { StopSteps } from './instance/lifecycle/stop-steps.ts';
import type { Begin } from './instance/processes/messages.ts';
import { PrimaryLink } from './instance/processes/primary-link.ts';
import { openStores, shardServers } from './instance/stores/engines.ts';
import { readShardOfBuckets } from './instance/stores/shard-map-store.ts';
import type { Postgres } from './postgres/client.ts';
import { LeftTables } from './report/left-tables.ts';
import { MetadataCopier } from './report/metadata-copier.ts';
import { ReportPool } from './report/pool.ts';
import { HttpServer } from './uws/server.ts';

/** What every step of the start uses. A step adds its stop to `started`. */
interface Start {
  link: PrimaryLink;
  begin: Begin;
  log: Log;
  metrics: Metrics;
  started: Started;
}

async function runAnalytics(): Promise<void> {
  const link = new PrimaryLink();
  const begin = await link.begin;
  const { config } = begin;
  const log = createLog(config.log.level, 'analytics');
  const metrics = new Metrics();
  processMetrics(metrics, 'analytics');

  const started = new Started();
  const start: Start = { link, begin, log, metrics, started };
  const proxies = Proxies.of(config);
  const server = openServer(start, proxies);
  const stores = await openStoresAndBus(start);
  const copier = new MetadataCopier({ ...stores, clickhouse: stores.shards.first, clock, log, metrics });
  copier.start();
  started.add('copy of device data', () => copier.stop());
  const auth = await openCallers(start, stores, proxies);
  const pool = openReports(start, stores);
  const { shards, postgres } = stores;
  analyticsDoor({
    server,
    auth,
    metrics,
    postgres,
    pool,
    clock,
    ttlDays: config.telemetry.ttlDays,
    onAttributesWanted: () => copier.wake(),
    readShards: async () => (shards.isDivided ? await readShardOfBuckets(postgres, shards.all.length) : undefined),
    away: () => Object.keys(link.state.parts).filter((part) => link.state.parts[part] !== 'up'),
  });
  server.seal();
  await server.listen(config.analytics.address, config.analytics.port);
  started.add('open requests', async (steps) => {
    server.drain();
    while (server.hasRequests && steps.msLeft > 0) await systemScheduler.sleep(5);
  });
  link.onCollect(() => metrics.snapshot());
  link.ready();

  const stop = () => started.stop(new StopSteps({ msMax: config.shutdown.drainMsMax, log }));
  link.onDrain(() => void stop().then(() => process.exit(0)));
  // Without a primary no process supervises this one, and nothing here needs to be finished.
  link.onLost(() => process.exit(0));
}

function openServer({ begin: { config }, log, metrics, started }: Start, proxies: Proxies): HttpServer {
  const server = new HttpServer({
    log,
    metrics,
    bodyBytesMax: limits.viewBodyBytesMax,
    bodyBytesInFlightMax: config.http.bodyBytesInFlightMax,
    connectionsMax: filesForConnections(),
    connectionsPerAddressMax: config.http.connectionsPerAddressMax,
    isTrustedProxy: (address) => proxies.isTrusted(address),
    worker: '',
  });
  started.add('sockets', () => server.close());
  return server;
}

interface Stores {
  shards: Shards;
  postgres: Postgres;
  bus: Bus;
}

async function openStoresAndBus({ link, begin, log, metrics, started }: Start): Promise<Stores> {
  const { config, engines, installation, postgresReady } = begin;
  const { shards, postgres } = openStores({ engines, config, log, metrics, parts: () => link.state.parts });
  if (!postgresReady) postgres.hold();
  started.add('connections to the stores', () => Promise.all([shards.close(), postgres.close()]));
  link.onState((state) => state.postgresReady && postgres.release());
  const bus = await openBus({ redis: config.redis, installation, log, metrics });
  started.add('bus', () => bus.close());
  return { shards, postgres, bus };
}

/** Opens what authenticates callers. */
async function openCallers({ begin, log, started }: Start, { postgres, bus }: Stores, proxies: Proxies): Promise<Auth> {
  const { auth: settings } = begin.config;
  const passwords = new PasswordHasher(settings.signInQueueMax, costOf(settings.passwordCost));
  started.add('passwords', () => passwords.close());
  const apiKeys = new ApiKeys({ postgres, bus, clock, log });
  await apiKeys.start();
  started.add('API keys', () => apiKeys.stop());
  return openAuth({
    postgres,
    passwords,
    jwt: await openJwt(postgres, settings, clock),
    clock,
    failedLoginsMax: settings.failedLoginsMax,
    failedSignIns: new FailedSignIns(clock),
    apiKeys,
    proxies,
    requireHttpsForApiKeys: settings.requireHttpsForApiKeys,
    // The pool is the limit.
    requestLimits: undefined,
  });
}

function openReports({ begin, log, metrics, started }: Start, { shards }: Stores): ReportPool {
  const { config, engines } = begin;
  const { threads, queue, queriesMax, rowsMax, answerBytesMax, memoryBytesMax, timeoutMs, nice } = config.analytics;
  const budget = { rowsMax, answerBytesMax, memoryBytesMax, timeoutMs, nice };
  const leftTables = new LeftTables({ servers: shards.all, log });
  leftTables.start();
  started.add('tables of reports', () => leftTables.stop());
  const pool = new ReportPool({
    threads,
    queue,
    queriesMax,
    thread: { servers: shardServers(config, engines), logLevel: config.log.level, ...budget },
    onAbandoned: (queryId) => leftTables.end(queryId),
    log,
    metrics,
  });
  started.add('reports', () => pool.close());
  return pool;
}

runAnalytics().catch((error: unknown) => {
  const text = error instanceof StartError || !(error instanceof Error) ? messageOf(error) : error.stack;
  process.stderr.write(`millrace analytics: ${text}\n`);
  process.exit(error instanceof StartError ? error.exitCode : 70);
});
