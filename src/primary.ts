/**
 * The primary: settings → data directory → ports → engines → migrations → workers, each step with one clear line when
 * it cannot be done and nothing left half-started. Then it only supervises. SIGTERM goes the same way back.
 */
import { createServer } from 'node:net';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { AnalyticsProcess } from './analytics-process.ts';
import { PasswordHasher } from './auth/password.ts';
import { parseRateLimits } from './auth/rate-limits.ts';
import { type Banner, printBanner, printLine } from './banner.ts';
import { systemClock } from './base/clock.ts';
import { type Config, loadConfig } from './base/config.ts';
import { messageOf, StartError } from './base/errors.ts';
import { checkLimits } from './base/limits.ts';
import { createLog, type Log } from './base/log.ts';
import { Metrics, processMetrics } from './base/metrics.ts';
import type { ClickHouse } from './clickhouse/client.ts';
import { migrate as migrateClickHouse } from './clickhouse/migrate.ts';
import { ClockWatch } from './clock-watch.ts';
import { answerControl, ownVersion } from './control.ts';
import { DataDirectory, type Secrets } from './data-directory.ts';
import { checkAnswers, openStores, startEngines } from './engines.ts';
import { findFirstDevice, seedDemoData, seedFirstTenant } from './fleet/seed.ts';
import type { Postgres } from './postgres/client.ts';
import { migrate as migratePostgres } from './postgres/migrate.ts';
import { readRules } from './rules/file.ts';
import { checkTls } from './tls.ts';
import { WorkerPool } from './worker-pool.ts';

const stateIntervalMs = 500;

/** Stops what was started, the last first. */
class Started {
  readonly #stops: { name: string; stop: () => Promise<void> | void }[] = [];

  add(name: string, stop: () => Promise<void> | void): void {
    this.#stops.push({ name, stop });
  }

  async stopAll(log: Log): Promise<void> {
    for (const { name, stop } of this.#stops.splice(0).reverse()) {
      try {
        await stop();
      } catch (error) {
        log.error('stop_failed', { part: name, reason: messageOf(error) });
      }
    }
  }
}

export async function runPrimary(): Promise<void> {
  const started = performance.now();
  const config = loadConfig();
  checkLimits(config);
  parseRateLimits(config.rateLimits);
  checkTls(config.ssl, 'SSL');
  if (config.mqtt.enabled) checkTls(config.mqtt.ssl, 'MQTT_SSL');
  checkAdmins(config.admin);
  const rules = readRules(config.rules.file);
  const log = createLog(config.log.level, 'primary');
  await import('./uws/load.ts');
  const workers = config.workers || availableParallelism();
  const data = new DataDirectory(config.data.dir);
  const running = new Started();
  const ending = new Ending(running, log);

  try {
    await data.take(log, config.data.lockWaitSeconds * 1000);
    data.checkRestored();
    running.add('data directory', () => data.release());
    await probePorts(config);
    const { secrets, fresh } = data.secrets();
    const engines = await startEngines({
      config,
      data,
      secrets,
      log,
      onCrashLoop: (reason) => ending.crashLoop(reason),
    });
    running.add('engines', () => engines.stop());

    const stores = openStores(engines.engines, config, log);
    running.add('store clients', () => closeStores(stores));
    await checkAnswers(config, stores.clickhouse, stores.postgres);
    const { database, cluster } = config.clickhouse;
    await Promise.all([
      migrateClickHouse(stores.clickhouse, { database, cluster, ttlDays: config.telemetry.ttlDays, log }),
      migratePostgres(stores.postgres, { log }),
    ]);
    const metrics = new Metrics();
    processMetrics(metrics, 'primary');
    const clock = new ClockWatch({
      postgres: stores.postgres,
      clock: systemClock,
      path: join(data.path, 'clock.json'),
      log,
      metrics,
    });
    await clock.begin();
    const seeded = await seed(config, stores.postgres, secrets.adminPassword);

    const pool: WorkerPool = new WorkerPool({
      workers,
      config,
      rules,
      engines: engines.engines,
      data,
      log,
      metrics,
      clock: () => clock.state,
      collectOthers: async () => (analytics ? [await analytics.collect()] : []),
      onCrashLoop: (reason) => ending.crashLoop(reason),
    });
    const analytics = config.analytics.enabled
      ? new AnalyticsProcess({
          config,
          engines: engines.engines,
          workers,
          data,
          log,
          clock: () => clock.state,
          onForked: (child) => pool.join(child),
          onCrashLoop: (reason) => ending.crashLoop(reason),
        })
      : undefined;
    ending.pool = pool;
    ending.analytics = analytics;
    const drainMsMax = config.shutdown.drainMsMax + 2000;
    running.add('workers and analytics', async () => {
      await Promise.all([pool.drain(drainMsMax), analytics?.stop(drainMsMax)]);
    });
    await Promise.all([pool.start(), analytics?.start()]);
    const control = await answerControl({ dataDir: data.path, config, journalHold: pool.journalHold });
    running.add('control', () => control.close());
    const watching = watchStores(pool, analytics, stores.clickhouse, clock);
    running.add('watch', () => clearInterval(watching));

    const seconds = (performance.now() - started) / 1000;
    printBanner(bannerOf(config, data, engines.description, seeded, fresh, secrets, workers, seconds));
    log.info('ready', { seconds: Number(seconds.toFixed(2)), workers });
  } catch (error) {
    if (ending.begun) return;
    ending.begun = true;
    ending.kill();
    await running.stopAll(log);
    throw error instanceof StartError ? error : new StartError(`Start failed: ${messageOf(error)}`, 70);
  }
}

