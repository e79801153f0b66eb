/**
 * The life of one engine: its first start, a second start that is refused, deaths of its parts, SIGTERM, kill -9, and
 * starts after these.
 */
import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { firing } from '../harness/alerts.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, type LogLine, prepareEngine, startEngine } from '../harness/engine.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { RawConnection, requestBytes } from '../harness/raw.ts';
import { postForReceipt, readReceipt } from '../harness/receipts.ts';
import { withWorkers } from '../harness/workers.ts';

let engine: Engine;
let device: Device;
let sent = 0;
/** Receipts of messages that were sent between the faults. */
const receipts: string[] = [];
const firstTs = Date.now() - 3_600_000;

beforeAll(async () => {
  engine = await startEngine({ workers: 2, firstStart: true, reports: true, env: { HTTP_TELL_WORKER: 'true' } });
  device = await engine.api.createDevice('life');
});

afterAll(() => engine?.destroy());

async function send(count: number): Promise<void> {
  for (let n = 0; n < count; n += 1) {
    const body = `{"ts":${firstTs + sent},"values":{"n":${sent}}}`;
    if (n === count - 1) receipts.push((await postForReceipt(device.token, body, engine.api))!);
    else expect(await engine.api.postTelemetry(device.token, body)).toBe(200);
    sent += 1;
  }
}

/** Returns '' when the descriptor was closed meanwhile. */
function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

async function allStored(): Promise<void> {
  await eventually(async () => {
    const { n } = await engine.api.readSeries(device.id, ['n'], { startTs: firstTs, endTs: firstTs + sent });
    return n?.length === sent && n.every(({ value }, i) => value === i);
  }, 20_000);
  for (const receipt of receipts) expect((await readReceipt(receipt, engine.api)).state).toBe('stored');
}

test('the start prints addresses and a curl that works', async () => {
  await eventually(() => engine.output.includes('Stop with Ctrl-C.'));
  expect(engine.output).toContain(`http://localhost:${engine.port}`);
  expect(engine.output).toContain('when synced to the disk of this host   (INGEST_ACK=journal)');
  const token = /token (\S+)/.exec(engine.output)?.[1];
  expect(token).toBeDefined();
  expect(await engine.api.postTelemetry(token!, '{"temperature":21.5}')).toBe(200);
});

test('the metrics of an idle engine have fewer than 650 lines', async () => {
  expect((await engine.api.metricsPage()).split('\n').length).toBeLessThan(650);
});

test('what is secret is readable by the owner only', () => {
  for (const file of ['secrets.json', join('run', 'clickhouse.json')]) {
    expect(statSync(join(engine.dataDir, file)).mode & 0o077, file).toBe(0);
  }
  const secrets = JSON.parse(readFileSync(join(engine.dataDir, 'secrets.json'), 'utf8')) as Record<string, string>;
  for (const secret of Object.values(secrets)) expect(engine.output).not.toContain(secret);
});

test('a second engine on the same data is refused and does not disturb the first', async () => {
  const second = await prepareEngine({ dataDir: engine.dataDir });
  second.spawn();
  const { code } = await second.exit(20_000);
  expect(code).not.toBe(0);
  expect(second.output).toMatch(/in use by process \d+.*DATA_DIR/);
  expect(await engine.readiness()).toBe(200);
  await send(10);
});

test('each worker holds the lock of the data directory, too', () => {
  const workers = engine.workers();
  expect(workers).toHaveLength(2);
  for (const pid of workers) {
    const open = readdirSync(`/proc/${pid}/fd`).map((descriptor) => linkOf(`/proc/${pid}/fd/${descriptor}`));
    expect(open).toContain(join(engine.dataDir, 'lock'));
  }
});

test('a dead worker is replaced and nothing acknowledged is lost', async () => {
  await send(50);
  const before = engine.pids().get('worker-0');
  await engine.kill('worker-0');
  await eventually(() => {
    const now = engine.pids().get('worker-0');
    return now !== undefined && now !== before;
  });
  await eventually(async () => (await engine.readiness()) === 200, 10_000);
  await send(50);
  await allStored();
});

