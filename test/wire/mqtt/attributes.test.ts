/** Client attributes over MQTT, and what a device reads of its attributes (docs/mqtt.md#telemetry-and-attributes). */
import { expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { hex, type Level, levels, type MqttClient } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';

const attributes = 'v1/devices/me/attributes';
const request = `${attributes}/request/`;
const response = `${attributes}/response/`;

/** Returns the text that answers a request. */
async function asked(client: MqttClient, id: number, body: string): Promise<string> {
  const [ack, answer] = await Promise.all([
    client.publish(`${request}${id}`, body),
    client.message(`${response}${id}`),
  ]);
  expect(hex(ack.reasonCode)).toBe('0x00');
  expect(answer.packet.qos).toBe(1);
  return answer.text;
}

/** A device with the client attributes a=1, b=2.0 and the shared attributes b="x", c={"d":[1]}. */
async function prepared(client: MqttClient, device: Device): Promise<DeviceUser> {
  const user = new DeviceUser(device);
  await client.publish(attributes, '{"a":1,"b":2.0}');
  await user.set('SHARED_SCOPE', '{"b":"x","c":{"d":[1]}}');
  return user;
}

test.each(levels)('client attributes are stored before they are acknowledged, on each topic: level %s', (level) =>
  withDevice({ level }, async (client, device) => {
    await client.publish(attributes, '{"a":1,"n":null}');
    await client.publish('v2/a', '{"b":9223372036854775807}');
    await client.publish('v2/a/j', '{"c":{"d":1.0}}');
    expect(await new DeviceUser(device).values('CLIENT_SCOPE')).toBe(
      '[{"key":"a","value":1},{"key":"b","value":9223372036854775807},{"key":"c","value":{"d":1.0}}]',
    );
  }),
);

test('an empty object of attributes is acknowledged', () =>
  withDevice({}, async (client) => {
    expect(hex((await client.publish(attributes, '{}')).reasonCode)).toBe('0x00');
  }));

test('of two posts in one segment the later one wins, and both are acknowledged in order', () =>
  withDevice({}, async (client, device) => {
    const packets = Array.from({ length: 20 }, (_, n) => client.publishPacket(attributes, `{"n":${n}}`));
    await client.write(...packets);
    for (const { messageId } of packets) await client.expect('puback', { messageId: messageId! });
    expect(await new DeviceUser(device).values('CLIENT_SCOPE')).toBe('[{"key":"n","value":19}]');
  }));

test.each([
  ['no JSON', '{"a":'],
  ['an array', '[{"a":1}]'],
  ['nothing', ''],
  ['an empty key', '{"":1}'],
])('attributes that are %s are refused with 0x99 and a reason, and the connection stays', (_, body) =>
  withDevice({}, async (client, device) => {
    const ack = await client.publish(attributes, body);
    expect(hex(ack.reasonCode)).toBe('0x99');
    expect(ack.properties?.reasonString).toBeTruthy();
    expect(await new DeviceUser(device).values('CLIENT_SCOPE')).toBe('[]');
    await client.quiet();
  }),
);

test.each([3, 4] as Level[])(
  'MQTT 3 gets a plain PUBACK for attributes that are no JSON, and stays: level %s',
  (level) =>
    withDevice({ level }, async (client) => {
      await client.publish(attributes, '{"a":');
      await client.quiet();
    }),
);

test.each(levels)('a device reads what it names of both scopes: level %s', (level) =>
  withDevice({ level }, async (client, device) => {
    await prepared(client, device);
    expect(await client.subscribe(`${response}+`)).toEqual([1]);
    expect(await asked(client, 7, '{"clientKeys":"a,z","sharedKeys":"b"}')).toBe(
      '{"client":{"a":1},"shared":{"b":"x"}}',
    );
  }),
);

test('it is answered without a subscription', () =>
  withDevice({}, async (client, device) => {
    await prepared(client, device);
    expect(await asked(client, 7, '{"clientKeys":"a","sharedKeys":"b"}')).toBe('{"client":{"a":1},"shared":{"b":"x"}}');
  }));

test('a request without keys gets all attributes, one for unknown keys an empty object', () =>
  withDevice({}, async (client, device) => {
    await prepared(client, device);
    const all = '{"client":{"a":1,"b":2.0},"shared":{"b":"x","c":{"d":[1]}}}';
    for (const body of ['{}', '{"clientKeys":"","sharedKeys":""}', '{"allClientKeys":true,"allSharedKeys":true}']) {
      expect(await asked(client, 8, body)).toBe(all);
    }
    expect(await asked(client, 9, '{"sharedKeys":"none"}')).toBe('{}');
    expect(await asked(client, 9, '{"sharedKeys":",,"}')).toBe('{}');
  }));

test('a scope that is not asked for is not answered; lists may be arrays, and a scope may be asked for as a whole', () =>
  withDevice({}, async (client, device) => {
    await prepared(client, device);
    expect(await asked(client, 1, '{"clientKeys":"a,,b"}')).toBe('{"client":{"a":1,"b":2.0}}');
    expect(await asked(client, 2, '{"sharedKeys":["b","c"]}')).toBe('{"shared":{"b":"x","c":{"d":[1]}}}');
    expect(await asked(client, 3, '{"clientKeys":["b"],"allSharedKeys":true}')).toBe(
      '{"client":{"b":2.0},"shared":{"b":"x","c":{"d":[1]}}}',
    );
  }));

test('the answer is sent on the topic family of the request, with the QoS of its subscription', () =>
  withDevice({}, async (client, device) => {
    await prepared(client, device);
    expect(await client.subscribe({ 'v2/a/res/+': 0 })).toEqual([0]);
    await client.publish('v2/a/req/5', '{"clientKeys":"a"}');
    expect((await client.message('v2/a/res/5')).packet).toMatchObject({ qos: 0, retain: false });
    await client.publish('v2/a/req/j/-6', '{"clientKeys":"a"}');
    expect((await client.message('v2/a/res/j/-6')).text).toBe('{"client":{"a":1}}');
  }));

test('a request with QoS 0 is answered, too', () =>
  withDevice({}, async (client, device) => {
    await prepared(client, device);
    await client.publishQos0(`${request}1`, '{"clientKeys":"a"}');
    expect((await client.message(`${response}1`)).text).toBe('{"client":{"a":1}}');
  }));

test.each([
  ['an id that is no number', `${request}abc`, '{}'],
  ['an id beyond 32 bits', `${request}2147483648`, '{}'],
  ['no id', request, '{}'],
  ['a body that is no object', `${request}1`, '[]'],
  ['a body that is no JSON', `${request}1`, '{'],
  ['an empty body', `${request}1`, ''],
  ['a list of numbers', `${request}1`, '{"clientKeys":[1]}'],
  ['the Protobuf topic', 'v2/a/req/p/1', '{}'],
])('a request with %s is refused with 0x99, is not answered, and the connection stays', (_, topic, body) =>
  withDevice({}, async (client) => {
    expect(hex((await client.publish(topic, body)).reasonCode)).toBe('0x99');
    await client.quiet();
  }),
);

test('an answer above the Maximum Packet Size of the client is refused with 0x99 and a reason', () =>
  withDevice({ properties: { maximumPacketSize: 300 } }, async (client, device) => {
    await new DeviceUser(device).set('SHARED_SCOPE', `{"large":"${'x'.repeat(300)}","small":1}`);
    const ack = await client.publish(`${request}1`, '{}');
    expect(hex(ack.reasonCode)).toBe('0x99');
    expect(ack.properties?.reasonString).toContain('Maximum Packet Size');
    expect(await asked(client, 2, '{"sharedKeys":"small"}')).toBe('{"shared":{"small":1}}');
  }));
