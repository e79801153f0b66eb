/**
 * The checksums of packages, computed piece by piece, so that 16 MB do not block the event loop. Hex strings are as
 * ThingsBoard clients expect: CRC32 and the MURMUR3 sums as little-endian numbers, the digests unchanged.
 */
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { assert } from '../base/errors.ts';

export const checksumAlgorithms = ['MD5', 'SHA256', 'SHA384', 'SHA512', 'CRC32', 'MURMUR3_32', 'MURMUR3_128'] as const;
export type ChecksumAlgorithm = (typeof checksumAlgorithms)[number];

interface Checksum {
  update(bytes: Uint8Array): void;
  /** Called once, at the end. */
  hex(): string;
}

export function newChecksum(algorithm: ChecksumAlgorithm): Checksum {
  switch (algorithm) {
    case 'MD5':
    case 'SHA256':
    case 'SHA384':
    case 'SHA512': {
      const hash = createHash(algorithm.toLowerCase());
      return { update: (bytes) => void hash.update(bytes), hex: () => hash.digest('hex') };
    }
    case 'CRC32': {
      let sum = 0;
      return {
        update: (bytes) => {
          sum = crc32(bytes, sum);
        },
        hex: () => littleEndian([sum]),
      };
    }
    case 'MURMUR3_32':
      return new Murmur32();
    case 'MURMUR3_128':
      return new Murmur128();
  }
}

function littleEndian(words: number[]): string {
  const bytes = Buffer.alloc(4 * words.length);
  for (const [i, word] of words.entries()) bytes.writeUInt32LE(word >>> 0, 4 * i);
  return bytes.toString('hex');
}

function rotated(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}

/** Cuts the input into blocks of `blockBytes`; a remainder waits for more input. */
class Blocks {
  /** Bytes of the whole input so far. */
  length = 0;
  readonly #rest: Buffer;
  #restLength = 0;

  constructor(blockBytes: number) {
    this.#rest = Buffer.alloc(blockBytes);
  }

  feed(bytes: Uint8Array, block: (source: Buffer, at: number) => void): void {
    const size = this.#rest.length;
    const source = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    this.length += source.length;
    let at = 0;
    if (this.#restLength > 0) {
      at = Math.min(size - this.#restLength, source.length);
      source.copy(this.#rest, this.#restLength, 0, at);
      this.#restLength += at;
      if (this.#restLength < size) return;
      block(this.#rest, 0);
    }
    for (; at + size <= source.length; at += size) block(source, at);
    this.#restLength = source.copy(this.#rest, 0, at);
  }

  /** Returns the last bytes, padded with zeros; empty when the input ended with a block. */
  tail(): Buffer {
    return this.#rest.fill(0, this.#restLength).subarray(0, this.#restLength === 0 ? 0 : this.#rest.length);
  }
}

/** MurmurHash3 x86, 32 bits, seed 0. */
class Murmur32 implements Checksum {
  readonly #blocks = new Blocks(4);
  #hash = 0;

  update(bytes: Uint8Array): void {
    let hash = this.#hash;
    this.#blocks.feed(bytes, (source, at) => {
      hash ^= mixed32(source.readInt32LE(at));
      hash = (Math.imul(rotated(hash, 13), 5) + 0xe6546b64) | 0;
    });
    this.#hash = hash;
  }

  hex(): string {
    const tail = this.#blocks.tail();
    if (tail.length > 0) this.#hash ^= mixed32(tail.readInt32LE(0));
    let hash = this.#hash ^ this.#blocks.length;
    hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    return littleEndian([hash ^ (hash >>> 16)]);
  }
}

function mixed32(word: number): number {
  return Math.imul(rotated(Math.imul(word, 0xcc9e2d51), 15), 0x1b873593);
}

/**
 * MurmurHash3 x64, 128 bits, seed 0. A 64-bit number is two 32-bit halves: a BigInt for each step would take seconds
 * for a package. The result of each operation is left in `low` and `high`.
 */
class Murmur128 implements Checksum {
  readonly #blocks = new Blocks(16);
  /** Low and high halves of both sums. */
  readonly #h = new Int32Array(4);

  update(bytes: Uint8Array): void {
    const h = this.#h;
    this.#blocks.feed(bytes, (source, at) => {
      this.#mixIn(source, at);
      rotate64(h[0]!, h[1]!, 27);
      add64(low, high, h[2]!, h[3]!);
      timesFive(0x52dce729);
      h[0] = low;
      h[1] = high;
      this.#mixInSecond(source, at);
      rotate64(h[2]!, h[3]!, 31);
      add64(low, high, h[0]!, h[1]!);
      timesFive(0x38495ab5);
      h[2] = low;
      h[3] = high;
    });
  }

