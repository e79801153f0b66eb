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
import type { Shards } from './clickhouse/shards.ts';
import { hasKnownDevices } from './device/known/known-devices-file.ts';
import { ClockWatch } from './instance/clock/clock-watch.ts';
import { Ending } from './instance/ending.ts';
import { type Followers, makeFollowers } from './instance/followers.ts';
import { FrozenWatch } from './instance/health/frozen-watch.ts';
import { RefusalForecast } from './instance/health/refusal-forecast.ts';
import { RefusalWatch } from './instance/health/refusal-watch.ts';
import { StartingDoor } from './instance/health/starting-door.ts';
import type { InstanceState } from './instance/health/state.ts';
import { checkConfig, checkNames } from './instance/host/config-check.ts';
import { DataDirectory } from './instance/host/data-directory.ts';
import { clockFile } from './instance/host/data-files.ts';
import { judgeMachine, readMachine } from './instance/host/machine.ts';
import { portsOf, probePort } from './instance/host/ports.ts';
import { type Secrets, secretsIn } from './instance/host/secrets.ts';
import { Started } from './instance/lifecycle/started.ts';
import { StopSteps } from './instance/lifecycle/stop-steps.ts';
import { describeHost } from './instance/membership/host-description.ts';
import { Membership } from './instance/membership/membership.ts';
import { printBanner, printProgress } from './instance/operators/banner.ts';
import { answerControl } from './instance/operators/control.ts';
import { HostMetrics } from './instance/operators/host-metrics.ts';
import { openMonitor } from './instance/operators/monitor.ts';
import { startBanner } from './instance/operators/start-banner.ts';
import { observePool, observeStores } from './instance/operators/state-metrics.ts';
import { AnalyticsProcess } from './instance/processes/analytics-process.ts';
import { WorkerPool } from './instance/processes/worker-pool.ts';
import { openStores, type RunningEngines, startEngines } from './instance/stores/engines.ts';
import { Installation } from './instance/stores/installation.ts';
import { RestoredStores } from './instance/stores/restored-stores.ts';
import { StoreWatch } from './instance/stores/store-watch.ts';
import { type Seeded, watchedStores } from './instance/watched-stores.ts';
import type { Postgres } from './postgres/client.ts';
import type { PollResult } from './postgres/shared-poll.ts';
import type { RuleText } from './rules/table.ts';
import { hostPaceMs } from './ship/host-pace.ts';
import { findUse } from './stream/copies-store.ts';
import { tryStreams } from './stream/prepare-streams.ts';
import { StrandedStreams } from './stream/stranded-streams.ts';

const stateIntervalMs = 500;
const refusalIntervalMs = 1_000;
const closeMsMax = 5_000;
/** The time for stopping the parts of a failed start. */
const startStopMsMax = 60_000;
/** The most warnings about names: the environment of another program may have many names that look like settings. */
const warningsMax = 20;
const refusedWithoutStore = 'Telemetry is refused until ClickHouse answers (INGEST_ACK=store).';

export async function runPrimary(): Promise<void> {
  const begunAt = performance.now();
  const settings = await readSettings();
  const { config, workers, log } = settings;
  const data = new DataDirectory(config.data.dir);
  const warnings = [...settings.misspelt, ...checkMachine(config, data.path, workers, log)];
  const running = new Started();
  const ending = new Ending(running, data, config.shutdown, log);
  const start: Start = { ...settings, data, running, ending, metrics: new Metrics() };
  processMetrics(start.metrics, 'primary');
  try {
    const taken = await takeDirectoryAndPorts(start);
    const stores = await openWatchedStores(start, taken);
    await waitForStores(taken, stores);
    await checkStreams(start, stores);
    stores.watch.enterService();
    const onPolled = (result: PollResult) => processes.pool.polled(result);
    const followers = makeFollowers({ ...start, ...stores, dataPath: data.path, onPolled });
    const processes = makeProcesses(start, stores);
    publishChanges(start, stores, followers, processes);
    const monitor = await openOwnMonitor(start, stores, processes);
    const refusals = repeatChecks(start, stores, processes);
    await taken.starting.close();
    await startProcesses(start, stores, processes);
    const seconds = (performance.now() - begunAt) / 1000;
    reportStart(start, { taken, stores, processes, refusals, warnings, monitorPort: monitor.port, seconds });
  } catch (error) {
    if (ending.begun) return;
    ending.begun = true;
    ending.kill();
    await running.stop(new StopSteps({ msMax: startStopMsMax, log }));
    throw error instanceof StartError ? error : new StartError(`Start failed: ${messageOf(error)}`, 70);
  }
}

