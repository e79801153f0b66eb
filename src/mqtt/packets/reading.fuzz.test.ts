/**
 * The readers beside mqtt-packet, over valid packets and noise: packets are found wherever the stream is cut, both read
 * accepted packets the same, and no input causes any error but a WireError.
 */
import fc from 'fast-check';
import { generate, type Packet, parser } from 'mqtt-packet';
import { expect, test } from 'vitest';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { ReceivedPackets } from '../wire/received-packets.ts';
import { isTopic, readText } from '../wire/strings.ts';
import { WireError } from '../wire/wire-error.ts';
import { readAcknowledgement } from './acknowledgements.ts';
import { readConnect } from './connect.ts';
import { checkDisconnect } from './disconnect.ts';
import { PublishFields, readPublish, writePublish } from './publish.ts';
import { readSubscribe, readUnsubscribe } from './subscribe.ts';

const level = fc.constantFrom<ProtocolLevel>(3, 4, 5);
const packetId = fc.integer({ min: 1, max: 65_535 });
const topic = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 60 }).filter((text) => {
  return isTopic(text) && !text.includes('\u0000') && Buffer.from(text).toString() === text;
});
const payload = fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes));

interface Published {
  topic: string;
  payload: Buffer;
  qos: 0 | 1 | 2;
  packetId: number;
}

const publish = fc.record({
  topic,
  payload,
  qos: fc.constantFrom<0 | 1 | 2>(0, 1, 2),
  packetId,
  properties: fc.option(
    fc.record(
      {
        payloadFormatIndicator: fc.boolean(),
        messageExpiryInterval: fc.nat(),
        contentType: topic,
        correlationData: payload,
        userProperties: fc.dictionary(topic, topic, { minKeys: 1, maxKeys: 4 }),
      },
      { requiredKeys: [] },
    ),
    { nil: undefined },
  ),
});

/** Returns the packets of these pieces, and how reading ended. */
function packetsOf(pieces: Buffer[], bytesMax = 1_000_000): { packets: Buffer[]; ended: string } {
  const received = new ReceivedPackets();
  const packets: Buffer[] = [];
  for (const piece of pieces) {
    // Overwrites the bytes that were given before, because a socket uses its buffer again.
    const bytes = Buffer.from(piece);
    received.feed(bytes);
    for (;;) {
      const step = received.next(bytesMax);
      if (step === 'more') break;
      if (step !== 'packet') return { packets, ended: step };
      packets.push(
        Buffer.concat([
          Buffer.from([received.first]),
          Buffer.from(received.buffer.subarray(received.start, received.end)),
        ]),
      );
    }
    bytes.fill(0xaa);
  }
  return { packets, ended: 'more' };
}

function cut(bytes: Buffer, places: number[]): Buffer[] {
  const at = [...new Set(places.map((place) => place % (bytes.length + 1)))].sort((a, b) => a - b);
  const edges = [0, ...at, bytes.length];
  return edges.slice(1).map((end, n) => bytes.subarray(edges[n], end));
}

/** First byte and body of a whole packet. */
function withoutLength(packet: Buffer): Buffer {
  let at = 1;
  while (packet[at]! >= 0x80) at += 1;
  return Buffer.concat([packet.subarray(0, 1), packet.subarray(at + 1)]);
}

function bodyStart(packet: Buffer): number {
  return packet.length - withoutLength(packet).length + 1;
}

/** Returns the packet that was read, or undefined when it is refused; any error but a WireError is a bug. */
function read<T>(reader: () => T): T | undefined {
  try {
    return reader();
  } catch (error) {
    if (error instanceof WireError) return undefined;
    throw error;
  }
}

function readPublished(packet: Buffer, ofLevel: ProtocolLevel): Published | undefined {
  const fields = new PublishFields();
  return read(() => {
    readPublish(fields, packet[0]! & 0x0f, packet, bodyStart(packet), packet.length, ofLevel);
    const text = readText(packet, fields.topicStart, fields.topicEnd);
    if (text === undefined || !isTopic(text)) return undefined;
    const { qos, packetId: id, payloadStart } = fields;
    return { topic: text, payload: packet.subarray(payloadStart), qos, packetId: id };
  });
}

/** Reads one packet with mqtt-packet; undefined when it throws or waits for more bytes. */
function parsed(packet: Buffer, protocolVersion: ProtocolLevel): Packet | undefined {
  const packets: Packet[] = [];
  let failed = false;
  const reader = parser({ protocolVersion });
  reader.on('packet', (one) => packets.push(one));
  reader.on('error', () => (failed = true));
  reader.parse(packet);
  return failed ? undefined : packets[0];
}

