/** A provisioning connection (docs/mqtt.md#provisioning). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { lyingFrame, packetType, string } from '../../harness/mqtt-bytes.ts';
import { connectMqtt, levelName, levels, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { telemetry } from '../../harness/mqtt-device.ts';
import { ok } from '../../harness/people.ts';

const [requestTopic, responseTopic] = ['/provision/request', '/provision/response'];
const secret = 's3-pump';

async function newKey(): Promise<string> {
  const key = `k-${randomUUID()}`;
  const type = 'ALLOW_CREATE_NEW_DEVICES';
  await ok('POST', '/api/deviceProfile', {
    name: `pump-${key}`,
    provisionType: type,
    provisionDeviceKey: key,
    profileData: { provisionConfiguration: { type, provisionDeviceSecret: secret } },
  });
  return key;
}

const body = (key: string, members: object = {}) => ({
  provisionDeviceKey: key,
  provisionDeviceSecret: secret,
  ...members,
});

async function answer(client: MqttClient) {
  const message = await client.message(responseTopic);
  expect(message.packet.qos).toBe(1);
  return message.json;
}

for (const level of levels) {
  test(`${levelName[level]}: the name provision is let in, and may subscribe to its answer only`, async () => {
    await withMqtt({ level, username: 'provision', password: 'anything' }, async (client) => {
      expect(await client.subscribe(responseTopic)).toEqual([1]);
      expect(await client.subscribe('v1/devices/me/attributes')).toEqual([level === 5 ? 0x8f : 0x80]);
      await client.quiet();
    });
    await withMqtt({ level, clientId: 'provision' }, (client) => client.quiet());
  });

  test(`${levelName[level]}: a valid request gets credentials, and they connect`, async () => {
    const key = await newKey();
    const deviceName = `pump-${randomUUID()}`;
    const token = await withMqtt({ level, username: 'provision' }, async (client) => {
      expect((await client.publish(requestTopic, body(key, { deviceName }))).reasonCode ?? 0).toBe(0);
      const answered = await answer(client);
      expect(answered).toEqual({
        status: 'SUCCESS',
        credentialsType: 'ACCESS_TOKEN',
        credentialsValue: expect.stringMatching(/^[A-Za-z0-9]{20}$/),
      });
      return answered.credentialsValue;
    });
    await withMqtt({ level, token }, (client) => client.quiet());
  });
}

test('a connection without credentials may send few and small packets, and gets the reason', async () => {
  const client = await connectMqtt({ username: 'provision' });
  expect(client.connack!.properties).toMatchObject({ maximumPacketSize: 24 * 1024, receiveMaximum: 10 });
  await client.send(lyingFrame(packetType.publish, 0, 24 * 1024, string(requestTopic)));
  await client.closedFor(0x95);
});

test('several requests of one connection are answered in turn, at QoS 0 too', async () => {
  const key = await newKey();
  await withMqtt({ username: 'provision' }, async (client) => {
    const deviceName = `pump-${randomUUID()}`;
    await client.subscribe({ [responseTopic]: 0 });
    await client.publishQos0(requestTopic, body(key, { deviceName }));
    await client.publishQos0(requestTopic, body(key, { deviceName }));
    const [first, second] = [await client.message(responseTopic), await client.message(responseTopic)];
    expect([first.json.status, second.json.status]).toEqual(['SUCCESS', 'FAILURE']);
    expect(first.packet.qos).toBe(0);
  });
});

test('a wrong secret is NOT_FOUND', () =>
  withMqtt({ username: 'provision' }, async (client) => {
    const key = await newKey();
    const request = body(key, { provisionDeviceSecret: 'wrong' });
    expect((await client.publish(requestTopic, request)).reasonCode ?? 0).toBe(0);
    expect(await answer(client)).toEqual({ errorMsg: 'Provision data was not found!', status: 'NOT_FOUND' });
  }));

test('a request without its secret is 0x99 and FAILURE, and the connection stays', () =>
  withMqtt({ username: 'provision' }, async (client) => {
    for (const request of [JSON.stringify({ provisionDeviceKey: 'k' }), '', '{', '[]']) {
      expect((await client.publish(requestTopic, request)).reasonCode ?? 0).toBe(0x99);
      expect((await answer(client)).status).toBe('FAILURE');
    }
    await client.quiet();
  }));

test('any other topic is 0x90 and the end', async () => {
  for (const topic of [telemetry, 'v1/devices/me/nothing', '/provision/response', 'v1/gateway/connect']) {
    const client = await connectMqtt({ username: 'provision' });
    expect((await client.publish(topic, '{"a":1}')).reasonCode ?? 0).toBe(0x90);
    await client.closedFor(0x90);
  }
});

test('MQTT 3.1.1: any other topic is the end', async () => {
  const client = await connectMqtt({ level: 4, username: 'provision' });
  await client.write(client.publishPacket(telemetry, '{"a":1}'));
  await client.closed();
  expect(client.received.filter(({ cmd }) => cmd !== 'puback')).toEqual([]);
});
