/**
 * One worker: opens its sections in the order in which data flows, listens, and stops them in the reverse order. Read
 * this file first: it names every long-lived object with its collaborators.
 */
import { join } from 'node:path';
import { Activity } from './activity/activity.ts';
import { Admission } from './activity/admission.ts';
import { GatewayNotices } from './admin/gateway-notices.ts';
import { TakenNames } from './admin/taken-names.ts';
import { reportsAt } from './analytics/routes.ts';
import { createApi } from './api/api.ts';
import { LongAnswers } from './api/long-answer.ts';
import { notOffered } from './api/not-offered.ts';
import { Attributes } from './attributes/attributes.ts';
import { AttributeUpdates } from './attributes/followers.ts';
import { notifyShared } from './attributes/notify.ts';
import { AttributeWriter, type SharedChange } from './attributes/writer.ts';
import { ApiKeys } from './auth/api-keys.ts';
import { Auth, openJwt } from './auth/auth.ts';
import { FailedSignIns } from './auth/failed-sign-ins.ts';
import { costOf, PasswordHasher } from './auth/password.ts';
import { RateLimits } from './auth/rate-limits.ts';
import { RequestLimits } from './auth/request-limits.ts';
import { openSigningKey } from './auth/signing-key.ts';
import { TenantLimits } from './auth/tenant-limits.ts';
import { Proxies } from './auth/transport.ts';
import { WrongCredentials } from './auth/wrong-credentials.ts';
import { WrongTries } from './auth/wrong-tries.ts';
import { systemClock as clock, clockStepMs } from './base/clock.ts';
import { Bug, Fault, messageOf, StartError, unavailable } from './base/errors.ts';
import { filesForConnections } from './base/file-limit.ts';
import { limits } from './base/limits.ts';
import { createLog, type Log } from './base/log.ts';
import { Metrics } from './base/metrics/metrics.ts';
import { processMetrics } from './base/metrics/process-metrics.ts';
import { suspects, workKey } from './base/running-work.ts';
import type { Config } from './base/settings/config.ts';
import { Turns } from './base/turns.ts';
import { openBus } from './bus/open.ts';
import { querySlots } from './clickhouse/embedded/settings.ts';
import { createConsole } from './console/door.ts';
import { CredentialChanges } from './device/credential-changes.ts';
import { FleetLoad } from './device/fleet-load.ts';
import { KnownDevices } from './device/known/known-devices.ts';
import { knownFile } from './device/known/known-devices-file.ts';
import { LocalDevices } from './device/local-devices.ts';
import { Logins } from './device/logins.ts';
import type { CachedDevice } from './device/model/cached-device.ts';
import { lookUpDevices, lookUpLogins, lookUpProfileTransports, lookUpTokens } from './device/sql/look-up-store.ts';
import { TokenCache } from './device/token-cache.ts';
import { Diagnostics, type LiveSession } from './diagnostics/diagnostics.ts';
import { FirstRecords } from './diagnostics/first-records.ts';
import { OddTimesOfDevices } from './diagnostics/odd-times.ts';
import { Strangers } from './diagnostics/strangers.ts';
import { Troubles } from './diagnostics/troubles.ts';
import { Downlink } from './downlink/downlink.ts';
import { type DeviceSession, Sessions } from './downlink/sessions.ts';
import { seriesDeleter } from './erase/delete-series.ts';
import { Eraser } from './erase/erase.ts';
import { Retention } from './erase/retention.ts';
import { SteadyClock } from './erase/steady-clock.ts';
import { GatewayDecodeThread } from './gateway/decode-thread.ts';
import { Gateways } from './gateway/gateways.ts';
import { ChildNames } from './gateway/names.ts';
import { GatewayDecoder } from './gateway/telemetry.ts';
import { attributesDoor } from './http/attributes.ts';
import { claimDoor } from './http/claim.ts';
import { DeviceAuth } from './http/device-auth.ts';
import { firmwareDoor } from './http/firmware.ts';
import { healthDoor } from './http/health.ts';
import { LongPolls } from './http/long-poll.ts';
import { provisionDoor } from './http/provision.ts';
import { rpcDoor } from './http/rpc.ts';
import { telemetryDoor } from './http/telemetry.ts';
import { type Decode, Ingest } from './ingest/accept.ts';
import { type JournalReport, reportOf } from './ingest/journal-report.ts';
import { forgetJournal } from './ingest/journal-store.ts';
import { OrderClock, orderMs } from './ingest/order-number.ts';
import { Receipts } from './ingest/receipts.ts';
import { refusedMessages } from './ingest/refusals.ts';
import { RefusedPoints } from './ingest/refused-points.ts';
import { seriesWriter } from './ingest/save-series.ts';
import { writerIdOf } from './ingest/writer-id.ts';
import { clockFault } from './instance/clock/clock-offset.ts';
import type { JournalRoom } from './instance/health/refusal-forecast.ts';
import type { WorkerRefusals } from './instance/health/refusal-watch.ts';
import { checkInstance, instanceVariable } from './instance/host/data-directory.ts';
import { journalDirectory, journalName } from './instance/host/data-files.ts';
import { OrphanJournals } from './instance/journals/orphan-journals.ts';
import { Started } from './instance/lifecycle/started.ts';
import { StopSteps } from './instance/lifecycle/stop-steps.ts';
import type { Begin } from './instance/processes/messages.ts';
import { PrimaryLink } from './instance/processes/primary-link.ts';
import { openStores } from './instance/stores/engines.ts';
import type { Journal } from './journal/journal.ts';
import { openJournal } from './journal/open-journal.ts';
import { gatewayBytesMax, openMqtt } from './mqtt/open.ts';
import type { Mqtt } from './mqtt/server.ts';
import { createSignIn } from './mqtt/sign-in/login.ts';
import { type ListeningSocket, listenTcp, listenTls } from './mqtt/transport/listen.ts';
import { webSocketDoor } from './mqtt/transport/websocket.ts';
import { CertificateProvisioner } from './onboarding/certificate-provision.ts';
import type { ClaimDeps } from './onboarding/claim.ts';
import { type ChildRequest, findOrCreateChildren } from './onboarding/gateway-children.ts';
import type { ProvisionDeps } from './onboarding/provision.ts';
import { Downloads } from './ota/downloads.ts';
import { Rollout } from './ota/rollout.ts';
import { register } from './rest/route.ts';
import { RpcNumbers } from './rpc/numbers.ts';
import { PersistentRpcs } from './rpc/persistent.ts';
import { Rpc } from './rpc/send.ts';
import { RpcSessions } from './rpc/sessions.ts';
import { Calls } from './rules/calls.ts';
import { compileRule } from './rules/table.ts';
import { Shipper } from './ship/ship.ts';
import { decodeOptions, decodeTelemetry } from './telemetry/decode.ts';
import { DecodeThread } from './telemetry/decode-thread.ts';
import { refuseServerTimes } from './telemetry/rows.ts';
import { HttpServer } from './uws/server.ts';
import { leniently, strictly } from './value/lenient.ts';

