/**
 * Settings. `config/default.yaml` names every key with its environment name and default; a file named by
 * MILLRACE_CONFIG may override it; the environment wins. Strings become checked values only here: the primary reads
 * them once and passes them to the processes that it starts. Key names end in their unit (`units.ts`).
 */
import { fileURLToPath } from 'node:url';
import { StartError } from '../errors.ts';
import * as Type from '../schema.ts';
import { listOfSetting } from './list-setting.ts';
import { type UnknownName, unknownNames } from './setting-names.ts';
import { namesOfSettings, type Reading, readSettings, readYaml } from './settings.ts';

const port = Type.Integer({ minimum: 0, maximum: 65535 });
const count = Type.Integer({ minimum: 0, maximum: 1_000_000_000 });
const bytes = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const positiveBytes = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER });
const milliseconds = Type.Integer({ minimum: 0, maximum: 2_147_483_647 });
/** `form` completes "it must be". */
const text = (pattern: string, form: string) => Type.String({ pattern, description: form });
const emailAddress = text('^[^@\\s]+@[^@\\s]+$', 'an e-mail address, as admin@example.com');

const rateLimits = Type.Object({
  messages: Type.String(),
  telemetryMessages: Type.String(),
  telemetryDataPoints: Type.String(),
});

const schema = Type.Object({
  strict: Type.Boolean(),
  data: Type.Object({
    dir: Type.String({ minLength: 1 }),
    lockWaitSeconds: Type.Integer({ minimum: 0, maximum: 3600 }),
  }),
  workers: Type.Integer({ minimum: 0, maximum: 256 }),
  host: Type.Object({ name: Type.String(), address: Type.String(), zone: Type.String() }),
  trustedProxies: Type.String(),
  log: Type.Object({ level: Type.Enum(['trace', 'debug', 'info', 'warn', 'error']) }),
  http: Type.Object({
    address: Type.String({ minLength: 1 }),
    port,
    bodyBytesMax: positiveBytes,
    apiBodyBytesMax: positiveBytes,
    bodyBytesInFlightMax: positiveBytes,
    connectionsMax: count,
    connectionsPerAddressMax: count,
    tellWorker: Type.Boolean(),
    requestTimeoutMs: Type.Integer({ minimum: 1, maximum: 86_400_000 }),
    requestTimeoutMsMax: Type.Integer({ minimum: 1, maximum: 86_400_000 }),
    heldPollsMax: count,
    trustedProxies: Type.String(),
  }),
  ssl: Type.Object({
    enabled: Type.Boolean(),
    port,
    cert: Type.String(),
    key: Type.String(),
    hstsSeconds: Type.Integer({ minimum: 0, maximum: 1_000_000_000 }),
  }),
  monitor: Type.Object({ address: Type.String({ minLength: 1 }), port, oldNames: Type.Boolean() }),
  mqtt: Type.Object({
    enabled: Type.Boolean(),
    address: Type.String({ minLength: 1 }),
    port,
    ssl: Type.Object({
      enabled: Type.Boolean(),
      address: Type.String({ minLength: 1 }),
      port,
      cert: Type.String(),
      key: Type.String(),
    }),
    proxyProtocol: Type.Boolean(),
    webSocket: Type.Boolean(),
    packetBytesMax: Type.Integer({ minimum: 1024, maximum: 16 * 1024 * 1024 }),
    inflightMax: Type.Integer({ minimum: 1, maximum: 65_535 }),
    connectionsMax: count,
    connectionsPerAddressMax: count,
    idleSeconds: Type.Integer({ minimum: 0, maximum: 86_400 }),
    closeOnInvalid: Type.Boolean(),
    serverReference: Type.String({ maxLength: 1000 }),
  }),
  wrongCredentials: Type.Object({ perMinuteMax: count }),
  gateway: Type.Object({
    childrenMax: count,
    packetBytesMax: Type.Integer({ minimum: 1024, maximum: 64 * 1024 * 1024 }),
    packetBytesInFlightMax: positiveBytes,
    disconnectNotices: Type.Boolean(),
    customerScope: Type.Enum(['customer', 'tenant']),
  }),
  limits: Type.Object({ devices: count, keysPerDevice: count }),
  stores: Type.Object({ migrate: Type.Boolean() }),
  clickhouse: Type.Object({
    url: Type.String(),
    user: Type.String(),
    password: Type.String(),
    database: text('^[A-Za-z_][A-Za-z0-9_]*$', 'a name of letters, digits and _ that begins with no digit'),
    shards: Type.String(),
    cluster: text('^[A-Za-z0-9_.-]*$', 'empty or a name of letters, digits, _, . and -'),
    insertQuorum: text('^(auto|[0-9]{1,4})$', 'auto or a number of replicas'),
    joinInserts: Type.Boolean(),
    embedded: Type.Object({
      port,
      memoryBytesMax: bytes,
      sessions: Type.Integer({ minimum: 2, maximum: 64 }),
      nice: Type.Integer({ minimum: 0, maximum: 19 }),
    }),
  }),
  postgres: Type.Object({
    url: Type.String(),
    poolMax: Type.Integer({ minimum: 2, maximum: 1000 }),
    behindPooler: Type.Boolean(),
    embedded: Type.Object({ port }),
  }),
  redis: Type.Object({
    url: Type.String(),
    tlsCa: Type.String(),
    sentinelUser: Type.String(),
    sentinelPassword: Type.String(),
  }),
  stream: Type.Object({
    url: Type.String(),
    user: Type.String(),
    password: Type.String(),
    creds: Type.String(),
    tlsCa: Type.String(),
    monitorUrls: Type.String(),
    name: text('^[A-Za-z0-9_-]{1,60}$', '1 to 60 letters, digits, _ and -'),
    replicas: Type.Integer({ minimum: 3, maximum: 5 }),
    subjects: Type.Integer({ minimum: 1, maximum: 64 }),
    bytesMax: Type.Integer({ minimum: 64 * 1024 * 1024, maximum: Number.MAX_SAFE_INTEGER }),
    ackMsMax: Type.Integer({ minimum: 500, maximum: 60_000 }),
    redeliverSeconds: Type.Integer({ minimum: 3, maximum: 600 }),
    fallback: Type.Enum(['refuse', 'journal']),
    json: Type.Object({
      enabled: Type.Boolean(),
      tenants: Type.String(),
      profiles: Type.String(),
      keys: Type.String(),
      bytesMax: Type.Integer({ minimum: 16 * 1024 * 1024, maximum: Number.MAX_SAFE_INTEGER }),
      keptSeconds: Type.Integer({ minimum: 60, maximum: 31_536_000 }),
    }),
  }),
  admin: Type.Object({ email: emailAddress, systemEmail: emailAddress, password: Type.String() }),
  demoData: Type.Boolean(),
  auth: Type.Object({
    accessTokenSeconds: Type.Integer({ minimum: 1, maximum: 1_000_000_000 }),
    refreshTokenSeconds: Type.Integer({ minimum: 1, maximum: 1_000_000_000 }),
    issuer: Type.String({ minLength: 1 }),
    signingKey: Type.String(),
    failedLoginsMax: count,
    signInQueueMax: count,
    passwordCost: Type.Integer({ minimum: 10, maximum: 20 }),
    apiKeyPrefix: text('^[A-Za-z0-9_-]{0,32}$', 'at most 32 letters, digits, _ and -'),
    requireHttpsForApiKeys: Type.Boolean(),
  }),
  rateLimits: Type.Object({
    device: rateLimits,
    gatewayDevice: rateLimits,
    gateway: rateLimits,
    tenant: rateLimits,
    rest: Type.Object({ tenant: Type.String(), customer: Type.String(), commands: Type.String() }),
  }),
  docs: Type.Object({
    enabled: Type.Boolean(),
    groupName: text('^[A-Za-z0-9_-]{1,64}$', '1 to 64 letters, digits, _ and -'),
    title: Type.String({ minLength: 1 }),
  }),
  activity: Type.Object({
    inactivitySeconds: Type.Integer({ minimum: 1, maximum: 2_000_000 }),
    checkSeconds: Type.Integer({ minimum: 1, maximum: 86_400 }),
  }),
  values: Type.Object({ castNumericStrings: Type.Boolean(), lenientJson: Type.Boolean() }),
  attributes: Type.Object({ lossFreeUpdates: Type.Boolean() }),
  telemetry: Type.Object({
    pastDaysMax: count,
    futureDaysMax: count,
    tsUnit: Type.Enum(['ms', 'auto']),
    latestFutureSecondsMax: count,
    ttlDays: count,
    ttlOfLatest: Type.Boolean(),
    tombstonesKeptDays: Type.Integer({ minimum: 1, maximum: 36_500 }),
    pointsPerMessageMax: Type.Integer({ minimum: 1, maximum: 10_000_000 }),
  }),
  ingest: Type.Object({
    ack: Type.Enum(['journal', 'store', 'stream', 'memory']),
    storeAckMsMax: Type.Integer({ minimum: 100, maximum: 3_600_000 }),
    journal: Type.Object({
      backlogBytesMax: positiveBytes,
      segmentBytes: Type.Integer({ minimum: 4 * 1024 * 1024, maximum: 1024 * 1024 * 1024 }),
      freeDiskBytesMin: bytes,
      lingerMsMax: Type.Integer({ minimum: 0, maximum: 100 }),
      unsyncedBytesMax: positiveBytes,
      unsyncedMsMax: milliseconds,
    }),
    ship: Type.Object({
      intervalMsMin: milliseconds,
      intervalMsMax: milliseconds,
      rowsMax: Type.Integer({ minimum: 1000, maximum: 1_000_000 }),
      lateSecondsMax: Type.Integer({ minimum: 0, maximum: 3600 }),
      timeoutMs: Type.Integer({ minimum: 100, maximum: 3_600_000 }),
    }),
    quarantine: Type.Object({ bytesMax: positiveBytes, keptDays: count }),
  }),
  rpc: Type.Object({
    timeoutMsMin: milliseconds,
    timeoutMsDefault: milliseconds,
    retriesMax: Type.Integer({ minimum: 0, maximum: 1000 }),
    keptDays: count,
    emptyPollTimeout: Type.Boolean(),
    clientTimeoutMs: milliseconds,
  }),
  rules: Type.Object({ file: Type.String() }),
  claiming: Type.Object({
    durationMs: Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER }),
    allowByDefault: Type.Boolean(),
  }),
  provisioning: Type.Object({ wrongKeysPerMinuteMax: Type.Integer({ minimum: 1, maximum: 1_000_000_000 }) }),
  analytics: Type.Object({
    enabled: Type.Boolean(),
    address: Type.String({ minLength: 1 }),
    port,
    threads: Type.Integer({ minimum: 1, maximum: 256 }),
    queue: Type.Integer({ minimum: 0, maximum: 100_000 }),
    queriesMax: Type.Integer({ minimum: 1, maximum: 256 }),
    rowsMax: Type.Integer({ minimum: 1, maximum: 10_000_000 }),
    memoryBytesMax: positiveBytes,
    answerBytesMax: Type.Integer({ minimum: 1024, maximum: 1024 * 1024 * 1024 }),
    timeoutMs: Type.Integer({ minimum: 100, maximum: 3_600_000 }),
    nice: Type.Integer({ minimum: 0, maximum: 19 }),
  }),
  backup: Type.Object({ bytesPerSecondMax: Type.Integer({ minimum: 1024, maximum: Number.MAX_SAFE_INTEGER }) }),
  shutdown: Type.Object({
    delayMs: milliseconds,
    evictPerSecond: count,
    evictMsMax: milliseconds,
    drainMsMax: milliseconds,
    storesMsMax: milliseconds,
  }),
});

