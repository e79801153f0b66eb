/**
 * Packets that break the standard, one by one, on a connection that is logged in ([MQTT-4.8.0-1], MQTT 5 section 4.13):
 * the code of MQTT 5 or the end, nothing stored, and nothing after them is handled.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import {
  frame,
  lyingFrame,
  type PublishFields,
  properties,
  publishBytes,
  string,
  packetType as type,
  uint16,
  varInt,
} from '../../harness/mqtt-bytes.ts';
import { type Level, levelName, levels, withMqtt } from '../../harness/mqtt-client.ts';
import { storedKeys, telemetry, withDevice } from '../../harness/mqtt-device.ts';
import { newDevice } from '../../harness/shared-engine.ts';

const malformed = 0x81;
const protocolError = 0x82;
const either = [malformed, protocolError];

/** The bytes that an MQTT 5 packet without properties has in their place. */
const none = (level: Level) => (level === 5 ? [0] : []);
const publish = (level: Level, fields: Partial<PublishFields>) =>
  publishBytes({ topic: telemetry, payload: '{"bad":1}', ...(level === 5 && { properties: properties() }), ...fields });
const subscribe = (level: Level, ...rest: (Buffer | number)[]) =>
  frame(type.subscribe, 2, uint16(9), ...none(level), ...rest);

const everyLevel: [string, number | number[], (level: Level) => Buffer][] = [
  ['PUBLISH with QoS 3', malformed, (level) => publish(level, { qos: 3, messageId: 1 })],
  ['PUBLISH with QoS 0 and DUP', malformed, (level) => publish(level, { dup: true })],
  ['PUBLISH with QoS 1 and packet id 0', either, (level) => publish(level, { qos: 1, messageId: 0 })],
  ['PUBLISH with QoS 2 and packet id 0', either, (level) => publish(level, { qos: 2, messageId: 0 })],
  ['PUBLISH to #', [malformed, 0x90], (level) => publish(level, { topic: 'v1/devices/me/#' })],
  ['PUBLISH to +', [malformed, 0x90], (level) => publish(level, { topic: 'v1/+/me/telemetry' })],
  ['PUBLISH to an empty topic', [...either, 0x90], (level) => publish(level, { topic: '' })],
  ['PUBLISH to a topic with U+0000', malformed, (level) => publish(level, { topic: `${telemetry}\u0000` })],
  [
    'PUBLISH to a topic that is no UTF-8',
    malformed,
    (level) => publish(level, { topic: Buffer.from([0x76, 0xc3, 0x28]) }),
  ],
  ['PUBLISH to an overlong topic', malformed, (level) => publish(level, { topic: Buffer.from([0xc0, 0xaf]) })],
  ['PUBLISH to a surrogate', malformed, (level) => publish(level, { topic: Buffer.from([0xed, 0xb0, 0x80]) })],
  [
    'PUBLISH to a code point beyond U+10FFFF',
    malformed,
    (level) => publish(level, { topic: Buffer.from([0xf4, 0x90, 0x80, 0x80]) }),
  ],
  [
    'PUBLISH with a topic longer than the packet',
    malformed,
    () => frame(type.publish, 0, uint16(500), Buffer.from('v1')),
  ],
  ['PUBLISH without a topic', malformed, () => frame(type.publish, 0)],
  ['PUBLISH with QoS 1 that ends before the packet id', malformed, () => frame(type.publish, 2, string(telemetry))],
  ['SUBSCRIBE without filters', either, (level) => frame(type.subscribe, 2, uint16(1), ...none(level))],
  [
    'SUBSCRIBE with packet id 0',
    either,
    (level) => frame(type.subscribe, 2, uint16(0), ...none(level), string('v2/a'), 1),
  ],
  [
    'SUBSCRIBE with wrong header flags',
    malformed,
    (level) => frame(type.subscribe, 0, uint16(1), ...none(level), string('v2/a'), 1),
  ],
  ['SUBSCRIBE with QoS 3', either, (level) => subscribe(level, string('v2/a'), 3)],
  ['SUBSCRIBE with reserved bits', malformed, (level) => subscribe(level, string('v2/a'), 0xc1)],
  ['SUBSCRIBE that ends before the QoS', malformed, (level) => subscribe(level, string('v2/a'))],
  ['SUBSCRIBE to a filter with U+0000', malformed, (level) => subscribe(level, string('v2/\u0000'), 1)],
  ['SUBSCRIBE to a filter that is no UTF-8', malformed, (level) => subscribe(level, string(Buffer.from([0xff])), 1)],
  ['UNSUBSCRIBE without filters', either, (level) => frame(type.unsubscribe, 2, uint16(1), ...none(level))],
  [
    'UNSUBSCRIBE with packet id 0',
    either,
    (level) => frame(type.unsubscribe, 2, uint16(0), ...none(level), string('v2/a')),
  ],
  [
    'UNSUBSCRIBE with wrong header flags',
    malformed,
    (level) => frame(type.unsubscribe, 0, uint16(1), ...none(level), string('v2/a')),
  ],
  ['PUBACK with header flags', malformed, () => frame(type.puback, 1, uint16(1))],
  ['PUBACK with packet id 0', either, () => frame(type.puback, 0, uint16(0))],
  ['PUBACK without packet id', malformed, () => frame(type.puback, 0)],
  ['PUBREL with wrong header flags', malformed, () => frame(type.pubrel, 0, uint16(1))],
  ['PUBREL with packet id 0', either, () => frame(type.pubrel, 2, uint16(0))],
  ['PINGREQ with a body', malformed, () => frame(type.pingreq, 0, 1)],
  ['PINGREQ with header flags', malformed, () => frame(type.pingreq, 1)],
  ['DISCONNECT with header flags', malformed, () => frame(type.disconnect, 1)],
  ['packet type 0', malformed, () => frame(0, 0)],
  ['CONNACK', either, (level) => frame(type.connack, 0, 0, 0, ...none(level))],
  ['SUBACK', either, (level) => frame(type.suback, 0, uint16(1), ...none(level), 1)],
  ['UNSUBACK', either, (level) => frame(type.unsuback, 0, uint16(1), ...(level === 5 ? [0, 0] : []))],
  ['PINGRESP', either, () => frame(type.pingresp, 0)],
  ['AUTH', either, () => frame(type.auth, 0)],
  ['a remaining length in more bytes than needed', malformed, () => Buffer.from([0xc0, 0x80, 0x00])],
  ['a remaining length of five bytes', malformed, () => Buffer.from([0x30, 0xff, 0xff, 0xff, 0xff, 0x01])],
];

