/**
 * The digest under which a worker keeps a device of a token: SipHash-2-4 with 128 bits, under a key that each process
 * draws for itself and never shows. The table of devices compares digests, not tokens: among n devices, a request with
 * a wrong token finds a device with a probability of n / 2^128. One caller at a time uses the object.
 */
import { randomBytes } from 'node:crypto';

export class TokenDigest {
  /** The words of the digest that `of` computed last. */
  d0 = 0;
  d1 = 0;
  d2 = 0;
  d3 = 0;
  readonly #key: Int32Array;
  readonly #bytes: Buffer;
  readonly #words: Int32Array;
  readonly #charsMax: number;

  /** A longer token than `charsMax` has no digest. */
  constructor(charsMax: number, key: Buffer = randomBytes(16)) {
    this.#charsMax = charsMax;
    this.#key = Int32Array.from([0, 4, 8, 12], (at) => key.readInt32LE(at));
    const blocks = Math.ceil((2 * charsMax + 1) / 8);
    this.#bytes = Buffer.alloc(blocks * 8);
    this.#words = new Int32Array(this.#bytes.buffer, this.#bytes.byteOffset, blocks * 2);
  }

  /** Returns false for a token without a digest. */
  of(token: string): boolean {
    const { length } = token;
    if (length === 0 || length > this.#charsMax) return false;
    const bytes = this.#bytes;
    let seen = 0;
    for (let i = 0; i < length; i += 1) {
      const unit = token.charCodeAt(i);
      bytes[i] = unit;
      seen |= unit;
    }
    // A token with characters outside Latin-1 is hashed as UTF-16, with another start value.
    if (seen < 256) this.#hash(length, 0);
    else this.#hash(bytes.write(token, 'utf16le'), 1);
    return true;
  }

  /** Hashes the first `length` bytes. The 64-bit words of SipHash are pairs of a low and a high half. */
  #hash(length: number, domain: number): void {
    const bytes = this.#bytes;
    const blocks = (length >>> 3) + 1;
    // The last block ends with the length.
    bytes.fill(0, length, blocks * 8 - 1);
    bytes[blocks * 8 - 1] = length;
    const words = this.#words;
    const key = this.#key;
    const k0 = key[0]!;
    const k1 = key[1]!;
    const k2 = key[2]!;
    const k3 = key[3]!;
    let al = k0 ^ 0x70736575;
    let ah = k1 ^ 0x736f6d65;
    let bl = k2 ^ 0x6e646f6d ^ 0xee;
    let bh = k3 ^ 0x646f7261 ^ domain;
    let cl = k0 ^ 0x6e657261;
    let ch = k1 ^ 0x6c796765;
    let dl = k2 ^ 0x79746573;
    let dh = k3 ^ 0x74656462;
    for (let step = 0; step <= blocks + 1; step += 1) {
      let ml = 0;
      let mh = 0;
      let rounds = 4;
      if (step < blocks) {
        ml = words[step * 2]!;
        mh = words[step * 2 + 1]!;
        dl ^= ml;
        dh ^= mh;
        rounds = 2;
      } else if (step === blocks) {
        cl ^= 0xee;
      } else {
        this.d0 = (al ^ bl ^ cl ^ dl) >>> 0;
        this.d1 = (ah ^ bh ^ ch ^ dh) >>> 0;
        bl ^= 0xdd;
      }
      for (; rounds > 0; rounds -= 1) {
        let sum = (al + bl) | 0;
        ah = (ah + bh + (sum >>> 0 < al >>> 0 ? 1 : 0)) | 0;
        al = sum;
        let turned = ((bl << 13) | (bh >>> 19)) ^ al;
        bh = ((bh << 13) | (bl >>> 19)) ^ ah;
        bl = turned;
        turned = al;
        al = ah;
        ah = turned;

        sum = (cl + dl) | 0;
        ch = (ch + dh + (sum >>> 0 < cl >>> 0 ? 1 : 0)) | 0;
        cl = sum;
        turned = ((dl << 16) | (dh >>> 16)) ^ cl;
        dh = ((dh << 16) | (dl >>> 16)) ^ ch;
        dl = turned;

        sum = (al + dl) | 0;
        ah = (ah + dh + (sum >>> 0 < al >>> 0 ? 1 : 0)) | 0;
        al = sum;
        turned = ((dl << 21) | (dh >>> 11)) ^ al;
        dh = ((dh << 21) | (dl >>> 11)) ^ ah;
        dl = turned;

        sum = (cl + bl) | 0;
        ch = (ch + bh + (sum >>> 0 < cl >>> 0 ? 1 : 0)) | 0;
        cl = sum;
        turned = ((bl << 17) | (bh >>> 15)) ^ cl;
        bh = ((bh << 17) | (bl >>> 15)) ^ ch;
        bl = turned;
        turned = cl;
        cl = ch;
        ch = turned;
      }
      al ^= ml;
      ah ^= mh;
    }
    this.d2 = (al ^ bl ^ cl ^ dl) >>> 0;
    this.d3 = (ah ^ bh ^ ch ^ dh) >>> 0;
  }
}