export type Config = Type.Static<typeof schema>;

const defaultFile = fileURLToPath(new URL('../../../config/default.yaml', import.meta.url));
/** Names of the file with further settings, which cannot be a setting itself. */
const fileName = 'MILLRACE_CONFIG';
/** Names that Millrace sets for its own processes. */
const ownNames = [fileName, 'MILLRACE_INSTANCE', 'MILLRACE_EMBEDDED_CLICKHOUSE'];

export interface ConfigReading extends Reading {
  /** Names of the environment that look like settings and are none. */
  unknown: UnknownName[];
}

/** Throws StartError with one clear line. */
export function loadConfig(environment: NodeJS.ProcessEnv = process.env): Config {
  return checkedConfig(readConfig(environment));
}

/** Throws StartError with the first fault, and the number of further ones. */
export function checkedConfig({ values, faults }: ConfigReading): Config {
  const [first, ...others] = faults;
  if (first === undefined) return values as Config;
  if (others.length === 0) throw new StartError(first);
  const count = `${others.length} more ${others.length === 1 ? 'setting is' : 'settings are'}`;
  throw new StartError(`${first} ${count} wrong: npm run config lists all of them.`);
}

/** Reads all settings, also when some are faulty; throws StartError when a file cannot be read. */
export function readConfig(environment: NodeJS.ProcessEnv = process.env): ConfigReading {
  const defaults = readYaml(defaultFile);
  const filePath = environment[fileName] ?? '';
  const file = filePath === '' ? {} : readYaml(filePath);
  const reading = readSettings(schema, { defaults, file, filePath, environment });
  if (reading.faults.length === 0) reading.faults.push(...faultsOfUrls(reading.values as Config));
  const known = new Set([...namesOfSettings(defaults, file), ...ownNames]);
  return { ...reading, unknown: unknownNames(environment, known) };
}

