/**
 * The relations between caps, and between settings. The primary checks both before it starts anything. A wrong relation
 * between two caps is a bug of this version; one between two settings is a `StartError` that names both.
 */

import { assert, StartError } from '../errors.ts';
import { limits } from '../limits.ts';
import { type Config, shardUrlsOf } from './config.ts';
import { listOfSetting } from './list-setting.ts';

type Limit = keyof typeof limits;

/** Each row rises from left to right, or stays. */
const rising: readonly (readonly Limit[])[] = [
  // A share is at most the whole, and one piece fits into its share.
  ['rpcWaitingBytesPerDeviceMax', 'rpcWaitingBytesPerCustomerMax', 'rpcWaitingBytesPerTenantMax', 'rpcWaitingBytesMax'],
  ['rpcBodyBytesMax', 'rpcWaitingBytesPerDeviceMax'],
  ['rpcWaitingPerDeviceMax', 'rpcWaitingMax'],
  ['clientCallsPerDeviceMax', 'clientCallsMax'],
  ['gatewayHeldBytesPerGatewayMax', 'gatewayHeldBytesPerTenantMax', 'gatewayHeldBytesMax'],
  ['longAnswerBytesMax', 'longAnswersCustomerBytesMax', 'longAnswersTenantBytesMax', 'longAnswersBytesMax'],
  ['otaMessageBytesMax', 'otaMessageBytesInFlightPerTenantMax', 'otaMessageBytesInFlightMax'],
  ['attributeBodyBytesMax', 'attributeBytesWaitingPerDeviceMax', 'attributeBytesWaitingMax'],
  ['attributeKeysPerMessageMax', 'attributeBatchRowsMax', 'attributeRowsWaitingMax'],
  ['attributeBodyBytesMax', 'attributeBytesStoredMax'],
  ['documentBytesMax', 'pageBytesMax'],
  ['imageBytesMax', 'apiBodyBytesMax', 'bulkBodyBytesMax', 'importBodyBytesMax'],
  ['reportKeysPrunedMax', 'reportKeysPerTenantMax', 'reportKeysMax'],
  ['newDevicesPerTransaction', 'newDevicesPerRequest'],
  ['relationsOfEntityMax', 'relationsMax'],
  ['passwordCharsMin', 'passwordCharsMax'],
  ['mqttProbeMsMin', 'mqttProbeMsMax'],
  // One batch fits into its queue.
  ['diagnosedNewPerTenantMax', 'diagnosedNewPerSecondMax', 'diagnosedDevicesMax'],
  ['refusalsListedMax', 'diagnosedDevicesMax'],
  ['tokenLookupBatchMax', 'tokenLookupQueueMax'],
  ['loginBatchMax', 'loginQueueMax'],
  ['childNamesBatchMax', 'childNamesQueueMax'],
  ['updateBatchMax', 'updateQueueMax'],
  ['rpcNumbersBatchMax', 'rpcNumbersQueueMax'],
  ['frameRowsMax', 'gatheredRowsMax'],
  // A client is paused before it is closed, and the socket library keeps all bytes that may wait before the close.
  ['mqttWriteBytes', 'mqttUnreadBytesPause', 'otaMessageBytesMax', 'mqttUnreadBytesMax', 'webSocketWaitingBytesMax'],
  ['mqttUnreadBytesPause', 'mqttFileUnreadBytesMax', 'mqttUnreadBytesMax', 'mqttUnreadBytesOfAllMax'],
  ['webSocketMessageBytesMax', 'webSocketKeptBytesMax'],
  ['mqttFirstPacketBytesMax', 'mqttProvisioningPacketBytesMax'],
  ['mqttPushesInflightMax', 'mqttPushesWaitingMax'],
  // A wait ends before the deadline of the caller, and a lease lasts longer than the work that it protects.
  ['mqttJournalCheckMs', 'mqttSweepMs', 'mqttPausedMsMax', 'mqttConnectMsMax', 'mqttStallMsMax'],
  ['mqttFileRetryMs', 'mqttFileStoreMsMax'],
  ['streamOfferMs', 'streamStallMsMax'],
  ['loginLookupTimeoutMs', 'loginMsMax'],
  ['activityWriteMs', 'activityReportMs', 'activityDeadMsMin', 'activityDeadMsMax'],
  ['activityWriteMs', 'activitySteadyMsMax'],
  ['activityBlocksMax', 'activityPageDevices'],
  ['storeCheckMs', 'storesWaitMsMax'],
  ['restartDelayMs', 'restartDelayMsMax'],
  ['credentialPollMs', 'deletedDeviceGraceMs', 'credentialChangesKeptMs'],
  ['loginMsMax', 'credentialChangesKeptMs'],
  ['failedSignInWaitMsMax', 'failedSignInsForgottenMs'],
  ['attributeStatementMsMax', 'postgresStatementMsMax'],
  ['rpcSweepMs', 'rpcOwnersFirstMs', 'rpcLeaseMs'],
  ['rpcStopMsMax', 'rpcLeaseMs'],
  ['rpcRepeatMsMin', 'rpcRepeatMsMax', 'rpcWaitMsMax'],
  ['offerWaitMs', 'rpcElderWaitMs'],
  ['offerWaitMs', 'offerWaitMsMax', 'rpcStopMsMax'],
  ['eraseRetryMsMin', 'eraseRetryMsMax'],
  ['eraseAgainMsMax', 'eraseStatementMsMax', 'eraseBatchMsMax', 'eraseLeaseMs'],
  ['retentionLeaseMs', 'retentionMs'],
  ['journalReportMs', 'journalStaleMs'],
  ['seriesDeleteWaitMsMax', 'seriesDeleteMsMax'],
  ['knownCheckMs', 'knownKeptMs'],
];