export async function runWorker(): Promise<void> {
  const link = new PrimaryLink();
  try {
    await serve(link);
  } catch (error) {
    // The primary shows the reason to the operator: this worker ends alone.
    await link.failed(error instanceof Error ? error : new Error(messageOf(error)));
    throw error;
  }
}

/** Every section of a worker is opened with these. */
interface WorkerDeps {
  link: PrimaryLink;
  begin: Begin;
  config: Config;
  log: Log;
  metrics: Metrics;
  /** Each section adds its stop; the section opened last stops first. */
  started: Started;
  proxies: Proxies;
  /** The workers of all hosts. */
  fleetWorkers: () => number;
}

async function serve(link: PrimaryLink): Promise<void> {
  const begin = await link.begin;
  const { config } = begin;
  const log = createLog(config.log.level, `worker-${begin.slot}`);
  const metrics = new Metrics();
  processMetrics(metrics, `worker-${begin.slot}`);
  process.on('uncaughtException', (thrown: unknown) => endByBug(thrown, link, log));
  link.onClock((state) => refuseServerTimes(clockFault(state)));

  const proxies = Proxies.of(config);
  const fleetWorkers = () => link.state.fleetWorkers;
  const deps: WorkerDeps = { link, begin, config, log, metrics, started: new Started(), proxies, fleetWorkers };
  const stop = { shipMsMax: Number.POSITIVE_INFINITY };
  // Acknowledgements are sent until the channel is closed, so the sockets close last of all.
  const servers = openServers(deps);
  const stores = await openStoresAndBus(deps);
  const identity = await openIdentity(deps, stores);
  const channel = await openChannel(deps, stores, identity, stop);
  const state = await openDeviceState(deps, stores, identity, channel);
  const commands = openCommands(deps, stores, state);
  const onboarding = await openOnboarding(deps, stores, identity, state, commands);
  const mqtt = await openDoors(deps, servers, {
    ...stores,
    ...identity,
    ...channel,
    ...state,
    ...commands,
    ...onboarding,
  });

  link.onCollect(() => metrics.snapshot());
  link.reportStatus(() => ({
    ...refusals(channel.ingest, link, metrics),
    room: roomOf(config, channel.journal, metrics),
    busFailure: stores.bus.failure,
    mqttConnections: mqtt.connections,
    degraded: degraded(config, channel),
  }));
  link.ready();

  const end = async () => {
    const steps = new StopSteps({ msMax: config.shutdown.drainMsMax, log });
    await deps.started.stop(steps);
    if (steps.waits !== '') log.info('stop_waited', { seconds: Number(steps.seconds.toFixed(1)), for: steps.waits });
    process.exit(0);
  };
  link.onDrain(() => void end());
  // Without a primary no process supervises this worker: it makes accepted messages durable and leaves the rest to the
  // next run.
  link.onLost(() => {
    stop.shipMsMax = 0;
    void end();
  });
}

