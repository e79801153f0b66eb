/**
 * One worker: builds its parts in the order in which data flows, listens, and closes them in reverse order. Read this
 * file first: it names every long-lived object and who gets it.
 */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { Activity } from './activity/activity.ts';
import { Admission } from './activity/admission.ts';
import type { AdminDeps } from './admin/deps.ts';
import { GatewayNews } from './admin/gateway-news.ts';
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
import { PasswordHasher } from './auth/password.ts';
import { openRateLimits, parseRateLimits } from './auth/rate-limits.ts';
import { openRequestLimits } from './auth/request-limits.ts';
import { Proxies } from './auth/transport.ts';
import { WrongCredentials } from './auth/wrong-credentials.ts';
import { systemClock as clock, clockStepMs } from './base/clock.ts';
import { messageOf, StartError } from './base/errors.ts';
import { openFilesMax } from './base/file-limit.ts';
import { limits } from './base/limits.ts';
import { createLog, type Log } from './base/log.ts';
import { Metrics, processMetrics } from './base/metrics.ts';
import { keyOf, suspects } from './base/underway.ts';
import { openBus } from './bus/open.ts';
import { createConsole } from './console/door.ts';
import type { CachedDevice } from './device/cached-device.ts';
import { CredentialChanges } from './device/credential-changes.ts';
import { KnownDevices } from './device/known-devices.ts';
import { knownFile } from './device/known-devices-file.ts';
import { LocalDevices } from './device/local-devices.ts';
import { Logins } from './device/logins.ts';
import { lookUpDevices, lookUpLogins, lookUpProfileTransports, lookUpTokens } from './device/store.ts';
import { TokenCache } from './device/token-cache.ts';
import { Downlink } from './downlink/downlink.ts';
import { Sessions } from './downlink/sessions.ts';
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
import { seriesDeleter } from './ingest/delete-series.ts';
import { Eraser } from './ingest/erase.ts';
import { type JournalReport, reportOf } from './ingest/journal-report.ts';
import { forgetJournal, takeWriterId, unknownRun } from './ingest/journal-table.ts';
import { OrderClock, orderMs } from './ingest/order.ts';
import { Retention } from './ingest/retention.ts';
import { seriesWriter } from './ingest/save-series.ts';
import { Shipper } from './ingest/ship.ts';
import { clockFault } from './instance/clock-offset.ts';
import { checkInstance, instanceVariable } from './instance/data-directory.ts';
import { openStores } from './instance/engines.ts';
import { journalDirectory, journalName } from './instance/messages.ts';
import { OrphanJournals } from './instance/orphan-journals.ts';
import { PrimaryLink } from './instance/primary-link.ts';
import { StopSteps } from './instance/stop-steps.ts';
import { readWriterId, storeWriterId, writerIdMax } from './journal/identity.ts';
import { type Journal, openJournal } from './journal/journal.ts';
import { type Listener, listenTcp, listenTls } from './mqtt/listen.ts';
import { createSignIn } from './mqtt/login.ts';
import { openMqtt } from './mqtt/open.ts';
import { webSocketDoor } from './mqtt/websocket.ts';
import { Chains } from './onboarding/certificate-provision.ts';
import type { ClaimDeps } from './onboarding/claim.ts';
import { type ChildRequest, findOrCreateChildren } from './onboarding/gateway-children.ts';
import { Guesses } from './onboarding/guesses.ts';
import type { ProvisionDeps } from './onboarding/provision.ts';
import { Downloads } from './ota/downloads.ts';
import { Rollout } from './ota/rollout.ts';
import { isAway, type Postgres } from './postgres/client.ts';
import { RpcSessions } from './rpc/notify.ts';
import { RpcNumbers } from './rpc/numbers.ts';
import { PersistentRpcs } from './rpc/persistent.ts';
import { Rpc } from './rpc/send.ts';
import { Calls } from './rules/calls.ts';
import { compileRule } from './rules/table.ts';
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

