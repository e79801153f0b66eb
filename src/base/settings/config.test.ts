import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { StartError } from '../errors.ts';
import { loadConfig, readConfig } from './config.ts';
import { describeUnknown } from './setting-names.ts';
import { shownValue } from './settings.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-config-'));
afterAll(() => rmSync(directory, { recursive: true }));

function fileOf(yaml: string): string {
  const path = join(directory, 'settings.yaml');
  writeFileSync(path, yaml);
  return path;
}

function faultsOf(environment: Record<string, string>): string[] {
  return readConfig(environment).faults;
}

test('sizes and times take units, and a plain number keeps the unit of its setting', () => {
  const body = (text: string) => loadConfig({ HTTP_BODY_BYTES_MAX: text }).http.bodyBytesMax;
  expect(['50000000', '50MB', '50 MB', '50mb', '64MiB', '1.5KiB', '5kB', '7B', '1e3'].map(body)).toEqual([
    50_000_000, 50_000_000, 50_000_000, 50_000_000, 67_108_864, 1536, 5000, 7, 1000,
  ]);
  const wait = (text: string) => loadConfig({ HTTP_MAX_REQUEST_TIMEOUT: text }).http.requestTimeoutMsMax;
  expect(['90000', '90s', '250000ms', '10m', '1.1h', '1d'].map(wait)).toEqual([
    90_000, 90_000, 250_000, 600_000, 3_960_000, 86_400_000,
  ]);
  const { mqtt, telemetry } = loadConfig({ MQTT_IDLE_SECONDS: '10m', TELEMETRY_TTL_DAYS: '48h' });
  expect([mqtt.idleSeconds, telemetry.ttlDays]).toEqual([600, 2]);
});

test('units are read from a settings file, and from its placeholders', () => {
  const file = fileOf('http:\n  bodyBytesMax: 1MB\n  requestTimeoutMs: ${SOME_TIME:10s}\n');
  const { http } = loadConfig({ MILLRACE_CONFIG: file });
  expect([http.bodyBytesMax, http.requestTimeoutMs]).toEqual([1_000_000, 10_000]);
  expect(loadConfig({ MILLRACE_CONFIG: file, SOME_TIME: '2m' }).http.requestTimeoutMs).toBe(120_000);
});

test('a wrong unit is refused in one line that names the allowed ones', () => {
  for (const [name, text, allowed] of [
    ['HTTP_BODY_BYTES_MAX', '50m', /"50m".* bytes .*MB.*MiB/],
    ['HTTP_BODY_BYTES_MAX', '1.5B', /"1.5B"/],
    ['HTTP_BODY_BYTES_MAX', '-1MB', /"-1MB"/],
    ['HTTP_REQUEST_TIMEOUT', '10MB', /"10MB".* milliseconds .*ms, s, m, h, d/],
    ['HTTP_REQUEST_TIMEOUT', '10M', /"10M"/],
    ['MQTT_IDLE_SECONDS', '250ms', /"250ms".* seconds /],
    ['MQTT_IDLE_SECONDS', '2d', /"2d".*from 0 to 86400/],
    ['WORKERS', '4s', /"4s": it must be a whole number from 0 to 256\.$/],
    ['HTTP_BIND_PORT', '', /""/],
  ] as const) {
    const [fault = '', ...more] = faultsOf({ [name]: text });
    expect(fault).toContain(name);
    expect(fault).toMatch(allowed);
    expect(fault).not.toContain('\n');
    expect(more).toEqual([]);
  }
});

test('every setting whose environment name is a size or a time has that unit', () => {
  const unitOfName = { BYTES: 'bytes', MS: 'milliseconds', SECONDS: 'seconds', DAYS: 'days' };
  for (const { name, value, unit } of readConfig({}).settings) {
    if (typeof value !== 'number') continue;
    const word = name.split('_').find((each) => each in unitOfName) as keyof typeof unitOfName | undefined;
    if (word) expect([name, unit]).toEqual([name, unitOfName[word]]);
    if (/TIMEOUT|_TIME$|DURATION|INTERVAL|PAYLOAD/.test(name)) expect([name, unit]).not.toEqual([name, undefined]);
  }
});

test('every fault is found, and loadConfig throws the first one with the number of the others', () => {
  const environment = { WORKERS: 'many', INGEST_ACK: 'maybe', MILLRACE_CONFIG: fileOf('http:\n  prot: 1\n') };
  const faults = faultsOf(environment);
  expect(faults).toHaveLength(3);
  expect(faults.join('\n')).toContain('Unknown setting http.prot. Did you mean http.port?');
  const others = '2 more settings are wrong: npm run config lists all of them.';
  expect(() => loadConfig(environment)).toThrow(new StartError(`${faults[0]} ${others}`));
});

test('a text of another form is refused in words', () => {
  const reason = 'it must be an e-mail address, as admin@example.com.';
  expect(faultsOf({ ADMIN_EMAIL: 'admin' })).toEqual([`Setting admin.email (ADMIN_EMAIL) is "admin": ${reason}`]);
});

