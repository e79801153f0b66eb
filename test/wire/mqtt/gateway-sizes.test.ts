/**
 * Messages of gateways above the limit of devices: they are accepted up to GATEWAY_PAYLOAD_SIZE, and skipped above it.
 */
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectBytes, frame, packetType, properties, publishBytes, string, uint16 } from '../../harness/mqtt-bytes.ts';
import { levelName, levels, type MqttClient } from '../../harness/mqtt-client.ts';
import { telemetry as ownTelemetry, storedKeys, storedPoints, storedValues } from '../../harness/mqtt-device.ts';
import {
  attributesOf,
  childName,
  childNamed,
  findChild,
  gatewayTopic,
  newGateway,
  withGateway,
} from '../../harness/mqtt-gateway.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { RawWebSocket, frame as webSocketFrame } from '../../harness/web-socket.ts';

const { telemetry, attributes } = gatewayTopic;
const errors = 'v1/gateway/errors';
const packetBytesMax = 4 * 1024 * 1024;

/** Returns a PUBLISH of `bytes` bytes in all, whose payload is the JSON text and then blanks. */
function publishOf(
  level: number,
  bytes: number,
  text: string,
  { topic = telemetry as string, qos = 1, messageId = 7 } = {},
) {
  const make = (payload: Buffer) =>
    publishBytes({
      topic,
      payload,
      qos,
      ...(qos > 0 && { messageId }),
      ...(level === 5 && { properties: properties() }),
    });
  const around = make(Buffer.alloc(bytes)).length - bytes;
  const payload = Buffer.alloc(bytes - around, ' ');
  payload.write(text);
  const packet = make(payload);
  expect(packet.length).toBe(bytes);
  return packet;
}

/** Returns a message with a member for each child, which has `points` points. */
function bodyOf(names: string[], points: number): string {
  const records = JSON.stringify(
    Array.from({ length: points }, (_, n) => ({ ts: n + 1, values: { n, text: `é ${n}` } })),
  );
  return `{${names.map((name) => `${JSON.stringify(name)}:${records}`).join(',')}}`;
}

const small = (client: MqttClient, name: string, messageId: number) =>
  client.encode(client.publishPacket(telemetry, `{"${name}":[{"small${messageId}":1}]}`, { messageId }));

for (const level of levels) {
  describe(levelName[level], () => {
    test('a message of the largest size is stored, one byte more is skipped between its neighbours', async () => {
      const [child, skipped] = [childName(), childName()];
      await withGateway({ level }, async (client) => {
        const whole = publishOf(level, packetBytesMax, `{"${child}":[{"whole":1}]}`, { messageId: 2 });
        const over = publishOf(level, packetBytesMax + 1, `{"${skipped}":[{"over":1}]}`, { messageId: 3 });
        await client.send(small(client, child, 1), whole, over, small(client, child, 4));
        for (const messageId of [1, 2, 3, 4]) {
          const ack = await client.expect('puback', { messageId });
          if (level !== 5) continue;
          expect(ack.reasonCode).toBe(messageId === 3 ? 0x97 : 0);
          if (messageId === 3) expect(ack.properties?.reasonString).toContain(`${packetBytesMax + 1} bytes`);
        }
        await client.quiet();
      });
      const device = await childNamed(child);
      expect((await storedKeys(device)).sort()).toEqual(['small1', 'small4', 'whole']);
      expect(await findChild(skipped)).toBeUndefined();
    });

    test('QoS 2 and QoS 0 are skipped as well, and the errors name each message', async () => {
      await withGateway({ level }, async (client) => {
        await client.subscribe(errors);
        await client.send(publishOf(level, packetBytesMax + 100, '{}', { qos: 2, messageId: 9 }));
        const { reasonCode } = await client.pick('pubrec', { messageId: 9 });
        if (level === 5) expect(reasonCode).toBe(0x97);
        else {
          await client.write({ cmd: 'pubrel', messageId: 9 });
          await client.pick('pubcomp', { messageId: 9 });
          const { json } = await client.message(errors);
          expect(json).toMatchObject({ topic: telemetry, packetId: 9, reason: 'message_too_large' });
        }
        await client.send(publishOf(level, packetBytesMax + 100, '{}', { qos: 0 }));
        const { json } = await client.message(errors);
        expect(json).toEqual({
          topic: telemetry,
          reason: 'message_too_large',
          message: expect.stringContaining('2 or more'),
        });
        await client.quiet();
      });
    });
  });
}

test('the answer counts the devices that would have fitted', async () => {
  await withGateway({}, async (client) => {
    const names = Array.from({ length: 1000 }, (_, n) => `fits ${n}`);
    const body = bodyOf(names, 200);
    const fit = Buffer.from(body).subarray(0, packetBytesMax).toString('latin1').split('],').length - 1;
    const ack = await client.publish(telemetry, body);
    expect(ack.reasonCode).toBe(0x97);
    const [, counted] = /its first (\d+) devices/.exec(ack.properties!.reasonString!)!;
    expect(Math.abs(Number(counted) - fit)).toBeLessThan(2);
    await client.quiet();
  });
});

