/**
 * Opens the sign-in of users and devices, and the doors: REST, the pages, the device API over HTTP, and MQTT. They are
 * the last section of a worker; only the sockets are opened before the stores.
 */
import { reportsAt } from '../analytics/routes.ts';
import { createApi } from '../api/api.ts';
import { LongAnswers } from '../api/long-answer.ts';
import { notOffered } from '../api/not-offered.ts';
import { AttributeDecoder } from '../attributes/decode-thread.ts';
import { WrongCredentials } from '../auth/wrong-credentials.ts';
import { systemClock as clock } from '../base/clock.ts';
import { filesForConnections } from '../base/file-limit.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { createConsole } from '../console/door.ts';
import { seriesDeleter } from '../erase/delete-series.ts';
import { GatewayDecodeThread } from '../gateway/decode-thread.ts';
import { GatewayDecoder } from '../gateway/telemetry.ts';
import { attributesDoor } from '../http/attributes.ts';
import { claimDoor } from '../http/claim.ts';
import { DeviceAuth } from '../http/device-auth.ts';
import { firmwareDoor } from '../http/firmware.ts';
import { healthDoor } from '../http/health.ts';
import { LongPolls } from '../http/long-poll.ts';
import { provisionDoor } from '../http/provision.ts';
import { rpcDoor } from '../http/rpc.ts';
import { telemetryDoor } from '../http/telemetry.ts';
import { seriesWriter } from '../ingest/save-series.ts';
import { clockFault } from '../instance/clock/clock-offset.ts';
import type { PrimaryLink } from '../instance/processes/primary-link.ts';
import { gatewayBytesMax, openMqtt } from '../mqtt/open.ts';
import type { Mqtt } from '../mqtt/server.ts';
import { createSignIn } from '../mqtt/sign-in/login.ts';
import { ConnectionRoom } from '../mqtt/transport/connection-room.ts';
import { type ListeningSocket, listenTcp, listenTls } from '../mqtt/transport/listen.ts';
import { UnnamedWebSockets } from '../mqtt/transport/unnamed-web-sockets.ts';
import { webSocketDoor, webSocketMessageBytesMax } from '../mqtt/transport/websocket.ts';
import { register, type ServedRoute } from '../rest/route.ts';
import { HttpServer } from '../uws/server.ts';
import type { Channel } from './channel.ts';
import type { Commands } from './commands.ts';
import { ConnectionFiles } from './connection-files.ts';
import type { DeviceState } from './device-state.ts';
import type { Identity } from './identity.ts';
import type { Onboarding } from './onboarding.ts';
import type { Stores } from './stores.ts';
import { openUsers } from './users.ts';
import type { WorkerDeps } from './worker-deps.ts';

interface Servers {
  servers: HttpServer[];
  /** The files of this worker for connections. */
  files: ConnectionFiles;
}

export function openServers({ config, begin, log, metrics, started, proxies }: WorkerDeps): Servers {
  const { bodyBytesMax, bodyBytesInFlightMax, connectionsPerAddressMax, tellWorker } = config.http;
  const connectionsMax = config.http.connectionsMax || filesForConnections();
  const worker = tellWorker ? String(begin.slot) : '';
  const isTrustedProxy = (address: string) => proxies.isTrusted(address);
  const files = new ConnectionFiles(filesForConnections());
  const sizes = { bodyBytesMax, bodyBytesInFlightMax, connectionsMax, connectionsPerAddressMax };
  const options = { log, metrics, ...sizes, isTrustedProxy, files, worker };
  const servers = [new HttpServer(options)];
  if (config.ssl.enabled) servers.push(new HttpServer({ ...options, tls: config.ssl }));
  started.add('sockets', () => {
    for (const server of servers) server.close();
  });
  return { servers, files };
}

/** The objects of all sections that are open before the doors. */
type Sections = Stores & Identity & Channel & DeviceState & Commands & Onboarding;

