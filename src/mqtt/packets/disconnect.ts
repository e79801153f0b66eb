/** Reads and writes DISCONNECT. */
import type { IDisconnectPacket } from 'mqtt-packet';
import { type CloseReason, closings } from '../wire/close-reason.ts';
import { FieldReader } from '../wire/field-reader.ts';
import { allowed, readProperties } from '../wire/properties.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import type { Client } from './client.ts';
import { generateWithin } from './generate.ts';

/** Checks that the packet is well-formed; its fields are not used. */
export function checkDisconnect(bytes: Buffer, start: number, end: number, level: ProtocolLevel): void {
  const fields = new FieldReader(bytes, start, end);
  if (level === 5 && fields.left > 0) {
    fields.byte();
    if (fields.left > 0) readProperties(fields, allowed.disconnect);
  }
  fields.finish();
}

/**
 * Returns undefined for a reason that is not sent. `serverReference` names the server that a client is handed over to;
 * '' = not sent.
 */
export function disconnectBytes(
  reason: CloseReason,
  { isTerse, packetBytesMax }: Client,
  serverReference: string,
): Buffer | undefined {
  const { code, sentence } = closings[reason];
  if (code === undefined) return undefined;
  const packet: IDisconnectPacket = { cmd: 'disconnect', reasonCode: code };
  const reference = reason === 'handed_over' && serverReference !== '' ? { serverReference } : {};
  const forms = isTerse ? [reference] : [{ reasonString: sentence, ...reference }, reference];
  return generateWithin(packet, forms, packetBytesMax);
}