/** Throws when two caps contradict each other. */
export function checkLimits(): void {
  for (const row of rising) {
    for (let i = 1; i < row.length; i += 1) {
      const [low, high] = [row[i - 1]!, row[i]!];
      assert(limits[low] <= limits[high], `limits.${low} is at most limits.${high}`);
    }
  }
  assert(limits.webSocketKeptBytesMax <= 256 * limits.webSocketBlockBytes, 'the bytes of a pause lie in few blocks');
}

/** A setting as the operator knows it: its environment name and its value. */
type Named = readonly [name: string, value: number];

/** Throws a `StartError` for the first two settings that contradict each other. */
export function checkSettings(config: Config): void {
  const { admin, clickhouse, analytics, mqtt } = config;
  checkRising(config);
  checkBodies(config);
  checkJournal(config);
  checkPorts(config);
  checkStream(config);
  if (admin.email.toLowerCase() === admin.systemEmail.toLowerCase()) {
    throw new StartError(
      `ADMIN_EMAIL and SYSTEM_ADMIN_EMAIL are both ${admin.email}: one administers a tenant, one the system, and they need two addresses.`,
    );
  }
  if (clickhouse.cluster !== '' && clickhouse.url === '') {
    throw new StartError(
      `CLICKHOUSE_CLUSTER is "${clickhouse.cluster}" and CLICKHOUSE_URL is empty: the embedded engine is in no cluster, so name a server of that cluster.`,
    );
  }
  if (clickhouse.shards !== '' && clickhouse.url === '') {
    throw new StartError(
      'CLICKHOUSE_SHARDS is set and CLICKHOUSE_URL is empty: the embedded engine is of one host, so name the first server as well.',
    );
  }
  if (shardUrlsOf(clickhouse).length > limits.shardsMax) {
    throw new StartError(
      `CLICKHOUSE_SHARDS names more than ${limits.shardsMax - 1} servers: ${limits.shardsMax} are the most, with CLICKHOUSE_URL.`,
    );
  }
  if (clickhouse.url === '' && analytics.enabled && analytics.queriesMax >= clickhouse.embedded.sessions) {
    throw new StartError(
      `REPORT_QUERIES_MAX is ${analytics.queriesMax} and CLICKHOUSE_EMBEDDED_SESSIONS is ${clickhouse.embedded.sessions}: reports must leave a session to inserts, so the first must be less than the second.`,
    );
  }
  if (mqtt.proxyProtocol && `${config.trustedProxies}${config.http.trustedProxies}` === '') {
    throw new StartError(
      'MQTT_PROXY_PROTOCOL_ENABLED is true and TRUSTED_PROXIES is empty: name the addresses of the proxies that send the PROXY header.',
    );
  }
  if (mqtt.ssl.enabled && !mqtt.enabled) {
    throw new StartError(
      'MQTT_SSL_ENABLED is true and MQTT_ENABLED is false: without MQTT there is no MQTT over TLS, so change one of them.',
    );
  }
}

