/**
 * The keys of data points, remembered by their bytes: a key that was seen before costs a hash and a comparison, no
 * string. One table for the process, of fixed size: a key whose few possible places are taken pushes out another,
 * so neither many keys nor keys made to collide cost more than a handful of comparisons.
 */
import { isUtf8 } from 'node:buffer';
import { randomBytes } from 'node:crypto';
import { limits } from '../base/limits.ts';

export class Key {
  readonly bytes: Uint8Array;
  /** `ts` and `values` mean something at the top of a record. */
  readonly reserved: boolean;
  /** Owned by `Rows`: where its dictionary last had this key. */
  index = 0;
  /** Owned by `decode.ts`: the last record that had this key. */
  record = 0;
  #text: string | undefined;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
    this.reserved = this.text === 'ts' || this.text === 'values';
    // Most keys are only ever needed as bytes.
    this.#text = undefined;
  }

  get text(): string {
    this.#text ??= Buffer.from(this.bytes.buffer, this.bytes.byteOffset, this.bytes.length).toString('utf8');
    return this.#text;
  }
}

/** Continue with `hash = Math.imul(hash ^ byte, hashFactor)` for each byte. Secret, so that collisions cannot be made. */
export const hashStart = randomBytes(4).readInt32LE();
export const hashFactor = 0x01000193;

const places = 8;
const tableSize = 2 ** Math.ceil(Math.log2(limits.keyCacheMax));
const table = new Array<Key | undefined>(tableSize + places).fill(undefined);

/** The key of `source[start..end)`, whose bytes hash to `hash`; undefined when it cannot be a key (see `keyFault`). */
export function internKey(source: Uint8Array, start: number, end: number, hash: number): Key | undefined {
  const first = (hash ^ (hash >>> 15)) & (tableSize - 1);
  const key = table[first];
  return key !== undefined && equals(key.bytes, source, start, end) ? key : internElsewhere(source, start, end, first);
}

/** The key of a text; undefined when it cannot be a key. */
export function keyOf(text: string): Key | undefined {
  const bytes = Buffer.from(text);
  let hash = hashStart;
  for (let i = 0; i < bytes.length; i += 1) hash = Math.imul(hash ^ bytes[i]!, hashFactor);
  return internKey(bytes, 0, bytes.length, hash);
}

/** Why a text cannot be a key; undefined when it can. */
export function keyFault(text: string): string | undefined {
  if (text.trim() === '') return `The key ${JSON.stringify(text.slice(0, 20))} is blank.`;
  if (text.length > limits.keyCharsMax) {
    return `The key "${text.slice(0, 40)}…" is longer than ${limits.keyCharsMax} characters.`;
  }
  return undefined;
}

function internElsewhere(source: Uint8Array, start: number, end: number, first: number): Key | undefined {
  let free = first;
  for (let place = first + places - 1; place >= first; place -= 1) {
    const key = table[place];
    if (key === undefined) free = place;
    else if (equals(key.bytes, source, start, end)) return key;
  }
  // Never more than 4 bytes for a UTF-16 unit: what is longer need not be decoded to be refused.
  if (end - start > limits.keyCharsMax * 4) return undefined;
  // A copy: the body it came from will go, and is far larger.
  const bytes = Buffer.from(source.subarray(start, end));
  if (!isUtf8(bytes)) return undefined;
  const key = new Key(bytes);
  if (keyFault(bytes.toString('utf8'))) return undefined;
  table[free] = key;
  return key;
}

function equals(bytes: Uint8Array, source: Uint8Array, start: number, end: number): boolean {
  const length = bytes.length;
  if (length !== end - start) return false;
  for (let i = 0; i < length; i += 1) if (bytes[i] !== source[start + i]) return false;
  return true;
}