const places = fc.array(fc.nat(), { maxLength: 12 });
const noise = fc.array(fc.record({ at: fc.nat(), byte: fc.integer({ min: 0, max: 255 }) }), {
  minLength: 1,
  maxLength: 4,
});

/** Bytes of the body changed; the header stays, so that the packet is still whole. */
function spoil(packet: Buffer, changes: { at: number; byte: number }[]): Buffer {
  const spoiled = Buffer.from(packet);
  const start = bodyStart(packet);
  if (start === packet.length) return spoiled;
  for (const { at, byte } of changes) spoiled[start + (at % (packet.length - start))] = byte;
  return spoiled;
}

test('packets are the same however the stream is cut', () => {
  const body = fc.oneof(
    { weight: 5, arbitrary: fc.uint8Array({ maxLength: 300 }) },
    { weight: 1, arbitrary: fc.integer({ min: 16_000, max: 17_000 }).map((length) => new Uint8Array(length).fill(7)) },
  );
  const packet = fc.tuple(fc.integer({ min: 0, max: 255 }), body);
  fc.assert(
    fc.property(fc.array(packet, { maxLength: 8 }), places, (list, at) => {
      const stream = Buffer.concat(
        list.map(([first, bytes]) => {
          const length: number[] = [];
          for (let rest = bytes.length; length.length === 0 || rest > 0; rest >>>= 7) {
            length.push((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
          }
          return Buffer.concat([Buffer.from([first, ...length]), bytes]);
        }),
      );
      const expected = list.map(([first, bytes]) => Buffer.concat([Buffer.from([first]), bytes]));
      expect(packetsOf(cut(stream, at))).toEqual({ packets: expected, ended: 'more' });
      if (stream.length < 200) {
        expect(packetsOf([...stream].map((byte) => Buffer.from([byte])))).toEqual({ packets: expected, ended: 'more' });
      }
    }),
  );
});

test('noise is packets, more, or an end, the same however it is cut', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 400 }), places, (bytes, at) => {
      const whole = packetsOf([Buffer.from(bytes)], 100);
      expect(packetsOf(cut(Buffer.from(bytes), at), 100)).toEqual(whole);
      for (const packet of whole.packets) expect(packet.length).toBeLessThanOrEqual(100);
    }),
  );
});

test('a PUBLISH means the same to both', () => {
  fc.assert(
    fc.property(level, publish, (protocolVersion, { topic: name, payload: bytes, qos, packetId: id, properties }) => {
      const packet = generate(
        {
          cmd: 'publish',
          topic: name,
          payload: bytes,
          qos,
          dup: false,
          retain: false,
          ...(qos > 0 && { messageId: id }),
          ...(protocolVersion === 5 && properties && { properties: properties as Record<string, never> }),
        },
        { protocolVersion },
      );
      const published = readPublished(packet, protocolVersion);
      expect(published).toEqual({ topic: name, payload: bytes, qos, packetId: qos > 0 ? id : 0 });
    }),
  );
});

test('a spoiled PUBLISH is refused, or means the same to both', () => {
  fc.assert(
    fc.property(
      level,
      publish,
      noise,
      (protocolVersion, { topic: name, payload: bytes, qos, packetId: id }, changes) => {
        const packet = spoil(
          generate(
            {
              cmd: 'publish',
              topic: name,
              payload: bytes,
              qos,
              dup: false,
              retain: false,
              ...(qos > 0 && { messageId: id }),
              ...(protocolVersion === 5 && { properties: { contentType: name, userProperties: { a: 'b' } } }),
            },
            { protocolVersion },
          ),
          changes,
        );
        const published = readPublished(packet, protocolVersion);
        if (published === undefined) return;
        expect(parsed(packet, protocolVersion)).toMatchObject({
          cmd: 'publish',
          topic: published.topic,
          qos: published.qos,
          ...(published.qos > 0 && { messageId: published.packetId }),
          payload: published.payload,
        });
      },
    ),
    { numRuns: 1_000 },
  );
});