export async function openDoors(
  deps: WorkerDeps,
  { servers, files }: Servers,
  sections: Sections,
): Promise<{ mqtt: Mqtt; room: ConnectionRoom }> {
  const { config, link, metrics, started } = deps;
  const users = await openUsers(deps, sections, sections);
  const { heldPollsMax: heldMax, requestTimeoutMs: waitMsDefault, requestTimeoutMsMax: waitMsMax } = config.http;
  const polls = new LongPolls({ tokens: sections.tokens, metrics, heldMax, waitMsDefault, waitMsMax });
  const attributeDecoder = new AttributeDecoder(sections.decoding);
  started.add('decoding thread of attributes', () => attributeDecoder.close());
  const api = restApi(deps, sections, users, attributeDecoder);
  const wrongCredentials = await openWrongCredentials(deps, sections);
  const connectionsMax = config.mqtt.connectionsMax || filesForConnections();
  const connectionsMaxNow = () => Math.min(connectionsMax, files.mqttMax);
  const mqtt = mqttDoor(deps, sections, { attributeDecoder, wrongCredentials, connectionsMax: connectionsMaxNow });
  const room = new ConnectionRoom({
    connections: () => mqtt.connections,
    connectionsMax,
    hasFile: () => files.hasMqtt,
    accepted: (count, isFull) => deps.link.acceptedConnection(count, isFull),
  });
  files.count(
    () => servers.reduce((sum, { connections }) => sum + connections, 0),
    () => room.sockets,
  );
  const serve = httpDoors(deps, sections, { api, attributeDecoder, mqtt, room, polls, wrongCredentials });
  for (const server of servers) serve(server);
  await servers[0]!.listen(config.http.address, config.http.port);
  await servers[1]?.listen(config.http.address, config.ssl.port);
  const listeners = await listenMqtt(deps, mqtt, room);
  letOthersAccept(link, mqtt, listeners);

  started.add('open requests', async (steps) => {
    const areOpen = () => sections.ingest.awaitsStore || servers.some((server) => server.hasRequests);
    while (areOpen() && steps.msLeft > 0) await systemScheduler.sleep(5);
  });
  started.add('MQTT connections', (steps) => mqtt.drain(steps.msLeft));
  started.add('doors', () => {
    for (const server of servers) server.drain();
    for (const listener of listeners) listener.close();
    polls.close();
    sections.calls.close();
    sections.rpc.close();
  });
  return { mqtt, room };
}

/** Leaves new connections, or open ones, to other workers and hosts when the primary says so. */
function letOthersAccept(link: PrimaryLink, mqtt: Mqtt, listeners: ListeningSocket[]): void {
  const handOver = (perSecond: number) => {
    // A balancer without health checks goes to the next host when a connection is refused.
    for (const listener of listeners) listener.close();
    return mqtt.handOver(perSecond);
  };
  const leave = () => {
    for (const listener of listeners) listener.leaveToOthers();
  };
  link.onAheadOfOthers(leave, async () => {
    await Promise.all(listeners.map((listener) => listener.acceptAgain()));
  });
  link.onHandOver(handOver, (count, perSecond) => void mqtt.handOverSome(count, perSecond));
}

function restApi(
  { config, log, metrics }: WorkerDeps,
  sections: Sections,
  { auth, apiKeys }: Awaited<ReturnType<typeof openUsers>>,
  attributeDecoder: AttributeDecoder,
): ServedRoute[] {
  const { postgres, shards, cluster, devices, ingest, thread, decode, journals } = sections;
  const { downloads, rpc, persistentRpcs, diagnostics, signingKey, refusedPoints, rateLimits } = sections;
  return createApi({
    ...sections.admin,
    ...sections.claims,
    auth,
    apiKeys,
    apiKeyPrefix: config.auth.apiKeyPrefix,
    saveSeries: seriesWriter({ devices, ingest, thread, decode, clock }),
    deleteSeries: seriesDeleter({
      ...{ postgres, shards, cluster, clock, log, journals },
      latestAheadMsMax: config.telemetry.latestFutureSecondsMax * 1000,
    }),
    shards,
    longAnswers: new LongAnswers(metrics),
    config,
    attributeDecoder,
    downloads,
    rpc,
    persistentRpcs,
    diagnostics,
    signingKey,
    refusedPoints,
    rateLimits,
    maximaOf: (tenantId) => sections.tenantLimits.of(tenantId),
    rpcTimeouts: config.rpc,
    elsewhere: config.analytics.enabled ? [reportsAt(config.analytics.port)] : [],
  });
}

/** Returns undefined when the settings let an address try without limit. */
async function openWrongCredentials(
  { config, metrics, started, proxies }: WorkerDeps,
  { bus, exchange }: Sections,
): Promise<WrongCredentials | undefined> {
  const { perMinuteMax: wrongMax } = config.wrongCredentials;
  const isTrustedProxy = (address: string) => proxies.isTrusted(address);
  const wrongCredentials =
    wrongMax === 0 ? undefined : new WrongCredentials({ bus, exchange, wrongMax, isTrustedProxy, clock, metrics });
  await wrongCredentials?.start();
  started.add('wrong credentials', () => wrongCredentials?.stop());
  return wrongCredentials;
}

