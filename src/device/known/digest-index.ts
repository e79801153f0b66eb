/**
 * Digest of 16 bytes → offset in a file: open addressing in 4 096 parts, 12 bytes a slot. A part grows by itself, so no
 * step moves more than the entries of one part. Only 64 bits of a digest are kept; the caller compares the whole digest
 * with that of the record. Offsets are multiples of 8 below 32 GiB. Entries are replaced and never removed.
 */
import { assert } from '../../base/errors.ts';

const partBits = 12;
const parts = 2 ** partBits;
const slotsMin = 4;
const slotWords = 3;
/** The largest share of its slots that a part uses. */
const fullness = 0.7;

export class DigestIndex {
  /**
   * A slot is three words: two of the digest, and offset / 8; 0 = a free slot, because the header is at the start of a
   * file.
   */
  readonly #parts: (Uint32Array | undefined)[] = new Array<Uint32Array | undefined>(parts).fill(undefined);
  readonly #sizes = new Uint32Array(parts);
  /** The number of slots that a part begins with: a power of two, as after each growth. */
  readonly #slotsFirst: number;
  #size = 0;

  /** `entries`: the expected number; the index grows beyond it. */
  constructor(entries: number) {
    let slots = slotsMin;
    while (slots * 0.6 < entries / parts) slots *= 2;
    this.#slotsFirst = slots;
  }

  get size(): number {
    return this.#size;
  }

  /** Returns the offset for the digest at `at` in `bytes`. */
  get(bytes: Buffer, at: number): number | undefined {
    const [high, low] = [bytes.readUInt32LE(at), bytes.readUInt32LE(at + 4)];
    const part = this.#parts[low >>> (32 - partBits)];
    if (part === undefined) return undefined;
    const place = part[placeOf(part, high, low) + 2]!;
    return place === 0 ? undefined : place * 8;
  }

  set(bytes: Buffer, at: number, offset: number): void {
    assert(offset > 0 && offset % 8 === 0 && offset < 2 ** 35, 'an offset of a record');
    const [high, low] = [bytes.readUInt32LE(at), bytes.readUInt32LE(at + 4)];
    const number = low >>> (32 - partBits);
    const part = (this.#parts[number] ??= new Uint32Array(this.#slotsFirst * slotWords));
    if (!put(part, high, low, offset / 8)) return;
    this.#size += 1;
    const size = (this.#sizes[number]! += 1);
    if (size > (part.length / slotWords) * fullness) this.#parts[number] = doubled(part);
  }
}

/** Returns true when the entry is new. */
function put(part: Uint32Array, high: number, low: number, place: number): boolean {
  const at = placeOf(part, high, low);
  const isNew = part[at + 2] === 0;
  part[at] = high;
  part[at + 1] = low;
  part[at + 2] = place;
  return isNew;
}

/** Returns the index of the slot of this digest, or of the free slot for it. */
function placeOf(part: Uint32Array, high: number, low: number): number {
  const mask = part.length / slotWords - 1;
  for (let slot = high & mask; ; slot = (slot + 1) & mask) {
    const at = slot * slotWords;
    if (part[at + 2] === 0 || (part[at] === high && part[at + 1] === low)) return at;
  }
}

function doubled(part: Uint32Array): Uint32Array {
  const larger = new Uint32Array(part.length * 2);
  for (let at = 0; at < part.length; at += slotWords) {
    if (part[at + 2] !== 0) put(larger, part[at]!, part[at + 1]!, part[at + 2]!);
  }
  return larger;
}
