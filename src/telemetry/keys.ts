/**
 * Caches the keys of data points by their bytes: a cached key costs a hash and a comparison, without a string. One
 * table for the process, of fixed size. A key whose few possible places are taken evicts another key, so neither many
 * keys nor crafted collisions cost more than a few comparisons.
 */
import { isUtf8 } from 'node:buffer';
import { randomBytes } from 'node:crypto';
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';

export class Key {
  readonly bytes: Uint8Array;
  readonly hash: number;
  /** True for `ts` and `values`, which have a meaning at the top of a record. */
  readonly reserved: boolean;
  /** The key needs no escape between quotes. */
  readonly plain: boolean;
  /** Owned by `Rows`: the index of this key in its last dictionary. */
  index = 0;
  /** Owned by `message-reader.ts`: the last record that had this key. */
  record = 0;
  /** Index in the table; -1 = not cached. */
  place = -1;
  /** The place of the key that last followed this key. A reference would keep keys alive. */
  next = 0;
  #text: string | undefined;

  constructor(bytes: Uint8Array, hash: number) {
    this.bytes = bytes;
    this.hash = hash;
    this.reserved = equals(bytes, tsName, 0, tsName.length) || equals(bytes, valuesName, 0, valuesName.length);
    this.plain = bytes.every((byte) => byte >= 0x20 && byte !== 0x22 && byte !== 0x5c);
  }

  /** Most keys are only ever needed as bytes. */
  get text(): string {
    this.#text ??= textOf(this.bytes, 0, this.bytes.length);
    return this.#text;
  }
}

const tsName = Buffer.from('ts');
const valuesName = Buffer.from('values');

/**
 * Start of the hash of a key. Each byte continues it: `hash = Math.imul(hash ^ byte, hashFactor)`. The start is secret,
 * so that a client cannot craft collisions.
 */
export const hashStart = randomBytes(4).readInt32LE();
export const hashFactor = 0x01000193;

/** Longer keys are rare and are made each time, because cached ones could fill the memory. */
const rememberedBytesMax = 128;
const places = 8;
const tableSize = 2 ** Math.ceil(Math.log2(limits.keyCacheMax));
const table = new Array<Key | undefined>(tableSize + places).fill(undefined);
/** The hashes of `table` side by side: an entry with another hash is not visited. */
const hashes = new Int32Array(tableSize + places);

/**
 * Returns the key of `source[start..end)`, whose bytes hash to `hash`; undefined when the bytes cannot be a key
 * (`keyFault`).
 */
export function internKey(source: Uint8Array, start: number, end: number, hash: number): Key | undefined {
  const first = (hash ^ (hash >>> 15)) & (tableSize - 1);
  if (hashes[first] === hash) {
    const key = table[first];
    if (key !== undefined && equals(key.bytes, source, start, end)) return key;
  }
  return internElsewhere(source, start, end, hash, first);
}

/** Returns the key that followed `previous` last time, if `start` has it again with its closing quote. */
export function nextKey(previous: Key, source: Uint8Array, start: number, last: number): Key | undefined {
  const key = table[previous.next];
  if (key === undefined || !key.plain) return undefined;
  const bytes = key.bytes;
  const length = bytes.length;
  if (start + length > last || source[start + length] !== 0x22) return undefined;
  for (let i = 0; i < length; i += 1) if (bytes[i] !== source[start + i]) return undefined;
  return key;
}

/** Returns the key for a string; undefined when it cannot be a key. */
export function keyOf(text: string): Key | undefined {
  const bytes = Buffer.from(text);
  return internKey(bytes, 0, bytes.length, hashOf(bytes));
}

/** Returns the hash that a key of these bytes has. */
export function hashOf(bytes: Uint8Array): number {
  let hash = hashStart;
  for (let i = 0; i < bytes.length; i += 1) hash = Math.imul(hash ^ bytes[i]!, hashFactor);
  return hash;
}

/** Returns the refusal of a string that cannot be a key; undefined when it can. */
export function keyFault(text: string): Fault | undefined {
  if (text.trim() === '') return badRequest('blank_key', `The key ${JSON.stringify(text.slice(0, 20))} is blank.`);
  if (text.length > limits.keyCharsMax) {
    return badRequest('bad_key', `The key "${text.slice(0, 40)}…" is longer than ${limits.keyCharsMax} characters.`);
  }
  return undefined;
}

function internElsewhere(source: Uint8Array, start: number, end: number, hash: number, first: number): Key | undefined {
  // When all places are taken, the key at this one is evicted.
  let free = first + (evictions & (places - 1));
  for (let place = first + places - 1; place >= first; place -= 1) {
    const key = table[place];
    if (key === undefined) free = place;
    else if (hashes[place] === hash && equals(key.bytes, source, start, end)) return key;
  }
  if (!isKey(source, start, end)) return undefined;
  const added = new Key(keep(source, start, end), hash);
  if (end - start > rememberedBytesMax) return added;
  if (table[free] !== undefined) evictions += 1;
  table[free] = added;
  hashes[free] = hash;
  added.place = free;
  return added;
}

let evictions = 0;

/** Plain ASCII that is neither long nor blank is valid without decoding. */
function isKey(source: Uint8Array, start: number, end: number): boolean {
  let seen = 0;
  let visible = false;
  for (let i = start; i < end; i += 1) {
    seen |= source[i]!;
    if (source[i]! > 0x20) visible = true;
  }
  if (seen < 0x80 && visible && end - start <= limits.keyCharsMax) return true;
  // A UTF-16 unit has at most 3 bytes: a longer key is refused without decoding.
  if (end - start > limits.keyCharsMax * 3) return false;
  return isUtf8(source.subarray(start, end)) && keyFault(textOf(source, start, end)) === undefined;
}

const chunkBytes = 16 * 1024;
let chunk = new Uint8Array(chunkBytes);
let chunkUsed = 0;

/** Copies bytes that outlive the body, many in one piece of memory. */
function keep(source: Uint8Array, start: number, end: number): Uint8Array {
  const length = end - start;
  if (chunkUsed + length > chunkBytes) {
    chunk = new Uint8Array(chunkBytes);
    chunkUsed = 0;
  }
  const bytes = new Uint8Array(chunk.buffer, chunkUsed, length);
  for (let i = 0; i < length; i += 1) bytes[i] = source[start + i]!;
  chunkUsed += length;
  return bytes;
}

function textOf(bytes: Uint8Array, start: number, end: number): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('utf8', start, end);
}

function equals(bytes: Uint8Array, source: Uint8Array, start: number, end: number): boolean {
  const length = bytes.length;
  if (length !== end - start) return false;
  for (let i = 0; i < length; i += 1) if (bytes[i] !== source[start + i]) return false;
  return true;
}
