/** A session lasts as long as the credentials that opened it (docs/mqtt.md#sessions), on any worker. */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { leastMs } from '../../harness/least-time.ts';
import { codeOf, connectMqtt, levelName, levels, withMqtt, withSocket } from '../../harness/mqtt-client.ts';
import { telemetry } from '../../harness/mqtt-device.ts';
import { connectMqttOn } from '../../harness/mqtt-workers.ts';
import { ok } from '../../harness/people.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const notAuthorized = 0x98;

async function changeToken(device: Device): Promise<string> {
  const credentials = await ok('GET', `/api/device/${device.id}/credentials`);
  const credentialsId = `token-${randomUUID()}`;
  await ok('POST', '/api/device/credentials', { ...credentials, credentialsId });
  return credentialsId;
}

async function save(device: Device, members: object): Promise<void> {
  await ok('POST', '/api/device', { ...(await ok('GET', `/api/device/${device.id}`)), ...members });
}

for (const level of levels) {
  test(`${levelName[level]}: a changed token ends the connection, and only the new one is let in`, async () => {
    const device = await newDevice();
    const client = await connectMqtt({ token: device.token, level });
    const token = await changeToken(device);
    await client.closedFor(notAuthorized);
    await withSocket({ level }, async (refused) => {
      expect(codeOf(await refused.connect({ token: device.token }))).toBe(level === 5 ? 0x86 : 5);
    });
    await withMqtt({ token, level }, (again) => again.quiet());
  });
}

test('a changed token ends the connection within a second on every worker', async () => {
  for (const worker of [0, 1]) {
    const closedMs = async () => {
      const device = await newDevice();
      const client = await connectMqttOn(worker, { token: device.token });
      await changeToken(device);
      const begun = performance.now();
      await client.closedFor(notAuthorized);
      return performance.now() - begun;
    };
    expect(await leastMs(1_000, closedMs)).toBeLessThan(1_000);
  }
});

test('a deleted device is disconnected on every worker', async () => {
  for (const worker of [0, 1]) {
    const device = await newDevice();
    const client = await connectMqttOn(worker, { token: device.token });
    await sharedEngine().send('DELETE', `/api/device/${device.id}`);
    await client.closedFor(notAuthorized);
  }
});

test('a device that is only saved, renamed or moved to another profile stays connected', async () => {
  const device = await newDevice();
  await withMqtt({ token: device.token }, async (client) => {
    await save(device, { label: 'new label' });
    await save(device, { name: `renamed-${randomUUID()}` });
    await save(device, { type: `kind-${randomUUID()}`, deviceProfileId: null });
    await client.nothingFor(300);
    expect((await client.publish(telemetry, '{"a":1}')).reasonCode ?? 0).toBe(0);
  });
});

test('a device that was saved still receives shared attributes and commands', async () => {
  const device = await newDevice();
  await withMqtt({ token: device.token }, async (client) => {
    await client.subscribe({ 'v1/devices/me/attributes': 1, 'v1/devices/me/rpc/request/+': 1 });
    await save(device, { label: 'new label' });
    await client.quiet();
    await ok('POST', `/api/plugins/telemetry/${device.id}/SHARED_SCOPE`, { level: 5 });
    expect((await client.message('v1/devices/me/attributes')).json).toEqual({ level: 5 });
    const call = ok('POST', `/api/plugins/rpc/twoway/${device.id}`, { method: 'turn', params: {} });
    const request = await client.message();
    expect(request.json.method).toBe('turn');
    await client.publish(request.topic.replace('request', 'response'), '{"turned":true}');
    expect(await call).toEqual({ turned: true });
  });
});

test('a device that becomes a gateway is one from its next connection on', async () => {
  const device = await newDevice();
  await withMqtt({ token: device.token }, async (client) => {
    await save(device, { additionalInfo: { gateway: true } });
    await client.nothingFor(200);
    expect((await client.publish('v1/gateway/connect', { device: `child-${randomUUID()}` })).reasonCode ?? 0).toBe(
      0x87,
    );
  });
  await withMqtt({ token: device.token }, async (client) => {
    expect((await client.publish('v1/gateway/connect', { device: `child-${randomUUID()}` })).reasonCode ?? 0).toBe(0);
  });
});

test('a password that is changed ends the connection', async () => {
  const device = await newDevice();
  const [clientId, username] = [randomUUID(), randomUUID()];
  const basic = async (password: string) => {
    const credentials = await ok('GET', `/api/device/${device.id}/credentials`);
    const credentialsValue = JSON.stringify({ clientId, userName: username, password });
    await ok('POST', '/api/device/credentials', { ...credentials, credentialsType: 'MQTT_BASIC', credentialsValue });
  };
  await basic('earlier');
  const client = await connectMqtt({ clientId, username, password: 'earlier' });
  await basic('of now');
  await client.closedFor(notAuthorized);
  await withMqtt({ clientId, username, password: 'of now' }, (again) => again.quiet());
});

test('a device whose profile has another transport is refused with 0x88', async () => {
  const profile = await ok('POST', '/api/deviceProfile', { name: `coap-${randomUUID()}`, transportType: 'COAP' });
  const device = await newDevice();
  await save(device, { deviceProfileId: profile.id, type: null });
  for (const [level, code] of [
    [5, 0x88],
    [4, 3],
  ] as const) {
    await withSocket({ level }, async (client) => {
      expect(codeOf(await client.connect({ token: device.token }))).toBe(code);
      await client.closed();
    });
  }
});

test('a device that is created after its token was refused is let in', async () => {
  const token = `chosen-${randomUUID()}`;
  await withSocket({}, async (client) => {
    expect(codeOf(await client.connect({ token }))).toBe(0x86);
  });
  await sharedEngine().createDevice(`late-${randomUUID()}`, token);
  await eventually(() => withMqtt({ token }, (client) => client.quiet()).then(() => true));
});