function checkAdmins({ email, systemEmail }: Config['admin']): void {
  if (email.toLowerCase() !== systemEmail.toLowerCase()) return;
  throw new StartError(
    `ADMIN_EMAIL and SYSTEM_ADMIN_EMAIL are both ${email}: one administers a tenant, one the system, and they need two addresses.`,
  );
}

/** Who and what a new installation starts with; the demo device is found again on later starts. */
async function seed(config: Config, postgres: Postgres, generatedPassword: string): Promise<Seeded> {
  const passwords = new PasswordHasher(1);
  try {
    const parts = { postgres, passwords, clock: systemClock };
    const { email, systemEmail, password } = config.admin;
    const admins = { email, systemEmail, password: password || generatedPassword };
    const adminCreated = await seedFirstTenant(parts, admins);
    if (config.demoData) await seedDemoData(parts);
    return { adminCreated, demoDevice: await findFirstDevice(postgres) };
  } finally {
    await passwords.close();
  }
}

interface Seeded {
  adminCreated: boolean;
  demoDevice: { id: string; token: string } | undefined;
}

/** Every way out: SIGTERM and SIGINT drain, a second signal forces, a crash loop says why. */
class Ending {
  readonly #running: Started;
  readonly #log: Log;
  pool: WorkerPool | undefined;
  analytics: AnalyticsProcess | undefined;
  begun = false;

  constructor(running: Started, log: Log) {
    this.#running = running;
    this.#log = log;
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => this.#signalled(signal));
  }

  kill(): void {
    this.pool?.kill();
    this.analytics?.kill();
  }

  crashLoop(reason: string): void {
    this.#log.error('crash_loop', { reason });
    void this.#end(1, `stopped: ${reason}`);
  }

  #signalled(signal: string): void {
    if (this.begun) {
      printLine(`${signal} again: stopping at once.`);
      this.kill();
      process.exit(1);
    }
    printLine(`${signal}: finishing open requests and shipping the journal.`);
    void this.#end(0, 'stopped; everything acknowledged is on disk.');
  }

  async #end(exitCode: number, last: string): Promise<void> {
    if (this.begun) return;
    this.begun = true;
    await this.#running.stopAll(this.#log);
    printLine(last);
    process.exit(exitCode);
  }
}

/**
 * A taken port must be found before the fork: uWebSockets.js binds with SO_REUSEPORT, so a second instance would
 * silently take half of the first one's connections; and a worker that cannot listen would be started again and again.
 */
async function probePorts({ http, ssl, mqtt, analytics }: Config): Promise<void> {
  await probePort(http.address, http.port, 'HTTP_BIND_PORT');
  if (ssl.enabled) await probePort(http.address, ssl.port, 'HTTPS_BIND_PORT');
  if (analytics.enabled) await probePort(analytics.address, analytics.port, 'ANALYTICS_BIND_PORT');
  if (!mqtt.enabled) return;
  await probePort(mqtt.address, mqtt.port, 'MQTT_BIND_PORT');
  if (mqtt.ssl.enabled) await probePort(mqtt.ssl.address, mqtt.ssl.port, 'MQTT_SSL_BIND_PORT');
}

function probePort(address: string, port: number, setting: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', (error: NodeJS.ErrnoException) => {
      const why = error.code === 'EADDRINUSE' ? 'is taken by another program' : `cannot be bound (${error.code})`;
      reject(new StartError(`Port ${port} on ${address} ${why}: stop what uses it, or set ${setting}.`));
    });
    probe.listen({ port, host: address, exclusive: true }, () => probe.close(() => resolve()));
  });
}

function watchStores(
  pool: WorkerPool,
  analytics: AnalyticsProcess | undefined,
  clickhouse: ClickHouse,
  clock: ClockWatch,
) {
  return setInterval(async () => {
    const [houseUp, postgresUp] = await Promise.all([clickhouse.ping(), clock.measure()]);
    const stores = { clickhouse: houseUp ? 'up' : 'away', postgres: postgresUp ? 'up' : 'away' } as const;
    pool.setParts({ ...stores, ...(analytics && { analytics: analytics.state }) });
    analytics?.tell(pool.state);
  }, stateIntervalMs);
}

async function closeStores({ clickhouse, postgres }: { clickhouse: ClickHouse; postgres: Postgres }): Promise<void> {
  await Promise.all([clickhouse.close(), postgres.close()]);
}

function bannerOf(
  config: Config,
  data: DataDirectory,
  engines: string,
  seeded: Seeded,
  fresh: boolean,
  secrets: Secrets,
  workers: number,
  seconds: number,
): Banner {
  return {
    version: ownVersion(),
    seconds,
    workers,
    engines,
    dataPath: data.path,
    port: config.http.port,
    httpsPort: config.ssl.enabled ? config.ssl.port : 0,
    docs: config.docs.enabled,
    mqttPort: config.mqtt.enabled ? config.mqtt.port : 0,
    mqttsPort: config.mqtt.enabled && config.mqtt.ssl.enabled ? config.mqtt.ssl.port : 0,
    analyticsPort: config.analytics.enabled ? config.analytics.port : 0,
    mqttPath: config.mqtt.enabled && config.mqtt.webSocket ? '/mqtt' : '',
    adminEmail: config.admin.email,
    systemEmail: seeded.adminCreated ? config.admin.systemEmail : '',
    // A password that the operator set is known to the operator; a generated one is printed once.
    adminPassword: seeded.adminCreated && !config.admin.password ? secrets.adminPassword : undefined,
    firstStart: fresh,
    demoDevice: seeded.demoDevice,
  };
}