function openServers({ config, begin, log, metrics, started, proxies }: WorkerDeps): HttpServer[] {
  const { bodyBytesMax, bodyBytesInFlightMax, connectionsPerAddressMax, tellWorker } = config.http;
  const connectionsMax = config.http.connectionsMax || filesForConnections();
  const worker = tellWorker ? String(begin.slot) : '';
  const isTrustedProxy = (address: string) => proxies.isTrusted(address);
  const sizes = { bodyBytesMax, bodyBytesInFlightMax, connectionsMax, connectionsPerAddressMax };
  const options = { log, metrics, ...sizes, isTrustedProxy, worker };
  const servers = [new HttpServer(options)];
  if (config.ssl.enabled) servers.push(new HttpServer({ ...options, tls: config.ssl }));
  started.add('sockets', () => {
    for (const server of servers) server.close();
  });
  return servers;
}

/** The stores, and the bus between workers. */
async function openStoresAndBus({ link, begin, config, log, metrics, started }: WorkerDeps) {
  const { clickhouse, postgres } = openStores({
    engines: begin.engines,
    config,
    log,
    metrics,
    parts: () => link.state.parts,
  });
  started.add('connections to the stores', () => Promise.all([clickhouse.close(), postgres.close()]));
  if (!begin.postgresReady) postgres.hold();
  link.onState((state) => state.postgresReady && postgres.release());
  const bus = await openBus({ redis: config.redis, installation: begin.installation, log, metrics });
  started.add('bus', () => bus.close());
  const downlink = new Downlink({ bus, shards: config.bus.shards, log, metrics });
  await downlink.start();
  started.add('downlink', () => downlink.stop());
  const steadyClock = new SteadyClock({ postgres, clock, log });
  return { clickhouse, postgres, bus, downlink, steadyClock, cluster: config.clickhouse.cluster };
}

type Stores = Awaited<ReturnType<typeof openStoresAndBus>>;

/** Opens the parts that authenticate devices. */
async function openIdentity(
  { link, begin, config, log, metrics, started }: WorkerDeps,
  { postgres, bus, downlink }: Stores,
) {
  const devices = new LocalDevices();
  const known = new KnownDevices({ path: knownFile(config.data.dir), clock, log, metrics });
  started.add('file of known devices', () => known.close());
  const tokens = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, devices, clock, known);
  metrics.observed('token_cache_devices', 'Devices that a worker knows by token.', () => tokens.size);
  metrics.observed('token_cache_bytes', 'Memory of the records of these devices.', () => tokens.byteSize);
  const source = Buffer.from(begin.installation, 'hex');
  const load = new FleetLoad({ path: knownFile(config.data.dir), source, tokens, postgres, clock, log });
  started.add('load of devices', () => load.stop());
  const logins = new Logins({
    withoutStore: known,
    lookUp: (credentialsIds) => lookUpLogins(postgres, credentialsIds),
    lookUpProfiles: (ids) => lookUpProfileTransports(postgres, ids),
    clock,
    log,
  });
  const onAnswered = () => known.storeAnswers();
  const changes = new CredentialChanges({ postgres, bus, clock, log, onAnswered, onPoll: link.onPoll });
  changes.onChange((change) => (change === 'all' ? tokens.clear() : tokens.invalidate(change.credentialsId)));
  changes.onChange((change) => {
    if (change === 'all') load.restart();
  });
  changes.onChange((change) => logins.changed(change));
  changes.onChange((change) => {
    if (change === 'all') downlink.closeAll('credentials_changed');
    else downlink.close(change.deviceNumber, change.deleted ? 'device_deleted' : 'credentials_changed');
  });
  await changes.start();
  started.add('changes of credentials', () => changes.stop());
  return { ...openRecords(metrics), devices, known, tokens, logins, changes };
}

/** The records of devices with trouble. */
function openRecords(metrics: Metrics) {
  const first = new FirstRecords({ clock, metrics });
  const oddTimes = new OddTimesOfDevices({ clock, metrics, first });
  return { oddTimes, troubles: new Troubles({ clock, metrics, first, oddTimes }), strangers: new Strangers(clock) };
}

type Identity = Awaited<ReturnType<typeof openIdentity>>;

