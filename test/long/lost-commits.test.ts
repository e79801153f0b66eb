/**
 * PostgreSQL commits, but the connection ends before its answer: a device that provisions itself gets its credentials
 * nevertheless, and every other caller either gets its answer or may send again.
 */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import { Link } from '../harness/link.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { newCustomer, newCustomerUser } from '../harness/people.ts';
import { type Stores, startStores, storeSettings } from '../harness/stores.ts';

const committed = 'COMMIT\0';
const secret = 's3-pump';

let stores: Stores;
let link: Link;
let engine: Engine;

beforeAll(async () => {
  stores = await startStores();
  const url = new URL(stores.postgres.url);
  link = await Link.to(Number(url.port));
  url.port = String(link.port);
  engine = await startEngine({ workers: 1, env: { ...storeSettings(stores), DATABASE_URL: url.href } });
}, 120_000);

afterAll(async () => {
  await engine?.destroy();
  link?.close();
  await stores?.stopAll();
}, 60_000);

interface Profile {
  id: unknown;
  provisionDeviceKey: string;
}

async function newProfile(type: string): Promise<Profile> {
  const unique = randomUUID();
  const answer = await engine.api.send('POST', '/api/deviceProfile', {
    name: `pump-${unique}`,
    provisionType: type,
    provisionDeviceKey: `k-${unique}`,
    profileData: { provisionConfiguration: { type, provisionDeviceSecret: secret } },
  });
  return (await answer.json()) as Profile;
}

interface Credentials {
  status: string;
  credentialsType?: string;
  credentialsValue?: string;
}

async function overHttp(body: object): Promise<Credentials> {
  const response = await fetch(`${engine.api.http}/api/v1/provision`, { method: 'POST', body: JSON.stringify(body) });
  return (await response.json()) as Credentials;
}

async function overMqtt(body: object): Promise<Credentials> {
  const client = await connectMqtt({ port: engine.mqttPort, username: 'provision' });
  try {
    expect((await client.publish('/provision/request', body)).reasonCode).toBe(0);
    return (await client.message('/provision/response')).json;
  } finally {
    client.cut();
  }
}

for (const [door, provision] of [
  ['HTTP', overHttp],
  ['MQTT', overMqtt],
] as const) {
  test(`${door}: a device that is made with a lost commit gets its credentials, and nobody else does`, async () => {
    const { provisionDeviceKey } = await newProfile('ALLOW_CREATE_NEW_DEVICES');
    for (const chosen of [{}, { token: randomUUID() }]) {
      const deviceName = `pump-${randomUUID()}`;
      const body = { deviceName, provisionDeviceKey, provisionDeviceSecret: secret, ...chosen };
      const lost = link.loseAnswer(deviceName, committed);
      const answer = await provision(body);
      await lost;
      expect(answer).toMatchObject({
        status: 'SUCCESS',
        credentialsType: 'ACCESS_TOKEN',
        ...('token' in chosen && { credentialsValue: chosen.token }),
      });
      await expect.poll(() => engine.api.postTelemetry(answer.credentialsValue!, '{"a":1}')).toBe(200);
      expect(await provision(body)).toMatchObject({ status: 'FAILURE' });
    }
  });

  test(`${door}: a device that exists gets its credentials with a lost commit, and nobody else does`, async () => {
    const { id, provisionDeviceKey } = await newProfile('CHECK_PRE_PROVISIONED_DEVICES');
    const deviceName = `pump-${randomUUID()}`;
    await engine.api.createDevice(deviceName, '', { deviceProfileId: id });
    const body = { deviceName, provisionDeviceKey, provisionDeviceSecret: secret };
    const lost = link.loseAnswer(deviceName, committed);
    const answer = await provision(body);
    await lost;
    expect(answer).toMatchObject({ status: 'SUCCESS', credentialsType: 'ACCESS_TOKEN' });
    expect(await engine.api.postTelemetry(answer.credentialsValue!, '{"a":1}')).toBe(200);
    expect(await provision(body)).toMatchObject({ status: 'FAILURE' });
  });
}

test('a device that is made while PostgreSQL dies gets its credentials when PostgreSQL is back', async () => {
  const { provisionDeviceKey } = await newProfile('ALLOW_CREATE_NEW_DEVICES');
  const deviceName = `pump-${randomUUID()}`;
  const body = { deviceName, provisionDeviceKey, provisionDeviceSecret: secret };
  const lost = link.loseAnswer(deviceName, committed);
  const answer = overHttp(body);
  await lost;
  await stores.postgres.kill();
  await stores.postgres.start();
  const { status, credentialsValue } = await answer;
  expect(status).toBe('SUCCESS');
  await expect.poll(() => engine.api.postTelemetry(credentialsValue!, '{"a":1}')).toBe(200);
  expect(await overHttp(body)).toMatchObject({ status: 'FAILURE' });
});

test('a user who makes a device with a lost commit is asked to check whether it was made', async () => {
  const name = `pump-${randomUUID()}`;
  const lost = link.loseAnswer(name, committed);
  const answer = await engine.api.send('POST', '/api/device', { name });
  await lost;
  expect(answer.status).toBe(503);
  expect(await answer.json()).toMatchObject({
    message:
      'The connection to the database was lost during this change, which may have been made: check before you send it again.',
  });
  expect((await engine.api.send('GET', `/api/tenant/devices?deviceName=${name}`)).status).toBe(200);
});

test('a gateway connects a child that was made with a lost commit, once', async () => {
  const gateway = await engine.api.createGateway(`gateway-${randomUUID()}`);
  const child = `child-${randomUUID()}`;
  const client = await connectMqtt({ port: engine.mqttPort, token: gateway.token });
  try {
    const lost = link.loseAnswer(child, committed);
    const connected = async () => (await client.publish('v1/gateway/connect', { device: child })).reasonCode;
    expect(await connected()).toBe(0x83);
    await lost;
    await expect.poll(connected).toBe(0);
    expect((await client.publish('v1/gateway/telemetry', { [child]: [{ a: 1 }] })).reasonCode).toBe(0);
  } finally {
    client.cut();
  }
});

test('attributes are stored with a lost answer', async () => {
  const device = await engine.api.newDevice();
  const key = `k${randomUUID()}`;
  const lost = link.loseAnswer(key, 'INSERT');
  const answer = await fetch(`${engine.api.http}/api/v1/${device.token}/attributes`, {
    method: 'POST',
    body: JSON.stringify({ [key]: 1 }),
  });
  await lost;
  expect(answer.status).toBe(200);
});

test('a user who claims a device with a lost commit has the device', async () => {
  const name = `pump-${randomUUID()}`;
  const device = await engine.api.createDevice(name);
  const claim = await fetch(`${engine.api.http}/api/v1/${device.token}/claim`, {
    method: 'POST',
    body: JSON.stringify({ secretKey: 'key', durationMs: 60_000 }),
  });
  expect(claim.status).toBe(200);
  const customer = await newCustomer(engine.api);
  const user = await newCustomerUser(customer, engine.api);
  const post = () => engine.api.send('POST', `/api/customer/device/${name}/claim`, { secretKey: 'key' }, user.token);
  const lost = link.loseAnswer(device.id, committed);
  expect((await post()).status).toBe(503);
  await lost;
  expect(await (await post()).json()).toBe('CLAIMED');
  expect(await (await engine.api.send('GET', `/api/device/${device.id}`)).json()).toMatchObject({
    customerId: { id: customer },
  });
});
