import fc from 'fast-check';
import { generate, type IPublishPacket, parser } from 'mqtt-packet';
import { describe, expect, test } from 'vitest';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { ReceivedPackets } from '../wire/received-packets.ts';
import { isTopic, readText } from '../wire/strings.ts';
import { WireError } from '../wire/wire-error.ts';
import { PublishFields, readPublish, writePublish } from './publish.ts';

interface Read {
  topic: string;
  qos: number;
  packetId: number;
  payload: string;
}

/** Reads one packet with this project's reader; undefined when the packet is refused. */
function ours(bytes: Buffer, level: ProtocolLevel): Read | undefined {
  const received = new ReceivedPackets();
  received.feed(bytes);
  if (received.next(1024 * 1024) !== 'packet' || received.type !== 3) return undefined;
  const { buffer, start, end, flags } = received;
  const fields = new PublishFields();
  try {
    readPublish(fields, flags, buffer, start, end, level);
  } catch (error) {
    if (error instanceof WireError) return undefined;
    throw error;
  }
  const topic = readText(buffer, fields.topicStart, fields.topicEnd);
  if (topic === undefined || !isTopic(topic)) return undefined;
  const { qos, packetId } = fields;
  return { topic, qos, packetId, payload: buffer.toString('hex', fields.payloadStart, end) };
}

/** mqtt-packet's reading of the same packet; with bytes after the packet, it would read these as well. */
function theirs(bytes: Buffer, level: ProtocolLevel): (Read & { packet: IPublishPacket }) | undefined {
  const received = new ReceivedPackets();
  received.feed(bytes);
  if (received.next(1024 * 1024) !== 'packet') return undefined;
  const reader = parser({ protocolVersion: level });
  let packet: IPublishPacket | undefined;
  let failed = false;
  reader.on('packet', (read) => {
    packet ??= read as IPublishPacket;
  });
  reader.on('error', () => {
    failed = true;
  });
  reader.parse(bytes.subarray(0, received.end));
  if (failed || packet === undefined || packet.cmd !== 'publish') return undefined;
  const { topic, qos, messageId = 0, payload } = packet;
  return { topic, qos, packetId: messageId, payload: Buffer.from(payload).toString('hex'), packet };
}

const level = fc.constantFrom<ProtocolLevel>(3, 4, 5);
const topicText = fc
  .string({ minLength: 1, maxLength: 60, unit: 'grapheme' })
  .filter((topic) => !/[+#\0\ud800-\udfff]/.test(topic));

const properties = fc.option(
  fc.record(
    {
      payloadFormatIndicator: fc.boolean(),
      messageExpiryInterval: fc.integer({ min: 1, max: 0x7fffffff }),
      contentType: fc.constantFrom('application/json', 'x'),
      responseTopic: fc.constantFrom('a/b', 'answers'),
      correlationData: fc.constantFrom(Buffer.from('abc'), Buffer.from([0, 1, 2])),
      userProperties: fc.constantFrom({ a: 'b' }, { a: ['b', 'c'], d: 'e' }),
    },
    { requiredKeys: [] },
  ),
  { nil: undefined },
);

const publish = fc.record({
  topic: topicText,
  payload: fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
  qos: fc.constantFrom(0 as const, 1 as const, 2 as const),
  messageId: fc.integer({ min: 1, max: 0xffff }),
  retain: fc.boolean(),
  properties,
});

function bytesOf(
  {
    properties: given,
    ...packet
  }: { properties: object | undefined } & Omit<IPublishPacket, 'cmd' | 'dup' | 'properties'>,
  version: ProtocolLevel,
): Buffer {
  const withProperties = version === 5 && given !== undefined && Object.keys(given).length > 0;
  const whole = {
    cmd: 'publish',
    dup: false,
    ...packet,
    ...(withProperties && { properties: given }),
  } as IPublishPacket;
  return generate(whole, { protocolVersion: version });
}

describe('a PUBLISH is read as mqtt-packet reads it', () => {
  test('any valid packet', () => {
    fc.assert(
      fc.property(publish, level, (packet, version) => {
        const bytes = bytesOf(packet, version);
        const read = ours(bytes, version);
        expect(read).toEqual({
          topic: packet.topic,
          qos: packet.qos,
          packetId: packet.qos === 0 ? 0 : packet.messageId,
          payload: packet.payload.toString('hex'),
        });
      }),
    );
  });

  test('a packet with changed bytes: the same values, or refused for what the specification forbids', () => {
    const changes = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(publish, level, changes, fc.nat(), (packet, version, changed, cut) => {
        const bytes = bytesOf(packet, version);
        for (const [at, value] of changed) bytes[at % bytes.length] = value;
        const mutated = cut % 3 === 0 ? bytes.subarray(0, cut % bytes.length) : bytes;
        const read = ours(mutated, version);
        const other = theirs(mutated, version);
        if (read === undefined) return;
        // Both readers agree on every packet that this one accepts.
        expect(other && { ...other, packet: undefined }).toEqual({ ...read, packet: undefined });
      }),
      { numRuns: 3_000 },
    );
  });

  test('what the specification allows is not refused', () => {
    const changes = fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 }));
    fc.assert(
      fc.property(publish, level, changes, (packet, version, [at, value]) => {
        const bytes = bytesOf(packet, version);
        bytes[at % bytes.length] = value;
        const other = theirs(bytes, version);
        if (other === undefined || ours(bytes, version) !== undefined) return;
        // Written again by the book it is another packet, or it has one of the known faults.
        expect(isForbidden(other.packet, version)).toBe(true);
      }),
      { numRuns: 3_000 },
    );
  });
});

