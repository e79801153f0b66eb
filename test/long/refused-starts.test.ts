/**
 * A start that cannot succeed prints its reason in one line, ends with a code other than 0, and leaves no process
 * running.
 */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { limits } from '../../src/base/limits.ts';
import { eventually } from '../harness/api.ts';
import { createCertificate } from '../harness/certificate.ts';
import { type Engine, inherited, prepareEngine } from '../harness/engine.ts';
import { freePort } from '../harness/ports.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-refused-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** Returns the only line of a start that was refused. */
async function refusal(env: Record<string, string>, engine?: Engine): Promise<string> {
  const refused = engine ?? (await prepareEngine({ env, firstStart: true }));
  try {
    refused.spawn(env);
    const { code } = await refused.exit(60_000);
    expect(code).not.toBe(0);
    const lines = refused.output.split('\n').filter((line) => line !== '' && !line.startsWith('{'));
    expect(lines, refused.output).toHaveLength(1);
    expect([...refused.pids().keys()]).toEqual([]);
    return lines[0]!;
  } finally {
    if (!engine) await refused.destroy();
  }
}

test('an unknown key in the settings file is named, with the nearest known one', async () => {
  const file = join(directory, 'unknown.yaml');
  writeFileSync(file, 'http:\n  prot: 8080\n');
  expect(await refusal({ MILLRACE_CONFIG: file })).toMatch(/http\.prot.*\bport\b/);
});

test('a bad value is named with its setting, its variable and what it must be', async () => {
  expect(await refusal({ WORKERS: 'many' })).toMatch(/WORKERS.*"many".*whole number/);
  expect(await refusal({ INGEST_ACK: 'maybe' })).toMatch(/INGEST_ACK.*maybe.*journal/);
  expect(await refusal({ RATE_LIMITS_DEVICE_MESSAGES: '10' })).toMatch(
    /rateLimits\.device\.messages.*"10".*100:1,3000:60/,
  );
  const rest = await refusal({ RATE_LIMITS_REST_COMMANDS: 'often' });
  expect(rest).toMatch(
    /^millrace: Setting rateLimits\.rest\.commands \(RATE_LIMITS_REST_COMMANDS\) is "often".*100:1,3000:60/m,
  );
});

test('proxies that are no addresses, and a key of tokens that is too short, are refused before anything starts', async () => {
  const env = { DATA_DIR: '/proc/millrace' };
  expect(await refusal({ ...env, TRUSTED_PROXIES: '10.0.0.7,balancer.example' })).toMatch(
    /TRUSTED_PROXIES.*"balancer\.example": it must be an address or a network/,
  );
  const said = await refusal({ ...env, JWT_TOKEN_SIGNING_KEY: 'c3VwZXJzZWNyZXQ=' });
  expect(said).toMatch(/JWT_TOKEN_SIGNING_KEY\) must be the base64 of at least 64 bytes/);
  expect(said).not.toContain('c3Vw');
});

test('a password of the administrator that no user may choose is refused', async () => {
  expect(await refusal({ ADMIN_PASSWORD: 'pear' })).toMatch(
    /^millrace: ADMIN_PASSWORD has 4 characters: set one of 6 to 72/,
  );
});

test.skipIf(process.getuid?.() !== 0)('a first start on a disk that is too small says what to do', async () => {
  const engine = await prepareEngine({ firstStart: true });
  try {
    const steps = 'mount -t tmpfs -o size=40m tmpfs /mnt && exec "$NODE" dist/main.js';
    const env = { ...engine.environment, NODE: process.execPath, DATA_DIR: '/mnt/data' };
    const start = spawn('unshare', ['--mount', 'sh', '-c', steps], { env, stdio: ['ignore', 'ignore', 'pipe'] });
    let output = '';
    start.stderr.on('data', (chunk) => (output += chunk));
    const [code] = await once(start, 'close');
    expect(output).toMatch(
      /^millrace: The embedded PostgreSQL in .*: free space on the disk of DATA_DIR, or enlarge it\.$/m,
    );
    expect(code).toBe(1);
  } finally {
    await engine.destroy();
  }
});

test.each(['http://cache', 'redis://cache:99999', 'redis://:pear%tree@cache', 'redis+sentinel://cache'])(
  'a URL of Redis that cannot be read is refused without its password: %s',
  async (url) => {
    const said = await refusal({ REDIS_URL: url });
    expect(said).toMatch(/^millrace: Setting redis\.url \(REDIS_URL\) must look like redis:\/\/host:6379/m);
    expect(said).not.toMatch(/pear/);
  },
);