/** Opens the journal, the shipping to ClickHouse, and the call that every door uses. */
async function openChannel(
  { link, begin, config, log, metrics, started, fleetWorkers }: WorkerDeps,
  { clickhouse, postgres, bus, cluster, steadyClock }: Stores,
  { changes, devices, oddTimes }: Identity,
  stop: { shipMsMax: number },
) {
  const decoding = decodeOptions(config);
  const readBody = decoding.lenientJson ? leniently : strictly;
  const decode: Decode<CachedDevice> = (body, device, now, rows) => decodeTelemetry(body, device, now, rows, decoding);
  const thread = new DecodeThread(decoding, { room: (tenantId) => ingest.roomForLarge(tenantId) });
  started.add('decoding thread', () => thread.close());

  checkInstance(config.data.dir, process.env[instanceVariable]);
  const dir = join(config.data.dir, journalDirectory, journalName(begin.slot));
  const { segmentBytes, freeDiskBytesMin, backlogBytesMax, ...waits } = config.ingest.journal;
  const { bytesMax: quarantineBytesMax, keptDays: quarantineKeptDays } = config.ingest.quarantine;
  const journal = await openJournal({
    dir,
    log,
    metrics,
    segmentBytes,
    durable: config.ingest.ack === 'memory' ? 'none' : 'sync',
    freeBytesMin: Math.floor(freeDiskBytesMin / 2),
    quarantineBytesMax,
    locked: true,
    onLost: (reason) => fail(link, log, reason),
  });
  started.addWhole('end of the journal', () => journal.close());
  const writer = await writerIdOf({ journal, dir, postgres, onWaiting: (reason) => link.waiting(reason) });
  const orders = new OrderClock(clock, writer, journal.orderMax);
  const leadMs = orderMs(journal.orderMax) - clock.now();
  // An earlier run without the database went by a clock that was ahead; a journal's order numbers never go back.
  if (leadMs > clockStepMs) log.warn('order_ahead', { leadSeconds: Math.round(leadMs / 1000) });

  // The worker that leads carries out the deletes and the retention of its host.
  const isLeader = () => link.state.leader === begin.slot;
  const journals = (flush = false) => link.askJournals(flush);
  const { tombstonesKeptDays, ttlDays, ttlOfLatest } = config.telemetry;
  const latestAheadMsMax = config.telemetry.latestFutureSecondsMax * 1000;
  const erasing = { postgres, clickhouse, cluster, clock, steadyClock, log, isLeader, latestAheadMsMax };
  const eraser = new Eraser({ ...erasing, metrics, journals, tombstonesKeptDays });
  const retention = new Retention({ ...erasing, ttlDays, ttlOfLatest });
  started.addWhole('last report of the journals', () => eraser.end(journalReports));

  const expiryTime = () => steadyClock.time();
  const expiring = { quarantineKeptDays, expiryTime };
  const shipping = { clickhouse, clock, log, metrics, ...expiring, latestAheadMsMax, ...config.ingest.ship };
  const shipper = new Shipper({
    ...shipping,
    journal,
    fleetWorkers,
    callersWait: config.ingest.ack === 'store',
    onSuspects: (lane, orders) => ingest.suspected(lane, orders),
    onStoredApart: (lane, orders) => ingest.storedApart(lane, orders),
    onShipped: () => ingest.shipped(),
  });
  const signingKey = await openSigningKey(postgres, config.auth.signingKey);
  const ingest: Ingest = new Ingest({
    ...waits,
    receipts: new Receipts({ signingKey, ack: config.ingest.ack, clock, log }),
    journal,
    orders,
    clock,
    log,
    metrics,
    ack: config.ingest.ack,
    storeAckMsMax: config.ingest.storeAckMsMax,
    backlogBytesMax,
    freeDiskBytesMin,
    aheadMsMax: latestAheadMsMax || 86_400_000,
    onOddTimes: (device, { kind, ts }, count) => oddTimes.add(devices.get(device), kind, ts, count),
    onCommitted: () => shipper.wake(),
    onFailed: (reason) => fail(link, log, reason),
  });
  shipper.start();
  const onStored = (stored: Pick<JournalReport, 'writer' | 'orderRecovered'>) => forgetJournal(postgres, stored);
  const orphans = new OrphanJournals({ ...shipping, segmentBytes, dirs: begin.orphanJournals, onStored });
  await orphans.start();
  const { suspects, quarantine } = journal;
  const refusedRows = () => [{ writer, suspects, quarantine }, ...orphans.refusedRows()];
  const refusedPoints = new RefusedPoints({ bus, log, journals: refusedRows });
  await refusedPoints.start();
  started.add('questions about refused rows', () => refusedPoints.stop());
  started.add('journal', ({ msLeft }) => {
    const drainMsMax = Math.min(stop.shipMsMax, msLeft);
    return Promise.all([shipper.drain(drainMsMax), orphans.drain(drainMsMax)]);
  });

  // A worker that has not read the latest changes may still accept messages of a deleted device: its journal settles
  // nothing.
  const isCurrent = () => clock.monotonic() - changes.currentAt < limits.deletedDeviceGraceMs - limits.credentialPollMs;
  const journalReports = () => [
    ...(isCurrent() ? [reportOf(journal, writer, clock)] : []),
    ...orphans.reports().reports,
  ];
  link.onHoldJournals(
    () => [journal.hold(), ...orphans.hold()],
    () => [journal.endHold(), orphans.endHold()].every((intact) => intact),
  );
  link.onReportJournals((flush) => {
    if (flush) {
      shipper.flush();
      orphans.flush();
    }
    return { reports: journalReports(), isWhole: isCurrent() && orphans.reports().isWhole };
  });
  eraser.start();
  retention.start();
  started.add('deletes', () => Promise.all([eraser.stopErasing(), retention.stop()]));
  // Makes accepted messages durable, even on a slow disk; the primary ends a worker that hangs.
  started.addWhole('accepted messages', () => ingest.close());
  const ofReceipts = { signingKey, refusedPoints };
  return { decoding, readBody, decode, thread, journal, journals, ingest, shipper, orphans, ...ofReceipts };
}

