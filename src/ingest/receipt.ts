/**
 * The form of a receipt (docs/rest.md#receipts): what was stored of one message, in base64url, signed with the secret
 * of the installation. A receipt contains all that a later question needs, so the server keeps nothing for it.
 *
 *   version u8 · acknowledgement u8 · tenant 16 · sender 16 · number of the sender varint · order u64 ·
 *   last order - order varint · journaled time, oldest ts: signed varints from the milliseconds of the order ·
 *   newest - oldest ts varint · points varint · devices varint · named points u8, each: device - sender signed varint ·
 *   key (0, length and bytes; or the place of an earlier key, from 1) · ts - oldest ts varint · seq varint ·
 *   digest u32 · then 16 bytes of HMAC-SHA256
 *
 * Numbers of fixed width are little-endian; varints have 7 bits in each byte, the lowest first.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { uuidOfHex } from '../base/uuid.ts';
import { orderMs } from './order-number.ts';

export const ackLevels = ['journal', 'store', 'memory', 'stream'] as const;
export type AckLevel = (typeof ackLevels)[number];

/** A point of the message, as ClickHouse identifies it. */
export interface ReceiptPoint {
  device: number;
  key: string;
  ts: number;
  /** As in `telemetry/block.ts`. */
  seq: number;
  /** `digestOf` its value. */
  digest: number;
}

export interface Receipt {
  ack: AckLevel;
  tenantId: string;
  /** The sender: a device, or the gateway that sent for its devices. */
  deviceId: string;
  device: number;
  /** The frame of the named points. */
  order: bigint;
  /** The last frame of the message. */
  lastOrder: bigint;
  /** Milliseconds at which the journal had the message. */
  journaledTime: number;
  points: number;
  devices: number;
  oldestTs: number;
  newestTs: number;
  /** The first points of the message. */
  named: ReceiptPoint[];
}

/** `malformed`: not a receipt, or cut short. `forged`: changed, or signed with another secret. */
export class BadReceipt extends Error {
  readonly kind: 'malformed' | 'forged';

  constructor(kind: 'malformed' | 'forged') {
    super(`the receipt is ${kind}`);
    this.kind = kind;
  }
}

const formVersion = 1;
const signatureBytes = 16;
/** A named point without its key and the varints. */
const pointBytesMax = 48;

/** Receipts and JWTs are signed with different keys, so neither can be taken for the other. */
export function receiptKeyOf(signingKey: Uint8Array): Buffer {
  return createHmac('sha256', signingKey).update('millrace receipt').digest();
}

/** A checksum of a value: `digestSql` of `telemetry/points-query.ts` is the same in ClickHouse. */
export function digestOf({ kind, num, int, text }: { kind: number; num: number; int: bigint; text: string }): number {
  const head = Buffer.allocUnsafe(17);
  head[0] = kind;
  head.writeDoubleLE(num, 1);
  head.writeBigInt64LE(int, 9);
  return crc32(text, crc32(head));
}

/** Returns the receipt, which names as many of the points as fit. */
export function writeReceipt(receipt: Receipt, key: Uint8Array): string {
  const { order, device, oldestTs } = receipt;
  const bytes = new Writer(limits.receiptBytesMax);
  bytes.fixed(formVersion, 1);
  bytes.fixed(ackLevels.indexOf(receipt.ack), 1);
  bytes.uuid(receipt.tenantId);
  bytes.uuid(receipt.deviceId);
  bytes.varint(device);
  bytes.order(order);
  bytes.varint(Number(receipt.lastOrder - order));
  bytes.signed(receipt.journaledTime - orderMs(order));
  bytes.signed(oldestTs - orderMs(order));
  bytes.varint(receipt.newestTs - oldestTs);
  bytes.varint(receipt.points);
  bytes.varint(receipt.devices);
  const countAt = bytes.at;
  bytes.fixed(0, 1);
  const keys = new Map<string, number>();
  let named = 0;
  for (const point of receipt.named) {
    const known = keys.get(point.key);
    const keyBytes = known === undefined ? Buffer.byteLength(point.key) : 0;
    if (named === limits.receiptPointsMax || bytes.left < pointBytesMax + keyBytes + signatureBytes) break;
    bytes.signed(point.device - device);
    bytes.varint(known ?? 0);
    if (known === undefined) {
      keys.set(point.key, keys.size + 1);
      bytes.text(point.key, keyBytes);
    }
    bytes.varint(point.ts - oldestTs);
    bytes.varint(point.seq);
    bytes.fixed(point.digest, 4);
    named += 1;
  }
  bytes.bytes[countAt] = named;
  const content = bytes.bytes.subarray(0, bytes.at);
  return Buffer.concat([content, signatureOf(content, key)]).toString('base64url');
}