  hex(): string {
    const h = this.#h;
    const tail = this.#blocks.tail();
    if (tail.length > 0) {
      this.#mixInSecond(tail, 0);
      this.#mixIn(tail, 0);
    }
    const { length } = this.#blocks;
    assert(length < 2 ** 31, 'a package is smaller than 2 GB');
    h[0]! ^= length;
    h[2]! ^= length;
    this.#addEachToOther();
    for (const i of [0, 2]) {
      finish64(h[i]!, h[i + 1]!);
      h[i] = low;
      h[i + 1] = high;
    }
    this.#addEachToOther();
    return littleEndian([...h]);
  }

  /** h1 ^= rotate(k1 * c1, 31) * c2 */
  #mixIn(source: Buffer, at: number): void {
    multiply64(source.readInt32LE(at), source.readInt32LE(at + 4), c1Low, c1High);
    rotate64(low, high, 31);
    multiply64(low, high, c2Low, c2High);
    this.#h[0]! ^= low;
    this.#h[1]! ^= high;
  }

  /** h2 ^= rotate(k2 * c2, 33) * c1 */
  #mixInSecond(source: Buffer, at: number): void {
    multiply64(source.readInt32LE(at + 8), source.readInt32LE(at + 12), c2Low, c2High);
    rotate64(low, high, 33);
    multiply64(low, high, c1Low, c1High);
    this.#h[2]! ^= low;
    this.#h[3]! ^= high;
  }

  #addEachToOther(): void {
    const h = this.#h;
    for (const [i, j] of [
      [0, 2],
      [2, 0],
    ] as const) {
      add64(h[i]!, h[i + 1]!, h[j]!, h[j + 1]!);
      h[i] = low;
      h[i + 1] = high;
    }
  }
}

const c1Low = 0x114253d5;
const c1High = 0x87c37b91;
const c2Low = 0x2745937f;
const c2High = 0x4cf5ad43;

let low = 0;
let high = 0;

function add64(aLow: number, aHigh: number, bLow: number, bHigh: number): void {
  const sum = (aLow >>> 0) + (bLow >>> 0);
  low = sum | 0;
  high = (aHigh + bHigh + (sum > 0xffffffff ? 1 : 0)) | 0;
}

function multiply64(aLow: number, aHigh: number, bLow: number, bHigh: number): void {
  // Computes the carry of the low halves from 16-bit parts: a full product would not fit a double.
  const [a0, a1, b0, b1] = [aLow & 0xffff, aLow >>> 16, bLow & 0xffff, bLow >>> 16];
  const middle = a1 * b0 + ((a0 * b0) >>> 16);
  const other = a0 * b1 + (middle & 0xffff);
  const carry = a1 * b1 + Math.floor(middle / 0x10000) + Math.floor(other / 0x10000);
  high = (carry + Math.imul(aLow, bHigh) + Math.imul(aHigh, bLow)) | 0;
  low = Math.imul(aLow, bLow);
}

/** Rotates by 1 to 63 bits, except 32. */
function rotate64(aLow: number, aHigh: number, bits: number): void {
  const [l, h] = bits < 32 ? [aLow, aHigh] : [aHigh, aLow];
  const by = bits & 31;
  low = (l << by) | (h >>> (32 - by));
  high = (h << by) | (l >>> (32 - by));
}

/** Computes five times the number in `low` and `high`, plus `more`. */
function timesFive(more: number): void {
  multiply64(low, high, 5, 0);
  add64(low, high, more, 0);
}

function finish64(aLow: number, aHigh: number): void {
  multiply64(aLow ^ (aHigh >>> 1), aHigh, 0xed558ccd | 0, 0xff51afd7 | 0);
  multiply64(low ^ (high >>> 1), high, 0x1a85ec53, 0xc4ceb9fe | 0);
  low ^= high >>> 1;
}
