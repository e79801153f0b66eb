/**
 * The file of known devices, `<data>/known/devices`: its bytes, made by `KnownDevicesWriter` in the primary and read by
 * `KnownDevices` in each worker. The file replaces PostgreSQL while PostgreSQL does not answer. It holds what a device
 * is and digests of its credentials, never a token, a user name or a password.
 *
 *   file   = header, block …            all numbers little-endian, everything a multiple of 8 bytes
 *   header = magic 8 | key 32 | source 16 | crc32 4 | timeline u32
 *   block  = bytes of its records u32 | crc32 of the rest of the head and the records u32 | cursor u64 | at f64 |
 *            base f64, record …
 *   record = bytes * 8 + padding of the name u32 | kind u8 | flags u8 | type u8 | transport u8 | digest 16, by kind:
 *            gone     nothing more: the credentials of this digest open nothing any more
 *            device   name digest 16 | id 16 | tenant 16 | profile 16 | customer 16 | names digest 16 |
 *                     password digest 16 | number f64 | version u32 | credentials version u32 | name
 *            profile  version u32 | JSON of its transport; `digest` is its id
 *            mark     nothing more; `digest` begins with the mark, f64
 *
 * The last record of a digest counts. `cursor` is the transaction of PostgreSQL from which on the log of changes must
 * be read again; transactions have their numbers in one timeline of PostgreSQL only, and timeline 0 is not known. A
 * block is durable before the next one is written, so only the last one can be torn. Each append begins with the mark
 * that PostgreSQL had committed before (`sql/known-file-store.ts`), and the scan ends with the first mark. A file of
 * version 1 has no marks: it answers while PostgreSQL does not, and is made again when PostgreSQL answers.
 */
import { createHmac } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import type { DiskFile } from '../../journal/disk.ts';
import type { DeviceRow } from '../model/cached-device.ts';
import { readMqttBasic } from '../model/credentials.ts';
import { type CredentialsType, type TransportType, transportTypes } from '../model/device.ts';
import type { Settled } from '../sql/credential-log-store.ts';
import type { SettledOfFile } from '../sql/known-file-store.ts';
import type { LoginRow, ProfileTransport } from '../sql/look-up-store.ts';
import type { EncodedDevice } from '../table/device-table.ts';
import { putUuid, uuidText } from '../table/uuid-bytes.ts';

export const headerBytes = 64;
export const blockHeadBytes = 32;
/** Bytes of the records of one block. */
export const blockBytesMax = 1024 * 1024;
const recordHeadBytes = 24;
const deviceBytes = 7 * 16 + 16;
export const recordBytesMax = 4_096;
export const markBytes = recordHeadBytes;
const magic = Buffer.from('MRKNOWN2');
const formerMagic = Buffer.from('MRKNOWN1');
const digestBytes = 16;

const kinds = { gone: 0, device: 1, profile: 2, mark: 3 } as const;
const flag = { customer: 1, gateway: 2, password: 4, client: 8, user: 16, confined: 32 } as const;
const credentialsTypes: CredentialsType[] = ['ACCESS_TOKEN', 'MQTT_BASIC', 'X509_CERTIFICATE', 'LWM2M_CREDENTIALS'];

export function knownFile(dataDir: string): string {
  return join(dataDir, 'known', 'devices');
}

/** True when the header of a file can be read, so that devices can be served without PostgreSQL. */
export function hasKnownDevices(dataDir: string): boolean {
  return readKnownHeader(dataDir) !== undefined;
}

/** Returns undefined when there is no file, and when its header cannot be read. */
export function readKnownHeader(dataDir: string): FileHeader | undefined {
  const header = Buffer.alloc(headerBytes);
  try {
    const file = openSync(knownFile(dataDir), 'r');
    try {
      readSync(file, header);
    } finally {
      closeSync(file);
    }
  } catch {
    return undefined;
  }
  return decodeHeader(header);
}

/** Returns the bytes at `offset`, fewer at the end of the file. */
export async function readAt(file: DiskFile, offset: number, bytes: number): Promise<Buffer> {
  const buffer = Buffer.allocUnsafe(bytes);
  return buffer.subarray(0, await file.read(buffer, offset));
}

/** The kind of credentials among the digests of a file. */
export const credentialsKind = 'c';

/** Computes digests under the key of one file. */
export class Digester {
  readonly #key: Buffer;