/** What mqtt-packet lets through and the specification does not ([MQTT-3.3.1-4], [MQTT-3.3.2-2]). */
function isForbidden(packet: IPublishPacket, version: ProtocolLevel): boolean {
  const { topic, qos, dup, messageId } = packet;
  if (topic === '' || /[+#\0\ufffd]/.test(topic)) return true;
  // -1: the packet did not fit.
  if (qos > 0 && messageId! < 1) return true;
  if (qos === 0 && dup) return true;
  // The rest are faults of properties: twice, cut, not allowed in a PUBLISH, or with a value that is not.
  return version === 5;
}

test('a PUBLISH that the standard forbids, or that has an option Millrace does not offer, is refused', () => {
  const refused = (hex: string, version: ProtocolLevel = 4) =>
    expect(ours(Buffer.from(hex, 'hex'), version)).toBeUndefined();
  refused('3606000161000178'); // QoS 3
  refused('3803000161'); // DUP with QoS 0
  refused('32050001610000'); // packet id 0
  refused('3004000361'); // topic longer than the packet
  refused('30020000'); // empty topic
  refused('300300012b'); // wildcard
  refused('3003000100'); // U+0000
  refused('30040002c328'); // no UTF-8
  refused('30050003eda080'); // a surrogate
  refused('3003000161', 5); // no property length
  refused('300700016103230001', 5); // topic alias
  refused('3006000161020b01', 5); // subscription identifier
  refused('30080001610401000100', 5); // the same property twice
  refused('3006000161020102', 5); // payload format 2
  refused('30050001618000', 5); // length longer than it need be
});

describe('a PUBLISH is written as mqtt-packet would', () => {
  test('any topic, payload and QoS', () => {
    const qos = fc.constantFrom(0 as const, 1 as const);
    fc.assert(
      fc.property(topicText, fc.uint8Array({ maxLength: 20_000 }), qos, level, (topic, payload, granted, version) => {
        const packet = {
          cmd: 'publish',
          dup: false,
          retain: false,
          topic,
          payload: Buffer.from(payload),
          qos: granted,
          messageId: 77,
        } as const;
        expect(writePublish(topic, payload, granted, 77, version)).toEqual(
          generate(packet, { protocolVersion: version }),
        );
      }),
      { numRuns: 200 },
    );
  });

  test('text as UTF-8', () => {
    const packet = {
      cmd: 'publish',
      dup: false,
      retain: false,
      topic: 'v2/a',
      payload: '{"ä":"€"}',
      qos: 1,
      messageId: 1,
    } as const;
    expect(writePublish('v2/a', '{"ä":"€"}', 1, 1, 4)).toEqual(generate(packet, { protocolVersion: 4 }));
  });
});
