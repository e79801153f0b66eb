/** Reads PUBACK and PUBREL of a client, and writes the PUBCOMP that answers PUBREL. */

import { Cursor } from '../wire/cursor.ts';
import { allowed, readProperties } from '../wire/properties.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { code } from '../wire/reason-codes.ts';
import { malformed } from '../wire/wire-error.ts';
import { generate } from './generate.ts';

/** Returns the packet id. Every reason code means that the client has the message. */
export function readAcknowledgement(bytes: Buffer, start: number, end: number, level: ProtocolLevel): number {
  const cursor = new Cursor(bytes, start, end);
  const packetId = cursor.uint16();
  if (packetId === 0) throw malformed;
  if (level === 5 && cursor.left > 0) {
    cursor.byte();
    if (cursor.left > 0) readProperties(cursor, allowed.acknowledgement);
  }
  cursor.finish();
  return packetId;
}

export function pubcompBytes(level: ProtocolLevel, packetId: number, isKnown: boolean): Buffer {
  const reasonCode = isKnown ? code.success : code.packetIdUnknown;
  return generate({ cmd: 'pubcomp', messageId: packetId, reasonCode }, { protocolVersion: level });
}

export function pubrecBytes(packetId: number): Buffer {
  return Buffer.from([0x50, 2, packetId >> 8, packetId & 0xff]);
}
