/**
 * Reads and writes PUBLISH, which arrives a hundred thousand times a second. Reading stores the offsets of the fields
 * in a reused object and makes no string. A caller that needs the topic as a string checks its UTF-8 then.
 */

import { encodingOfType } from '../../base/content-encoding.ts';
import { FieldReader } from '../wire/field-reader.ts';
import { allowed, contentEncoding, property, readProperties, receipt } from '../wire/properties.ts';
import type { ProtocolLevel, QoS } from '../wire/protocol.ts';
import { malformed } from '../wire/wire-error.ts';

/** The fields of a PUBLISH; those that are strings as offsets into its bytes. */
export class PublishFields {
  qos: 0 | 1 | 2 = 0;
  topicStart = 0;
  topicEnd = 0;
  /** 0 for QoS 0. */
  packetId = 0;
  payloadStart = 0;
  /** The user property `content-encoding`, or what the Content Type names; '' without both. */
  encoding = '';
  /** True when the user property `x-millrace-receipt` is `true`. */
  wantsReceipt = false;
}

/** Reads `bytes[start..end)`, the body of a PUBLISH. Throws a WireError. The topic is validated elsewhere. */
export function readPublish(
  into: PublishFields,
  flags: number,
  bytes: Buffer,
  start: number,
  end: number,
  level: ProtocolLevel,
): void {
  const qos = (flags >> 1) & 3;
  if (qos === 3 || (qos === 0 && (flags & 0x08) !== 0)) throw malformed;
  into.qos = qos as 0 | 1 | 2;
  if (start + 2 > end) throw malformed;
  into.topicStart = start + 2;
  let at = start + 2 + ((bytes[start]! << 8) | bytes[start + 1]!);
  into.topicEnd = at;
  into.packetId = 0;
  into.encoding = '';
  into.wantsReceipt = false;
  if (qos > 0) {
    if (at + 2 > end) throw malformed;
    into.packetId = (bytes[at]! << 8) | bytes[at + 1]!;
    if (into.packetId === 0) throw malformed;
    at += 2;
  }
  if (at > end) throw malformed;
  if (level === 5) {
    if (at === end) throw malformed;
    // Most packets have no properties.
    if (bytes[at] === 0) at += 1;
    else {
      const fields = new FieldReader(bytes, at, end);
      const properties = readProperties(fields, allowed.publish);
      const type = properties.get(property.contentType) as string | undefined;
      into.encoding = (properties.get(contentEncoding) as string | undefined) ?? encodingOfType(type ?? '');
      into.wantsReceipt = properties.get(receipt) === 'true';
      at = fields.at;
    }
  }
  into.payloadStart = at;
}

/** Returns the size of a PUBLISH to a client. */
export function publishBytes(topicBytes: number, payloadBytes: number, qos: QoS, level: ProtocolLevel): number {
  const body = fieldBytes(topicBytes, qos, level) + payloadBytes;
  return 1 + lengthBytes(body) + body;
}

/** The largest Remaining Length of a packet [MQTT-1.5.5]. */
const remainingLengthMax = 268_435_455;

/** Returns the longest payload of a PUBLISH to a client. */
export function payloadBytesMax(topicBytes: number, qos: QoS, level: ProtocolLevel): number {
  return remainingLengthMax - fieldBytes(topicBytes, qos, level);
}

/** Returns the offset of the packet id in a whole PUBLISH to a client, of QoS 1. */
export function packetIdAt(packet: Buffer, payloadBytes: number, level: ProtocolLevel): number {
  return packet.length - payloadBytes - propertyBytes(level) - packetIdBytes;
}

/** Writes all of a PUBLISH except its payload of `payloadBytes`. */
export function publishHead(
  topic: string,
  payloadBytes: number,
  qos: QoS,
  packetId: number,
  level: ProtocolLevel,
): Buffer {
  const topicBytes = Buffer.byteLength(topic);
  const head = Buffer.allocUnsafe(publishBytes(topicBytes, payloadBytes, qos, level) - payloadBytes);
  writeHead(head, topic, topicBytes, payloadBytes, qos, packetId, level);
  return head;
}

/** Writes a whole PUBLISH with no flags except its QoS, and without properties. */
export function writePublish(
  topic: string,
  payload: string | Uint8Array,
  qos: QoS,
  packetId: number,
  level: ProtocolLevel,
): Buffer {
  const topicBytes = Buffer.byteLength(topic);
  const payloadBytes = typeof payload === 'string' ? Buffer.byteLength(payload) : payload.length;
  const bytes = Buffer.allocUnsafe(publishBytes(topicBytes, payloadBytes, qos, level));
  const at = writeHead(bytes, topic, topicBytes, payloadBytes, qos, packetId, level);
  if (typeof payload === 'string') bytes.write(payload, at);
  else bytes.set(payload, at);
  return bytes;
}

/** Writes the head and returns the offset of the payload. */
function writeHead(
  bytes: Buffer,
  topic: string,
  topicBytes: number,
  payloadBytes: number,
  qos: QoS,
  packetId: number,
  level: ProtocolLevel,
): number {
  bytes[0] = 0x30 | (qos << 1);
  let at = writeLength(bytes, 1, fieldBytes(topicBytes, qos, level) + payloadBytes);
  at = bytes.writeUInt16BE(topicBytes, at);
  at += bytes.write(topic, at);
  if (qos > 0) at = bytes.writeUInt16BE(packetId, at);
  if (level === 5) at = bytes.writeUInt8(0, at);
  return at;
}

const packetIdBytes = 2;

/** Returns the size of the properties of a PUBLISH to a client: none, which MQTT 5 says in one byte. */
function propertyBytes(level: ProtocolLevel): number {
  return level === 5 ? 1 : 0;
}

/** Returns the size of what precedes the payload in the body: topic, packet id and properties. */
function fieldBytes(topicBytes: number, qos: QoS, level: ProtocolLevel): number {
  return 2 + topicBytes + (qos > 0 ? packetIdBytes : 0) + propertyBytes(level);
}

function lengthBytes(length: number): number {
  return length < 0x80 ? 1 : length < 0x4000 ? 2 : length < 0x20_0000 ? 3 : 4;
}

/** Writes the length and returns the offset of the body. */
function writeLength(bytes: Buffer, at: number, length: number): number {
  let left = length;
  let position = at;
  while (left >= 0x80) {
    bytes[position] = (left & 0x7f) | 0x80;
    left = Math.floor(left / 0x80);
    position += 1;
  }
  bytes[position] = left;
  return position + 1;
}
