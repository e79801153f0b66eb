/**
 * Calls of a device over MQTT (docs/mqtt.md#commands-and-calls), answered by rules.yaml or unanswered for two seconds.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { hex, levels, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';
import { ok } from '../../harness/people.ts';
import { newDevice } from '../../harness/shared-engine.ts';

const requests = 'v1/devices/me/rpc/request/';
const responses = 'v1/devices/me/rpc/response/';

/** Returns the text that answers a call. */
async function answered(client: MqttClient, id: number, body: string): Promise<string> {
  const [ack, answer] = await Promise.all([
    client.publish(`${requests}${id}`, body),
    client.message(`${responses}${id}`),
  ]);
  expect(hex(ack.reasonCode)).toBe('0x00');
  return answer.text;
}

test.each(levels)('a rule answers on the response topic, without a subscription: level %s', (level) =>
  withDevice({ level }, async (client) => {
    expect(await answered(client, 1, '{"method":"echo","params":{"a":42.0}}')).toBe(
      '{"method": "echo", "params": {"a":42.0}, "text": "<42.0>"}',
    );
    expect(await answered(client, 2, '{"method":"echo"}')).toBe('{"method": "echo", "params": null, "text": "<>"}');
  }),
);

test('the answer is sent on the topic family of the request, with the QoS of its subscription', () =>
  withDevice({}, async (client) => {
    expect(await client.subscribe({ 'v2/r/res/+': 0 })).toEqual([0]);
    await client.publish('v2/r/req/5', '{"method":"echo"}');
    expect((await client.message('v2/r/res/5')).packet.qos).toBe(0);
    await client.publish('v2/r/req/j/6', '{"method":"echo"}');
    expect((await client.message('v2/r/res/j/6')).packet.qos).toBe(1);
  }));

test('a call that no rule answers is acknowledged at once, and answered with a timeout in time', () =>
  withDevice({}, async (client) => {
    const begin = performance.now();
    expect(hex((await client.publish(`${requests}2`, '{"method":"x"}')).reasonCode)).toBe('0x00');
    // The connection is used between the acknowledgement and the answer.
    await client.quiet();
    expect((await client.message(`${responses}2`)).text).toBe('{"error":"timeout"}');
    expect(performance.now() - begin).toBeGreaterThan(1_900);
  }));

test('two calls with one id are both answered, each in its own time', () =>
  withDevice({}, async (client) => {
    await client.publish(`${requests}3`, '{"method":"x"}');
    await sleep(1_000);
    await client.publish(`${requests}3`, '{"method":"x"}');
    const begin = performance.now();
    expect((await client.message(`${responses}3`)).text).toBe('{"error":"timeout"}');
    expect((await client.message(`${responses}3`)).text).toBe('{"error":"timeout"}');
    expect(performance.now() - begin).toBeGreaterThan(1_800);
  }));

test('a call without a method is answered where a rule takes such calls, as over HTTP', () =>
  withDevice({}, async (client) => {
    expect(await answered(client, 1, '{"params":1}')).toBe('{"document": 1}');
    expect(await answered(client, 2, '{"method":7,"params":2}')).toBe('{"document": 2}');
    expect(await answered(client, 3, '[]')).toBe('{"document": []}');
  }));

test.each([
  ['a body that is no JSON', `${requests}3`, '{'],
  ['no body', `${requests}3`, ''],
  ['an id that is no number', `${requests}x`, '{"method":"echo"}'],
  ['the Protobuf topic', 'v2/r/req/p/1', '{"method":"echo"}'],
])('a call with %s is refused with 0x99, and the connection stays', (_, topic, body) =>
  withDevice({}, async (client) => {
    const ack = await client.publish(topic, body);
    expect(hex(ack.reasonCode)).toBe('0x99');
    expect(ack.properties?.reasonString).toBeTruthy();
    await client.quiet();
  }),
);

test('more open calls than a device may have are refused with 0x97 and a reason', () =>
  withDevice({}, async (client) => {
    const packets = Array.from({ length: 21 }, (_, n) => client.publishPacket(`${requests}${n}`, '{"method":"x"}'));
    await client.write(...packets);
    const acks = [];
    for (const { messageId } of packets) acks.push(await client.pick('puback', { messageId: messageId! }));
    expect(acks.map(({ reasonCode }) => hex(reasonCode))).toEqual([...Array(20).fill('0x00'), '0x97']);
    expect(acks.at(-1)!.properties?.reasonString).toContain('20 calls');
  }));

const unlimited = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };

test.each(levels)('getSessionLimits is answered, before anything is subscribed: level %s', (level) =>
  withDevice({ level }, async (client) => {
    expect(JSON.parse(await answered(client, 1, '{"method":"getSessionLimits","params":{}}'))).toEqual({
      maxPayloadSize: 65_536,
      maxInflightMessages: 1_000,
      rateLimits: unlimited,
    });
  }),
);

test('a gateway gets the limits of its devices, too', async () => {
  const device = await newDevice();
  const stored = await ok('GET', `/api/device/${device.id}`);
  await ok('POST', '/api/device', { ...stored, additionalInfo: { gateway: true } });
  await withMqtt(device, async (client) => {
    expect(JSON.parse(await answered(client, 1, '{"method":"getSessionLimits","params":{}}'))).toEqual({
      maxPayloadSize: 4 * 1024 * 1024,
      maxInflightMessages: 1_000,
      rateLimits: unlimited,
      gatewayRateLimits: unlimited,
    });
  });
});

test('over the short topic getSessionLimits is a method like any other', () =>
  withDevice({}, async (client) => {
    await client.publish('v2/r/req/1', '{"method":"getSessionLimits"}');
    expect((await client.message('v2/r/res/1')).text).toBe('{"error":"timeout"}');
  }));
