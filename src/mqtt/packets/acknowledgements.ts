/**
 * Reads PUBACK and PUBREL of a client. Writes the PUBCOMP that answers PUBREL, and the PUBREC of a message that is
 * repeated before its PUBREL; `outgoing/outbox.ts` writes every other acknowledgement.
 */

import { FieldReader } from '../wire/field-reader.ts';
import { allowed, readProperties } from '../wire/properties.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { code } from '../wire/reason-codes.ts';
import { malformed } from '../wire/wire-error.ts';
import { generate } from './generate.ts';

/** Returns the packet id. Every reason code means that the client has the message. */
export function readAcknowledgement(bytes: Buffer, start: number, end: number, level: ProtocolLevel): number {
  const fields = new FieldReader(bytes, start, end);
  const packetId = fields.uint16();
  if (packetId === 0) throw malformed;
  if (level === 5 && fields.left > 0) {
    fields.byte();
    if (fields.left > 0) readProperties(fields, allowed.acknowledgement);
  }
  fields.finish();
  return packetId;
}

export function pubcompBytes(level: ProtocolLevel, packetId: number, isKnown: boolean): Buffer {
  const reasonCode = isKnown ? code.success : code.packetIdUnknown;
  return generate({ cmd: 'pubcomp', messageId: packetId, reasonCode }, { protocolVersion: level });
}

/** Has no reason code: the message is accepted. */
export function pubrecBytes(packetId: number): Buffer {
  return Buffer.from([0x50, 2, packetId >> 8, packetId & 0xff]);
}
