/**
 * Two hosts, one of which has lost the way to PostgreSQL alone: it serves the devices that it knows, and refuses those
 * that were changed on the other host meanwhile, because the bus still notifies it.
 */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { Link } from '../harness/link.ts';
import { codeOf, connectMqtt, type Login, MqttClient } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';
import { call } from '../harness/tenants.ts';

const unavailable = 0x88;

let stores: Stores;
let link: Link;
let here: Engine;
/** The host that loses PostgreSQL. */
let there: Engine;

beforeAll(async () => {
  stores = await startStores();
  const postgres = new URL(stores.postgres.url);
  link = await Link.to(Number(postgres.port));
  postgres.port = String(link.port);
  const env = hostSettings(stores);
  [here, there] = await startEngines([
    { workers: 1, env },
    { workers: 2, env: { ...env, DATABASE_URL: postgres.href } },
  ]);
});

afterAll(async () => {
  await Promise.all([here?.destroy(), there?.destroy()]);
  link?.close();
  await stores?.stopAll();
});

const ok = (method: string, path: string, body?: unknown) => call(here.api, method, path, body);

/** The answers of both workers of the host that loses PostgreSQL, very likely. */
async function statuses(token: string): Promise<Set<number>> {
  const post = async () => {
    const { status } = await fetch(`${there.api.http}/api/v1/${token}/telemetry`, {
      method: 'POST',
      headers: { connection: 'close' },
      body: '{"a":1}',
    });
    return status;
  };
  return new Set(await Promise.all(Array.from({ length: 12 }, post)));
}

/** Returns the code of the CONNACK. */
async function signIn(login: Login): Promise<number> {
  const client = await MqttClient.open({ port: there.mqttPort });
  const code = codeOf(await client.connect(login));
  client.cut();
  return code;
}

async function changeCredentials(device: Device, change: object): Promise<void> {
  const credentials = await ok('GET', `/api/device/${device.id}/credentials`);
  await ok('POST', '/api/device/credentials', { ...credentials, ...change });
}

test('a device that was changed on another host meanwhile is refused, and any other one is served', async () => {
  const names = { clientId: randomUUID(), username: 'mill', password: 'wheel' };
  const basicOf = (password: string) => ({
    credentialsType: 'MQTT_BASIC',
    credentialsValue: JSON.stringify({ clientId: names.clientId, userName: names.username, password }),
  });
  const childName = `child-${randomUUID()}`;
  const [kept, saved, moved, deleted, basic] = await here.api.createDevices(
    ['kept', 'saved', 'moved', 'deleted', 'basic'].map((name) => ({ name: `${name}-${randomUUID()}` })),
  );
  const child = await here.api.createDevice(childName);
  const gateway = await here.api.createGateway('hub');
  await changeCredentials(basic!, basicOf('wheel'));
  for (const { token } of [kept!, moved!, deleted!]) expect(await statuses(token)).toEqual(new Set([200]));
  await there.knowsDevices();
  const hub = await connectMqtt({ port: there.mqttPort, token: gateway.token });

  link.cut();
  try {
    await eventually(async () => (await there.status()).parts?.['postgres'] === 'away', 30_000);
    await changeCredentials(moved!, { credentialsId: `${moved!.token}-new` });
    await changeCredentials(basic!, basicOf('weir'));
    for (const { id } of [deleted!, child]) await ok('DELETE', `/api/device/${id}`);
    await ok('POST', '/api/device', { ...(await ok('GET', `/api/device/${saved!.id}`)), label: 'by the river' });
    for (const { token } of [moved!, deleted!]) {
      await eventually(async () => !(await statuses(token)).has(200));
      expect(await statuses(token)).toEqual(new Set([503]));
      expect(await signIn({ token })).toBe(unavailable);
    }
    expect(await signIn(names)).toBe(unavailable);
    const ack = await hub.publish('v1/gateway/telemetry', { [childName]: [{ a: 1 }] });
    expect(ack.reasonCode ?? 0).not.toBe(0);
    for (const { token } of [kept!, saved!]) {
      expect(await statuses(token)).toEqual(new Set([200]));
      expect(await signIn({ token })).toBe(0);
    }
  } finally {
    link.join();
    hub.cut();
  }
  await eventually(async () => (await statuses(deleted!.token)).has(401), 20_000);
  await eventually(async () => (await statuses(`${moved!.token}-new`)).has(200), 20_000);
  await eventually(async () => (await there.status()).status === 'ready', 20_000);
  expect(await statuses(moved!.token)).toEqual(new Set([401]));
  expect(await signIn({ ...names, password: 'weir' })).toBe(0);
}, 120_000);
