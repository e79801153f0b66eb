/**
 * Ids of entities: version 7 uuids, so that the order of ids is the order of creation and inserts stay at one end of an
 * index.
 */
import { randomFillSync } from 'node:crypto';

/** Means "none" where the wire requires an id. */
export const nullUuid = '13814000-1dd2-11b2-8080-808080808080';

const pattern = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const bytes = Buffer.alloc(16);
let lastMs = 0;
let sequence = 0;

export function isUuid(text: string): boolean {
  return pattern.test(text);
}

/** The 12 bits after the milliseconds count, so that ids of one process rise even within a millisecond. */
export function createUuid(now: number): string {
  randomFillSync(bytes);
  if (now > lastMs) {
    lastMs = now;
    sequence = bytes.readUInt16BE(6) & 0x7ff;
  } else if ((sequence += 1) > 0xfff) {
    lastMs += 1;
    sequence = 0;
  }
  bytes.writeUIntBE(lastMs, 0, 6);
  bytes.writeUInt16BE(0x7000 | sequence, 6);
  bytes[8] = 0x80 | (bytes[8]! & 0x3f);
  return uuidOfHex(bytes.toString('hex'));
}

/** Returns the uuid of 32 hexadecimal digits. */
export function uuidOfHex(hex: string): string {
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