test('a worker that starts again knows all devices as they are now, before their first request', async () => {
  const [gone, changed, blocked, kept] = await Promise.all(
    ['gone', 'changed', 'blocked', 'kept'].map((name) => engine.api.createDevice(name)),
  );
  const all = [gone!, changed!, blocked!, kept!];
  for (const { token } of all) expect(await engine.api.postTelemetry(token, '{"a":1}')).toBe(200);
  const loads = () => engine.output.split('devices_loaded').length;
  const [before, pid] = [loads(), engine.pids().get('worker-0')];
  await engine.kill('worker-0');
  // A kept connection may lead to the worker that was killed. Then no worker received the call, and it is repeated.
  const call = (method: string, path: string, body?: object) =>
    eventually(() => engine.api.send(method, path, body).catch(() => undefined));
  const replace = async ({ id }: Device, type: string, credentialsId: string, value: string | null) => {
    const credentials = (await (await call('GET', `/api/device/${id}/credentials`)).json()) as object;
    const change = { ...credentials, credentialsType: type, credentialsId, credentialsValue: value };
    expect((await call('POST', '/api/device/credentials', change)).status).toBe(200);
  };
  const changedToken = `changed-${changed!.token}`;
  const deleted = call('DELETE', `/api/device/${gone!.id}`);
  const blockedBy = JSON.stringify({ clientId: null, userName: 'blocked-user', password: 'stone-42' });
  await Promise.all([
    replace(changed!, 'ACCESS_TOKEN', changedToken, null),
    replace(blocked!, 'MQTT_BASIC', '', blockedBy),
    deleted,
  ]);
  await eventually(() => loads() > before && engine.pids().get('worker-0') !== pid, 20_000);
  await eventually(async () => (await engine.readiness()) === 200, 10_000);
  await withWorkers(engine.port, async (connections) => {
    for (const connection of connections) {
      const tokens = [...all.map(({ token }) => token), changedToken];
      const statuses: number[] = [];
      for (const token of tokens) {
        statuses.push((await connection.ask({ path: `/api/v1/${token}/telemetry`, body: '{"a":2}' })).status);
      }
      expect(statuses).toEqual([401, 401, 401, 200, 200]);
    }
  });
});

test('dead stores are replaced and nothing acknowledged is lost', async () => {
  for (const role of ['clickhouse', 'postgres']) {
    await send(50);
    await engine.kill(role);
    await send(50);
    await eventually(() => engine.pids().has(role), 20_000);
  }
  await allStored();
  const ofStore = ({ child }: LogLine) => child === 'clickhouse' || child === 'postgres';
  await eventually(() => engine.events('child_back').filter(ofStore).length === 2);
  expect(engine.events('child_died').filter(ofStore)).toHaveLength(2);
});