type Channel = Awaited<ReturnType<typeof openChannel>>;

/** Opens the state of devices beside telemetry: limits, activity, sessions, attributes, packages. */
async function openDeviceState(
  { link, begin, config, log, metrics, started, fleetWorkers }: WorkerDeps,
  { postgres, bus, downlink }: Stores,
  { devices, changes, troubles, oddTimes, strangers }: Identity,
  { ingest }: Channel,
) {
  const { devices: devicesMax } = config.limits;
  const { onPoll } = link;
  const tenantLimits = new TenantLimits({ postgres, bus, clock, log, devicesMax, onPoll });
  await tenantLimits.start();
  started.add('limits of tenants', () => tenantLimits.stop());
  const rateLimits = new RateLimits({ settings: config.rateLimits, bus, fleetWorkers, clock });
  await rateLimits.start();
  started.add('rate limits', () => rateLimits.stop());
  tenantLimits.onProfiles((profiles) => rateLimits.useProfiles(profiles));
  const { inactivitySeconds, checkSeconds } = config.activity;
  // One worker of an instance checks for silent devices.
  const checkMs = begin.slot === 0 ? checkSeconds * 1000 : 0;
  const activity = new Activity({ postgres, clock, log, inactivityMs: inactivitySeconds * 1000, checkMs, onPoll });
  activity.start();
  started.add('activity of devices', () => activity.stop());
  const admission = new Admission({ rateLimits, touch: activity.touch });

  // A device has one session, wherever it connects, for as long as its credentials are valid.
  const sessions = new Sessions({
    bus,
    devices,
    lookUp: (numbers) => lookUpDevices(postgres, numbers),
    onConnected: (device) => activity.connected(device),
    onDisconnected: (device) => activity.disconnected(device),
    clock,
    log,
    metrics,
  });
  changes.onChange((change) => sessions.changed(change));
  await sessions.start();
  started.add('sessions', () => sessions.stop());

  // Devices with trouble, as the diagnostics of all workers show them.
  changes.onChange((change) => change !== 'all' && change.deleted && troubles.forget(change.deviceNumber));
  const sessionOf = (device: number) => liveSession(sessions.get(device));
  const diagnostics = new Diagnostics({ bus, troubles, oddTimes, strangers, sessionOf });
  await diagnostics.start();
  started.add('diagnostics', () => diagnostics.stop());

  // One writer of attributes serves all doors; followers of a device receive shared attributes.
  const onShared = (change: SharedChange) => notifyShared(downlink, change);
  const attributeWriter = new AttributeWriter({ postgres, clock, metrics, onShared });
  started.add('attributes', () => attributeWriter.idle());
  const attributes = new Attributes(postgres, attributeWriter);
  const { lossFreeUpdates: lossFree } = config.attributes;
  const updates = new AttributeUpdates({ postgres, downlink, clock, log, metrics, lossFree, onPoll });
  updates.start();
  started.add('updates of attributes', () => updates.stop());

  // Packages: their files, the devices that may have them, and the rollout.
  const downloads = new Downloads({ postgres, clock, metrics });
  changes.onChange((change) => (change === 'all' ? downloads.forgetAll() : downloads.forget(change.deviceNumber)));
  const rollout = new Rollout({ postgres, ingest, attributes, clock, log, metrics, onPoll });
  rollout.start();
  started.add('rollout of packages', () => rollout.stop());
  return {
    tenantLimits,
    rateLimits,
    activity,
    admission,
    sessions,
    diagnostics,
    attributes,
    updates,
    downloads,
    rollout,
  };
}

type DeviceState = Awaited<ReturnType<typeof openDeviceState>>;

/** Commands to devices, and the calls that devices make. */
function openCommands(
  { link, begin, config, log, metrics, started }: WorkerDeps,
  { clickhouse, postgres, bus, downlink, steadyClock }: Stores,
  { attributes }: DeviceState,
) {
  const numbers = new RpcNumbers(postgres);
  const rpc = new Rpc({ postgres, downlink, bus, numbers, clock, log, metrics });
  const rpcSessions = new RpcSessions(downlink);
  const { retriesMax, keptDays, clientTimeoutMs: timeoutMs } = config.rpc;
  const keeping = { retriesMax, keptDays, expiryTime: () => steadyClock.time(), onPoll: link.onPoll };
  const persistentRpcs = new PersistentRpcs({ postgres, rpc, numbers, downlink, clock, log, ...keeping });
  persistentRpcs.start();
  started.add('stored commands', () => persistentRpcs.stop());
  const rules = begin.rules.map(compileRule);
  const calls = new Calls({ rules, attributes, clickhouse, clock, metrics, timeoutMs });
  return { rpc, rpcSessions, persistentRpcs, calls };
}

type Commands = ReturnType<typeof openCommands>;

