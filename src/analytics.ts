/**
 * Main module of the analytics process: reports on a separate address, so that a heavy report never touches ingest.
 * Builds its parts, listens, and stops them in the reverse order. One of all hosts' processes updates ClickHouse's copy
 * of device data.
 */
import { analyticsDoor } from './analytics/door.ts';
import { ApiKeys } from './auth/api-keys.ts';
import { openAuth } from './auth/auth.ts';
import { FailedSignIns } from './auth/failed-sign-ins.ts';
import { openJwt } from './auth/jwt.ts';
import { costOf, PasswordHasher } from './auth/password.ts';
import { Proxies } from './auth/transport.ts';
import { systemClock as clock } from './base/clock.ts';
import { messageOf, StartError } from './base/errors.ts';
import { filesForConnections } from './base/file-limit.ts';
import { limits } from './base/limits.ts';
import { createLog } from './base/log.ts';
import { Metrics } from './base/metrics/metrics.ts';
import { processMetrics } from './base/metrics/process-metrics.ts';
import { systemScheduler } from './base/scheduler.ts';
import { openBus } from './bus/open.ts';
import { Started } from './instance/lifecycle/started.ts';
import { StopSteps } from './instance/lifecycle/stop-steps.ts';
import { PrimaryLink } from './instance/processes/primary-link.ts';
import { openStores, shardServers } from './instance/stores/engines.ts';
import { readShardOfBuckets } from './instance/stores/shard-map-store.ts';
import { LeftTables } from './report/left-tables.ts';
import { MetadataCopier } from './report/metadata-copier.ts';
import { ReportPool } from './report/pool.ts';
import { HttpServer } from './uws/server.ts';

async function runAnalytics(): Promise<void> {
  const link = new PrimaryLink();
  const { config, engines, installation, postgresReady } = await link.begin;
  const log = createLog(config.log.level, 'analytics');
  const metrics = new Metrics();
  processMetrics(metrics, 'analytics');

  const started = new Started();
  const proxies = Proxies.of(config);
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

  // The stores, and the copy of device data in ClickHouse.
  const { shards, postgres } = openStores({ engines, config, log, metrics, parts: () => link.state.parts });
  if (!postgresReady) postgres.hold();
  started.add('connections to the stores', () => Promise.all([shards.close(), postgres.close()]));
  link.onState((state) => state.postgresReady && postgres.release());
  const bus = await openBus({ redis: config.redis, installation, log, metrics });
  started.add('bus', () => bus.close());
  const copier = new MetadataCopier({ postgres, clickhouse: shards.first, clock, log, metrics });
  copier.start();
  started.add('copy of device data', () => copier.stop());

  // Authenticates callers.
  const passwords = new PasswordHasher(config.auth.signInQueueMax, costOf(config.auth.passwordCost));
  started.add('passwords', () => passwords.close());
  const apiKeys = new ApiKeys({ postgres, bus, clock, log });
  await apiKeys.start();
  started.add('API keys', () => apiKeys.stop());
  const auth = openAuth({
    postgres,
    passwords,
    jwt: await openJwt(postgres, config.auth, clock),
    clock,
    failedLoginsMax: config.auth.failedLoginsMax,
    failedSignIns: new FailedSignIns(clock),
    apiKeys,
    proxies,
    requireHttpsForApiKeys: config.auth.requireHttpsForApiKeys,
    // The pool is the limit.
    requestLimits: undefined,
  });

  // Reports, and the door.
  const { address, port, threads, queue, queriesMax, ...budget } = config.analytics;
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
  await server.listen(address, port);
  started.add('open requests', async (steps) => {
    server.drain();
    while (server.openRequests > 0 && steps.msLeft > 0) await systemScheduler.sleep(5);
  });
  link.onCollect(() => metrics.snapshot());
  link.ready();

  const stop = () => started.stop(new StopSteps({ msMax: config.shutdown.drainMsMax, log }));
  link.onDrain(() => void stop().then(() => process.exit(0)));
  // Without a primary no process supervises this one, and nothing here needs to be finished.
  link.onLost(() => process.exit(0));
}

runAnalytics().catch((error: unknown) => {
  const text = error instanceof StartError || !(error instanceof Error) ? messageOf(error) : error.stack;
  process.stderr.write(`millrace analytics: ${text}\n`);
  process.exit(error instanceof StartError ? error.exitCode : 70);
});