  constructor(key: Buffer) {
    this.#key = key;
  }

  credentials(credentialsId: string): Buffer {
    return this.#digest(credentialsKind, credentialsId);
  }

  name(tenantId: string, name: string): Buffer {
    return this.#digest('n', `${tenantId}/${name}`);
  }

  /** Returns the digest of the client id and user name of a login; '' = not given. */
  names(clientId: string, userName: string): Buffer {
    return this.#digest('u', JSON.stringify([clientId, userName]));
  }

  password(password: Buffer): Buffer {
    return this.#digest('p', password);
  }

  /** The name of the file in the database. */
  get file(): string {
    return this.#digest('f', '').toString('hex');
  }

  #digest(kind: string, value: string | Buffer): Buffer {
    return createHmac('sha256', this.#key).update(kind).update(value).digest().subarray(0, digestBytes);
  }
}

/** Returns the timeline as a header has it: a number of the server's timeline and of the table of the log. */
export function timelineOf({ timeline }: Settled): number {
  return timeline === null ? 0 : crc32(timeline) || 1;
}

/**
 * True when the database may lack changes that a file has, so that the cursor of the file cannot be compared with its
 * transactions: the store was restored, or another server took over. A file without a mark has 0.
 */
export function isOfOtherHistory(
  settled: SettledOfFile,
  { cursor, timeline, mark }: { cursor: bigint; timeline: number; mark: number },
): boolean {
  return settled.transaction < cursor || timelineOf(settled) !== timeline || mark === 0 || settled.mark < mark;
}

export interface FileHeader {
  key: Buffer;
  /** Identifies the database that the file was made from. */
  source: Buffer;
  /** The timeline of the server whose transactions the cursors name. */
  timeline: number;
}

export function encodeHeader({ key, source, timeline }: FileHeader): Buffer {
  const header = Buffer.alloc(headerBytes);
  magic.copy(header);
  key.copy(header, 8, 0, 32);
  source.copy(header, 40, 0, digestBytes);
  header.writeUInt32LE(crc32(header.subarray(0, 56)), 56);
  header.writeUInt32LE(timeline, 60);
  return header;
}

/** Returns undefined when the bytes are not a header. */
export function decodeHeader(bytes: Buffer): FileHeader | undefined {
  const start = bytes.subarray(0, 8);
  if (bytes.length < headerBytes || !(start.equals(magic) || start.equals(formerMagic))) return undefined;
  if (crc32(bytes.subarray(0, 56)) !== bytes.readUInt32LE(56)) return undefined;
  const [key, source] = [Buffer.from(bytes.subarray(8, 40)), Buffer.from(bytes.subarray(40, 56))];
  return { key, source, timeline: bytes.readUInt32LE(60) };
}

export interface BlockHead {
  bytes: number;
  crc: number;
  cursor: bigint;
  /** Milliseconds since 1970, by the clock of the writer, when the log was read up to `cursor`. */
  at: number;
  /** Bytes of the file after its first scan; 0 during the scan. */
  base: number;
}

export function encodeBlock(
  records: Buffer[],
  { cursor, at, base }: Pick<BlockHead, 'cursor' | 'at' | 'base'>,
): Buffer {
  const block = Buffer.concat([Buffer.alloc(blockHeadBytes), ...records]);
  block.writeUInt32LE(block.length - blockHeadBytes, 0);
  block.writeBigUInt64LE(cursor, 8);
  block.writeDoubleLE(at, 16);
  block.writeDoubleLE(base, 24);
  block.writeUInt32LE(crc32(block.subarray(8)), 4);
  return block;
}

export function decodeBlockHead(bytes: Buffer, offset = 0): BlockHead {
  return {
    bytes: bytes.readUInt32LE(offset),
    crc: bytes.readUInt32LE(offset + 4),
    cursor: bytes.readBigUInt64LE(offset + 8),
    at: bytes.readDoubleLE(offset + 16),
    base: bytes.readDoubleLE(offset + 24),
  };
}

/** `bytes`: from the start of a block's head to its end. */
export function isWholeBlock(bytes: Buffer): boolean {
  return crc32(bytes.subarray(8)) === bytes.readUInt32LE(4);
}

/**
 * True when the end of a file cannot be a block that is being written, or that a crash cut: the file has no complete
 * scan, or a whole block follows. `end`: the bytes from the first block on that is not whole; `base`: that of the block
 * before.
 */