test('a misspelt environment name is a warning without its value, and refuses a strict start', async () => {
  const env = { HTTP_BIND_PROT: 'hunter2', DATA_DIR: '/proc/millrace' };
  expect(await refusal({ ...env, MILLRACE_STRICT: 'true' })).toMatch(
    /HTTP_BIND_PROT.*HTTP_BIND_PORT\?.*MILLRACE_STRICT/,
  );
  const engine = await prepareEngine({ firstStart: true });
  try {
    expect(await refusal(env, engine)).toMatch(/DATA_DIR/);
    expect(engine.output).toMatch(/"event":"unknown_settings".*HTTP_BIND_PROT.*Did you mean HTTP_BIND_PORT\?/);
    expect(engine.output).not.toContain('hunter2');
  } finally {
    await engine.destroy();
  }
});

test('`npm run config` prints settings with their origin, masks secrets, and names what is wrong', async () => {
  const env = { HTTP_BIND_PORT: '9', ADMIN_PASSWORD: 'hunter2', HTTP_BIND_PROT: 'hunter2', MQTT_IDLE_SECONDS: '10m' };
  const good = await runConfig(env);
  expect(good.code).toBe(0);
  expect(good.stdout).toMatch(/^http\.port +HTTP_BIND_PORT +9 +- +environment$/m);
  expect(good.stdout).toMatch(/^mqtt\.idleSeconds +MQTT_IDLE_SECONDS +600 \(10 m\) +seconds +environment$/m);
  expect(good.stdout).toMatch(/^mqtt\.port +MQTT_BIND_PORT +1883 +- +default$/m);
  expect(good.stdout).toMatch(/^admin\.password +ADMIN_PASSWORD +\(set\) /m);
  expect(good.stdout).toMatch(/^warning: HTTP_BIND_PROT is no setting of Millrace\. Did you mean HTTP_BIND_PORT\?$/m);
  expect(good.stdout).not.toContain('hunter2');
  const changed = await runConfig(env, 'changed');
  expect(changed.stdout.match(/environment$/gm)).toHaveLength(3);
  const bad = await runConfig({ WORKERS: 'many', HTTP_BODY_BYTES_MAX: '5 apples' });
  expect(bad.code).toBe(1);
  expect(bad.stdout.match(/^fault: Setting .*/gm)).toHaveLength(2);
  const rate = await runConfig({ RATE_LIMITS_DEVICE_MESSAGES: '10' });
  expect(rate).toMatchObject({ code: 1, stdout: expect.stringMatching(/^fault: .*rateLimits\.device\.messages/m) });
  const contradiction = await runConfig({ HTTP_BIND_PORT: '9', MQTT_BIND_PORT: '9' });
  expect(contradiction).toMatchObject({ code: 1, stdout: expect.stringMatching(/^fault: .*both 9/m) });
});

function runConfig(env: Record<string, string>, ...more: string[]): Promise<Finished> {
  return finished(spawn(process.execPath, ['dist/config.js', ...more], { env: { ...inherited(), ...env } }));
}

interface Finished {
  code: number;
  stdout: string;
  stderr: string;
}

async function finished(child: ChildProcessWithoutNullStreams): Promise<Finished> {
  const output = { stdout: '', stderr: '' };
  child.stdout.on('data', (chunk) => (output.stdout += chunk));
  child.stderr.on('data', (chunk) => (output.stderr += chunk));
  const [code] = await once(child, 'close');
  return { code: code as number, ...output };
}

test('a file limit with which no worker could start is named, and the lowest one that is taken serves', async () => {
  const engine = await prepareEngine({ workers: 2, firstStart: true, filesMax: limits.filesMin });
  try {
    for (const filesMax of [64, limits.filesMin - 1]) {
      const start = `ulimit -n ${filesMax}; exec node dist/main.js`;
      const { code, stderr } = await finished(spawn('sh', ['-c', start], { env: engine.environment }));
      expect(code).not.toBe(0);
      expect(stderr).toMatch(new RegExp(`^millrace: The file limit is ${filesMax}, .*ulimit -n`, 'm'));
    }
    await engine.start();
    expect(engine.events('child_died')).toEqual([]);
    expect(engine.events('machine_warnings')[0]?.['reasons']).toContainEqual(
      expect.stringMatching(/^256 connections per worker, because the file limit is 512: raise it/),
    );
  } finally {
    await engine.destroy();
  }
});