/** Devices that are made, claimed and provisioned, and the devices of gateways. */
async function openOnboarding(
  { config, log, metrics, started, proxies, fleetWorkers }: WorkerDeps,
  { postgres, bus }: Stores,
  { devices, known, changes, troubles }: Identity,
  { sessions, attributes, updates, rollout, tenantLimits }: DeviceState,
  { rpcSessions, persistentRpcs }: Commands,
) {
  const { childrenMax, customerScope } = config.gateway;
  const gatewayNotices = new GatewayNotices({ postgres, persistentRpcs, clock, log, customerScope });
  const takenNames = new TakenNames({ clock, log, metrics });
  const onAssigned = rollout.wake;
  const limitsOf = (tenantId: string) => tenantLimits.of(tenantId);
  const onLimits = () => tenantLimits.changed();
  const admin = { postgres, changes, clock, limitsOf, onLimits, onAssigned, gatewayNotices, takenNames };
  const turns = new Turns({
    atOnceMax: limits.onboardingAtOnceMax,
    waitingMax: limits.onboardingWaitingMax,
    refusal: () => unavailable('onboarding', 'Too many devices are provisioned or claimed at once; try again later.'),
  });
  const claims: ClaimDeps = { ...admin, attributes, log, claiming: config.claiming, turns };
  const { wrongKeysPerMinuteMax: wrongMax } = config.provisioning;
  const wrongKeys = new WrongTries({
    bus,
    fleetWorkers,
    channel: 'wrong-provisioning-keys',
    wrongMax,
    reason: 'guesses',
    message: 'Too many wrong keys from this address; try again later.',
    isTrustedProxy: (address) => proxies.isTrusted(address),
    clock,
  });
  await wrongKeys.start();
  started.add('wrong provisioning keys', () => wrongKeys.stop());
  const provisioning: ProvisionDeps = { ...admin, wrongKeys, log, turns };
  const certificates = new CertificateProvisioner(provisioning);

  const findOrCreate = (tenant: string, requests: ChildRequest[]) => findOrCreateChildren(admin, tenant, requests);
  const names = new ChildNames(findOrCreate, clock, customerScope, known);
  changes.onChange((change) => names.changed(change));
  const { monotonic } = clock;
  const scope = { childrenMax, customerScope };
  const gatewayDeps = { sessions, devices, names, updates, rpcSessions, troubles, monotonic, ...scope };
  return { admin, claims, provisioning, certificates, gateways: new Gateways(gatewayDeps, metrics) };
}

type Onboarding = Awaited<ReturnType<typeof openOnboarding>>;
type Engine = Stores & Identity & Channel & DeviceState & Commands & Onboarding;