export function isDamagedEnd(end: Buffer, base: number): boolean {
  if (base === 0 || end.length > blockHeadBytes + blockBytesMax) return true;
  for (let at = 8; at + blockHeadBytes <= end.length; at += 8) {
    // All blocks after the scan have the same base.
    if (end.readDoubleLE(at + 24) !== base) continue;
    const last = at + blockHeadBytes + decodeBlockHead(end, at).bytes;
    if (last <= end.length && isWholeBlock(end.subarray(at, last))) return true;
  }
  return false;
}

/** Bytes from which on `isDamagedEnd` needs no more of a file. */
export const endBytesMax: number = blockHeadBytes + blockBytesMax + 8;

export function encodeGone(digest: Buffer): Buffer {
  return record(kinds.gone, digest, 0);
}

export function encodeDevice(row: LoginRow, digester: Digester): Buffer {
  const { clientId, userName, password } = readMqttBasic(row.type === 'MQTT_BASIC' ? row.value : null);
  const name = Buffer.from(row.name);
  const bytes = record(kinds.device, digester.credentials(row.credentialsId), deviceBytes + name.length);
  bytes[5] =
    (row.customerId ? flag.customer : 0) |
    (row.isGateway ? flag.gateway : 0) |
    (row.isConfined ? flag.confined : 0) |
    (password ? flag.password : 0) |
    (clientId ? flag.client : 0) |
    (userName ? flag.user : 0);
  bytes[6] = credentialsTypes.indexOf(row.type);
  bytes[7] = transportTypes.indexOf(row.transportType);
  let at = recordHeadBytes;
  const put = (part: Buffer) => {
    part.copy(bytes, at, 0, 16);
    at += 16;
  };
  const none = Buffer.alloc(16);
  put(digester.name(row.tenantId, row.name));
  put(bytesOfUuid(row.id));
  put(bytesOfUuid(row.tenantId));
  put(bytesOfUuid(row.profileId));
  put(row.customerId ? bytesOfUuid(row.customerId) : none);
  put(row.type === 'MQTT_BASIC' ? digester.names(clientId ?? '', userName ?? '') : none);
  put(password ? digester.password(Buffer.from(password)) : none);
  bytes.writeDoubleLE(row.number, at);
  bytes.writeUInt32LE(row.version, at + 8);
  bytes.writeUInt32LE(row.credentialsVersion, at + 12);
  name.copy(bytes, at + 16);
  // The length of the name without its padding.
  bytes.writeUInt32LE((bytes.length << 3) | (bytes.length - at - 16 - name.length), 0);
  return bytes;
}

export function encodeProfile({ id, version, transport, transportType }: ProfileTransport): Buffer {
  const text = Buffer.from(JSON.stringify(transport ?? null));
  const whole = text.length <= recordBytesMax - 64 ? text : Buffer.from('null');
  const bytes = record(kinds.profile, bytesOfUuid(id), 8 + whole.length);
  bytes[7] = transportTypes.indexOf(transportType);
  bytes.writeUInt32LE(version, recordHeadBytes);
  bytes.writeUInt32LE(whole.length, recordHeadBytes + 4);
  whole.copy(bytes, recordHeadBytes + 8);
  return bytes;
}

export function encodeMark(mark: number): Buffer {
  const digest = Buffer.alloc(digestBytes);
  digest.writeDoubleLE(mark);
  return record(kinds.mark, digest, 0);
}

/** Returns the mark of a record of this kind. */
export function decodeMark(bytes: Buffer, offset: number): number {
  return bytes.readDoubleLE(offset + digestOffset);
}

/** The first word is the record's length in its upper 29 bits and the padding of a device's name in the lower three. */
function record(kind: number, digest: Buffer, bodyBytes: number): Buffer {
  const length = (recordHeadBytes + bodyBytes + 7) & ~7;
  const bytes = Buffer.alloc(length);
  bytes.writeUInt32LE(length << 3, 0);
  bytes[4] = kind;
  digest.copy(bytes, 8, 0, 16);
  return bytes;
}

interface RecordHead {
  bytes: number;
  kind: 'gone' | 'device' | 'profile' | 'mark';
}