test('a settings file that is missing or no YAML is named', async () => {
  expect(await refusal({ MILLRACE_CONFIG: join(directory, 'none.yaml') })).toContain('none.yaml');
  const file = join(directory, 'broken.yaml');
  writeFileSync(file, 'http: [\n');
  expect(await refusal({ MILLRACE_CONFIG: file })).toMatch(/broken\.yaml.*YAML/);
});

test('one address for the administrators of a tenant and of the system is refused by name', async () => {
  const line = await refusal({ ADMIN_EMAIL: 'Jo@mill.example', SYSTEM_ADMIN_EMAIL: 'jo@mill.example' });
  expect(line).toContain('SYSTEM_ADMIN_EMAIL');
});

test('a data directory that cannot be made is named, also where the file system calls its parent missing', async () => {
  expect(await refusal({ DATA_DIR: '/proc/millrace' })).toMatch(/\/proc\/millrace \(DATA_DIR\) cannot be used: ENOENT/);
  const file = join(directory, 'file');
  writeFileSync(file, '');
  expect(await refusal({ DATA_DIR: file })).toMatch(/\(DATA_DIR\) cannot be used: ENOTDIR/);
});

test.each(['clickhouse', 'postgres'])(
  'a directory of %s that cannot be used is named by a first start',
  async (store) => {
    const data = mkdtempSync(join(directory, 'data-'));
    writeFileSync(join(data, store), '');
    expect(await refusal({ DATA_DIR: data })).toMatch(
      new RegExp(`^millrace: The embedded \\w+ .*EEXIST.*${data}/${store}`),
    );
  },
);

test('a taken port is named with the setting that changes it', async () => {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  const line = await refusal({ HTTP_BIND_PORT: String(port) });
  expect(line).toContain(String(port));
  expect(line).toContain('HTTP_BIND_PORT');
  server.close();
});

test('a bad PEM is named', async () => {
  const { cert, key } = createCertificate(directory, 'server');
  const other = createCertificate(directory, 'other');
  const garbage = join(directory, 'garbage.pem');
  writeFileSync(garbage, 'no certificate');
  const port = String(await freePort());
  const refused = (pem: string, pemKey: string) =>
    refusal({ SSL_ENABLED: 'true', HTTPS_BIND_PORT: port, SSL_PEM_CERT: pem, SSL_PEM_KEY: pemKey });
  expect(await refused('', key)).toMatch(/SSL_PEM_CERT must name/);
  expect(await refused(join(directory, 'none.pem'), key)).toMatch(/none\.pem \(SSL_PEM_CERT\) cannot be read/);
  expect(await refused(garbage, key)).toMatch(/garbage\.pem \(SSL_PEM_CERT\) is not the PEM of a certificate/);
  expect(await refused(cert, cert)).toMatch(/SSL_PEM_KEY\) is not the PEM of a private key/);
  expect(await refused(cert, other.key)).toMatch(/SSL_PEM_KEY\) does not belong to the certificate/);
});

test('a store that refuses the login is named with the settings to check', async () => {
  const server = createHttpServer((request, response) => {
    response.statusCode = request.url?.startsWith('/ping') ? 200 : 403;
    response.end(
      response.statusCode === 200
        ? 'Ok.\n'
        : 'Code: 516. DB::Exception: mill: Authentication failed. (AUTHENTICATION_FAILED)',
    );
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  const line = await refusal({ CLICKHOUSE_URL: `http://127.0.0.1:${port}`, CLICKHOUSE_USER: 'mill' });
  expect(line).toMatch(/ClickHouse.*"mill".*CLICKHOUSE_USER/);
  server.close();
});

test('a first start waits for PostgreSQL, which may start later, and logs the reason', async () => {
  const port = await freePort();
  const engine = await prepareEngine({ env: { DATABASE_URL: `postgresql://mill:secret@127.0.0.1:${port}/mill` } });
  try {
    engine.spawn();
    await eventually(() =>
      /waiting.*PostgreSQL at 127\.0\.0\.1:\d+ \(DATABASE_URL\) does not answer/.test(engine.output),
    );
    await eventually(() =>
      /"store":"clickhouse","reason":"[^"]*lock in PostgreSQL, which does not answer/.test(engine.output),
    );
    expect(engine.output).not.toContain('secret');
    expect(engine.running).toBe(true);
    await engine.stop();
  } finally {
    await engine.destroy();
  }
});