/** Sign-in of users and devices, and the doors: REST, the pages, the device API over HTTP, MQTT. */
async function openDoors(deps: WorkerDeps, servers: HttpServer[], engine: Engine): Promise<Mqtt> {
  const { config, begin, link, log, metrics, started, fleetWorkers } = deps;
  const { postgres, bus, clickhouse, cluster, tokens, logins, sessions, rateLimits, activity, admission } = engine;
  const { troubles, strangers, diagnostics } = engine;
  const { ingest, thread, decoding, decode, readBody, attributes, updates, downloads, rpc, rpcSessions, calls } =
    engine;
  const { castNumericStrings } = decoding;
  const users = await openUsers(deps, engine, engine);
  const { heldPollsMax: heldMax, requestTimeoutMs: waitMsDefault, requestTimeoutMsMax: waitMsMax } = config.http;
  const polls = new LongPolls({ tokens, metrics, heldMax, waitMsDefault, waitMsMax });
  const api = createApi({
    ...engine.admin,
    ...engine.claims,
    auth: users.auth,
    apiKeys: users.apiKeys,
    apiKeyPrefix: config.auth.apiKeyPrefix,
    saveSeries: seriesWriter({ devices: engine.devices, ingest, thread, decode, clock }),
    deleteSeries: seriesDeleter({
      ...{ postgres, clickhouse, cluster, clock, log, journals: engine.journals },
      latestAheadMsMax: config.telemetry.latestFutureSecondsMax * 1000,
    }),
    clickhouse,
    longAnswers: new LongAnswers(metrics),
    config,
    readBody,
    downloads,
    rpc,
    persistentRpcs: engine.persistentRpcs,
    diagnostics,
    signingKey: engine.signingKey,
    refusedPoints: engine.refusedPoints,
    rateLimits,
    rpcTimeouts: config.rpc,
    elsewhere: config.analytics.enabled ? [reportsAt(config.analytics.port)] : [],
  });
  const consoleDoor = createConsole({ docs: config.docs.enabled });

  const isTrustedProxy = (address: string) => deps.proxies.isTrusted(address);
  const { perMinuteMax: wrongMax } = config.wrongCredentials;
  const wrongCredentials =
    wrongMax === 0 ? undefined : new WrongCredentials({ bus, fleetWorkers, wrongMax, isTrustedProxy, clock, metrics });
  await wrongCredentials?.start();
  started.add('wrong credentials', () => wrongCredentials?.stop());
  const deviceAuth = new DeviceAuth({ tokens, wrong: wrongCredentials, admission, troubles, strangers, log });
  const guards = { rateLimits, wrongCredentials, troubles, strangers };
  const connectionsMax = config.mqtt.connectionsMax || filesForConnections();
  const gatewayThread = new GatewayDecodeThread(decoding, config.gateway.packetBytesInFlightMax, {
    room: (tenantId) => ingest.roomForLarge(tenantId),
  });
  started.add('decoding thread of gateways', () => gatewayThread.close());
  const mqtt = openMqtt({
    config,
    connectionsMax,
    isTrustedProxy,
    gateways: engine.gateways,
    gatewayThread,
    gatewayDecoder: new GatewayDecoder({ options: decoding, touch: activity.touch, rateLimits }),
    worker: config.http.tellWorker ? String(begin.slot) : '',
    signIn: createSignIn({ logins, sessions, certificates: engine.certificates, ...guards, clock }),
    ingest,
    decode,
    readBody,
    castNumericStrings,
    admission,
    troubles,
    attributes,
    updates,
    downloads,
    rpc,
    rpcSessions,
    calls,
    claims: engine.claims,
    provisioning: engine.provisioning,
    clock,
    log,
    metrics,
  });
  const { emptyPollTimeout } = config.rpc;
  for (const server of servers) {
    telemetryDoor({ server, deviceAuth, ingest, thread, clock, decode, metrics });
    attributesDoor({ server, deviceAuth, attributes, updates, polls, readBody, castNumericStrings });
    firmwareDoor({ server, deviceAuth, downloads });
    rpcDoor({ server, deviceAuth, polls, sessions: rpcSessions, rpc, calls, readBody, emptyPollTimeout });
    claimDoor({ server, deviceAuth, claims: engine.claims, readBody });
    provisionDoor({ server, provisioning: engine.provisioning, readBody });
    register(server, api);
    for (const path of notOffered) server.refusePath(path);
    consoleDoor(server);
    healthDoor({
      server,
      state: () => link.state,
      refusal: () => (ingest.refusal() ?? clockFault(link.state.clock))?.message,
    });
    if (config.mqtt.enabled && config.mqtt.webSocket) webSocketDoor(server, mqtt, gatewayBytesMax(config));
    server.seal();
  }
  await servers[0]!.listen(config.http.address, config.http.port);
  await servers[1]?.listen(config.http.address, config.ssl.port);
  const listeners = await listenMqtt(deps, mqtt, connectionsMax);
  const handOver = (perSecond: number) => {
    // A balancer without health checks goes to the next host when a connection is refused.
    for (const listener of listeners) listener.close();
    return mqtt.handOver(perSecond);
  };
  link.onHandOver(handOver, (count, perSecond) => void mqtt.handOverSome(count, perSecond));

  started.add('open requests', async (steps) => {
    while (servers.some((server) => server.openRequests > 0) && steps.msLeft > 0) await turn();
  });
  started.add('MQTT connections', (steps) => mqtt.drain(steps.msLeft));
  started.add('doors', () => {
    for (const server of servers) server.drain();
    for (const listener of listeners) listener.close();
    polls.close();
    calls.close();
    rpc.close();
  });
  return mqtt;
}

/** Opens users and API keys, and the limits of their requests. */
async function openUsers(
  { config, begin, log, started, proxies, fleetWorkers }: WorkerDeps,
  { postgres, bus, steadyClock }: Stores,
  { tenantLimits }: DeviceState,
) {
  const { signInQueueMax, passwordCost, failedLoginsMax, requireHttpsForApiKeys } = config.auth;
  const passwords = new PasswordHasher(signInQueueMax, costOf(passwordCost));
  started.add('passwords', () => passwords.close());
  const jwt = await openJwt(postgres, config.auth, clock);
  const purgeTime = () => steadyClock.time();
  const apiKeys = new ApiKeys({ postgres, bus, clock, log, ...(begin.slot === 0 && { purgeTime }) });
  await apiKeys.start();
  started.add('API keys', () => apiKeys.stop());
  if (!requireHttpsForApiKeys && begin.slot === 0) {
    log.warn('api_keys_over_http', {
      reason: 'API keys are accepted over plain HTTP, where they can be read on their way.',
    });
  }
  const requestLimits = new RequestLimits({ settings: config.rateLimits.rest, bus, fleetWorkers, clock });
  await requestLimits.start();
  started.add('limits of requests', () => requestLimits.stop());
  tenantLimits.onProfiles((profiles) => requestLimits.useProfiles(profiles));
  const failedSignIns = new FailedSignIns(clock);
  const signIn = { postgres, passwords, jwt, clock, failedLoginsMax, failedSignIns };
  const waitingCalls = {
    waitingMax: limits.restCallsWaitingMax,
    refusal: () => unavailable('rest_calls', 'Too many calls of the API wait for their turn; call again later.'),
  };
  const calls = new Turns({ atOnceMax: limits.restCallsPerConnection * config.postgres.poolMax, ...waitingCalls });
  const pageReads = new Turns({ atOnceMax: pagesAtOnce(config.postgres.poolMax), ...waitingCalls });
  const telemetryReads = new Turns({ atOnceMax: readsAtOnce(config, begin.workers), ...waitingCalls });
  const lookUps = new Turns({
    atOnceMax: limits.signInReadsAtOnceMax,
    waitingMax: limits.signInReadsWaitingMax,
    refusal: () => new Fault('sign_in_queue', 'Too many sign-ins at once; try again.', 1),
  });
  const auth = new Auth({
    ...signIn,
    apiKeys,
    proxies,
    requireHttpsForApiKeys,
    requestLimits,
    calls,
    pageReads,
    telemetryReads,
    lookUps,
  });
  return { auth, apiKeys };
}