test('a large message with new, known and bad children is stored in order, but for the bad ones', async () => {
  await withGateway({}, async (client) => {
    const names = Array.from({ length: 40 }, () => childName());
    const [first, last] = [names[0]!, names.at(-1)!];
    await client.publish(gatewayTopic.connect, { device: first });
    const body = `${bodyOf(names, 250).slice(0, -1)},"bad":7,"worse":[{"ts":"x","values":{"a":1}}]}`;
    expect(body.length).toBeGreaterThan(300 * 1024);
    const later = { [last]: [{ ts: 1, values: { n: 'later' } }] };
    const packets = [body, JSON.stringify(later)].map((payload) => client.publishPacket(telemetry, payload));
    await client.write(...packets);
    const ack = await client.expect('puback', { messageId: packets[0]!.messageId! });
    expect(ack.reasonCode).toBe(0x99);
    expect(ack.properties?.reasonString).toMatch(/"bad": .*"worse": /);
    await client.expect('puback', { messageId: packets[1]!.messageId!, reasonCode: 0 });
    const range = { startTs: 0, endTs: 1000 };
    for (const name of [first, last]) {
      const device = await childNamed(name);
      // The second message of the last child is shipped later than the first, and replaces one of its points.
      const expected = name === last ? '"later"' : '0';
      const points = await eventually(async () => {
        const stored = await storedPoints(device, 'n', 250, range);
        return stored.find(({ ts }) => ts === 1)!.value === expected ? stored : undefined;
      });
      expect(points.map(({ ts }) => ts).sort((a, b) => a - b)).toEqual(Array.from({ length: 250 }, (_, n) => n + 1));
    }
  });
});

test('a compressed message of a gateway has the limit of its unpacked bytes', async () => {
  await withGateway({}, async (client) => {
    const name = childName();
    const body = bodyOf([name], 20_000);
    const properties = { userProperties: { 'content-encoding': 'gzip' } };
    expect((await client.publish(telemetry, gzipSync(body), { properties })).reasonCode).toBe(0);
    expect(await storedPoints(await childNamed(name), 'n', 100, { startTs: 0, endTs: 101 })).toHaveLength(100);
    const bomb = gzipSync(Buffer.alloc(packetBytesMax + 1, ' '));
    const ack = await client.publish(telemetry, bomb, { properties });
    expect([ack.reasonCode, ack.properties?.reasonString]).toEqual([
      0x99,
      expect.stringContaining(`${packetBytesMax}`),
    ]);
    await client.quiet();
  });
});

test('each topic has its limit, and CONNACK and getSessionLimits tell the largest', async () => {
  await withGateway({}, async (client, gateway) => {
    expect(client.connack!.properties!.maximumPacketSize).toBe(packetBytesMax);
    const child = childName();
    await client.send(publishOf(5, 1024 * 1024, `{"${child}":{"a":1}}`, { topic: attributes, messageId: 1 }));
    await client.expect('puback', { messageId: 1, reasonCode: 0 });
    expect(await attributesOf(await childNamed(child), 'CLIENT_SCOPE')).toEqual({ a: 1 });
    await client.send(publishOf(5, 1024 * 1024 + 1, '{}', { topic: attributes, messageId: 2 }));
    await client.expect('puback', { messageId: 2, reasonCode: 0x97 });
    await client.send(publishOf(5, 256 * 1024, '{"own":1}', { topic: ownTelemetry, messageId: 3 }));
    await client.expect('puback', { messageId: 3, reasonCode: 0 });
    expect(await storedValues(gateway, 'own')).toEqual(['1']);
    await client.send(publishOf(5, 256 * 1024 + 1, '{}', { topic: 'unknown', messageId: 4 }));
    await client.expect('puback', { messageId: 4, reasonCode: 0x97 });
    await client.send(publishOf(5, 100 * 1024, '{}', { topic: 'unknown', messageId: 5 }));
    await client.expect('puback', { messageId: 5, reasonCode: 0x90 });
  });
});

test('a large packet that is no PUBLISH, or malformed, ends the connection', async () => {
  await withGateway({}, async (client) => {
    const filters = Array.from({ length: 40 }, () =>
      Buffer.concat([string(`a/${'x'.repeat(2000)}`), Buffer.from([0])]),
    );
    await client.send(frame(packetType.subscribe, 2, uint16(1), properties(), ...filters));
    await client.closedFor(0x95);
  });
  for (const flags of [0x06, 0x08]) {
    await withGateway({}, async (client) => {
      const packet = publishOf(5, packetBytesMax + 1, '{}');
      packet[0] = 0x30 | flags;
      await client.send(packet.subarray(0, 100_000));
      await client.closedFor(0x81);
    });
  }
});

test('over WebSocket: one message with a large packet, and a larger packet in several', async () => {
  const gateway = await newGateway();
  const child = childName();
  const client = await RawWebSocket.open(sharedEngine().address.port);
  client.send(webSocketFrame(connectBytes({ level: 4, username: gateway.token })));
  expect([...(await client.read(4))]).toEqual([packetType.connack << 4, 2, 0, 0]);
  client.send(webSocketFrame(publishOf(4, 3 * 1024 * 1024, `{"${child}":[{"whole":1}]}`, { messageId: 1 })));
  expect([...(await client.read(4))]).toEqual([packetType.puback << 4, 2, 0, 1]);
  const over = publishOf(4, packetBytesMax + 1, '{}', { messageId: 2 });
  for (let at = 0; at < over.length; at += 1_000_000) client.send(webSocketFrame(over.subarray(at, at + 1_000_000)));
  expect([...(await client.read(4))]).toEqual([packetType.puback << 4, 2, 0, 2]);
  expect(await storedValues(await childNamed(child), 'whole')).toEqual(['1']);
  client.close();
});