test('a hanging ClickHouse delays no acknowledgement', async () => {
  const pid = engine.pids().get('clickhouse')!;
  process.kill(pid, 'SIGSTOP');
  try {
    const startedAt = performance.now();
    await send(100);
    expect(performance.now() - startedAt).toBeLessThan(20_000);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await allStored();
});

test('SIGTERM finishes what is open, ships the journal and ends with 0', async () => {
  await send(100);
  // A request whose body is incomplete when the signal arrives.
  const connection = await RawConnection.open(engine.port);
  const body = `{"ts":${firstTs + sent},"values":{"n":${sent}}}`;
  const bytes = requestBytes({ path: `/api/v1/${device.token}/telemetry`, body });
  await connection.send(bytes.subarray(0, bytes.length - 5));
  const startedAt = performance.now();
  const stopping = engine.stop();
  await sleep(100);
  await connection.send(bytes.subarray(bytes.length - 5));
  const answer = await connection.response().catch(() => undefined);
  if (answer?.status === 200) sent += 1;
  connection.close();
  await stopping;
  expect(performance.now() - startedAt).toBeLessThan(30_000);
  expect([...engine.pids().keys()]).toEqual([]);
  await engine.start();
  await allStored();
});

test('after kill -9 of everything the next start finds its data and its orphans', async () => {
  // ClickHouse stores nothing any more, so messages that are acknowledged now are only in the journals.
  process.kill(engine.pids().get('clickhouse')!, 'SIGSTOP');
  await send(200);
  await engine.killAll();
  await engine.start();
  const first = await readReceipt(receipts.at(-1)!, engine.api);
  expect(['journaled', 'stored']).toContain(first.state);
  expect(first.acknowledgement).toBe('journal');
  await send(10);
  await allStored();
});

test('after kill -9 of the primary alone its workers finish what is open, and do not block the next start', async () => {
  await send(100);
  const client = await connectMqtt({ port: engine.mqttPort, token: device.token, level: 5 });
  // A request whose body is incomplete when the primary is killed.
  const connection = await RawConnection.open(engine.port);
  const body = `{"ts":${firstTs + sent},"values":{"n":${sent}}}`;
  const bytes = requestBytes({ path: `/api/v1/${device.token}/telemetry`, body });
  await connection.send(bytes.subarray(0, bytes.length - 5));
  await eventually(async () => (await engine.metric('http_body_bytes\\{door="http"\\}')) !== 0);
  await engine.kill('primary');
  await client.closedFor(0x8b);
  // A slow sender: by then nothing else holds up the end of the worker.
  await sleep(500);
  await connection.send(bytes.subarray(bytes.length - 5));
  expect((await connection.response()).status).toBe(200);
  sent += 1;
  connection.close();
  await engine.exit();
  await engine.start();
  await send(10);
  await allStored();
});

test('a start on a full disk says that it refuses, why and what to do, and never that it is ready', async () => {
  await engine.killAll();
  engine.spawn({ JOURNAL_FREE_DISK_BYTES_MIN: String(2 ** 53 - 1) });
  await eventually(() => engine.output.includes('Stop with Ctrl-C.'), 60_000);
  expect(engine.output).toMatch(
    /is up after .* but refuses telemetry:\n {2}The disk .* is full.*free space or add to it/,
  );
  expect(engine.output).not.toMatch(/is ready|"event":"ready"/);
  expect(await engine.status()).toMatchObject({ code: 503, status: 'refusing' });
  expect(await engine.api.postTelemetry(device.token, '{"full":1}')).toBe(503);
  await eventually(() => engine.events('ingest_refusing').length > 0);
  expect(engine.events('ingest_refusing')).toMatchObject([{ level: 'warn', reason: 'disk_full' }]);
  // On a busy machine one worker serves, and refuses, before the other one.
  await eventually(async () => (await engine.metric('refusing')) === 2);
  const alerts = ['MillraceRefusing', 'MillraceJournalDiskLow'];
  expect(firing(await engine.api.metricsPage())).toEqual(expect.arrayContaining(alerts));
});

test('a second signal ends it at once', async () => {
  await engine.stop();
  await engine.start({ SHUTDOWN_DELAY_MS: '60000' });
  const primary = engine.pids().get('primary')!;
  process.kill(primary, 'SIGTERM');
  await eventually(() => engine.output.includes('SIGTERM: /readyz answers 503'));
  // One Ctrl-C may send the signal twice: the terminal sends it, and npm sends it again.
  await sleep(1_500);
  process.kill(primary, 'SIGTERM');
  expect((await engine.exit(10_000)).code).toBe(1);
});

test('a bug names the request that met it, and what ended two workers is refused', async () => {
  if (engine.running) await engine.killAll();
  await engine.start({ NODE_OPTIONS: `--import ${join(import.meta.dirname, 'bug.mjs')}` });
  await allStored();
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/values/timeseries?keys=n`;
  const route = 'GET /api/plugins/telemetry/:entityType/:entityId/values/timeseries of user ';
  const ask = (path_: string) => engine.api.send('GET', path_).then(({ status }) => status);
  const serving = () => eventually(async () => (await engine.metric('bus_connected')) === 3, 30_000);
  for (let deaths = 1; deaths <= 2; deaths += 1) {
    await serving();
    await expect(ask(`${path}&bug=now`)).rejects.toThrow();
    await eventually(async () => (await engine.metric('worker_restarts_total')) === deaths, 20_000);
  }
  expect(engine.output).toContain('a bug made by a test');
  expect(engine.output).toContain(`"suspects":["${route}`);
  await eventually(async () => (await ask(path).catch(() => 0)) === 503, 20_000);
  expect(await ask(`/api/device/${device.id}`)).toBe(200);
  expect(await engine.api.postTelemetry(device.token, '{"after":1}')).toBe(200);
  expect(engine.output).toContain(`"work":"${route}`);
});
