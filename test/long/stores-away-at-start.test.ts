/**
 * The whole instance is killed and started again while a store does not answer: known devices are served, over HTTP and
 * MQTT, directly and through a gateway. A device that was revoked before is refused, and an unknown one is refused
 * until the store answers.
 */
import { truncateSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { knownFile } from '../../src/device/known/known-devices-file.ts';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { codeOf, MqttClient } from '../harness/mqtt-client.ts';
import { type Stores, startStores, storeSettings } from '../harness/stores.ts';
import { call } from '../harness/tenants.ts';

let stores: Stores;
let engine: Engine;
let known: Device;
let revoked: Device;
let moved: Device;
let basic: Device;
let gateway: Device;
const names = { clientId: 'pump-7', userName: 'mill', password: 'wheel' };
const unavailable = 0x88;

beforeAll(async () => {
  stores = await startStores();
  engine = await startEngine({ workers: 2, env: storeSettings(stores) });
  [known, revoked, moved, basic] = (await Promise.all(
    ['known', 'revoked', 'moved', 'basic'].map((name) => engine.api.createDevice(name)),
  )) as [Device, Device, Device, Device];
  await engine.api.createDevice('child');
  const made = await ok('POST', '/api/device', { name: 'hub', additionalInfo: { gateway: true } });
  gateway = { id: made.id.id, token: (await ok('GET', `/api/device/${made.id.id}/credentials`)).credentialsId };
  await ok('POST', '/api/device/credentials', {
    ...(await ok('GET', `/api/device/${basic.id}/credentials`)),
    credentialsType: 'MQTT_BASIC',
    credentialsValue: JSON.stringify(names),
  });
  // The device is known at first, so that a file without the change would accept it.
  await accept(revoked.token, 1);
  await engine.knowsDevices();
  await ok('DELETE', `/api/device/${revoked.id}`);
  await ok('POST', '/api/device/credentials', {
    ...(await ok('GET', `/api/device/${moved.id}/credentials`)),
    credentialsId: 'moved-to-this',
  });
  await engine.knowsDevices();
});

afterAll(async () => {
  await engine?.destroy();
  await stores?.stopAll();
});

const ok = (method: string, path: string, body?: unknown) => call(engine.api, method, path, body);

let nextTs = Date.now() - 3_600_000;
let refusal = '';

/** Repeats a message until it is accepted, because the journal of a busy machine may refuse for a moment. */
async function accept(token: string, n: number): Promise<void> {
  await eventually(async () => (await post(token, n)) === 200, 10_000).catch(() => expect(refusal).toBe(''));
}

async function post(token: string, n: number): Promise<number> {
  nextTs += 1;
  const response = await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, {
    method: 'POST',
    headers: { connection: 'close' },
    body: `{"ts":${nextTs},"values":{"away":${n}}}`,
  });
  const text = await response.text();
  if (response.status !== 200) refusal = text;
  return response.status;
}

async function restartWithout(...missing: string[]): Promise<void> {
  await engine.killAll();
  engine.spawn();
  await engine.ready('workers');
  const { code, status, parts, reasons } = await engine.status();
  expect({ code, status }).toEqual({ code: 200, status: 'degraded' });
  for (const store of ['clickhouse', 'postgres']) {
    expect(parts?.[store]).toBe(missing.includes(store) ? 'away' : 'up');
  }
  expect(reasons).toHaveLength(missing.length);
  await eventually(() => engine.output.includes('Telemetry of known devices is accepted.'));
}

async function connects(login: { token?: string; clientId?: string; username?: string; password?: string }) {
  const client = await MqttClient.open({ port: engine.mqttPort });
  const code = codeOf(await client.connect(login));
  return { client, code };
}

async function refused(login: Parameters<typeof connects>[0]): Promise<number> {
  const { client, code } = await connects(login);
  client.cut();
  return code;
}

async function stored(count: number): Promise<void> {
  const query = `SELECT uniqExact(int) FROM telemetry FINAL WHERE key = 'away' AND int > 1`;
  await eventually(
    async () => (await queryClickhouse(stores.clickhouse.address(), query))[0]?.[0] === String(count),
    30_000,
    100,
  );
}

test('started without ClickHouse: telemetry is accepted, and stored when it is back', async () => {
  await stores.clickhouse.kill();
  try {
    await restartWithout('clickhouse');
    for (let n = 0; n < 20; n += 1) await accept(known.token, 2 + n);
    expect((await engine.api.send('GET', '/api/auth/user')).status).toBe(200);
  } finally {
    await stores.clickhouse.start();
  }
  await stored(20);
  await eventually(async () => (await engine.status()).status === 'ready', 20_000);
  expect(engine.output.match(/"store_back"/g)).toHaveLength(1);
});

test('started without PostgreSQL: known devices send, a revoked one is refused, an unknown one comes back', async () => {
  let doomed: MqttClient;
  await stores.postgres.kill();
  try {
    await restartWithout('postgres');
    for (let n = 0; n < 10; n += 1) await accept(known.token, 100 + n);
    await accept('moved-to-this', 110);
    for (const token of [revoked.token, moved.token, 'never-seen-before']) expect(await post(token, 0)).toBe(503);

    const { client, code } = await connects({ token: known.token });
    expect(code).toBe(0);
    doomed = client;
    expect((await client.publish('v1/devices/me/telemetry', '{"away":111}')).reasonCode).toBe(0);
    const named = await connects({ clientId: names.clientId, username: names.userName, password: names.password });
    expect(named.code).toBe(0);
    expect((await named.client.publish('v1/devices/me/telemetry', '{"away":112}')).reasonCode).toBe(0);
    named.client.cut();
    const wrong = { clientId: names.clientId, username: names.userName, password: 'weel' };
    for (const login of [wrong, { token: revoked.token }, { token: moved.token }, { token: 'never-seen-before' }]) {
      expect(await refused(login)).toBe(unavailable);
    }
    const hub = await connects({ token: gateway.token });
    expect(hub.code).toBe(0);
    expect((await hub.client.publish('v1/gateway/telemetry', '{"child":[{"away":113}]}')).reasonCode).toBe(0);
    hub.client.cut();
  } finally {
    await stores.postgres.start();
  }
  await stored(34);
  await eventually(async () => (await engine.status()).status === 'ready', 20_000);
  await eventually(async () => (await post('never-seen-before', 0)) === 401, 20_000);
  // The answer above came from one worker; the other may notice a moment later.
  await eventually(async () => (await post(revoked.token, 0)) === 401, 20_000);
  // A device that was accepted by the file is known to the store as well, and stays connected.
  await doomed.quiet();
  doomed.cut();
});

test('started without PostgreSQL and with a damaged file of known devices: the start waits for PostgreSQL', async () => {
  await engine.killAll();
  await stores.postgres.kill();
  truncateSync(knownFile(engine.dataDir), 20);
  engine.spawn();
  await eventually(() => engine.output.includes('waiting, because no device is known here yet.'), 30_000);
  expect((await engine.status()).code).toBe(503);
  await stores.postgres.start();
  await engine.ready();
  await accept(known.token, 6);
  expect(await post(revoked.token, 6)).toBe(401);
  await engine.knowsDevices();
});
