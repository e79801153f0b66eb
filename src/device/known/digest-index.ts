/**
 * Digest of 16 bytes → offset in a file: open addressing in three flat arrays, 12 bytes a slot. Only 64 bits of a
 * digest are kept; the caller compares the whole digest with that of the record. Offsets are multiples of 8 below 32
 * GiB. Entries are replaced and never removed.
 */
import { assert } from '../../base/errors.ts';

const slotsMin = 1024;

export class DigestIndex {
  #mask: number;
  #high: Uint32Array;
  #low: Uint32Array;
  /** Offset / 8; 0 = a free slot, because the header is at the start of a file. */
  #places: Uint32Array;
  #size = 0;

  /** `entries`: the expected number; the index grows beyond it. */
  constructor(entries: number) {
    let slots = slotsMin;
    while (slots * 0.6 < entries) slots *= 2;
    this.#mask = slots - 1;
    this.#high = new Uint32Array(slots);
    this.#low = new Uint32Array(slots);
    this.#places = new Uint32Array(slots);
  }

  get size(): number {
    return this.#size;
  }

  /** Returns the offset for the digest at `at` in `bytes`. */
  get(bytes: Buffer, at: number): number | undefined {
    const place = this.#places[this.#slot(bytes.readUInt32LE(at), bytes.readUInt32LE(at + 4))]!;
    return place === 0 ? undefined : place * 8;
  }

  set(bytes: Buffer, at: number, offset: number): void {
    assert(offset > 0 && offset % 8 === 0 && offset < 2 ** 35, 'an offset of a record');
    this.#put(bytes.readUInt32LE(at), bytes.readUInt32LE(at + 4), offset / 8);
    if (this.#size > this.#mask * 0.7) this.#grow();
  }

  #put(high: number, low: number, place: number): void {
    const slot = this.#slot(high, low);
    if (this.#places[slot] === 0) {
      this.#size += 1;
      this.#high[slot] = high;
      this.#low[slot] = low;
    }
    this.#places[slot] = place;
  }

  /** Returns the slot of this digest, or the free slot for it. */
  #slot(high: number, low: number): number {
    for (let slot = high & this.#mask; ; slot = (slot + 1) & this.#mask) {
      if (this.#places[slot] === 0 || (this.#high[slot] === high && this.#low[slot] === low)) return slot;
    }
  }

  #grow(): void {
    const [high, low, places] = [this.#high, this.#low, this.#places];
    this.#mask = places.length * 2 - 1;
    this.#high = new Uint32Array(places.length * 2);
    this.#low = new Uint32Array(places.length * 2);
    this.#places = new Uint32Array(places.length * 2);
    this.#size = 0;
    for (let slot = 0; slot < places.length; slot += 1) {
      if (places[slot] !== 0) this.#put(high[slot]!, low[slot]!, places[slot]!);
    }
  }
}