function checkStream({ ingest, stream }: Config): void {
  if (ingest.ack === 'stream' && stream.url === '') {
    throw new StartError(
      'INGEST_ACK is stream and STREAM_URL is empty: name the servers of the stream, as in nats://a:4222,nats://b:4222,nats://c:4222.',
    );
  }
  if (stream.url.includes('@')) {
    throw new StartError('STREAM_URL has a login in it: put it into STREAM_USER and STREAM_PASSWORD, or STREAM_CREDS.');
  }
  for (const server of listOfSetting(stream.url)) {
    if (!serverForm.test(server)) {
      throw new StartError(
        `STREAM_URL has the entry "${server.slice(0, 100)}", which is not the address of a server: write nats://host:4222, or tls://host:4222 with TLS.`,
      );
    }
  }
  for (const page of listOfSetting(stream.monitorUrls)) {
    if (!URL.canParse(page) || !/^https?:$/.test(new URL(page).protocol)) {
      throw new StartError(
        `STREAM_MONITOR_URLS has the entry "${page.slice(0, 100)}", which is not the address of a page: write http://host:8222.`,
      );
    }
  }
  if (stream.creds !== '' && stream.user !== '') {
    throw new StartError(
      'STREAM_CREDS and STREAM_USER are both set: the servers take one of them, so leave one empty.',
    );
  }
  if (stream.json.enabled && ingest.ack !== 'stream') {
    throw new StartError(
      `STREAM_JSON is true and INGEST_ACK is ${ingest.ack}: only frames of a stream are given as JSON, so change one of them.`,
    );
  }
  const { tenants, profiles, keys } = stream.json;
  for (const [name, text, form, what] of [
    ['STREAM_JSON_TENANTS', tenants, uuidForm, 'the id of a tenant'],
    ['STREAM_JSON_PROFILES', profiles, uuidForm, 'the id of a device profile'],
    ['STREAM_JSON_KEYS', keys, keyForm, 'a key of telemetry'],
  ] as const) {
    const list = listOfSetting(text);
    if (list.length > jsonListMax) {
      throw new StartError(
        `${name} has ${list.length} entries: name at most ${jsonListMax}, or leave it empty for all.`,
      );
    }
    const wrong = list.find((each) => !form.test(each));
    if (wrong !== undefined)
      throw new StartError(`${name} has the entry "${wrong.slice(0, 100)}", which is not ${what}.`);
  }
}

const serverForm = /^(?:(?:nats|tls):\/\/)?(?:[\w.-]+|\[[\da-f:]+\])(?::\d{1,5})?$/i;
/** Entries of each list of `STREAM_JSON`. */
const jsonListMax = 100;
const uuidForm = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const keyForm = /^.{1,256}$/;

function checkRising({ http, mqtt, gateway, auth, ingest, rpc }: Config): void {
  const { lingerMsMax, unsyncedMsMax } = ingest.journal;
  const { intervalMsMin, intervalMsMax } = ingest.ship;
  atMost(['HTTP_REQUEST_TIMEOUT', http.requestTimeoutMs], ['HTTP_MAX_REQUEST_TIMEOUT', http.requestTimeoutMsMax]);
  atMost(
    ['GATEWAY_PAYLOAD_SIZE', gateway.packetBytesMax],
    ['GATEWAY_BYTES_IN_FLIGHT_MAX', gateway.packetBytesInFlightMax],
  );
  atMost(
    ['NETTY_MAX_PAYLOAD_SIZE', mqtt.packetBytesMax],
    ['GATEWAY_BYTES_IN_FLIGHT_MAX', gateway.packetBytesInFlightMax],
  );
  atMost(['SHIP_INTERVAL_MS_MIN', intervalMsMin], ['SHIP_INTERVAL_MS_MAX', intervalMsMax]);
  atMost(['JOURNAL_LINGER_MS_MAX', lingerMsMax], ['JOURNAL_UNSYNCED_MS_MAX', unsyncedMsMax]);
  atMost(['MIN_SERVER_SIDE_RPC_TIMEOUT', rpc.timeoutMsMin], ['DEFAULT_SERVER_SIDE_RPC_TIMEOUT', rpc.timeoutMsDefault]);
  atMost(
    ['JWT_TOKEN_EXPIRATION_TIME', auth.accessTokenSeconds],
    ['JWT_REFRESH_TOKEN_EXPIRATION_TIME', auth.refreshTokenSeconds],
  );
  // 0 = as many as the file limit allows, which only a worker knows.
  if (http.connectionsMax > 0) {
    atMost(
      ['HTTP_CONNECTIONS_PER_ADDRESS_MAX', http.connectionsPerAddressMax],
      ['HTTP_CONNECTIONS_MAX', http.connectionsMax],
    );
  }
  if (mqtt.connectionsMax > 0) {
    atMost(
      ['MQTT_CONNECTIONS_PER_ADDRESS_MAX', mqtt.connectionsPerAddressMax],
      ['MQTT_CONNECTIONS_MAX', mqtt.connectionsMax],
    );
  }
}