test('a misspelt environment name is found with the setting that was meant', () => {
  const meant = {
    HTTP_BIND_PROT: 'HTTP_BIND_PORT',
    HTTP_PORT: 'HTTP_BIND_PORT',
    MQTT_PORT: 'MQTT_BIND_PORT',
    http_bind_port: 'HTTP_BIND_PORT',
    WORKER: 'WORKERS',
    DATADIR: 'DATA_DIR',
    LOGLEVEL: 'LOG_LEVEL',
    CLICKHOUSE_DB: 'CLICKHOUSE_DATABASE',
    ADMIN_PASSWD: 'ADMIN_PASSWORD',
    ADMIN_PASWORD_FILE: 'ADMIN_PASSWORD_FILE',
    RATE_LIMITS_DEVICE_TELEMETRY: 'RATE_LIMITS_DEVICE_TELEMETRY_MESSAGES',
    MILLRACE_CONFG: 'MILLRACE_CONFIG',
    JOURNAL_COLOUR: '',
  };
  const { unknown } = readConfig(Object.fromEntries(Object.keys(meant).map((name) => [name, 'hunter2'])));
  expect(Object.fromEntries(unknown.map(({ name, meant: each }) => [name, each]))).toEqual(meant);
  expect(unknown.map(describeUnknown).join()).not.toContain('hunter2');
});

test('names of the system, of proxies, of Kubernetes and of a settings file are not taken for settings', () => {
  const names = `PATH HOME USER LANG PWD TERM SHELL TMPDIR HOSTNAME LOGNAME MAIL NODE_ENV NODE_OPTIONS TZ
    HTTP_PROXY HTTPS_PROXY http_proxy NO_PROXY SSL_CERT_FILE SSL_CERT_DIR JOURNAL_STREAM INVOCATION_ID
    npm_config_cache npm_lifecycle_event XDG_DATA_DIRS DATA_CENTER LOG_FORMAT CLIENT_ID DEFAULT_REGION
    REDIS_SERVICE_HOST REDIS_SERVICE_PORT_TCP CLICKHOUSE_PORT_8123_TCP_ADDR SOME_TIME`.split(/\s+/);
  const environment = Object.fromEntries(names.map((name) => [name, '1']));
  const file = fileOf('workers: ${JOURNAL_WORKERS:1}\n');
  const pod = { REDIS_PORT: 'tcp://10.0.0.7:6379', MILLRACE_CONFIG: file, JOURNAL_WORKERS: '2' };
  expect(readConfig({ ...environment, ...pod }).unknown).toEqual([]);
});

test('each setting says where it comes from, and no secret is shown', () => {
  const secret = join(directory, 'secret');
  writeFileSync(secret, 'millstone\n');
  const { settings, faults } = readConfig({
    MILLRACE_CONFIG: fileOf(
      'http:\n  port: 9\npostgres:\n  url: postgres://mill:mill/sto@ne@db:5432/x?password=millstone\n',
    ),
    ADMIN_PASSWORD_FILE: secret,
    CLICKHOUSE_PASSWORD: 'millstone',
    JWT_TOKEN_SIGNING_KEY: 'millstone',
    REDIS_URL: 'redis://:millstone@cache:6379',
    CLICKHOUSE_URL: 'http://mill:millstone@house:8123',
    CLICKHOUSE_SHARDS: 'http://mill:millstone@b:8123,http://mill:mill/sto@ne@c:8123',
    STREAM_MONITOR_URLS: 'http://mill:millstone@a:8222',
    WORKERS_FILE: secret,
    HTTP_BODY_BYTES_MAX: '64MiB',
  });
  const shown = Object.fromEntries(settings.map((setting) => [setting.path, [shownValue(setting), setting.from]]));
  expect(shown).toMatchObject({
    'http.port': ['9', `file ${join(directory, 'settings.yaml')}`],
    'http.address': ['0.0.0.0', 'default'],
    'http.bodyBytesMax': ['67108864 (64 MiB)', 'environment'],
    'admin.password': ['(set)', `file ${secret} (ADMIN_PASSWORD_FILE)`],
    'clickhouse.password': ['(set)', 'environment'],
    'redis.url': ['redis://***@cache:6379', 'environment'],
    'clickhouse.url': ['http://***@house:8123', 'environment'],
    'clickhouse.shards': ['http://***@b:8123,http://***@c:8123', 'environment'],
    'stream.monitorUrls': ['http://***@a:8222', 'environment'],
    'postgres.url': ['postgres://***@db:5432/x?password=***', `file ${join(directory, 'settings.yaml')}`],
  });
  expect(faults).toEqual([expect.stringMatching(/WORKERS.*not shown/)]);
  expect(JSON.stringify([shown, faults])).not.toMatch(/millstone|sto@ne/);
});