/** Throws BadReceipt. The caller checks who may read what the receipt names. */
export function readReceipt(text: string, key: Uint8Array): Receipt {
  const bytes = Buffer.from(text, 'base64url');
  // Several strings would decode to the same bytes.
  if (bytes.length <= signatureBytes || bytes.length > limits.receiptBytesMax || bytes.toString('base64url') !== text) {
    throw new BadReceipt('malformed');
  }
  const content = bytes.subarray(0, -signatureBytes);
  if (content[0] !== formVersion) throw new BadReceipt('malformed');
  if (!timingSafeEqual(signatureOf(content, key), bytes.subarray(-signatureBytes))) throw new BadReceipt('forged');
  return readContent(new Reader(content));
}

/** Reads a receipt of this installation: the caller has verified the signature. */
function readContent(bytes: Reader): Receipt {
  bytes.fixed(1);
  const ack = ackLevels[bytes.fixed(1)]!;
  const tenantId = bytes.uuid();
  const deviceId = bytes.uuid();
  const device = bytes.varint();
  const order = bytes.order();
  const lastOrder = order + BigInt(bytes.varint());
  const journaledTime = orderMs(order) + bytes.signed();
  const oldestTs = orderMs(order) + bytes.signed();
  const newestTs = oldestTs + bytes.varint();
  const points = bytes.varint();
  const devices = bytes.varint();
  const keys: string[] = [];
  const named = Array.from({ length: bytes.fixed(1) }, (): ReceiptPoint => {
    const deviceOfPoint = device + bytes.signed();
    const place = bytes.varint();
    const key = place === 0 ? bytes.text() : keys[place - 1]!;
    if (place === 0) keys.push(key);
    const ts = oldestTs + bytes.varint();
    return { device: deviceOfPoint, key, ts, seq: bytes.varint(), digest: bytes.fixed(4) };
  });
  const range = { oldestTs, newestTs };
  return { ack, tenantId, deviceId, device, order, lastOrder, journaledTime, points, devices, ...range, named };
}

function signatureOf(content: Uint8Array, key: Uint8Array): Buffer {
  return createHmac('sha256', key).update(content).digest().subarray(0, signatureBytes);
}

class Writer {
  readonly bytes: Buffer;
  at = 0;

  constructor(size: number) {
    this.bytes = Buffer.allocUnsafe(size);
  }

  get left(): number {
    return this.bytes.length - this.at;
  }

  fixed(value: number, width: 1 | 4): void {
    this.at = this.bytes.writeUIntLE(value, this.at, width);
  }

  order(value: bigint): void {
    this.at = this.bytes.writeBigUInt64LE(value, this.at);
  }

  uuid(text: string): void {
    const written = this.bytes.write(text.replaceAll('-', ''), this.at, 'hex');
    assert(written === 16, 'an id in a receipt is a uuid');
    this.at += written;
  }

  text(text: string, bytes: number): void {
    this.varint(bytes);
    this.at += this.bytes.write(text, this.at, 'utf8');
  }

  varint(value: number): void {
    assert(value >= 0 && Number.isSafeInteger(value), 'a varint in a receipt is a whole number');
    let left = value;
    for (; left >= 0x80; left = Math.floor(left / 0x80)) this.bytes[this.at++] = (left % 0x80) | 0x80;
    this.bytes[this.at++] = left;
  }

  signed(value: number): void {
    this.varint(value < 0 ? -2 * value - 1 : 2 * value);
  }
}

class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  fixed(width: 1 | 4): number {
    this.#at += width;
    return this.#bytes.readUIntLE(this.#at - width, width);
  }

  order(): bigint {
    this.#at += 8;
    return this.#bytes.readBigUInt64LE(this.#at - 8);
  }

  uuid(): string {
    const hex = this.#bytes.toString('hex', this.#at, this.#at + 16);
    this.#at += 16;
    return uuidOfHex(hex);
  }

  text(): string {
    const length = this.varint();
    this.#at += length;
    return this.#bytes.toString('utf8', this.#at - length, this.#at);
  }

  varint(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 0x80) {
      const byte = this.fixed(1);
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
  }

  signed(): number {
    const value = this.varint();
    return value % 2 === 1 ? -(value + 1) / 2 : value / 2;
  }
}
