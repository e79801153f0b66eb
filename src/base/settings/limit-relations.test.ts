import { expect, test } from 'vitest';
import { StartError } from '../errors.ts';
import { environmentNames, loadConfig } from './config.ts';
import { checkLimits, checkSettings } from './limit-relations.ts';

/** Two settings that contradict each other, and other settings without which they would not. */
const contradictions: Record<string, string>[] = [
  { HTTP_REQUEST_TIMEOUT: '60000', HTTP_MAX_REQUEST_TIMEOUT: '59999' },
  { SHIP_INTERVAL_MS_MIN: '1001', SHIP_INTERVAL_MS_MAX: '1000' },
  { JOURNAL_LINGER_MS_MAX: '1', JOURNAL_UNSYNCED_MS_MAX: '0' },
  { MIN_SERVER_SIDE_RPC_TIMEOUT: '5000', DEFAULT_SERVER_SIDE_RPC_TIMEOUT: '4999' },
  { JWT_TOKEN_EXPIRATION_TIME: '11', JWT_REFRESH_TOKEN_EXPIRATION_TIME: '10' },
  { HTTP_CONNECTIONS_PER_ADDRESS_MAX: '101', HTTP_CONNECTIONS_MAX: '100' },
  { MQTT_CONNECTIONS_PER_ADDRESS_MAX: '101', MQTT_CONNECTIONS_MAX: '100' },
  { HTTP_BODY_BYTES_MAX: '200000000', HTTP_BODY_BYTES_IN_FLIGHT_MAX: '199999999' },
  { HTTP_API_BODY_BYTES_MAX: '200000000', HTTP_BODY_BYTES_IN_FLIGHT_MAX: '200000000' },
  { ADMIN_EMAIL: 'Jo@mill.example', SYSTEM_ADMIN_EMAIL: 'jo@mill.example' },
  { CLICKHOUSE_CLUSTER: 'mill', CLICKHOUSE_URL: '' },
  { INGEST_ACK: 'stream', STREAM_URL: '' },
  { STREAM_CREDS: '/run/creds', STREAM_USER: 'mill' },
  { STREAM_JSON: 'true', INGEST_ACK: 'journal' },
  { REPORT_QUERIES_MAX: '2', CLICKHOUSE_EMBEDDED_SESSIONS: '2' },
  { MQTT_SSL_ENABLED: 'true', MQTT_ENABLED: 'false' },
  { HTTP_BIND_PORT: '9000', MONITOR_BIND_PORT: '9000' },
  { HTTP_BIND_PORT: '9000', MQTT_BIND_PORT: '9000' },
  { MONITOR_BIND_PORT: '9000', POSTGRES_EMBEDDED_PORT: '9000' },
  { ANALYTICS_BIND_PORT: '9000', CLICKHOUSE_EMBEDDED_PORT: '9000' },
];

test('two settings that contradict each other are refused in one line that names both', () => {
  const known = environmentNames();
  for (const environment of contradictions) {
    const names = Object.keys(environment);
    for (const name of names) expect(known, `${name} is a setting`).toContain(name);
    const line = refusalOf(environment);
    for (const name of names) expect(line, names.join()).toContain(name);
    expect(line).not.toContain('\n');
  }
});

test('the doors that only some settings open count when they are open', () => {
  const both = { HTTPS_BIND_PORT: '9000', MQTT_SSL_BIND_PORT: '9000' };
  expect(refusalOf(both)).toBe('');
  expect(refusalOf({ ...both, SSL_ENABLED: 'true' })).toBe('');
  expect(refusalOf({ ...both, SSL_ENABLED: 'true', MQTT_SSL_ENABLED: 'true' })).toMatch(
    /HTTPS_BIND_PORT and MQTT_SSL_BIND_PORT are both 9000/,
  );
  const apart = { HTTP_BIND_PORT: '9000', HTTP_BIND_ADDRESS: '10.0.0.1', MQTT_BIND_PORT: '9000' };
  expect(refusalOf({ ...apart, MQTT_BIND_ADDRESS: '10.0.0.2' })).toBe('');
  expect(refusalOf({ HTTP_BIND_PORT: '0', MQTT_BIND_PORT: '0' })).toBe('');
});

test('the addresses of the servers of a stream, and of their pages, have a form', () => {
  const stream = (STREAM_URL: string, STREAM_MONITOR_URLS = '') =>
    refusalOf({ INGEST_ACK: 'stream', STREAM_URL, STREAM_MONITOR_URLS });
  for (const url of ['nats://a:4222,nats://b:4222', 'tls://nats-0.example:4222', '10.0.0.1, [::1]:4222']) {
    expect(stream(url)).toBe('');
  }
  expect(stream('nats://a:4222,http://b:4222')).toMatch(/STREAM_URL .*"http:\/\/b:4222".*: write nats:\/\/host:4222/);
  expect(stream('nats://a:4222;nats://b:4222')).toMatch(/STREAM_URL has the entry/);
  expect(stream('nats://a', 'http://a:8222, https://b')).toBe('');
  // Without a scheme nothing would be checked.
  expect(stream('nats://a', 'localhost:8222')).toMatch(/STREAM_MONITOR_URLS .*"localhost:8222".*: write http:/);
});

test('the lists of STREAM_JSON have a form and a cap', () => {
  const json = { INGEST_ACK: 'stream', STREAM_URL: 'nats://a', STREAM_JSON: 'true' };
  const id = '13814000-1dd2-11b2-8080-808080808080';
  expect(refusalOf({ ...json, STREAM_JSON_TENANTS: `${id}, ${id}`, STREAM_JSON_KEYS: 'temperature,door open' })).toBe(
    '',
  );
  expect(refusalOf({ ...json, STREAM_JSON_TENANTS: 'mill' })).toMatch(/STREAM_JSON_TENANTS .*"mill".* id of a tenant/);
  expect(refusalOf({ ...json, STREAM_JSON_PROFILES: `${id},valve` })).toMatch(/STREAM_JSON_PROFILES .*"valve"/);
  const many = Array.from({ length: 101 }, (_, i) => `key${i}`).join();
  expect(refusalOf({ ...json, STREAM_JSON_KEYS: many })).toMatch(/STREAM_JSON_KEYS has 101 entries: name at most 100/);
});

test('a setting that a cap of the design contradicts is refused by its name', () => {
  expect(refusalOf({ JOURNAL_UNSYNCED_BYTES_MAX: '1000' })).toMatch(/JOURNAL_UNSYNCED_BYTES_MAX is 1000: .* 2097152/);
});

test('the defaults and the caps of the design contradict nothing', () => {
  checkLimits();
  expect(refusalOf({})).toBe('');
  expect(refusalOf({ MILLRACE_CONFIG: 'config/cluster.yaml', CLICKHOUSE_CLUSTER: 'mill' })).toBe('');
});

/** Returns the line of the refusal; '' when the settings are accepted. */
function refusalOf(environment: Record<string, string>): string {
  try {
    checkSettings(loadConfig(environment));
    return '';
  } catch (error) {
    expect(error).toBeInstanceOf(StartError);
    return (error as StartError).message;
  }
}