/** Returns the members that an index needs; undefined when the bytes are not a record. */
export function decodeRecordHead(bytes: Buffer, offset: number): RecordHead | undefined {
  const length = bytes.readUInt32LE(offset) >>> 3;
  if (length < recordHeadBytes || length % 8 !== 0 || offset + length > bytes.length) return undefined;
  switch (bytes[offset + 4]) {
    case kinds.gone:
      return { bytes: length, kind: 'gone' };
    case kinds.device:
      return length < recordHeadBytes + deviceBytes ? undefined : { bytes: length, kind: 'device' };
    case kinds.profile:
      return { bytes: length, kind: 'profile' };
    case kinds.mark:
      return { bytes: length, kind: 'mark' };
    default:
      return undefined;
  }
}

/** Offsets of digests in a record. */
export const digestOffset = 8;
export const nameDigestOffset = recordHeadBytes;

export interface KnownDevice {
  digest: Buffer;
  nameDigest: Buffer;
  type: CredentialsType;
  transportType: TransportType;
  row: DeviceRow & { isGateway: boolean };
  credentialsVersion: number;
  hasClientId: boolean;
  hasUserName: boolean;
  namesDigest: Buffer;
  passwordDigest: Buffer | undefined;
}

export function decodeDevice(bytes: Buffer): KnownDevice {
  const flags = bytes[5]!;
  let at = recordHeadBytes;
  const take = () => {
    at += 16;
    return Buffer.from(bytes.subarray(at - 16, at));
  };
  const nameDigest = take();
  const [id, tenant, profile, customer] = [take(), take(), take(), take()];
  const namesDigest = take();
  const password = take();
  const padding = bytes.readUInt32LE(0) & 7;
  const name = bytes.subarray(at + 16, bytes.length - padding).toString('utf8');
  return {
    digest: Buffer.from(bytes.subarray(digestOffset, digestOffset + 16)),
    nameDigest,
    type: credentialsTypes[bytes[6]!] ?? 'LWM2M_CREDENTIALS',
    transportType: transportTypes[bytes[7]!] ?? 'DEFAULT',
    row: {
      number: bytes.readDoubleLE(at),
      id: uuidText(id, 0),
      tenantId: uuidText(tenant, 0),
      customerId: flags & flag.customer ? uuidText(customer, 0) : null,
      profileId: uuidText(profile, 0),
      name,
      version: bytes.readUInt32LE(at + 8),
      isGateway: (flags & flag.gateway) !== 0,
      isConfined: (flags & flag.confined) !== 0,
    },
    credentialsVersion: bytes.readUInt32LE(at + 12),
    hasClientId: (flags & flag.client) !== 0,
    hasUserName: (flags & flag.user) !== 0,
    namesDigest,
    passwordDigest: flags & flag.password ? password : undefined,
  };
}

/** True for a record of a device with an access token. */
export function isToken(bytes: Buffer, offset: number): boolean {
  return bytes[offset + 4] === kinds.device && bytes[offset + 6] === credentialsTypes.indexOf('ACCESS_TOKEN');
}

/** Describes the record of a device without a copy of it. */
export function describeDevice(bytes: Buffer, offset: number, into: EncodedDevice): void {
  const start = bytes.readUInt32LE(offset);
  const flags = bytes[offset + 5]!;
  const numbers = offset + recordHeadBytes + 7 * 16;
  into.bytes = bytes;
  into.id = offset + recordHeadBytes + 16;
  into.tenant = into.id + 16;
  into.customer = flags & flag.customer ? into.id + 3 * 16 : -1;
  into.name = numbers + 16;
  into.nameBytes = offset + (start >>> 3) - (start & 7) - into.name;
  into.number = bytes.readDoubleLE(numbers);
  into.version = bytes.readUInt32LE(numbers + 8);
  into.isGateway = (flags & flag.gateway) !== 0;
  into.isConfined = (flags & flag.confined) !== 0;
}

export function decodeProfile(bytes: Buffer, offset: number): ProfileTransport {
  const version = bytes.readUInt32LE(offset + recordHeadBytes);
  const length = bytes.readUInt32LE(offset + recordHeadBytes + 4);
  const start = offset + recordHeadBytes + 8;
  const id = uuidText(bytes, offset + digestOffset);
  const transportType = transportTypes[bytes[offset + 7]!] ?? 'DEFAULT';
  const transport = JSON.parse(bytes.subarray(start, start + length).toString('utf8')) as unknown;
  return { id, version, transport, transportType };
}

function bytesOfUuid(id: string): Buffer {
  const bytes = Buffer.alloc(16);
  putUuid(id, bytes, 0);
  return bytes;
}
