/**
 * Lists the settings that all hosts must have equal, because the hosts share what these settings describe. A host with
 * another value would not reach the others, count for itself, or write elsewhere.
 */
import { createHash } from 'node:crypto';
import type { Config } from '../../base/settings/config.ts';

/** Environment name → value as text. */
export type EqualSettings = Record<string, string>;

export function equalSettingsOf(config: Config): EqualSettings {
  const { redis, limits, gateway, clickhouse, values, telemetry, ingest, stream, rateLimits, activity, auth, rpc } =
    config;
  const ofStream = (value: number) => (stream.url === '' ? 'unused' : value);
  const ofJson = (value: number) => (stream.json.enabled ? value : 'unused');
  const settings: Record<string, string | number | boolean> = {
    // The URLs may differ by host; a host without one receives no message of another host.
    REDIS_URL: redis.url === '' ? 'empty' : 'set',
    // All hosts write to this database and read from it.
    CLICKHOUSE_DATABASE: clickhouse.database,
    CLICKHOUSE_CLUSTER: clickhouse.cluster,
    // The promise of an acknowledgement, whichever host a device reaches.
    INGEST_ACK: ingest.ack,
    // A host without the stream would not ship its frames, and a host with another name would use another stream.
    STREAM_NAME: stream.url === '' ? 'none' : stream.name,
    // A host keeps the frames that it holds by renewing them in time, and the servers have one time for all hosts.
    STREAM_REDELIVER_SECONDS: ofStream(stream.redeliverSeconds),
    // Readers choose devices by subjects, whichever host published them.
    STREAM_SUBJECTS: ofStream(stream.subjects),
    // Any host may give a frame as JSON, and each start gives the stream of JSON its limits.
    STREAM_JSON: stream.json.enabled,
    STREAM_JSON_TENANTS: stream.json.tenants,
    STREAM_JSON_PROFILES: stream.json.profiles,
    STREAM_JSON_KEYS: stream.json.keys,
    STREAM_JSON_BYTES_MAX: ofJson(stream.json.bytesMax),
    STREAM_JSON_KEPT_SECONDS: ofJson(stream.json.keptSeconds),
    // A message has the same stored value on every host.
    JSON_TYPE_CAST_ENABLED: values.castNumericStrings,
    TELEMETRY_TS_UNIT: telemetry.tsUnit,
    LATEST_FUTURE_SECONDS_MAX: telemetry.latestFutureSecondsMax,
    // One schema has one value: the last host to start would decide.
    TELEMETRY_TTL_DAYS: telemetry.ttlDays,
    TELEMETRY_TTL_OF_LATEST: telemetry.ttlOfLatest,
    TELEMETRY_TOMBSTONES_KEPT_DAYS: telemetry.tombstonesKeptDays,
    // Any host may remove closed commands.
    RPC_KEPT_DAYS: rpc.keptDays,
    // A user who signed in at one host calls any host, and so does the owner of a receipt.
    JWT_TOKEN_SIGNING_KEY: digestOf(auth.signingKey),
    JWT_TOKEN_ISSUER: auth.issuer,
    // Any host may find a device silent.
    DEFAULT_INACTIVITY_TIMEOUT: activity.inactivitySeconds,
    // Rights and counts that hold for all hosts together.
    GATEWAY_CUSTOMER_SCOPE: gateway.customerScope,
    LIMITS_DEVICES: limits.devices,
    LIMITS_KEYS_PER_DEVICE: limits.keysPerDevice,
    RATE_LIMITS_REST_TENANT: rateLimits.rest.tenant,
    RATE_LIMITS_REST_CUSTOMER: rateLimits.rest.customer,
    RATE_LIMITS_REST_COMMANDS: rateLimits.rest.commands,
  };
  for (const [scope, prefix] of Object.entries(rateLimitScopes)) {
    const { messages, telemetryMessages, telemetryDataPoints } = rateLimits[scope as keyof typeof rateLimitScopes];
    settings[`RATE_LIMITS_${prefix}_MESSAGES`] = messages;
    settings[`RATE_LIMITS_${prefix}_TELEMETRY_MESSAGES`] = telemetryMessages;
    settings[`RATE_LIMITS_${prefix}_TELEMETRY_DATA_POINTS`] = telemetryDataPoints;
  }
  return Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, String(value)]));
}

/** The hosts compare a key without storing the key; its two ways of writing are the same key. */
function digestOf(secret: string): string {
  return secret === ''
    ? ''
    : `set (SHA-256 ${createHash('sha256').update(Buffer.from(secret, 'base64')).digest('hex').slice(0, 16)}…)`;
}

const rateLimitScopes = {
  device: 'DEVICE',
  gatewayDevice: 'GATEWAY_DEVICE',
  gateway: 'GATEWAY',
  tenant: 'TENANT',
} as const;

/**
 * Returns one line about the settings that `other` has with another value: both values of the first one, and the names
 * of the rest; undefined when all are equal. A setting that only one of two versions knows is not compared.
 */
export function mismatchOf(
  own: EqualSettings,
  other: { name: string; address: string; settings: EqualSettings },
): string | undefined {
  const [name, ...more] = Object.keys(own).filter((each) => (other.settings[each] ?? own[each]) !== own[each]);
  if (name === undefined) return undefined;
  const line =
    `${name} is ${shown(own[name]!)} here and ${shown(other.settings[name]!)} on the host ${other.name} ` +
    `(${other.address}), which runs: give all hosts the same value, or stop that host first.`;
  return more.length === 0 ? line : `${line} These differ as well: ${more.join(', ')}.`;
}

function shown(value: string): string {
  return value === '' ? 'empty' : value;
}
