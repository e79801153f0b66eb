/** `npm run migrate` and MIGRATE=false: migrations as a separate step, on stores that are empty at first. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { schemaVersions } from '../../src/clickhouse/migrate.ts';
import { openPostgres } from '../../src/postgres/client.ts';
import { eventually } from '../harness/api.ts';
import { preparedData } from '../harness/data-directory.ts';
import { type Engine, inherited, prepareEngine } from '../harness/engine.ts';
import { silentLog } from '../harness/silent-log.ts';
import { type Stores, startStores, storeSettings } from '../harness/stores.ts';

let stores: Stores;
let host: Engine;

beforeAll(async () => {
  stores = await startStores({ empty: true });
  host = await prepareEngine({ firstStart: true, workers: 1, env: { ...storeSettings(stores), MIGRATE: 'false' } });
});

afterAll(async () => {
  await host?.destroy();
  await stores?.stopAll();
});

interface Outcome {
  code: number;
  lines: string[];
  errors: string[];
}

/** Runs the command as the script of package.json does, with the settings of the host and `env`. */
async function migrate(env: Record<string, string> = {}): Promise<Outcome> {
  return await command('migrate', { ...inherited(), ...storeSettings(stores), ...env });
}

async function command(name: string, env: NodeJS.ProcessEnv): Promise<Outcome> {
  const child = spawn(process.execPath, [`dist/${name}.js`], { env });
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  return { code: code as number, lines: linesOf(stdout), errors: linesOf(stderr) };
}

function linesOf(output: string): string[] {
  return output.split('\n').filter((line) => line !== '');
}

async function inClickHouse(sql: string): Promise<void> {
  const { url, user, password } = stores.clickhouse.address();
  const headers = { 'X-ClickHouse-User': user, 'X-ClickHouse-Key': password };
  const response = await fetch(`${url}/`, { method: 'POST', body: sql, headers });
  expect(response.status, await response.text()).toBe(200);
}

async function inPostgres(sql: string): Promise<void> {
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  await postgres.query(sql).finally(() => postgres.close());
}

test('a first start with MIGRATE=false changes nothing, and waits with the command to run', async () => {
  host.spawn();
  await eventually(
    () => /waiting.*PostgreSQL at .*0001_domain\.sql is not applied yet.*npm run migrate/.test(host.output),
    60_000,
  );
  expect(host.running).toBe(true);
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  const [found] = await postgres.query<{ n: string }>(
    "select count(*)::text as n from information_schema.tables where table_schema = 'public'",
  );
  await postgres.close();
  expect(found).toEqual({ n: '0' });
  // The ports are those of the instance that waits.
  const doctor = await command('doctor', host.environment);
  expect(doctor.lines.filter((line) => line.startsWith('fault'))).toEqual([
    expect.stringMatching(/^fault +readiness .*503 starting.*is not applied yet.*: run npm run migrate/),
  ]);
});

test('three runs at once apply each migration once, and the host that waited becomes ready', async () => {
  const runs = await Promise.all([migrate(), migrate(), migrate()]);
  expect(runs.map(({ code, errors }) => ({ code, errors }))).toEqual(runs.map(() => ({ code: 0, errors: [] })));
  const applied = runs.flatMap(({ lines }) => lines.filter((line) => line.includes(': applied ')));
  const files = readdirSync('src/postgres/migrations').filter((name) => name.endsWith('.sql'));
  expect(applied).toHaveLength(files.length + schemaVersions().length);
  expect(new Set(applied.map((line) => line.slice(line.indexOf(': applied '))))).toHaveLength(applied.length);
  for (const { lines } of runs) {
    expect(lines.at(-1)).toMatch(
      /^ClickHouse at 127\.0\.0\.1:\d+: (\d+ applied|nothing to do), the schema is up to date\.$/,
    );
  }
  await eventually(async () => (await host.status()).status === 'ready', 60_000);
  const { token } = await host.api.newDevice();
  expect(await host.api.postTelemetry(token, '{"n":1}')).toBe(200);
});

test('a run with nothing to do says so', async () => {
  const { port: clickhouse } = new URL(stores.clickhouse.url);
  const { port: postgres } = new URL(stores.postgres.url);
  expect(await migrate()).toEqual({
    code: 0,
    lines: [
      `PostgreSQL at 127.0.0.1:${postgres}: nothing to do, the schema is up to date.`,
      `ClickHouse at 127.0.0.1:${clickhouse}: nothing to do, the schema is up to date.`,
    ],
    errors: [],
  });
});

