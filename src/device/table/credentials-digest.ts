/**
 * The digest of credentials in the file of known devices: HMAC-SHA-256, of which the file keeps 16 bytes. The digest is
 * the same as that of `createHmac`, without an object of `node:crypto` for each device: a worker computes the digest at
 * the first request of a device that was loaded. One caller at a time uses the object.
 */
import type { Digest } from './device-table.ts';

const primes: number[] = [];
for (let n = 2; primes.length < 64; n += 1) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
/** Returns the first 32 bits of the fraction, from which SHA-256 has its constants. */
const fraction = (root: number) => ((root - Math.floor(root)) * 2 ** 32) | 0;
const roundWords = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
const firstState = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));

const blockBytes = 64;
const bytesMax = 1024;
const w = new Int32Array(64);

export class CredentialsDigest implements Digest {
  d0 = 0;
  d1 = 0;
  d2 = 0;
  d3 = 0;
  readonly #inner: Int32Array;
  readonly #outer: Int32Array;
  readonly #state = new Int32Array(8);
  readonly #bytes = Buffer.alloc(bytesMax + 2 * blockBytes);

  /** `kind`: the first character of what is hashed; the credentials follow. */
  constructor(key: Buffer, kind: string) {
    this.#inner = keyed(key, 0x36);
    this.#outer = keyed(key, 0x5c);
    this.#bytes.write(kind, 'latin1');
  }

  /** Returns itself; `credentialsId` has at most 255 characters. */
  of(credentialsId: string): this {
    const bytes = this.#bytes;
    const length = 1 + bytes.write(credentialsId, 1, bytesMax - 1);
    const blocks = Math.ceil((length + 9) / blockBytes);
    bytes.fill(0, length, blocks * blockBytes);
    bytes[length] = 0x80;
    bytes.writeUInt32BE((blockBytes + length) * 8, blocks * blockBytes - 4);
    const state = this.#state;
    state.set(this.#inner);
    for (let at = 0; at < blocks * blockBytes; at += blockBytes) {
      for (let i = 0; i < 16; i += 1) w[i] = bytes.readInt32BE(at + i * 4);
      compress(state);
    }
    w.set(state);
    w.fill(0, 8, 16);
    w[8] = 0x80000000;
    w[15] = (blockBytes + 32) * 8;
    state.set(this.#outer);
    compress(state);
    this.d0 = swapped(state[0]!);
    this.d1 = swapped(state[1]!);
    this.d2 = swapped(state[2]!);
    this.d3 = swapped(state[3]!);
    return this;
  }
}

/** Returns the state after the block of the key. */
function keyed(key: Buffer, pad: number): Int32Array {
  const block = Buffer.alloc(blockBytes, pad);
  for (const [i, byte] of key.entries()) block[i]! ^= byte;
  for (let i = 0; i < 16; i += 1) w[i] = block.readInt32BE(i * 4);
  const state = Int32Array.from(firstState);
  compress(state);
  return state;
}

/** Adds the block in `w` to the state. */
function compress(state: Int32Array): void {
  for (let i = 16; i < 64; i += 1) {
    const x = w[i - 15]!;
    const y = w[i - 2]!;
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
  }
  let a = state[0]!;
  let b = state[1]!;
  let c = state[2]!;
  let d = state[3]!;
  let e = state[4]!;
  let f = state[5]!;
  let g = state[6]!;
  let h = state[7]!;
  for (let i = 0; i < 64; i += 1) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const first = (h + s1 + ((e & f) ^ (~e & g)) + roundWords[i]! + w[i]!) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const second = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + first) | 0;
    d = c;
    c = b;
    b = a;
    a = (first + second) | 0;
  }
  state[0]! += a;
  state[1]! += b;
  state[2]! += c;
  state[3]! += d;
  state[4]! += e;
  state[5]! += f;
  state[6]! += g;
  state[7]! += h;
}

/** Returns the word with its bytes in the opposite order, as a record has them. */
function swapped(word: number): number {
  return ((word << 24) | ((word & 0xff00) << 8) | ((word >>> 8) & 0xff00) | (word >>> 24)) >>> 0;
}
