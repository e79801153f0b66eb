/**
 * The primary: settings → data directory → ports → stores → workers. Each step fails with one clear line and leaves
 * nothing half-started. Unavailable stores delay no worker once devices are known: their schema follows when they
 * answer. Then the primary only supervises. SIGTERM stops everything in the reverse order.
 */
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { systemClock } from './base/clock.ts';
import { messageOf, StartError } from './base/errors.ts';
import { limits } from './base/limits.ts';
import { createLog, type Log } from './base/log.ts';
import { Metrics } from './base/metrics/metrics.ts';
import { metricsPage } from './base/metrics/metrics-page.ts';
import { processMetrics } from './base/metrics/process-metrics.ts';
import { systemScheduler } from './base/scheduler.ts';
import { type Config, checkedConfig, readConfig } from './base/settings/config.ts';
import { ownVersion } from './base/version.ts';
import type { Shards } from './clickhouse/shards.ts';
import { hasKnownDevices, knownFile } from './device/known/known-devices-file.ts';
import { KnownDevicesWriter } from './device/known/known-devices-writer.ts';
import { ClockWatch } from './instance/clock/clock-watch.ts';
import { Ending } from './instance/ending.ts';
import { FrozenWatch } from './instance/health/frozen-watch.ts';
import { RefusalForecast } from './instance/health/refusal-forecast.ts';
import { RefusalWatch, type WorkerRefusals } from './instance/health/refusal-watch.ts';
import { StartingDoor } from './instance/health/starting-door.ts';
import type { InstanceState } from './instance/health/state.ts';
import { checkConfig, checkNames } from './instance/host/config-check.ts';
import { DataDirectory, type Secrets } from './instance/host/data-directory.ts';
import { clockFile } from './instance/host/data-files.ts';
import { judgeMachine, readMachine } from './instance/host/machine.ts';
import { portsOf, probePort } from './instance/host/ports.ts';
import { Started } from './instance/lifecycle/started.ts';
import { StopSteps } from './instance/lifecycle/stop-steps.ts';
import { describeHost } from './instance/membership/host-description.ts';
import { Membership } from './instance/membership/membership.ts';
import { type Banner, printBanner, printProgress } from './instance/operators/banner.ts';
import { answerControl } from './instance/operators/control.ts';
import { HostMetrics } from './instance/operators/host-metrics.ts';
import { openMonitor } from './instance/operators/monitor.ts';
import { AnalyticsProcess } from './instance/processes/analytics-process.ts';
import { WorkerPool } from './instance/processes/worker-pool.ts';
import { openStores, shardName, startEngines } from './instance/stores/engines.ts';
import { HostPoll } from './instance/stores/host-poll.ts';
import { Installation } from './instance/stores/installation.ts';
import { PartsWatch } from './instance/stores/parts-watch.ts';
import { RestoredStores } from './instance/stores/restored-stores.ts';
import { StoreWatch, type WatchedStore } from './instance/stores/store-watch.ts';
import { type Seeded, watchedStores } from './instance/watched-stores.ts';
import type { Postgres } from './postgres/client.ts';
import { hostPaceMs } from './ship/host-pace.ts';
import { findCopies } from './stream/copies-store.ts';
import { tryStreams } from './stream/prepare-streams.ts';

const stateIntervalMs = 500;
const refusalIntervalMs = 1_000;
const closeMsMax = 5_000;
/** The time for stopping the parts of a failed start. */
const startStopMsMax = 60_000;
/** The most warnings about names: the environment of another program may have many names that look like settings. */
const warningsMax = 20;
const refusedWithoutStore = 'Telemetry is refused until ClickHouse answers (INGEST_ACK=store).';