/** Returns the addresses of all shards by their numbers; '' = the embedded engine. */
export function shardUrlsOf({ url, shards }: Config['clickhouse']): string[] {
  return [url, ...listOfSetting(shards)];
}

/** The values are not shown, because they may hold a password. */
function faultsOfUrls({ clickhouse, postgres }: Config): string[] {
  const faults: string[] = [];
  if (clickhouse.url && !(/^https?:\/\//i.test(clickhouse.url) && URL.canParse(clickhouse.url))) {
    faults.push('Setting clickhouse.url (CLICKHOUSE_URL) must be empty or a URL like http://host:8123.');
  }
  if (
    shardUrlsOf(clickhouse)
      .slice(1)
      .some((url) => !(/^https?:\/\//i.test(url) && URL.canParse(url)))
  ) {
    faults.push(
      'Setting clickhouse.shards (CLICKHOUSE_SHARDS) must be empty or URLs like http://b:8123,http://c:8123.',
    );
  }
  if (postgres.url && !/^(postgres(ql)?:\/\/|socket:|\/)/i.test(postgres.url)) {
    faults.push(
      'Setting postgres.url (DATABASE_URL) must be empty or a URL like postgres://user:password@host:5432/database.',
    );
  }
  return faults;
}

/** Returns every environment name that config/default.yaml knows; for docker-compose.yml. */
export function environmentNames(): Set<string> {
  return namesOfSettings(readYaml(defaultFile)).add(fileName);
}