/** Half of the connections serve other statements, however many pages are asked for. */
function pagesAtOnce(poolMax: number): number {
  return Math.max(2, Math.floor(poolMax / 2));
}

/** Returns this worker's part of the statements that the embedded ClickHouse runs at once beside inserts. */
function readsAtOnce({ clickhouse: { url, embedded } }: Config, workers: number): number {
  if (url !== '') return limits.telemetryReadsAtOnceMax;
  // With two places one tenant never has both.
  return Math.max(2, Math.floor(querySlots(embedded.sessions) / workers));
}

async function listenMqtt(
  { config, proxies, log }: WorkerDeps,
  mqtt: Mqtt,
  connectionsMax: number,
): Promise<ListeningSocket[]> {
  const { enabled, address, port, ssl, proxyProtocol } = config.mqtt;
  if (!enabled) return [];
  const { open, refused } = mqtt;
  const sendsProxyHeader = (peer: string) => proxyProtocol && proxies.isTrusted(peer);
  const deps = { open, refused, connections: () => mqtt.connections, connectionsMax, sendsProxyHeader, log };
  const plain = await listenTcp(address, port, deps);
  return ssl.enabled ? [plain, await listenTls(ssl.address, ssl.port, ssl, deps)] : [plain];
}

/** Returns why this worker accepts no telemetry now, and what it refused. */
function refusals(ingest: Ingest, { state }: PrimaryLink, metrics: Metrics): Omit<WorkerRefusals, 'worker'> {
  const { reason, message } = ingest.refusal() ?? clockFault(state.clock) ?? {};
  return { refusal: reason && { reason, message: message! }, refused: refusedMessages(metrics) };
}

/** Returns the bytes that the journal may still take. */
function roomOf({ ingest }: Config, journal: Journal, metrics: Metrics): Omit<JournalRoom, 'worker'> {
  const { backlogBytesMax, freeDiskBytesMin } = ingest.journal;
  return {
    written: metrics.valueOf('journal_commit_bytes_total'),
    left: backlogBytesMax - journal.backlogDiskBytes,
    leftOnDisk: journal.freeBytes() - freeDiskBytesMin,
  };
}

/** Returns reasons for an operator to check this worker although it accepts telemetry. */
function degraded(config: Config, { journal, orphans, shipper }: Channel): string[] {
  const reasons: string[] = [];
  const { refusal } = shipper;
  if (refusal !== undefined)
    reasons.push(`ClickHouse takes no rows, which wait in the journal: ${refusal.slice(0, 200)}`);
  const set = journal.quarantine.entries + orphans.quarantineEntries;
  if (set > 0) reasons.push(`rows in quarantine: ${set} entries (npm run quarantine -- list)`);
  const lateMs = clock.now() - (journal.oldestWaitingAt(1) ?? clock.now());
  if (lateMs > 4 * config.ingest.ship.lateSecondsMax * 1000) {
    reasons.push(`late lane behind: its oldest rows wait for ${Math.round(lateMs / 1000)} s`);
  }
  if (orphans.count > 0) {
    const journals = orphans.count === 1 ? '1 orphan journal' : `${orphans.count} orphan journals`;
    reasons.push(`${journals} with ${orphans.bytes} bytes: worker 0 ships the rows to ClickHouse`);
  }
  return reasons;
}

function liveSession(session: DeviceSession | undefined): LiveSession | undefined {
  if (session === undefined) return undefined;
  const { remoteAddress = '', through } = session.owner;
  return { connectedAt: session.openedAt, address: remoteAddress, gateway: through?.number ?? null };
}

const bugExitCode = 70;

/**
 * Names what the bug says of itself, else the requests and connections that were carried out when the bug showed, and
 * ends the process.
 */
function endByBug(thrown: unknown, link: PrimaryLink, log: Log): void {
  const error = thrown instanceof Error ? thrown : new Error(messageOf(thrown));
  const work = error instanceof Bug && error.work ? [error.work] : suspects(limits.suspectsMax);
  log.error('bug', { suspects: work.map(workKey), reason: error.message });
  process.stderr.write(`${error.stack}\n`);
  link.died(error, work);
  process.exit(bugExitCode);
}

/** The disk of the journal failed twice: nothing that is accepted now could be kept. */
function fail(link: PrimaryLink, log: Log, reason: string): void {
  log.error('journal_failed', { reason });
  void link.failed(new StartError(`the journal cannot be written: ${reason}`));
  setTimeout(() => process.exit(1), 100);
}

function turn(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 5));
}