export async function runPrimary(): Promise<void> {
  const started = performance.now();
  const reading = readConfig();
  const config = checkedConfig(reading);
  const misspelt = checkNames(config, reading.unknown);
  const rules = checkConfig(config);
  const log = createLog(config.log.level, 'primary');
  await import('./uws/load.ts');
  const workers = config.workers || availableParallelism();
  if (misspelt.length > 0) log.warn('unknown_settings', { reasons: misspelt.slice(0, warningsMax) });
  const data = new DataDirectory(config.data.dir);
  const machine = checkMachine(config, data.path, workers, log);
  const running = new Started();
  const ending = new Ending(running, data, config.shutdown, log);

  try {
    await data.take(log, config.data.lockWaitSeconds * 1000);
    data.checkRestored();
    running.add('data directory', () => data.release());
    for (const port of portsOf(config)) await probePort(port);
    const starting = await StartingDoor.open(config.http.address, config.http.port);
    running.add('starting door', () => starting.close());
    const { secrets, fresh } = data.secrets();
    // Without any device known, an instance without PostgreSQL can serve no device.
    const knowsDevices = hasKnownDevices(data.path);
    const engines = await startEngines({ config, workers, data, secrets, log, mustStart: !knowsDevices });
    running.add('engines', () => engines.stop());

    let parts = (): InstanceState['parts'] => ({});
    const metrics = new Metrics();
    processMetrics(metrics, 'primary');
    const stores = openStores({ engines: engines.engines, config, log, metrics, parts: () => parts() });
    running.add('store clients', () => closeStores(stores));
    const host = describeHost(config, workers, data.hostId(log));
    const membership = new Membership({
      postgres: stores.postgres,
      host,
      mqttConnections: () => (config.mqtt.enabled ? ending.pool?.mqttConnections : undefined),
      onSurplus: (surplus) => ending.pool?.handOverSome(surplus.count, surplus.perSecond),
      log,
      metrics,
    });
    running.add('membership', () => membership.stop());
    const restored = new RestoredStores({ postgres: stores.postgres, data, log });
    running.add('restored stores', () => restored.stop());
    const clock = new ClockWatch({
      postgres: stores.postgres,
      clock: systemClock,
      path: join(data.path, clockFile),
      log,
      metrics,
    });
    const installation = new Installation(stores.postgres, data.path, () => ending.otherInstallation());
    let seeded: Seeded | undefined;
    let publishState = () => {};
    let serving = false;
    const forecast = new RefusalForecast();
    let busFailure = (): string | undefined => undefined;
    const watch = new StoreWatch({
      stores: watchedStores({
        config,
        ...stores,
        engines,
        clock,
        restored,
        membership,
        installation,
        secrets,
        log,
        busFailure: () => busFailure(),
        safety: () => (config.ingest.ack === 'store' ? refusedWithoutStore : forecast.sentence),
        onSeeded: (result) => {
          seeded = result;
          if (serving && result.adminCreated)
            printProgress(`the first administrators were made: ${data.path}/secrets.json`);
        },
      }),
      log,
      onChange: () => publishState(),
    });
    running.add('watch', () => watch.stop());
    parts = () => watch.parts;
    observeStores(metrics, watch);
    await inTime(engines.begun, knowsDevices ? limits.storesWaitMsMax : Number.POSITIVE_INFINITY);
    await clock.begin();
    await watch.begin(limits.storesWaitMsMax, knowsDevices ? undefined : 'postgres', (reason) => {
      starting.reason = reason;
      printProgress(`waiting, because no device is known here yet. ${reason}`);
    });
    if (config.stream.url !== '') {
      const owner = { installation: installation.id, copies: await findCopies(stores.postgres) };
      const unavailable = await tryStreams(config.stream, owner, (page) => {
        const what = 'does not answer, or its server has JetStream off';
        printProgress(`${page} of STREAM_MONITOR_URLS ${what}: the sync of that server is not checked.`);
      });
      if (unavailable !== undefined) printProgress(`the stream (STREAM_URL) cannot be used yet: ${unavailable}`);
    }
    watch.enterService();
    const isPostgresReady = () => watch.isPrepared('postgres');
    const pool: WorkerPool = new WorkerPool({
      workers,
      config,
      rules,
      engines: engines.engines,
      installation: () => installation.id,
      data,
      log,
      metrics,
      clock: () => clock.state,
      mismatch: () => membership.mismatch,
      fleetWorkers: () => membership.fleetWorkers,
      isHomeHost: () => membership.isHomeHost,
      isPostgresReady,
      onCrashLoop: (reason) => ending.crashLoop(reason),
    });
    const analytics = config.analytics.enabled
      ? new AnalyticsProcess({
          config,
          engines: engines.engines,
          installation: () => installation.id,
          data,
          log,
          clock: () => clock.state,
          onForked: (child) => pool.join(child),
          isPostgresReady,
        })
      : undefined;
    const known = new KnownDevicesWriter({
      path: knownFile(data.path),
      postgres: stores.postgres,
      source: async () => Buffer.from(installation.id, 'hex'),
      clock: systemClock,
      log,
      metrics,
    });
    running.add('known devices', () => known.stop());
    const hostPoll = new HostPoll({ postgres: stores.postgres, log, onResult: (result) => pool.polled(result) });
    running.add('poll of the host', () => hostPoll.stop());
    const clickhouse = { clickhouse: stores.shards.first, isClickHouseUp: () => watch.up('clickhouse') === 1 };
    const partsWatches = stores.shards.all.map(
      (shard, n) =>
        new PartsWatch({
          clickhouse: shard,
          isClickHouseUp: () => watch.up(shardName(n)) === 1,
          hosts: () => membership.fleetHosts,
        }),
    );
    // Only joined inserts have a pace.
    if (engines.engines.clickhouse.relayUrls !== undefined) for (const parts of partsWatches) parts.start();
    running.add('parts of the tables', () => {
      for (const parts of partsWatches) parts.stop();
    });
    let isPolling = false;
    busFailure = () => pool.busFailure;
    const refusals = new RefusalWatch(log);
    const frozen = new FrozenWatch(log);
    observePool(metrics, pool, forecast);
    publishState = () => {
      engines.setInsertPace(
        partsWatches.map(({ partsOfPartition }) => insertPaceOf(config, membership.fleetHosts, partsOfPartition)),
      );
      // Devices may be read only with this version's schema.
      if (!isPolling && isPostgresReady()) {
        isPolling = true;
        known.start();
        hostPoll.start();
      }
      const reports = analytics?.failure;
      pool.setParts({ ...watch.parts, ...(analytics && { analytics: analytics.state }) }, [
        ...watch.reasons,
        ...(reports === undefined ? [] : [`Reports are not served: ${reports}`]),
      ]);
      analytics?.send(pool.state);
    };
    ending.pool = pool;
    ending.analytics = analytics;
    // A worker bounds its own stop by `drainMsMax`; one that hangs leaves time for the stores.
    const drainMsMax = config.shutdown.drainMsMax + config.shutdown.storesMsMax / 2;
    running.add('workers and analytics', async () => {
      await Promise.all([pool.drain(drainMsMax), analytics?.stop(drainMsMax)]);
    });
    const hostMetrics = new HostMetrics({ config, data, ...clickhouse, metrics });
    const { address, port, oldNames } = config.monitor;
    const monitor = await openMonitor({
      address,
      port,
      state: () => pool.state,
      silentHosts: () => membership.silentHosts,
      metrics: async () => {
        const [, workersSamples, analyticsSamples = []] = await Promise.all([
          hostMetrics.refresh(),
          pool.collect(),
          analytics?.collect(),
        ]);
        return metricsPage([metrics.snapshot(), ...workersSamples, analyticsSamples], oldNames);
      },
      log,
    });
    running.add('monitor', () => monitor.close());
    serving = true;
    running.add(
      'state',
      systemScheduler.every(stateIntervalMs, () => publishState()),
    );
    const endChecks = systemScheduler.every(refusalIntervalMs, () => {
      refusals.check(pool.refusals);
      frozen.check(pool.silences);
      forecast.add(pool.rooms);
    });
    running.add('refusals', endChecks);
    publishState();
    await starting.close();
    await Promise.all([pool.start(), analytics?.start()]);
    const control = await answerControl({ dataDir: data.path, config, journalHold: pool.journalHold });
    running.add('control', () => control.close());
    publishState();

    const seconds = (performance.now() - started) / 1000;
    const { status, reasons } = pool.state;
    const refusal = status === 'refusing' ? pool.refusal?.message : undefined;
    const banner = bannerOf(config, data, engines.description, seeded, fresh, secrets, workers, seconds);
    const warnings = [...misspelt, ...machine].slice(0, warningsMax);
    printBanner({ ...banner, monitorPort: monitor.port, missing: reasons, refusal, warnings });
    const fields = { seconds: Number(seconds.toFixed(2)), workers, status, reasons };
    if (refusal === undefined) log.info('ready', fields);
    else {
      log.warn('started_refusing', fields);
      refusals.onAccepting = () => printProgress('telemetry is accepted now: Millrace is ready.');
    }
  } catch (error) {
    if (ending.begun) return;
    ending.begun = true;
    ending.kill();
    await running.stop(new StopSteps({ msMax: startStopMsMax, log }));
    throw error instanceof StartError ? error : new StartError(`Start failed: ${messageOf(error)}`, 70);
  }
}