const five: [string, number | number[], () => Buffer][] = [
  ['a topic alias', 0x94, () => publish(5, { properties: properties(0x23, uint16(1)) })],
  ['topic alias 0', [0x94, protocolError], () => publish(5, { properties: properties(0x23, uint16(0)) })],
  ['a subscription identifier from the client', either, () => publish(5, { properties: properties(0x0b, 1) })],
  ['a property of CONNECT in PUBLISH', either, () => publish(5, { properties: properties(0x21, uint16(1)) })],
  ['an unknown property', either, () => publish(5, { properties: properties(0x7f, 1) })],
  ['the payload format twice', either, () => publish(5, { properties: properties(0x01, 1, 0x01, 1) })],
  ['payload format 2', either, () => publish(5, { properties: properties(0x01, 2) })],
  [
    'a content type that is no UTF-8',
    malformed,
    () => publish(5, { properties: properties(0x03, string(Buffer.from([0xff]))) }),
  ],
  [
    'a response topic with a wildcard',
    [...either, 0x90],
    () => publish(5, { properties: properties(0x08, string('a/#')) }),
  ],
  [
    'a user property with U+0000',
    malformed,
    () => publish(5, { properties: properties(0x26, string('a'), string('\u0000')) }),
  ],
  ['a user property cut in two', malformed, () => publish(5, { properties: properties(0x26, string('a')) })],
  ['properties longer than the packet', malformed, () => publish(5, { properties: varInt(5_000), payload: '' })],
  ['a property length in more bytes than needed', malformed, () => publish(5, { properties: varInt(0, 2) })],
  ['a property cut in its value', malformed, () => publish(5, { properties: properties(0x02, 0, 0), payload: '' })],
  ['retain handling 3', either, () => subscribe(5, string('v2/a'), 0x31)],
  [
    'a property of PUBLISH in SUBSCRIBE',
    either,
    () => frame(type.subscribe, 2, uint16(1), properties(0x23, 0, 1), string('v2/a'), 1),
  ],
  [
    'a property of CONNACK in UNSUBSCRIBE',
    either,
    () => frame(type.unsubscribe, 2, uint16(1), properties(0x25, 1), string('v2/a')),
  ],
];