function atMost([lowName, low]: Named, [highName, high]: Named): void {
  if (low <= high) return;
  throw new StartError(`${lowName} is ${low} and ${highName} is ${high}: the first must not exceed the second.`);
}

/** Checks that a sender has room for one body of the largest size that any route takes (`uws/body.ts`). */
function checkBodies({ http }: Config): void {
  const packageBytesMax = http.apiBodyBytesMax + limits.otaFormBytesMax;
  const { bodyBytesInFlightMax, bodyBytesMax } = http;
  if (
    bodyBytesInFlightMax < Math.max(bodyBytesMax, packageBytesMax, limits.importBodyBytesMax, limits.bulkBodyBytesMax)
  ) {
    throw new StartError(
      'HTTP_BODY_BYTES_IN_FLIGHT_MAX must have room for one body of the largest size: HTTP_BODY_BYTES_MAX, ' +
        `HTTP_API_BODY_BYTES_MAX and ${limits.otaFormBytesMax} bytes, and ${limits.importBodyBytesMax} bytes.`,
    );
  }
}

function checkJournal({ ingest }: Config): void {
  const { segmentBytes, unsyncedBytesMax } = ingest.journal;
  assert(limits.frameBytesMax * 4 <= segmentBytes, 'a segment holds several frames');
  // One frame may be written while the next one gathers.
  const unsyncedBytesMin = 2 * limits.frameBytesMax;
  if (unsyncedBytesMax < unsyncedBytesMin) {
    throw new StartError(`JOURNAL_UNSYNCED_BYTES_MAX is ${unsyncedBytesMax}: it must be at least ${unsyncedBytesMin}.`);
  }
}

interface Door {
  address: string;
  port: number;
  /** Environment name of the port. */
  name: string;
}

/** Refuses two doors on one port, because the second door could not open. Port 0 is any free port. */
function checkPorts(config: Config): void {
  const doors = doorsOf(config).filter(({ port }) => port !== 0);
  for (const [at, door] of doors.entries()) {
    const other = doors.slice(0, at).find((earlier) => earlier.port === door.port && overlap(earlier, door));
    if (!other) continue;
    throw new StartError(`${other.name} and ${door.name} are both ${door.port}: each needs a port of its own.`);
  }
}

function doorsOf({ http, ssl, monitor, mqtt, analytics, clickhouse, postgres }: Config): Door[] {
  const loopback = '127.0.0.1';
  const doors = [
    { isOpen: true, address: http.address, port: http.port, name: 'HTTP_BIND_PORT' },
    { isOpen: ssl.enabled, address: http.address, port: ssl.port, name: 'HTTPS_BIND_PORT' },
    { isOpen: true, address: monitor.address, port: monitor.port, name: 'MONITOR_BIND_PORT' },
    { isOpen: mqtt.enabled, address: mqtt.address, port: mqtt.port, name: 'MQTT_BIND_PORT' },
    { isOpen: mqtt.ssl.enabled, address: mqtt.ssl.address, port: mqtt.ssl.port, name: 'MQTT_SSL_BIND_PORT' },
    { isOpen: analytics.enabled, address: analytics.address, port: analytics.port, name: 'ANALYTICS_BIND_PORT' },
    {
      isOpen: clickhouse.url === '',
      address: loopback,
      port: clickhouse.embedded.port,
      name: 'CLICKHOUSE_EMBEDDED_PORT',
    },
    { isOpen: postgres.url === '', address: loopback, port: postgres.embedded.port, name: 'POSTGRES_EMBEDDED_PORT' },
  ];
  return doors.filter(({ isOpen }) => isOpen);
}

/** Names of hosts are compared as they are written. */
function overlap(one: Door, other: Door): boolean {
  const isEvery = ({ address }: Door) => address === '0.0.0.0' || address === '::';
  return isEvery(one) || isEvery(other) || one.address === other.address;
}