interface MqttDoorDeps {
  attributeDecoder: AttributeDecoder;
  wrongCredentials: WrongCredentials | undefined;
  connectionsMax: () => number;
}

function mqttDoor(
  { config, begin, log, metrics, started, proxies }: WorkerDeps,
  sections: Sections,
  { attributeDecoder, wrongCredentials, connectionsMax }: MqttDoorDeps,
): Mqtt {
  const { ingest, decoding, decode, readBody, admission, troubles, strangers, activity } = sections;
  const { gateways, attributes, updates, downloads, rpc, rpcSessions, calls, claims, provisioning } = sections;
  const { logins, sessions, certificates, rateLimits } = sections;
  const gatewayThread = new GatewayDecodeThread(decoding, config.gateway.packetBytesInFlightMax, {
    room: (tenantId) => ingest.roomForLarge(tenantId),
  });
  started.add('decoding thread of gateways', () => gatewayThread.close());
  const guards = { rateLimits, wrongCredentials, troubles, strangers };
  return openMqtt({
    config,
    connectionsMax,
    isTrustedProxy: (address) => proxies.isTrusted(address),
    gateways,
    gatewayThread,
    gatewayDecoder: new GatewayDecoder({ options: decoding, touch: activity.touch, admission }),
    worker: config.http.tellWorker ? String(begin.slot) : '',
    signIn: createSignIn({ logins, sessions, certificates, ...guards, clock }),
    ingest,
    decode,
    readBody,
    castNumericStrings: decoding.castNumericStrings,
    attributeDecoder,
    admission,
    troubles,
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
}

interface HttpDoorsDeps {
  api: ServedRoute[];
  attributeDecoder: AttributeDecoder;
  mqtt: Mqtt;
  room: ConnectionRoom;
  polls: LongPolls;
  wrongCredentials: WrongCredentials | undefined;
}

/** Returns a function that gives a server all of its routes. */
function httpDoors(
  { config, link, log, metrics }: WorkerDeps,
  sections: Sections,
  { api, attributeDecoder: decoder, mqtt, room, polls, wrongCredentials: wrong }: HttpDoorsDeps,
): (server: HttpServer) => void {
  const { tokens, admission, troubles, strangers, ingest, thread, decode, readBody } = sections;
  const { attributes, updates, downloads, rpcSessions: sessions, rpc, calls, claims, provisioning } = sections;
  const deviceAuth = new DeviceAuth({ tokens, wrong, admission, troubles, strangers, log });
  const consoleDoor = createConsole({ docs: config.docs.enabled });
  const { emptyPollTimeout } = config.rpc;
  const refusal = () => (ingest.refusal() ?? clockFault(link.state.clock))?.message;
  const messageBytesMax = webSocketMessageBytesMax(gatewayBytesMax(config));
  const unnamed = new UnnamedWebSockets({ messageBytesMax });
  return (server) => {
    telemetryDoor({ server, deviceAuth, ingest, thread, clock, decode, metrics });
    attributesDoor({ server, deviceAuth, attributes, updates, polls, decoder });
    firmwareDoor({ server, deviceAuth, downloads });
    rpcDoor({ server, deviceAuth, polls, sessions, rpc, calls, readBody, emptyPollTimeout });
    claimDoor({ server, deviceAuth, claims, readBody });
    provisionDoor({ server, provisioning, readBody });
    register(server, api);
    for (const path of notOffered) server.refusePath(path);
    consoleDoor(server);
    healthDoor({ server, state: () => link.state, refusal });
    if (config.mqtt.enabled && config.mqtt.webSocket) {
      webSocketDoor(server, { clients: mqtt, messageBytesMax, room, unnamed });
    }
    server.seal();
  };
}

async function listenMqtt(
  { config, proxies, log }: WorkerDeps,
  { open, refused }: Mqtt,
  room: ConnectionRoom,
): Promise<ListeningSocket[]> {
  const { enabled, address, port, ssl, proxyProtocol } = config.mqtt;
  if (!enabled) return [];
  const sendsProxyHeader = (peer: string) => proxyProtocol && proxies.isTrusted(peer);
  const deps = { open, refused, room, sendsProxyHeader, log };
  const plain = await listenTcp(address, port, deps);
  return ssl.enabled ? [plain, await listenTls(ssl.address, ssl.port, ssl, deps)] : [plain];
}
