/** Limits of a gateway by settings: devices of the tenant, children, rate limits; and the validity of its claims. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type Level, type MqttClient } from '../harness/mqtt-client.ts';
import { makeUser } from '../harness/tenants.ts';

const telemetry = 'v1/gateway/telemetry';
const claimMs = 1500;
const devicesMax = 24;

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({
    workers: 2,
    env: {
      LIMITS_DEVICES: String(devicesMax),
      GATEWAY_CHILDREN_MAX: '3',
      RATE_LIMITS_GATEWAY_TELEMETRY_DATA_POINTS: '10:3600',
      RATE_LIMITS_GATEWAY_DEVICE_MESSAGES: '9000:3600',
      SECURITY_CLAIM_DURATION: String(claimMs),
      DEFAULT_INACTIVITY_TIMEOUT: '1',
      DEFAULT_STATE_CHECK_INTERVAL: '1',
    },
  });
});

afterAll(() => engine.destroy());

let made = 0;

async function withGateway(level: Level, use: (client: MqttClient, gateway: Device) => Promise<void>): Promise<void> {
  const gateway = await engine.api.createGateway(`hub ${made++}`);
  const client = await connectMqtt({ port: engine.mqttPort, level, token: gateway.token });
  try {
    await use(client, gateway);
  } finally {
    client.cut();
  }
}

async function devices(): Promise<string[]> {
  const page = await (await engine.api.send('GET', '/api/tenant/devices?pageSize=1000&page=0')).json();
  return (page as { data: { name: string }[] }).data.map(({ name }) => name);
}

test('a child over the rate limit of its gateway is refused by name, the link stays, MQTT 5 gets a notice', async () => {
  await withGateway(5, async (client, gateway) => {
    expect((await client.publish(telemetry, { A: [{ a: 1, b: 2, c: 3 }], B: [{ a: 1 }] })).reasonCode).toBe(0);
    const big = { a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7 };
    const ack = await client.publish(telemetry, { A: [big], B: [{ b: 2 }] });
    expect(ack.reasonCode).toBe(0x97);
    expect(ack.properties?.reasonString).toContain('"A"');
    expect(ack.properties?.reasonString).not.toContain('"B"');
    expect((await client.message('v1/gateway/disconnect')).json).toEqual({ device: 'A', reason: 150 });
    expect((await client.publish(telemetry, { B: [{ c: 3 }] })).reasonCode).toBe(0);
    // Messages of the gateway itself are counted separately.
    expect((await client.publish('v1/devices/me/telemetry', { ...big, h: 8, i: 9 })).reasonCode).toBe(0);
    const limits = { method: 'getSessionLimits', params: {} };
    await client.publish('v1/devices/me/rpc/request/1', limits);
    expect((await client.message('v1/devices/me/rpc/response/1')).json).toMatchObject({
      rateLimits: { messages: '9000:3600', telemetryDataPoints: '' },
      gatewayRateLimits: { telemetryDataPoints: '10:3600' },
    });
    await client.quiet();
    expect(gateway.token).toBeTruthy();
  });
});

test('over MQTT 3 the rate limit ends the connection, so that the client keeps the message', async () => {
  await withGateway(4, async (client) => {
    await client.publish(telemetry, { E: [Object.fromEntries(Array.from({ length: 9 }, (_, n) => [`k${n}`, n]))] });
    await client.write(client.publishPacket(telemetry, JSON.stringify({ E: [{ a: 1, b: 2 }] })));
    await client.closedFor([]);
  });
});

test('a gateway has no more children than gateway.childrenMax; one that goes makes room', async () => {
  await withGateway(5, async (client) => {
    const connect = async (device: string) => (await client.publish('v1/gateway/connect', { device })).reasonCode;
    expect([await connect('C1'), await connect('C2')]).toEqual([0, 0]);
    const ack = await client.publish(telemetry, { C1: [], C3: [], C4: [] });
    expect(ack.reasonCode).toBe(0x97);
    expect(ack.properties?.reasonString).toMatch(/"C4": .*childrenMax/);
    expect(await connect('C4')).toBe(0x97);
    await client.publish('v1/gateway/disconnect', { device: 'C1' });
    expect(await connect('C4')).toBe(0);
    expect(await devices()).toContain('C3');
  });
});

test('a claim of a child without a duration uses device.claim.duration', async () => {
  await withGateway(5, async (client) => {
    await client.publish('v1/gateway/connect', { device: 'D1' });
    expect((await client.publish('v1/gateway/claim', { D1: { secretKey: 's' } })).reasonCode).toBe(0);
    const user = await newCustomerUser();
    await sleep(claimMs + 200);
    const late = await engine.api.send('POST', '/api/customer/device/D1/claim', { secretKey: 's' }, user);
    expect(late.status).toBe(400);
    await client.publish('v1/gateway/claim', { D1: { secretKey: 's', durationMs: 60_000 } });
    const inTime = await engine.api.send('POST', '/api/customer/device/D1/claim', { secretKey: 's' }, user);
    expect(inTime.status).toBe(200);
  });
});

test('a child that is silent so long that it is inactive still receives its shared attributes', async () => {
  await withGateway(5, async (client) => {
    await client.subscribe('v1/gateway/attributes');
    await client.publish('v1/gateway/connect', { device: 'silent' });
    const found = await (await engine.api.send('GET', '/api/tenant/devices?deviceName=silent')).json();
    const path = `/api/plugins/telemetry/DEVICE/${(found as { id: { id: string } }).id.id}`;
    await eventually(async () => {
      const active = await engine.api.send('GET', `${path}/values/attributes/SERVER_SCOPE?keys=active`);
      return ((await active.json()) as { value: boolean }[])[0]?.value === false;
    }, 30_000);
    await engine.api.send('POST', `${path}/SHARED_SCOPE`, { s: 1 });
    expect((await client.message('v1/gateway/attributes')).json).toEqual({ device: 'silent', data: { s: 1 } });
  });
});

test('at the limit of devices the first are made, the others refused by name, and the gateway stays', async () => {
  const [hub, old] = [await engine.api.createGateway(`hub ${made++}`), await engine.api.createGateway(`hub ${made++}`)];
  for (let n = (await devices()).length; n < devicesMax - 2; n += 1) await engine.api.createDevice(`filler ${n}`);
  const client = await connectMqtt({ port: engine.mqttPort, token: hub.token });
  const ack = await client.publish(telemetry, { L1: [{ t: 1 }], L2: [], L3: [{ t: 3 }] });
  expect(ack.reasonCode).toBe(0x97);
  expect(ack.properties?.reasonString).toMatch(/^"L3": Devices limit reached/);
  expect((await client.publish('v1/gateway/connect', { device: 'L4' })).reasonCode).toBe(0x97);
  expect((await client.publish(telemetry, { L1: [{ t: 2 }] })).reasonCode).toBe(0);
  await client.quiet();
  client.cut();
  const oldClient = await connectMqtt({ port: engine.mqttPort, level: 4, token: old.token });
  await oldClient.publish(telemetry, { L5: [{ t: 1 }] });
  await oldClient.quiet();
  oldClient.cut();
  const names = await devices();
  expect(names).toHaveLength(devicesMax);
  expect(names.filter((name) => name.startsWith('L')).sort()).toEqual(['L1', 'L2']);
  expect((await engine.api.send('POST', '/api/device', { name: 'one more' })).status).toBe(403);
});

async function newCustomerUser(): Promise<string> {
  const customer = await (await engine.api.send('POST', '/api/customer', { title: 'Miller' })).json();
  const { id: customerId } = customer as { id: { id: string } };
  return (await makeUser(engine.api, { authority: 'CUSTOMER_USER', customerId })).token;
}