/** Of a process that ends by a bug. */
const bugExitCode = 70;

async function serve(link: PrimaryLink): Promise<void> {
  const begin = await link.begin;
  const { config } = begin;
  const log = createLog(config.log.level, `worker-${begin.slot}`);
  const metrics = new Metrics();
  processMetrics(metrics, `worker-${begin.slot}`);
  process.on('uncaughtException', (thrown: unknown) => {
    const error = thrown instanceof Error ? thrown : new Error(messageOf(thrown));
    const work = suspects(limits.suspectsMax);
    log.error('bug', { suspects: work.map(keyOf), reason: error.message });
    process.stderr.write(`${error.stack}\n`);
    link.died(error, work);
    process.exit(bugExitCode);
  });
  link.onClock((state) => refuseServerTimes(clockFault(state)));

  // The stores, the bus, and what the devices' tokens mean.
  const { clickhouse, postgres } = openStores(begin.engines, config, log);
  if (!begin.postgresReady) postgres.hold();
  link.onState((state) => state.postgresReady && postgres.release());
  const bus = await openBus({ redisUrl: config.redis.url, installation: begin.installation, log, metrics });
  const downlink = new Downlink({ bus, shards: config.bus.shards, log, metrics });
  await downlink.start();
  const devices = new LocalDevices();
  const known = new KnownDevices({ path: knownFile(config.data.dir), clock, log, metrics });
  const tokens = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, devices, clock, known);
  const logins = new Logins({
    alone: known,
    lookUp: (credentialsIds) => lookUpLogins(postgres, credentialsIds),
    lookUpProfiles: (ids) => lookUpProfileTransports(postgres, ids),
    clock,
    log,
  });
  const changes = new CredentialChanges({ postgres, bus, clock, log, onAnswered: () => known.storeAnswers() });
  changes.onChange((change) => (change === 'all' ? tokens.clear() : tokens.invalidate(change.credentialsId)));
  changes.onChange((change) => logins.changed(change));
  changes.onChange((change) => {
    if (change === 'all') downlink.closeAll('credentials_changed');
    else downlink.close(change.deviceNumber, change.deleted ? 'device_deleted' : 'credentials_changed');
  });
  await changes.start();

  // The channel: journal, what carries it to ClickHouse, and the call that every door pours into.
  checkInstance(config.data.dir, process.env[instanceVariable]);
  const dir = join(config.data.dir, journalDirectory, journalName(begin.slot));
  const { segmentBytes, freeDiskBytesMin, backlogBytesMax, ...waits } = config.ingest.journal;
  const durable = config.ingest.ack === 'memory' ? 'none' : 'sync';
  const { bytesMax: quarantineBytesMax, keptDays: quarantineKeptDays } = config.ingest.quarantine;
  const journal = await openJournal({
    dir,
    log,
    metrics,
    segmentBytes,
    durable,
    freeBytesMin: Math.floor(freeDiskBytesMin / 2),
    quarantineBytesMax,
    locked: true,
    onLost: (reason) => fail(link, log, reason),
  });
  const writer = await writerId(journal, dir, postgres, link);
  const orders = new OrderClock(clock, writer, journal.orderMax);
  const leadMs = orderMs(journal.orderMax) - clock.now();
  // An earlier run without the database went by a clock that was ahead; a journal's order numbers never go back.
  if (leadMs > clockStepMs) log.warn('order_ahead', { leadSeconds: Math.round(leadMs / 1000) });
  const shipping = { clickhouse, clock, log, metrics, quarantineKeptDays, ...config.ingest.ship };
  const shipper = new Shipper({
    ...shipping,
    journal,
    callersWait: config.ingest.ack === 'store',
    onSuspects: (lane, orders) => ingest.suspected(lane, orders),
    onStoredApart: (lane, orders) => ingest.storedApart(lane, orders),
    onShipped: () => ingest.shipped(),
  });
  const ingest: Ingest = new Ingest({
    ...waits,
    journal,
    orders,
    clock,
    log,
    metrics,
    ack: config.ingest.ack,
    storeAckMsMax: config.ingest.storeAckMsMax,
    backlogBytesMax,
    freeDiskBytesMin,
    onCommitted: () => shipper.wake(),
    onFailed: (reason) => fail(link, log, reason),
  });
  const decoding = decodeOptions(config);
  const readBody = decoding.lenientJson ? leniently : strictly;
  const thread = new DecodeThread(decoding);
  shipper.start();
  const onStored = (stored: Pick<JournalReport, 'writer' | 'orderRecovered'>) => forgetJournal(postgres, stored);
  const orphans = new OrphanJournals({ ...shipping, segmentBytes, dirs: begin.orphanJournals, onStored });
  await orphans.start();

  // What devices may send, and when they were last heard of. One worker of an instance looks for silence.
  const rateLimits = await openRateLimits({ buckets: parseRateLimits(config.rateLimits), bus, clock });
  const { inactivitySeconds, checkSeconds } = config.activity;
  const checkMs = begin.slot === 0 ? checkSeconds * 1000 : 0;
  const activity = new Activity({ postgres, clock, log, inactivityMs: inactivitySeconds * 1000, checkMs });
  activity.start();
  const meter = new Admission({ rateLimits, touch: activity.touch });

  // One session of each device, wherever it connects, as long as its credentials are good.
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

  // Attributes: one writer for all doors; what is shared is told to whoever follows the device.
  const onShared = (change: SharedChange) => notifyShared(downlink, change);
  const attributeWriter = new AttributeWriter({ postgres, clock, metrics, onShared });
  const attributes = new Attributes(postgres, attributeWriter);
  const { lossFreeUpdates: lossFree } = config.attributes;
  const updates = new AttributeUpdates({ postgres, downlink, clock, log, metrics, lossFree });
  updates.start();

  // Packages: their files, who may have them, and telling devices which ones they have.
  const downloads = new Downloads({ postgres, clock, metrics });
  changes.onChange((change) => (change === 'all' ? downloads.forgetAll() : downloads.forget(change.deviceNumber)));
  const rollout = new Rollout({ postgres, ingest, attributes, clock, log, metrics });
  rollout.start();

  // Commands to devices, and the calls that devices make.
  const numbers = new RpcNumbers(postgres);
  const rpc = new Rpc({ postgres, downlink, bus, numbers, clock, log, metrics });
  const rpcSessions = new RpcSessions(downlink);
  const { retriesMax, keptDays, clientTimeoutMs, emptyPollTimeout } = config.rpc;
  const persistentRpcs = new PersistentRpcs({ postgres, rpc, numbers, downlink, clock, log, retriesMax, keptDays });
  persistentRpcs.start();
  const rules = begin.rules.map(compileRule);
  const calls = new Calls({ rules, attributes, clickhouse, clock, metrics, timeoutMs: clientTimeoutMs });

  // Making, claiming and provisioning devices.
  const { devices: devicesMax } = config.limits;
  const gatewayNews = new GatewayNews({
    postgres,
    persistentRpcs,
    clock,
    log,
    customerScope: config.gateway.customerScope,
  });
  const fleet: AdminDeps = { postgres, changes, clock, devicesMax, onAssigned: rollout.wake, gatewayNews };
  const claims: ClaimDeps = { ...fleet, attributes, log, claiming: config.claiming };
  const { wrongKeysPerMinuteMax: wrongMax } = config.provisioning;
  const { guessWindowMs: windowMs, guessingAddressesMax: addressesMax } = limits;
  const guesses = new Guesses({ clock, wrongMax, windowMs, addressesMax });
  const provisioning: ProvisionDeps = { ...fleet, guesses, log };
  const chains = new Chains(provisioning);

  // Gateways: their devices by name, made when they are missing.
  const { childrenMax, customerScope } = config.gateway;
  const findOrCreate = (tenant: string, requests: ChildRequest[]) => findOrCreateChildren(fleet, tenant, requests);
  const childNames = new ChildNames(findOrCreate, clock, customerScope, known);
  changes.onChange((change) => childNames.changed(change));
  const gatewayDeps = {
    sessions,
    devices,
    names: childNames,
    updates,
    rpcSessions,
    monotonic: clock.monotonic,
    childrenMax,
    customerScope,
  };
  const gateways = new Gateways(gatewayDeps, metrics);

  // Who may ask, and the doors.
  const passwords = new PasswordHasher(config.auth.signInQueueMax);
  const jwt = await openJwt(postgres, config.auth, clock);
  const { failedLoginsMax, requireHttpsForApiKeys, apiKeyPrefix } = config.auth;
  const apiKeys = new ApiKeys({ postgres, bus, clock, log, purges: begin.slot === 0 });
  await apiKeys.start();
  if (!requireHttpsForApiKeys && begin.slot === 0) {
    log.warn('api_keys_over_http', {
      reason: 'API keys are accepted over plain HTTP, where they can be read on their way.',
    });
  }
  const requestLimits = await openRequestLimits({ settings: config.rateLimits.rest, bus, clock });
  const proxies = new Proxies(config.http.trustedProxies);
  const auth = new Auth({
    postgres,
    passwords,
    jwt,
    clock,
    failedLoginsMax,
    failedSignIns: new FailedSignIns(clock),
    apiKeys,
    proxies,
    requireHttpsForApiKeys,
    requestLimits,
  });
  const { heldPollsMax: heldMax, requestTimeoutMs: waitMsDefault, requestTimeoutMsMax: waitMsMax } = config.http;
  const polls = new LongPolls({ tokens, metrics, heldMax, waitMsDefault, waitMsMax });
  const decode: Decode<CachedDevice> = (body, device, now, rows) => decodeTelemetry(body, device, now, rows, decoding);
  const { cluster } = config.clickhouse;
  const journals = (flush = false) => link.askJournals(flush);
  const api = createApi({
    ...claims,
    auth,
    apiKeys,
    apiKeyPrefix,
    saveSeries: seriesWriter({ devices, ingest, thread, decode, clock }),
    deleteSeries: seriesDeleter({ postgres, clickhouse, cluster, clock, log, journals }),
    clickhouse,
    longAnswers: new LongAnswers(metrics),
    config,
    readBody,
    downloads,
    rpc,
    persistentRpcs,
    rpcTimeouts: config.rpc,
  });
  const consoleDoor = createConsole({ docs: config.docs.enabled });
  const wrongCredentials = await openWrongCredentials();
  const senders = new DeviceAuth(tokens, wrongCredentials, meter, log);
  const worker = config.http.tellWorker ? String(begin.slot) : '';
  const { touch } = activity;
  const mqttConnectionsMax = config.mqtt.connectionsMax || Math.max(64, openFilesMax() - limits.fileReserve);
  const mqtt = openMqtt({
    config,
    connectionsMax: mqttConnectionsMax,
    isTrustedProxy: (address) => proxies.isTrusted(address),
    gateways,
    gatewayDecoder: new GatewayDecoder({ options: decoding, touch, rateLimits }),
    worker,
    signIn: createSignIn({ logins, sessions, chains, rateLimits, wrongCredentials, clock }),
    ingest,
    decode,
    readBody,
    castNumericStrings: decoding.castNumericStrings,
    meter,
    attributes,
    updates,
    downloads,
    rpc,
    rpcSessions,
    calls,
    claims,
    provisioning,
    clock,
    log,
    metrics,
  });
  const servers = openServers();
  for (const server of servers) {
    telemetryDoor({
      server,
      senders,
      ingest,
      thread,
      clock,
      decode,
      metrics,
    });
    attributesDoor({
      server,
      senders,
      attributes,
      updates,
      polls,
      readBody,
      castNumericStrings: decoding.castNumericStrings,
    });
    firmwareDoor({ server, senders, downloads });
    rpcDoor({ server, senders, polls, sessions: rpcSessions, rpc, calls, readBody, emptyPollTimeout });
    claimDoor({ server, senders, claims, readBody });
    provisionDoor({ server, provisioning, readBody });
    for (const { method, pattern, handler, bodyBytesMax, admit } of api) {
      server.route(method, pattern, handler, bodyBytesMax, admit);
    }
    for (const path of notOffered) server.refusePath(path);
    consoleDoor(server);
    healthDoor({
      server,
      state: () => link.state,
      refusal: () => (ingest.refusal() ?? clockFault(link.state.clock))?.message,
    });
    if (config.mqtt.enabled && config.mqtt.webSocket) webSocketDoor(server, mqtt.open);
    server.seal();
  }
  await servers[0]!.listen(config.http.address, config.http.port);
  await servers[1]?.listen(config.http.address, config.ssl.port);
  const listeners = await listenMqtt();

  // The worker that leads does it for its host.
  const eraser = new Eraser({
    postgres,
    clickhouse,
    cluster,
    clock,
    log,
    metrics,
    isLeader: () => link.state.leader === begin.slot,
    journals,
    tombstonesKeptDays: config.telemetry.tombstonesKeptDays,
  });
  eraser.start();
  const { ttlDays, ttlOfLatest } = config.telemetry;
  const isLeader = () => link.state.leader === begin.slot;
  const retention = new Retention({ postgres, clickhouse, cluster, clock, log, isLeader, ttlDays, ttlOfLatest });
  retention.start();
  link.onCollect(() => metrics.snapshot());
  link.reportStatus(() => ({
    refusing: ingest.refusal() !== undefined,
    degraded: degraded(),
  }));
  link.onHoldJournals(
    () => [journal.hold(), ...orphans.hold()],
    () => [journal.endHold(), orphans.endHold()].every((intact) => intact),
  );
  // A worker that has not read the latest changes may still accept messages of a deleted device: its journal settles nothing.
  const isCurrent = () => clock.monotonic() - changes.currentAt < limits.deletedDeviceGraceMs - limits.credentialPollMs;
  const journalReports = () => [
    ...(isCurrent() ? [reportOf(journal, writer, clock)] : []),
    ...orphans.reports().reports,
  ];
  link.onReportJournals((flush) => {
    if (flush) {
      shipper.flush();
      orphans.flush();
    }
    return { reports: journalReports(), isWhole: isCurrent() && orphans.reports().isWhole };
  });
  link.ready();

  const close = async (shipMsMax: number) => {
    for (const server of servers) server.drain();
    for (const listener of listeners) listener.close();
    polls.close();
    calls.close();
    rpc.close();
    const steps = new StopSteps({ msMax: config.shutdown.drainMsMax, log });
    await steps.step('MQTT connections', () => mqtt.drain(steps.msLeft));
    await steps.step('open requests', async () => {
      while (servers.some((server) => server.openRequests > 0) && steps.msLeft > 0) await turn();
    });
    await steps.step('the rollout of packages', () => rollout.stop());
    // What was accepted is made durable, however long the disk takes; the primary ends a worker that hangs.
    await steps.whole('accepted messages', () => ingest.close());
    await steps.step('deletes', () => Promise.all([eraser.stopErasing(), retention.stop()]));
    await steps.step('attributes and commands', () =>
      Promise.all([attributeWriter.idle(), updates.stop(), persistentRpcs.stop()]),
    );
    await steps.step('activity of devices', () => activity.stop());
    rateLimits?.stop();
    requestLimits?.stop();
    wrongCredentials?.stop();
    apiKeys.stop();
    const drainMsMax = Math.min(shipMsMax, steps.msLeft);
    await steps.step('the journal', () => Promise.all([shipper.drain(drainMsMax), orphans.drain(drainMsMax)]));
    await steps.whole('the last report of the journals', () => eraser.end(journalReports));
    await steps.whole('the end of the journal', () => journal.close());
    await steps.step('threads and sessions', () =>
      Promise.all([thread.close(), changes.stop(), sessions.stop(), passwords.close()]),
    );
    downlink.stop();
    await steps.step('connections to the stores', () =>
      Promise.all([bus.close(), clickhouse.close(), postgres.close(), known.close()]),
    );
    for (const server of servers) server.close();
    if (steps.waits !== '') log.info('stop_waited', { seconds: Number(steps.seconds.toFixed(1)), for: steps.waits });
  };
  link.onDrain(() => void close(Number.POSITIVE_INFINITY).then(() => process.exit(0)));
  // Without a primary nobody supervises: what was accepted is made durable, the rest is the next run's work.
  link.onLost(() => void close(0).then(() => process.exit(0)));

  /** Why an operator should look at this worker although telemetry is accepted. */
  function degraded(): string[] {
    const reasons: string[] = [];
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

  async function openWrongCredentials(): Promise<WrongCredentials | undefined> {
    const { perMinuteMax: wrongMax } = config.wrongCredentials;
    if (wrongMax === 0) return undefined;
    const isTrustedProxy = (address: string) => proxies.isTrusted(address);
    const wrong = new WrongCredentials({ bus, node: randomUUID(), wrongMax, isTrustedProxy, clock, metrics });
    await wrong.start();
    return wrong;
  }

  function openServers(): HttpServer[] {
    const { bodyBytesMax, bodyBytesInFlightMax } = config.http;
    const connectionsMax = config.http.connectionsMax || Math.max(64, openFilesMax() - limits.fileReserve);
    const options = { log, metrics, bodyBytesMax, bodyBytesInFlightMax, connectionsMax, worker };
    const plain = new HttpServer(options);
    if (!config.ssl.enabled) return [plain];
    return [plain, new HttpServer({ ...options, tls: config.ssl })];
  }

  async function listenMqtt(): Promise<Listener[]> {
    const { enabled, address, port, ssl } = config.mqtt;
    if (!enabled) return [];
    const { open, refused } = mqtt;
    const deps = { open, refused, connections: () => mqtt.connections, connectionsMax: mqttConnectionsMax, log };
    const plain = await listenTcp(address, port, deps);
    return ssl.enabled ? [plain, await listenTls(ssl.address, ssl.port, ssl, deps)] : [plain];
  }
}

/**
 * Once in the life of a journal directory, unique across hosts. A worker with a new journal cannot serve without an id
 * and waits for PostgreSQL. A crash before the id is stored loses the id, never gives it to two journals.
 */
async function writerId(journal: Journal, dir: string, postgres: Postgres, link: PrimaryLink): Promise<number> {
  const known = await readWriterId(dir);
  if (known !== undefined) return known;
  for (;;) {
    try {
      const run = journal.orderMax === 0n ? String(journal.epoch! - 1) : unknownRun;
      const id = await takeWriterId(postgres, hostname(), run);
      if (id !== undefined) {
        await storeWriterId(dir, id);
        return id;
      }
      link.waiting(
        `its journal is new and all ${writerIdMax + 1} writer ids are in use: keep the data directories of hosts, or ` +
          'lower TELEMETRY_TOMBSTONES_KEPT_DAYS, after which the id of a journal that is not reported is free again',
      );
    } catch (error) {
      if (!isAway(error)) throw error;
      link.waiting('its journal is new and needs an id from PostgreSQL');
    }
    await new Promise((resolve) => setTimeout(resolve, limits.storeLookMs));
  }
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
