/** Rate limits of a device over MQTT: everything that is no data post is one message (docs/mqtt.md#refusals). */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Device } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { hex, type Level, MqttClient } from '../harness/mqtt-client.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({
    workers: 1,
    env: { RATE_LIMITS_DEVICE_MESSAGES: '4:3600', RATE_LIMITS_DEVICE_TELEMETRY_DATA_POINTS: '3:3600' },
  });
});

afterAll(() => engine?.destroy());

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
    // CONNECT was the first.
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