function observeStores(metrics: Metrics, watch: StoreWatch): void {
  for (const store of Object.keys(watch.parts) as WatchedStore['name'][]) {
    const help = '1 = the store answers this host, 0 = not.';
    metrics.observed('store_up', help, () => watch.up(store), 'max', { store });
  }
}

function observePool(metrics: Metrics, pool: WorkerPool, forecast: RefusalForecast): void {
  const forecastHelp =
    'Time until telemetry would be refused if ClickHouse took nothing from now on, at the rate of the last 5 minutes.';
  metrics.observed('time_until_refusal_seconds', forecastHelp, () => forecast.seconds, 'max');
  const refusingHelp = 'Workers of this host that refuse telemetry of every sender now.';
  const isRefusing = ({ refusal }: WorkerRefusals) => refusal !== undefined;
  metrics.observed('refusing', refusingHelp, () => pool.refusals.filter(isRefusing).length);
  metrics.observed('ready', '1 while /readyz has the status ready.', () => Number(pool.state.status === 'ready'));
}

function insertPaceOf({ ingest }: Config, hosts: number, partsOfPartition: number): number {
  const { intervalMsMax } = ingest.ship;
  return hostPaceMs({ hosts, callersWait: ingest.ack === 'store', intervalMsMax, partsOfPartition });
}

