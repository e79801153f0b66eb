/**
 * Settings. `config/default.yaml` names every key with its environment name and default; a file named by
 * MILLRACE_CONFIG may override it; the environment wins. Strings become checked values only here: the primary reads
 * them once and passes them to the processes that it starts.
 */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import { messageOf, StartError } from './errors.ts';
import * as Type from './schema.ts';

const port = Type.Integer({ minimum: 0, maximum: 65535 });
const count = Type.Integer({ minimum: 0, maximum: 1_000_000_000 });
const bytes = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const positiveBytes = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER });
const milliseconds = Type.Integer({ minimum: 0, maximum: 2_147_483_647 });
const emailAddress = Type.String({ pattern: '^[^@\\s]+@[^@\\s]+$' });

const rateLimits = Type.Object({
  messages: Type.String(),
  telemetryMessages: Type.String(),
  telemetryDataPoints: Type.String(),
});

const schema = Type.Object({
  data: Type.Object({
    dir: Type.String({ minLength: 1 }),
    lockWaitSeconds: Type.Integer({ minimum: 0, maximum: 3600 }),
  }),
  workers: Type.Integer({ minimum: 0, maximum: 256 }),
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
  monitor: Type.Object({ address: Type.String({ minLength: 1 }), port }),
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
    webSocket: Type.Boolean(),
    packetBytesMax: Type.Integer({ minimum: 1024, maximum: 16 * 1024 * 1024 }),
    inflightMax: Type.Integer({ minimum: 1, maximum: 65_535 }),
    connectionsMax: count,
    connectionsPerAddressMax: count,
    idleSeconds: Type.Integer({ minimum: 0, maximum: 86_400 }),
    closeOnInvalid: Type.Boolean(),
  }),
  wrongCredentials: Type.Object({ perMinuteMax: count }),
  gateway: Type.Object({
    childrenMax: count,
    packetBytesMax: Type.Integer({ minimum: 1024, maximum: 64 * 1024 * 1024 }),
    packetBytesInFlightMax: positiveBytes,
    disconnectNotices: Type.Boolean(),
    customerScope: Type.Enum(['customer', 'tenant']),
  }),
  limits: Type.Object({ devices: count }),
  stores: Type.Object({ migrate: Type.Boolean() }),
  clickhouse: Type.Object({
    url: Type.String(),
    user: Type.String(),
    password: Type.String(),
    database: Type.String({ pattern: '^[A-Za-z_][A-Za-z0-9_]*$' }),
    cluster: Type.String({ pattern: '^[A-Za-z0-9_.-]*$' }),
    insertQuorum: Type.String({ pattern: '^(auto|[0-9]{1,4})$' }),
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
    embedded: Type.Object({ port }),
  }),
  redis: Type.Object({ url: Type.String() }),
  bus: Type.Object({ shards: Type.Integer({ minimum: 1, maximum: 16_384 }) }),
  admin: Type.Object({ email: emailAddress, systemEmail: emailAddress, password: Type.String() }),
  demoData: Type.Boolean(),
  auth: Type.Object({
    accessTokenSeconds: Type.Integer({ minimum: 1, maximum: 1_000_000_000 }),
    refreshTokenSeconds: Type.Integer({ minimum: 1, maximum: 1_000_000_000 }),
    issuer: Type.String({ minLength: 1 }),
    signingKey: Type.String(),
    failedLoginsMax: count,
    signInQueueMax: count,
    apiKeyPrefix: Type.String({ pattern: '^[A-Za-z0-9_-]{0,32}$' }),
    requireHttpsForApiKeys: Type.Boolean(),
  }),
  rateLimits: Type.Object({
    device: rateLimits,
    gatewayDevice: rateLimits,
    gateway: rateLimits,
    tenant: rateLimits,
    rest: Type.Object({ tenant: Type.String(), customer: Type.String() }),
  }),
  docs: Type.Object({
    enabled: Type.Boolean(),
    groupName: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
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
    ttlDays: count,
    ttlOfLatest: Type.Boolean(),
    tombstonesKeptDays: Type.Integer({ minimum: 1, maximum: 36_500 }),
    pointsPerMessageMax: Type.Integer({ minimum: 1, maximum: 10_000_000 }),
  }),
  ingest: Type.Object({
    ack: Type.Enum(['journal', 'store', 'memory']),
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
  shutdown: Type.Object({ drainMsMax: milliseconds, storesMsMax: milliseconds }),
});

export type Config = Type.Static<typeof schema>;

const defaultFile = fileURLToPath(new URL('../../config/default.yaml', import.meta.url));
const placeholder = /^\$\{([A-Z][A-Z0-9_]*):(.*)\}$/s;

type Tree = { [key: string]: unknown };

/** Throws StartError with one clear line. */
export function loadConfig(environment: NodeJS.ProcessEnv = process.env): Config {
  const tree = readYaml(defaultFile);
  const overrides = environment['MILLRACE_CONFIG'];
  const file = overrides ? readYaml(overrides) : {};
  const config = resolve(schema, tree, file, environment, '') as Config;
  checkUrls(config);
  return config;
}