test('with a schema that is older than needed known devices are served, and the reason names the command', async () => {
  const device = await host.api.newDevice();
  await host.knowsDevices();
  await host.stop();
  const newest = schemaVersions().at(-1)!;
  await inClickHouse(
    `ALTER TABLE millrace.schema_migrations DELETE WHERE version = ${newest} SETTINGS mutations_sync = 1`,
  );
  await inPostgres(
    "delete from schema_migrations where name like '%\\_instance%'; drop table instance; drop sequence if exists instance_epoch",
  );
  host.spawn();
  await eventually(async () => (await host.status()).status === 'degraded', 60_000);
  const { code, reasons = [] } = await host.status();
  expect(code).toBe(200);
  expect(
    reasons.filter((reason) => /not applied yet, and MIGRATE is false: run npm run migrate/.test(reason)),
  ).toHaveLength(2);
  // A busy machine may let the worker refuse for a moment (`loop_lag`).
  await eventually(async () => (await host.api.postTelemetry(device.token, '{"n":2}')) === 200, 10_000);
  const { code: migrated, lines } = await migrate();
  expect({ migrated, lines }).toMatchObject({
    migrated: 0,
    lines: [
      ...[/applied 0062_instances\.sql$/, /applied 0065_instance_connections\.sql$/, /2 applied/],
      ...[/: applied /, /1 applied/],
    ].map((each) => expect.stringMatching(each)),
  });
  await eventually(async () => (await host.status()).status === 'ready', 60_000);
});

test('a newer schema that works with this version is served', async () => {
  await host.stop();
  const newer = schemaVersions().at(-1)! + 1;
  await inClickHouse(
    `INSERT INTO millrace.schema_migrations (version, name, compatible_from) VALUES (${newer}, 'later', ${newer - 1})`,
  );
  await inPostgres("insert into schema_migrations (number, name, checksum) values (9999, '9999_later.sql', '')");
  host.spawn();
  await eventually(async () => (await host.status()).status === 'ready', 60_000);
  expect(host.output).toMatch(/"event":"clickhouse_schema_is_newer"/);
  expect(host.output).toMatch(/"event":"postgres_schema_is_newer"/);
  expect((await migrate()).code).toBe(0);
});

test('a failure is one sentence and exit code 1', async () => {
  const away = await migrate({ DATABASE_URL: 'postgresql://mill:secret@127.0.0.1:1/mill' });
  expect(away).toEqual({
    code: 1,
    lines: [],
    errors: [expect.stringMatching(/^millrace: PostgreSQL at 127\.0\.0\.1:1 is not migrated: .*ECONNREFUSED/)],
  });
  const refused = await migrate({ CLICKHOUSE_PASSWORD: 'wrong' });
  expect(refused.code).toBe(1);
  expect(refused.errors.at(-1)).toMatch(/^millrace: ClickHouse at .* refuses the user "default"/);
  expect(refused.errors.join()).not.toContain('wrong');
});

test('embedded stores are those of the running instance', async () => {
  const own = await prepareEngine({ firstStart: true, workers: 1, env: { MIGRATE: 'false' } });
  const embedded = { CLICKHOUSE_URL: '', CLICKHOUSE_PASSWORD: '', DATABASE_URL: '', DATA_DIR: own.dataDir };
  try {
    expect(await migrate(embedded)).toMatchObject({
      code: 1,
      errors: [
        `millrace: No embedded PostgreSQL runs in ${own.dataDir}: start Millrace, or set DATA_DIR to the data directory of the instance.`,
      ],
    });
    own.spawn();
    await eventually(() => /waiting.*npm run migrate/.test(own.output), 60_000);
    const { code, lines } = await migrate(embedded);
    expect({ code, last: lines.at(-1) }).toEqual({
      code: 0,
      last: `The embedded ClickHouse: ${schemaVersions().length} applied, the schema is up to date.`,
    });
    await eventually(async () => (await own.status()).status === 'ready', 60_000);
  } finally {
    await own.destroy();
  }
});

/** Answers all but statements for every server of a cluster, which it holds. */
test('a start does not wait for servers of a cluster that confirm nothing', async () => {
  let held = 0;
  const server = createServer((request, response) => {
    void text(request).then((body) => {
      if (request.url!.startsWith('/ping')) return void response.end('Ok.\n');
      if (body.includes('ON CLUSTER')) {
        held += 1;
        return;
      }
      if (body.includes('schema_migrations')) {
        response.statusCode = 404;
        return void response.end('Code: 60. DB::Exception: Table does not exist. (UNKNOWN_TABLE)');
      }
      response.end('');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const env = { CLICKHOUSE_URL: `http://127.0.0.1:${port}`, CLICKHOUSE_CLUSTER: 'fleet' };
  const engine = await prepareEngine({ workers: 1, env, copyOf: process.env[preparedData] });
  try {
    engine.spawn();
    await eventually(async () => (await engine.status()).code === 200, 60_000);
    // No statement was answered, so the start has sent each statement only as a repetition.
    expect(held).toBeGreaterThan(0);
    await eventually(async () => (await engine.status()).parts?.['postgres'] === 'up', 30_000);
    expect(await engine.status()).toMatchObject({
      status: 'degraded',
      parts: { clickhouse: expect.not.stringMatching('up') },
    });
    const { token } = await engine.api.newDevice();
    expect(await engine.api.postTelemetry(token, '{"n":1}')).toBe(200);
  } finally {
    await engine.destroy();
    server.closeAllConnections();
    server.close();
  }
});