test('a PUBLISH that we write means the same to mqtt-packet', () => {
  fc.assert(
    fc.property(
      level,
      topic,
      payload,
      fc.constantFrom<0 | 1>(0, 1),
      packetId,
      (protocolVersion, name, bytes, qos, id) => {
        const packet = writePublish(name, bytes, qos, id, protocolVersion);
        expect(parsed(packet, protocolVersion)).toMatchObject({
          cmd: 'publish',
          topic: name,
          payload: bytes,
          qos,
          ...(qos > 0 && { messageId: id }),
        });
      },
    ),
  );
});

test('a spoiled SUBSCRIBE or UNSUBSCRIBE is refused, or means the same to both', () => {
  const filters = fc.array(fc.string({ unit: 'grapheme', maxLength: 20 }), { minLength: 1, maxLength: 5 });
  const qos = fc.constantFrom<0 | 1 | 2>(0, 1, 2);
  fc.assert(
    fc.property(level, packetId, filters, qos, noise, (protocolVersion, messageId, names, asked, changes) => {
      const write = (packet: Packet) => spoil(generate(packet, { protocolVersion }), changes);
      const subscriptions = names.map((name) => ({ topic: name || 'a', qos: asked }));
      const subscribe = write({ cmd: 'subscribe', messageId, subscriptions });
      const wanted = read(() => readSubscribe(subscribe, bodyStart(subscribe), subscribe.length, protocolVersion));
      if (wanted) {
        expect(parsed(subscribe, protocolVersion)).toMatchObject({
          messageId: wanted.packetId,
          subscriptions: wanted.filters.map(({ filter }) => ({ topic: filter })),
        });
      }
      const unsubscribe = write({ cmd: 'unsubscribe', messageId, unsubscriptions: names.map((name) => name || 'a') });
      const left = read(() =>
        readUnsubscribe(unsubscribe, bodyStart(unsubscribe), unsubscribe.length, protocolVersion),
      );
      if (left)
        expect(parsed(unsubscribe, protocolVersion)).toMatchObject({
          messageId: left.packetId,
          unsubscriptions: left.filters,
        });
    }),
    { numRuns: 500 },
  );
});

test('a spoiled CONNECT is refused, or means the same to both', () => {
  const text = fc.string({ unit: 'grapheme', maxLength: 20 });
  const connect = fc.record({
    level,
    clientId: text,
    username: fc.option(text, { nil: undefined }),
    password: fc.option(payload, { nil: undefined }),
    keepalive: fc.integer({ min: 0, max: 65_535 }),
    hasWill: fc.boolean(),
  });
  fc.assert(
    fc.property(
      connect,
      fc.option(noise),
      ({ level: protocolVersion, clientId, username, password, keepalive, hasWill }, changes) => {
        const packet = generate({
          cmd: 'connect',
          protocolId: protocolVersion === 3 ? 'MQIsdp' : 'MQTT',
          protocolVersion,
          clientId: clientId || 'c',
          clean: true,
          keepalive,
          ...(username !== undefined && { username }),
          ...(username !== undefined && password !== undefined && { password }),
          ...(hasWill && { will: { topic: 'a/b', payload: Buffer.from('x'), qos: 1 as const, retain: false } }),
          ...(protocolVersion === 5 && { properties: { receiveMaximum: 9, userProperties: { a: 'b' } } }),
        });
        const bytes = spoil(packet, changes ?? []);
        const wanted = read(() => readConnect(bytes, bodyStart(bytes), bytes.length));
        if (changes === null) expect(wanted).toMatchObject({ kind: 'connect', clientId: clientId || 'c' });
        if (wanted?.kind !== 'connect') return;
        const theirs = parsed(bytes, wanted.client.level);
        expect(theirs).toMatchObject({ cmd: 'connect', clientId: wanted.clientId, keepalive: wanted.keepAliveSeconds });
      },
    ),
    { numRuns: 1_000 },
  );
});

test('noise as the body of any packet is read or refused, never more', () => {
  fc.assert(
    fc.property(level, fc.uint8Array({ maxLength: 80 }), (protocolVersion, noiseBytes) => {
      const bytes = Buffer.from(noiseBytes);
      for (const reader of [readSubscribe, readUnsubscribe, readAcknowledgement, checkDisconnect]) {
        read<unknown>(() => reader(bytes, 0, bytes.length, protocolVersion));
      }
      read(() => readConnect(bytes, 0, bytes.length));
      for (let flags = 0; flags < 16; flags += 1) {
        read(() => readPublish(new PublishFields(), flags, bytes, 0, bytes.length, protocolVersion));
      }
    }),
    { numRuns: 2_000 },
  );
});