/** The values are not shown, because they may hold a password. */
function checkUrls({ clickhouse, postgres }: Config): void {
  if (clickhouse.url && !(/^https?:\/\//i.test(clickhouse.url) && URL.canParse(clickhouse.url))) {
    throw new StartError('Setting clickhouse.url (CLICKHOUSE_URL) must be empty or a URL like http://host:8123.');
  }
  if (postgres.url && !/^(postgres(ql)?:\/\/|socket:|\/)/i.test(postgres.url)) {
    throw new StartError(
      'Setting postgres.url (DATABASE_URL) must be empty or a URL like postgres://user:password@host:5432/database.',
    );
  }
}

/** Every environment name that config/default.yaml knows; for `config` checks and docker-compose.yml. */
export function environmentNames(): Set<string> {
  const names = new Set<string>(['MILLRACE_CONFIG']);
  const walk = (node: unknown): void => {
    if (typeof node === 'object' && node !== null) {
      for (const child of Object.values(node)) walk(child);
      return;
    }
    const match = placeholder.exec(String(node));
    if (match) names.add(match[1]!).add(`${match[1]}_FILE`);
  };
  walk(readYaml(defaultFile));
  return names;
}

export function readYaml(path: string, what = 'settings file'): Tree {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw new StartError(`The ${what} ${path} cannot be read: ${messageOf(error)}.`);
  }
  try {
    return (parse(text) as Tree) ?? {};
  } catch (error) {
    throw new StartError(`The ${what} ${path} is not valid YAML: ${messageOf(error).split('\n')[0]}`);
  }
}

function resolve(
  node: Type.Schema,
  tree: unknown,
  file: unknown,
  environment: NodeJS.ProcessEnv,
  path: string,
): unknown {
  if (node.properties) {
    checkKeys(node.properties, file, path);
    const result: Tree = {};
    for (const [key, child] of Object.entries(node.properties)) {
      const childPath = path ? `${path}.${key}` : key;
      result[key] = resolve(child, (tree as Tree)[key], (file as Tree | undefined)?.[key], environment, childPath);
    }
    return result;
  }
  const match = placeholder.exec(String(tree));
  const environmentName = match?.[1] ?? '';
  const fallback = match ? match[2]! : String(tree);
  const raw = fromEnvironment(environmentName, environment) ?? fromFile(file, environment) ?? fallback;
  return checked(node, raw, path, environmentName);
}

function fromEnvironment(name: string, environment: NodeJS.ProcessEnv): string | undefined {
  const secretFile = environment[`${name}_FILE`];
  if (!secretFile) return environment[name];
  try {
    return readFileSync(secretFile, 'utf8').trimEnd();
  } catch (error) {
    throw new StartError(`${name}_FILE names ${secretFile}, which cannot be read: ${messageOf(error)}.`);
  }
}

/** A settings file may also contain placeholders. */
function fromFile(value: unknown, environment: NodeJS.ProcessEnv): string | undefined {
  if (value === undefined || value === null) return undefined;
  const match = placeholder.exec(String(value));
  return match ? (fromEnvironment(match[1]!, environment) ?? match[2]!) : String(value);
}

function checkKeys(known: Type.Properties, file: unknown, path: string): void {
  if (file === undefined || file === null) return;
  if (typeof file !== 'object' || Array.isArray(file)) {
    throw new StartError(`Setting ${path} must hold the keys ${Object.keys(known).join(', ')}.`);
  }
  for (const key of Object.keys(file)) {
    if (known[key]) continue;
    const full = path ? `${path}.${key}` : key;
    throw new StartError(`Unknown setting ${full}. Did you mean ${nearest(key, Object.keys(known))}?`);
  }
}

function checked(node: Type.Schema, raw: string, path: string, environmentName: string): unknown {
  const refuse = (must: string): never => {
    const name = environmentName ? `${path} (${environmentName})` : path;
    throw new StartError(`Setting ${name} is "${raw}": it must be ${must}.`);
  };
  if (node.enum) return node.enum.includes(raw) ? raw : refuse(`one of ${node.enum.join(', ')}`);
  switch (node.type) {
    case 'boolean':
      return raw === 'true' ? true : raw === 'false' ? false : refuse('true or false');
    case 'integer': {
      const value = Number(raw);
      const { minimum = 0, maximum = Number.MAX_SAFE_INTEGER } = node;
      if (raw.trim() === '' || !Number.isInteger(value) || value < minimum || value > maximum) {
        return refuse(`a whole number from ${minimum} to ${maximum}`);
      }
      return value;
    }
    default:
      if (node.minLength && raw.length < node.minLength) return refuse('set');
      if (node.pattern && !new RegExp(node.pattern).test(raw)) return refuse(`of the form ${node.pattern}`);
      return raw;
  }
}

/** The known name with the fewest edits to `name`. */
function nearest(name: string, known: string[]): string {
  let best = known[0]!;
  let bestDistance = Number.POSITIVE_INFINITY;
  for (const candidate of known) {
    const distance = editDistance(name.toLowerCase(), candidate.toLowerCase());
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best;
}

function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1) {
    const current = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const change = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      current.push(Math.min(change, previous[j]! + 1, current[j - 1]! + 1));
    }
    previous = current;
  }
  return previous[b.length]!;
}