interface Settings {
  config: Config;
  rules: RuleText[];
  /** The number of workers. */
  workers: number;
  /** Warnings about names that are probably misspelt. */
  misspelt: string[];
  log: Log;
}

/** What every step of a start uses. A step adds its stop to `running`. */
interface Start extends Settings {
  data: DataDirectory;
  running: Started;
  ending: Ending;
  metrics: Metrics;
}

async function readSettings(): Promise<Settings> {
  const reading = readConfig();
  const config = checkedConfig(reading);
  const misspelt = checkNames(config, reading.unknown);
  const rules = checkConfig(config);
  const log = createLog(config.log.level, 'primary');
  await import('./uws/load.ts');
  if (misspelt.length > 0) log.warn('unknown_settings', { reasons: misspelt.slice(0, warningsMax) });
  return { config, rules, workers: config.workers || availableParallelism(), misspelt, log };
}

/** What belongs to this instance alone. */
interface Taken {
  starting: StartingDoor;
  secrets: Secrets;
  /** False: no device is known yet, so without PostgreSQL this instance can serve no device. */
  knowsDevices: boolean;
}

async function takeDirectoryAndPorts({ config, data, running, log }: Start): Promise<Taken> {
  await data.take(log, config.data.lockWaitSeconds * 1000);
  data.checkRestored();
  running.add('data directory', () => data.release());
  for (const port of portsOf(config)) await probePort(port);
  const starting = await StartingDoor.open(config.http.address, config.http.port);
  running.add('starting door', () => starting.close());
  return { starting, ...secretsIn(data), knowsDevices: hasKnownDevices(data.path) };
}

/** The stores, and what the primary keeps in them or reads from them. */
interface OpenedStores {
  engines: RunningEngines;
  shards: Shards;
  postgres: Postgres;
  membership: Membership;
  clock: ClockWatch;
  restored: RestoredStores;
  installation: Installation;
  /** Streams that no host reads. */
  stranded: StrandedStreams;
  watch: StoreWatch;
  forecast: RefusalForecast;
  later: Later;
}

/** What later steps tell the watch of the stores. */
interface Later {
  seeded: Seeded | undefined;
  /** True when the workers are being started: what is made from now on is not in the banner. */
  isServing: boolean;
  /** Called at each change of a store. */
  publishState: () => void;
  busFailure: () => string | undefined;
}

/** Returns before the engines have started. */
async function openWatchedStores(start: Start, { secrets, knowsDevices }: Taken): Promise<OpenedStores> {
  const { config, workers, data, running, ending, log, metrics } = start;
  const engines = await startEngines({ config, workers, data, secrets, log, mustStart: !knowsDevices });
  running.add('engines', () => engines.stop());
  let parts = (): InstanceState['parts'] => ({});
  const clients = openStores({ engines: engines.engines, config, log, metrics, parts: () => parts() });
  running.add('store clients', () => closeStores(clients));
  const { postgres } = clients;
  const membership = joinedLater(start, postgres);
  const restored = new RestoredStores({ postgres, data, log });
  running.add('restored stores', () => restored.stop());
  const clock = new ClockWatch({ postgres, clock: systemClock, path: join(data.path, clockFile), log, metrics });
  const installation = new Installation(postgres, data.path, () => ending.otherInstallation());
  const later: Later = {
    seeded: undefined,
    isServing: false,
    publishState: () => {},
    busFailure: () => undefined,
  };
  const forecast = new RefusalForecast();
  const watched = { config, ...clients, engines, clock, restored, membership, installation, secrets, log };
  const watch = new StoreWatch({
    stores: watchedStores({
      ...watched,
      busFailure: () => later.busFailure(),
      safety: () => (config.ingest.ack === 'store' ? refusedWithoutStore : forecast.sentence),
      onSeeded: (result) => {
        later.seeded = result;
        if (later.isServing && result.adminCreated)
          printProgress(`the first administrators were made: ${data.path}/secrets.json`);
      },
    }),
    log,
    onChange: () => later.publishState(),
  });
  running.add('watch', () => watch.stop());
  parts = () => watch.parts;
  observeStores(metrics, watch);
  const stranded = new StrandedStreams({ queries: postgres, settings: config.stream, log });
  return { engines, ...clients, membership, clock, restored, installation, stranded, watch, forecast, later };
}