// One device serves all cases: each of its connections ends, so the next one takes over none.
let device: Device;
beforeAll(async () => {
  device = await newDevice();
});

function breaks(name: string, level: Level, code: number | number[], bytes: Buffer): void {
  test(name, () =>
    withMqtt({ level, token: device.token }, async (client) => {
      await client.send(bytes, publish(level, { payload: '{"behind":1}' }));
      await client.closedFor(code);
    }),
  );
}

for (const level of levels) {
  describe(levelName[level], () => {
    for (const [name, code, bytesOf] of everyLevel) breaks(name, level, code, bytesOf(level));
    if (level === 5) for (const [name, code, bytesOf] of five) breaks(name, level, code, bytesOf());
  });
}

test('neither these packets nor those after them were stored', async () => {
  expect(await storedKeys(device)).toEqual([]);
});

describe('packets that only seem wrong', () => {
  test('a topic may hold any Unicode, slashes at both ends and spaces: unknown, not malformed', () =>
    withDevice({}, async (client) => {
      for (const topic of [
        '/',
        '//',
        ' ',
        '\uFEFFa',
        'ä/\u{1F600}',
        '$SYS/broker',
        'V1/devices/me/telemetry',
        'a'.repeat(60_000),
      ]) {
        expect((await client.publish(topic, '{"a":1}')).reasonCode).toBe(0x90);
      }
    }));

  for (const level of levels) {
    test(`${levelName[level]}: an acknowledgement of an unused packet id is ignored`, () =>
      withDevice({ level }, async (client) => {
        await client.send(frame(type.puback, 0, uint16(77)));
        await client.quiet();
      }));

    test(`${levelName[level]}: DUP on a first QoS 1 publish is accepted`, () =>
      withDevice({ level }, async (client) => {
        expect((await client.publish(telemetry, '{"a":1}', { dup: true })).reasonCode ?? 0).toBe(0);
      }));

    test(`${levelName[level]}: the retain flag is ignored`, () =>
      withDevice({ level }, async (client) => {
        expect((await client.publish(telemetry, '{"a":1}', { retain: true })).reasonCode ?? 0).toBe(0);
      }));
  }

  test('MQTT 5: properties that we have no use for are taken and ignored', () =>
    withDevice({}, async (client) => {
      const ack = await client.publish(telemetry, '{"a":1}', {
        properties: {
          payloadFormatIndicator: true,
          messageExpiryInterval: 60,
          contentType: 'application/json',
          responseTopic: 'nobody/listens',
          correlationData: Buffer.from([0, 255]),
          userProperties: { a: ['1', '2'], b: '' },
        },
      });
      expect(ack.reasonCode).toBe(0);
    }));
});

test('lengths that lie: a longer one waits for its bytes, a shorter one breaks what follows', async () => {
  await withDevice({ level: 4 }, async (client) => {
    await client.send(lyingFrame(type.publish, 2, 200, string(telemetry), uint16(1), Buffer.from('{"a":1}')));
    await client.nothingFor(100);
  });
  await withDevice({ level: 4 }, async (client) => {
    await client.send(lyingFrame(type.publish, 2, 23, string(telemetry), uint16(1), Buffer.from('{"a":1}')));
    await client.closed();
  });
});
