/**
 * Finds a child of a gateway by the bytes of its name as messages spell it between quotes, without a string. In a large
 * fleet no cache holds the memory of a child, so a lookup reads few places: a bucket, then at once the bytes of the
 * spelling and the list of children. A child has one spelling, the last one that was set. A spelling whose bucket is
 * full is not kept, and the caller searches by the name itself, so a lookup has a fixed bound.
 */
import { hashOf } from '../telemetry/keys.ts';

/** A child as it is kept here. */
export interface Spelled {
  /** Owned by `SpelledNames`: the place of its record; 0 = none. */
  place: number;
}

/*
 * A slot is three words: the hash, the place of the record, and the child in the list; place 0 = free. A record: bytes
 * of the spelling 4 | spelling, padded to whole words. A place is the index of the first word of a record.
 */
const bucketSlots = 8;
const slotWords = 3;
const bucketWords = bucketSlots * slotWords;
const headWords = 1;
const bucketsMin = 2;
/** Spellings for each bucket at which the buckets are doubled: then one of 125 spellings has no room. */
const fullness = bucketSlots / 2;
const wordsMin = 64;
const quote = 0x22;

export class SpelledNames<Child extends Spelled> {
  #buckets = bucketsMin;
  #slots = new Int32Array(bucketsMin * bucketWords);
  #words = new Int32Array(wordsMin);
  #bytes = new Uint8Array(this.#words.buffer);
  /** The end of the last record. Place 0 is no place. */
  #end = 1;
  /** Words of records that were removed. */
  #unused = 0;
  #size = 0;
  readonly #children: (Child | undefined)[] = [];
  readonly #free: number[] = [];

  /** Returns the child that is spelled `source[start..end)`, of which `hash` is the hash (`keys.ts`). */
  find(source: Uint8Array, start: number, end: number, hash: number): Child | undefined {
    const slots = this.#slots;
    const first = bucketOf(hash, this.#buckets) * bucketWords;
    for (let at = first; at < first + bucketWords; at += slotWords) {
      if (slots[at] !== hash || slots[at + 1] === 0) continue;
      const child = this.#children[slots[at + 2]!];
      if (this.#isAt(slots[at + 1]!, source, start, end)) return child;
    }
    return undefined;
  }

  /** Returns the end of the spelling of this child when `source` has it at `start` with its closing quote, else -1. */
  endOf({ place }: Child, source: Uint8Array, start: number, last: number): number {
    if (place === 0) return -1;
    const end = start + this.#words[place]!;
    return end <= last && source[end] === quote && this.#isAt(place, source, start, end) ? end : -1;
  }

  /** Keeps the spelling of a child, in place of an earlier one. */
  set(child: Child, spelling: Uint8Array): void {
    this.delete(child);
    if (this.#size >= this.#buckets * fullness) this.#enterAll(this.#buckets * 2);
    const words = wordsOf(spelling.length);
    if (this.#end + words > this.#words.length) this.#makeRoom(words);
    const place = this.#end;
    this.#words[place] = spelling.length;
    this.#bytes.set(spelling, (place + headWords) * 4);
    const number = this.#free.pop() ?? this.#children.length;
    if (!this.#enter(place, number)) {
      this.#free.push(number);
      return;
    }
    this.#end += words;
    this.#size += 1;
    this.#children[number] = child;
    child.place = place;
  }

  delete(child: Child): void {
    const { place } = child;
    if (place === 0) return;
    const slots = this.#slots;
    let at = bucketOf(this.#hashOf(place), this.#buckets) * bucketWords;
    while (slots[at + 1] !== place) at += slotWords;
    slots[at + 1] = 0;
    this.#forget(child, slots[at + 2]!);
  }

  clear(): void {
    for (const child of this.#children) if (child !== undefined) child.place = 0;
    this.#children.length = 0;
    this.#free.length = 0;
    this.#size = 0;
    this.#end = 1;
    this.#unused = 0;
    this.#slots.fill(0);
  }

  #forget(child: Child, number: number): void {
    this.#children[number] = undefined;
    this.#free.push(number);
    this.#unused += wordsOf(this.#words[child.place]!);
    this.#size -= 1;
    child.place = 0;
  }

  #isAt(place: number, source: Uint8Array, start: number, end: number): boolean {
    if (this.#words[place] !== end - start) return false;
    const bytes = this.#bytes;
    for (let i = start, at = (place + headWords) * 4; i < end; i += 1, at += 1) {
      if (bytes[at] !== source[i]) return false;
    }
    return true;
  }

  #hashOf(place: number): number {
    const from = (place + headWords) * 4;
    return hashOf(this.#bytes.subarray(from, from + this.#words[place]!));
  }

  /** Enters a record into its bucket. Returns false when the bucket is full. */
  #enter(place: number, number: number): boolean {
    const slots = this.#slots;
    const hash = this.#hashOf(place);
    const first = bucketOf(hash, this.#buckets) * bucketWords;
    for (let at = first; at < first + bucketWords; at += slotWords) {
      if (slots[at + 1] !== 0) continue;
      slots[at] = hash;
      slots[at + 1] = place;
      slots[at + 2] = number;
      return true;
    }
    return false;
  }

  /** Enters all records into new buckets. */
  #enterAll(buckets: number): void {
    this.#buckets = buckets;
    this.#slots = new Int32Array(buckets * bucketWords);
    for (const [number, child] of this.#children.entries()) {
      if (child !== undefined && !this.#enter(child.place, number)) this.#forget(child, number);
    }
  }

  /** Makes room for a record: moves all records together, into more memory when few records were removed. */
  #makeRoom(words: number): void {
    const former = this.#words;
    const used = this.#end - this.#unused + words;
    this.#words = new Int32Array(Math.max(wordsMin, used * 2));
    this.#bytes = new Uint8Array(this.#words.buffer);
    if (this.#unused === 0) {
      this.#words.set(former);
      return;
    }
    this.#unused = 0;
    this.#end = 1;
    for (const child of this.#children) {
      if (child === undefined) continue;
      const { place } = child;
      const count = wordsOf(former[place]!);
      this.#words.set(former.subarray(place, place + count), this.#end);
      child.place = this.#end;
      this.#end += count;
    }
    this.#enterAll(this.#buckets);
  }
}

function bucketOf(hash: number, buckets: number): number {
  return (hash ^ (hash >>> 15)) & (buckets - 1);
}

/** Returns the words of the record of a spelling. */
function wordsOf(bytes: number): number {
  return headWords + ((bytes + 3) >>> 2);
}