/** Logs what this machine allows; returns the warnings. Throws StartError when no store could start. */
function checkMachine(config: Config, dataDir: string, workers: number, log: Log): string[] {
  const found = judgeMachine(readMachine(dataDir), config, workers);
  const end = found.find(({ endsStart }) => endsStart);
  if (end) throw new StartError(end.says);
  log.info('machine', { allows: found.map(({ subject, says }) => `${subject}: ${says}`) });
  const warnings = found.filter(({ level }) => level !== 'ok').map(({ says }) => says);
  if (warnings.length > 0) log.warn('machine_warnings', { reasons: warnings });
  return warnings;
}

/** Resolves when `begun` does, or after `msMax`: engines may still be starting while workers serve. */
async function inTime(begun: Promise<void>, msMax: number): Promise<void> {
  if (msMax === Number.POSITIVE_INFINITY) return await begun;
  const ended = new AbortController();
  await Promise.race([begun, systemScheduler.sleep(msMax, ended.signal)]).finally(() => ended.abort());
}

async function closeStores({ shards, postgres }: { shards: Shards; postgres: Postgres }): Promise<void> {
  // A running statement, for example a migration, must not delay the end.
  await inTime(
    Promise.all([shards.close(), postgres.close()]).then(() => {}),
    closeMsMax,
  );
}

function bannerOf(
  config: Config,
  data: DataDirectory,
  engines: string,
  seeded: Seeded | undefined,
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
    monitorAddress: config.monitor.address,
    monitorPort: config.monitor.port,
    mqttPath: config.mqtt.enabled && config.mqtt.webSocket ? '/mqtt' : '',
    adminEmail: config.admin.email,
    systemEmail: seeded?.adminCreated ? config.admin.systemEmail : '',
    // A password that the operator set is known to the operator; a generated one is printed once.
    adminPassword: seeded?.adminCreated && !config.admin.password ? secrets.adminPassword : undefined,
    firstStart: fresh,
    demoDevice: seeded?.demoDevice,
    missing: [],
    warnings: [],
    refusal: undefined,
  };
}
