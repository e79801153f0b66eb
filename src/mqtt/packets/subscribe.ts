/** Reads SUBSCRIBE and UNSUBSCRIBE, and writes their answers. */
import type { ISubackPacket } from 'mqtt-packet';
import { FieldReader } from '../wire/field-reader.ts';
import { allowed, property, readProperties } from '../wire/properties.ts';
import type { ProtocolLevel, QoS } from '../wire/protocol.ts';
import { malformed, protocolError } from '../wire/wire-error.ts';
import type { Client } from './client.ts';
import { generate, generateWithin } from './generate.ts';

export interface Subscribe {
  packetId: number;
  filters: { filter: string; qos: QoS }[];
}

export interface Unsubscribe {
  packetId: number;
  filters: string[];
}

export function readSubscribe(bytes: Buffer, start: number, end: number, level: ProtocolLevel): Subscribe {
  const fields = new FieldReader(bytes, start, end);
  const packetId = readPacketId(fields);
  if (level === 5) {
    // CONNACK announced that subscription identifiers are not available.
    if (readProperties(fields, allowed.subscribe).has(property.subscriptionIdentifier)) throw protocolError;
  }
  const filters: Subscribe['filters'] = [];
  while (fields.left > 0) {
    const filter = fields.text();
    const options = fields.byte();
    const qos = options & 3;
    if (qos === 3 || (options & (level === 5 ? 0xc0 : 0xfc)) !== 0 || (options & 0x30) === 0x30) throw malformed;
    filters.push({ filter, qos: qos === 0 ? 0 : 1 });
  }
  if (filters.length === 0) throw protocolError;
  return { packetId, filters };
}

export function readUnsubscribe(bytes: Buffer, start: number, end: number, level: ProtocolLevel): Unsubscribe {
  const fields = new FieldReader(bytes, start, end);
  const packetId = readPacketId(fields);
  if (level === 5) readProperties(fields, allowed.unsubscribe);
  const filters: string[] = [];
  while (fields.left > 0) filters.push(fields.text());
  if (filters.length === 0) throw protocolError;
  return { packetId, filters };
}

function readPacketId(fields: FieldReader): number {
  const packetId = fields.uint16();
  if (packetId === 0) throw malformed;
  return packetId;
}

/** `text`: a Reason String, left out for a client that wants none, or has no room for it; '' = none. */
export function subackBytes(
  { level, isTerse, packetBytesMax }: Client,
  packetId: number,
  codes: number[],
  text: string,
): Buffer {
  const packet: ISubackPacket = { cmd: 'suback', messageId: packetId, granted: codes };
  if (level !== 5) return generate(packet, { protocolVersion: level });
  return generateWithin(packet, text === '' || isTerse ? [] : [{ reasonString: text }], packetBytesMax);
}

export function unsubackBytes(level: ProtocolLevel, packetId: number, codes: number[]): Buffer {
  return generate({ cmd: 'unsuback', messageId: packetId, granted: codes }, { protocolVersion: level });
}