/** This host joins the others when PostgreSQL has its tables. */
function joinedLater({ config, workers, data, running, ending, log, metrics }: Start, postgres: Postgres): Membership {
  const membership = new Membership({
    postgres,
    host: describeHost(config, workers, data.hostId(log)),
    mqttConnections: () => (config.mqtt.enabled ? ending.pool?.mqttConnections : undefined),
    onSurplus: (surplus) => ending.pool?.handOverSome(surplus.count, surplus.perSecond),
    log,
    metrics,
  });
  running.add('membership', () => membership.stop());
  return membership;
}

/** A first start waits for PostgreSQL. A later one waits a few seconds for the stores, and serves without them. */
async function waitForStores(
  { starting, knowsDevices }: Taken,
  { engines, clock, watch }: OpenedStores,
): Promise<void> {
  await inTime(engines.begun, knowsDevices ? limits.storesWaitMsMax : Number.POSITIVE_INFINITY);
  await clock.begin();
  await watch.begin(limits.storesWaitMsMax, knowsDevices ? undefined : 'postgres', (reason) => {
    starting.reason = reason;
    printProgress(`waiting, because no device is known here yet. ${reason}`);
  });
}

/** Throws when a stream exists and cannot keep its promise. Servers that do not answer delay nothing. */
async function checkStreams(
  { config: { stream }, running }: Start,
  { installation, postgres, stranded, watch }: OpenedStores,
): Promise<void> {
  if (watch.isPrepared('postgres')) await stranded.read();
  for (const sentence of stranded.sentences) printProgress(sentence);
  stranded.start();
  running.add('streams that are left behind', () => stranded.stop());
  if (stream.url === '') return;
  const owner = { installation: installation.id, ...(await findUse(postgres)) };
  const unavailable = await tryStreams(stream, owner, (why) => {
    printProgress(`whether each NATS server syncs each message is not known (STREAM_MONITOR_URLS): ${why}.`);
  });
  if (unavailable !== undefined) printProgress(`the stream (STREAM_URL) cannot be used yet: ${unavailable}`);
}

interface Processes {
  pool: WorkerPool;
  /** Undefined when reports are off. */
  analytics: AnalyticsProcess | undefined;
}

function makeProcesses(start: Start, { engines, membership, clock, installation, watch }: OpenedStores): Processes {
  const { config, rules, workers, data, running, ending, log, metrics } = start;
  const shared = {
    config,
    engines: engines.engines,
    installation: () => installation.id,
    data,
    log,
    clock: () => clock.state,
    isPostgresReady: () => watch.isPrepared('postgres'),
  };
  const pool = new WorkerPool({
    ...shared,
    workers,
    rules,
    metrics,
    conflict: () => membership.conflict,
    fleetWorkers: () => membership.fleetWorkers,
    isHomeHost: () => membership.isHomeHost,
    onCrashLoop: (reason) => ending.crashLoop(reason),
  });
  const analytics = config.analytics.enabled
    ? new AnalyticsProcess({ ...shared, onForked: (child) => pool.join(child) })
    : undefined;
  ending.pool = pool;
  ending.analytics = analytics;
  // A worker bounds its own stop by `drainMsMax`; one that hangs leaves time for the stores.
  const drainMsMax = config.shutdown.drainMsMax + config.shutdown.storesMsMax / 2;
  running.add('workers and analytics', async () => {
    await Promise.all([pool.drain(drainMsMax), analytics?.stop(drainMsMax)]);
  });
  return { pool, analytics };
}

