/**
 * Claiming, provisioning and rate limits of a device with settings other than the defaults. Over MQTT every packet that
 * is no data post counts as one message (docs/mqtt.md#refusals).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Device } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { hex, type Level, MqttClient } from '../harness/mqtt-client.ts';
import { newCustomer, newCustomerUser, ok, type Person } from '../harness/people.ts';

let engine: Engine;
let user: Person;

beforeAll(async () => {
  engine = await startEngine({
    workers: 1,
    env: {
      SECURITY_CLAIM_DURATION: '1500',
      SECURITY_CLAIM_ALLOW_CLAIMING_BY_DEFAULT: 'false',
      PROVISION_WRONG_KEYS_PER_MINUTE_MAX: '3',
      RATE_LIMITS_DEVICE_MESSAGES: '4:3600',
      RATE_LIMITS_DEVICE_TELEMETRY_DATA_POINTS: '3:3600',
    },
  });
  user = await newCustomerUser(await newCustomer(engine.api), engine.api);
});

afterAll(() => engine?.destroy());

async function claim(name: string): Promise<string> {
  const response = await engine.api.send('POST', `/api/customer/device/${name}/claim`, {}, user.token);
  return `${response.status} ${(JSON.parse(await response.text()) as { response?: string }).response ?? 'refused'}`;
}

const offer = async (token: string) =>
  (await fetch(`${engine.api.http}/api/v1/${token}/claim`, { method: 'POST' })).status;

const allow = (id: string) =>
  ok('POST', `/api/plugins/telemetry/DEVICE/${id}/SERVER_SCOPE`, { claimingAllowed: true }, undefined, engine.api);

test('an offer without a time ends with the time of the setting', async () => {
  const device = await engine.api.createDevice('short');
  await allow(device.id);
  expect(await offer(device.token)).toBe(200);
  expect(await offer(device.token)).toBe(200);
  await sleep(1_700);
  expect(await claim('short')).toBe('400 refused');
  expect(await offer(device.token)).toBe(200);
  expect(await claim('short')).toBe('200 SUCCESS');
});

test('where claiming is not allowed by default, a device needs its permission, each time', async () => {
  const device = await engine.api.createDevice('guarded');
  expect(await offer(device.token)).toBe(200);
  expect(await claim('guarded')).toBe('400 refused');
  await allow(device.id);
  expect(await claim('guarded')).toBe('400 refused');
  expect(await offer(device.token)).toBe(200);
  expect(await claim('guarded')).toBe('200 SUCCESS');
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/values/attributes/SERVER_SCOPE?keys=claimingAllowed`;
  expect(await ok('GET', path, undefined, undefined, engine.api)).toEqual([]);
  await ok('DELETE', '/api/customer/device/guarded/claim', undefined, undefined, engine.api);
  expect(await ok('GET', path, undefined, undefined, engine.api)).toMatchObject([{ value: true }]);
});

test('a sender that guesses provisioning keys must wait, even with a right key', async () => {
  const guess = (provisionDeviceSecret: string) =>
    fetch(`${engine.api.http}/api/v1/provision`, {
      method: 'POST',
      body: JSON.stringify({ provisionDeviceKey: 'k-pump', provisionDeviceSecret }),
    });
  const profile = {
    name: 'pump',
    provisionDeviceKey: 'k-pump',
    profileData: { provisionConfiguration: { type: 'ALLOW_CREATE_NEW_DEVICES', provisionDeviceSecret: 's3-pump' } },
  };
  await ok('POST', '/api/deviceProfile', profile, undefined, engine.api);
  for (let i = 0; i < 5; i += 1) expect(await (await guess('s3-pump')).json()).toMatchObject({ status: 'SUCCESS' });
  const answers = await Promise.all(Array.from({ length: 8 }, () => guess('wrong')));
  expect(answers.filter(({ status }) => status === 200)).toHaveLength(3);
  const refused = await guess('s3-pump');
  expect(refused.status).toBe(429);
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
  // Devices of the same address are still served.
  const device = await engine.api.createDevice('bystander');
  expect(await engine.api.postTelemetry(device.token, '{"a":1}')).toBe(200);
});

let created = 0;

async function withLimited<T>(level: Level, use: (client: MqttClient, device: Device) => Promise<T>): Promise<T> {
  const device = await engine.api.createDevice(`limited-${created++}`);
  const client = await MqttClient.open({ port: engine.mqttPort, level });
  try {
    await client.connect({ token: device.token });
    return await use(client, device);
  } finally {
    client.cut();
  }
}

const request = 'v1/devices/me/attributes/request/1';

test('a message above the limit gets 0x97 with the reason, and the connection stays; data posts count for themselves', () =>
  withLimited(5, async (client) => {
    // CONNECT was the first message that counts.
    for (const topic of [request, 'v1/devices/me/rpc/response/1', 'v1/devices/me/claim']) {
      expect(hex((await client.publish(topic, '{}')).reasonCode)).toBe('0x00');
    }
    for (const topic of [request, 'v1/devices/me/rpc/response/1', 'v1/devices/me/claim', 'v2/fw/request/1/chunk/0']) {
      const ack = await client.publish(topic, '{}');
      expect(hex(ack.reasonCode)).toBe('0x97');
      expect(ack.properties?.reasonString).toContain('rateLimits.device.messages');
    }
    const call = await client.publish('v1/devices/me/rpc/request/1', '{"method":"getSessionLimits"}');
    expect(hex(call.reasonCode)).toBe('0x97');
    expect(await client.subscribe('v1/devices/me/attributes')).toEqual([0x97]);
    expect(hex((await client.publish('v1/devices/me/attributes', '{"a":1,"b":2}')).reasonCode)).toBe('0x00');
    expect(hex((await client.publish('v1/devices/me/attributes', '{"a":1,"b":2}')).reasonCode)).toBe('0x97');
    expect(hex((await client.publish('v1/devices/me/attributes', '{"a":1}')).reasonCode)).toBe('0x00');
  }));

test('getSessionLimits returns the limits', () =>
  withLimited(5, async (client) => {
    await client.publish('v1/devices/me/rpc/request/1', '{"method":"getSessionLimits","params":{}}');
    expect((await client.message('v1/devices/me/rpc/response/1')).json.rateLimits).toEqual({
      messages: '4:3600',
      telemetryMessages: '',
      telemetryDataPoints: '3:3600',
    });
  }));

test('a connection of MQTT 3.1.1 ends without an acknowledgement, so that the client keeps its message', () =>
  withLimited(4, async (client) => {
    for (let n = 0; n < 3; n += 1) await client.publish('v1/devices/me/claim', '{}');
    await client.write(client.publishPacket('v1/devices/me/claim', '{}'));
    await client.closed();
    expect(client.received).toEqual([]);
  }));