/** From this call on, each change of a store reaches the workers. */
function publishChanges(
  { config, metrics }: Start,
  { engines, membership, stranded, watch, forecast, later }: OpenedStores,
  { begin, partsWatches }: Followers,
  { pool, analytics }: Processes,
): void {
  const busFailure = () => pool.busFailure;
  later.busFailure = busFailure;
  observePool(metrics, pool, forecast);
  const publishState = () => {
    engines.setInsertPace(
      partsWatches.map(({ partsOfPartition }) => insertPaceOf(config, membership.fleetHosts, partsOfPartition)),
    );
    // Devices may be read only with this version's schema.
    if (watch.isPrepared('postgres')) begin();
    const reports = analytics?.failure;
    pool.setParts({ ...watch.parts, ...(analytics && { analytics: analytics.state }) }, [
      ...watch.reasons,
      ...stranded.sentences,
      ...(reports === undefined ? [] : [`Reports are not served: ${reports}`]),
    ]);
    analytics?.send(pool.state);
  };
  later.publishState = publishState;
}

async function openOwnMonitor(
  { config, data, running, log, metrics }: Start,
  { shards, membership, watch }: OpenedStores,
  { pool, analytics }: Processes,
): Promise<{ port: number }> {
  const clickhouse = { clickhouse: shards.first, isClickHouseUp: () => watch.up('clickhouse') === 1 };
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
  return monitor;
}

/** Publishes the state, and checks for refusals and frozen workers, from now on. */
function repeatChecks({ running, log }: Start, { forecast, later }: OpenedStores, { pool }: Processes): RefusalWatch {
  const refusals = new RefusalWatch(log);
  const frozen = new FrozenWatch(log);
  later.isServing = true;
  running.add(
    'state',
    systemScheduler.every(stateIntervalMs, () => later.publishState()),
  );
  const endChecks = systemScheduler.every(refusalIntervalMs, () => {
    refusals.check(pool.refusals);
    frozen.check(pool.silences);
    forecast.add(pool.rooms);
  });
  running.add('refusals', endChecks);
  later.publishState();
  return refusals;
}

async function startProcesses(
  { config, data, running }: Start,
  { later }: OpenedStores,
  { pool, analytics }: Processes,
): Promise<void> {
  await Promise.all([pool.start(), analytics?.start()]);
  const control = await answerControl({ dataDir: data.path, config, journalHold: pool.journalHold });
  running.add('control', () => control.close());
  later.publishState();
}

interface StartReport {
  taken: Taken;
  stores: OpenedStores;
  processes: Processes;
  refusals: RefusalWatch;
  /** About names of settings, and about the machine. */
  warnings: string[];
  monitorPort: number;
  seconds: number;
}

/** Prints the banner. A host that refuses telemetry says later that it accepts telemetry. */
function reportStart({ config, workers, data, log }: Start, report: StartReport): void {
  const { taken, stores, processes, refusals, warnings, monitorPort, seconds } = report;
  const { engines, later } = stores;
  const { pool } = processes;
  const { status, reasons } = pool.state;
  const refusal = status === 'refusing' ? pool.refusal?.message : undefined;
  const { seeded } = later;
  const { adminPassword } = taken.secrets;
  const facts = { seconds, workers, engines: engines.description, dataPath: data.path, monitorPort };
  const banner = startBanner(config, { ...facts, seeded, adminPassword });
  printBanner({ ...banner, warnings: warnings.slice(0, warningsMax), missing: reasons, refusal });
  const fields = { seconds: Number(seconds.toFixed(2)), workers, status, reasons };
  if (refusal === undefined) log.info('ready', fields);
  else {
    log.warn('started_refusing', fields);
    const onAccepting = () => printProgress('telemetry is accepted now: Millrace is ready.');
    refusals.onAccepting = onAccepting;
  }
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
