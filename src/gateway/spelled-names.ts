/**
 * Finds a child of a gateway by the bytes of its name as messages spell it between quotes, without a string, and keeps
 * what a usual message needs of the child. In a large fleet no cache holds the memory of a child, so a message reads
 * few places for it: a bucket and a record, usually a line of the processor's cache each, and not the object of the
 * child (docs/performance.md). A child has one record and one spelling, the last one that was set. A spelling whose
 * bucket is full is not found, and the caller searches by the name itself, so a lookup has a fixed bound.
 */
import { renames } from '../device/model/cached-device.ts';
import { hashOf } from '../telemetry/keys.ts';

/** A child as it is kept here. */
export interface Spelled {
  /** The number of the device. */
  readonly number: number;
  /** False when the spelling is not that of the device's name any more. */
  readonly isCurrent: boolean;
  /** Owned by `SpelledNames`: the place of its record; 0 = none. */
  place: number;
}

/** Words of a line of the processor's cache. */
const lineWords = 16;
const lineBytes = 4 * lineWords;

/** A bucket is one line. A slot is two words: the hash, and the place of the record; place 0 = free. */
const slotWords = 2;
const bucketSlots = lineWords / slotWords;
const bucketsMin = 2;
/** Spellings for each bucket at which the buckets are doubled: then one of 125 spellings has no room. */
const fullness = bucketSlots / 2;

/*
 * A record: number of the device 8 bytes | words 4 each | spelling. The place of a record is the number of its first
 * line, and stays the same until the record is removed. A spelling of up to 40 bytes takes one line. The system begins
 * large memory 16 bytes after a line: arrays that begin at a line were not faster.
 */
/** The count of renames at which the name was last compared with that of the device; -1 = not yet, or removed. */
const comparedAtWord = 2;
/** The last message that named the child. */
const namedByWord = 3;
/** The place of the child that last followed this child in a message. */
const nextWord = 4;
/** Bytes of the spelling. */
const lengthWord = 5;
const headBytes = 24;
const linesMin = 4;
const quote = 0x22;

export class SpelledNames<Child extends Spelled> {
  #buckets = bucketsMin;
  #slots = new Int32Array(bucketsMin * lineWords);
  #words = new Int32Array(linesMin * lineWords);
  #bytes = new Uint8Array(this.#words.buffer);
  #numbers = new Float64Array(this.#words.buffer);
  /** The end of the last record. Place 0 is no place. */
  #end = 1;
  #size = 0;
  /** By the places of their records. */
  readonly #children: (Child | undefined)[] = [];
  /**
   * Places of removed records, by the binary logarithm of their lines. A record takes 1, 2, 4, … lines, so all removed
   * ones take no more than the longest records that the children ever had.
   */
  readonly #free: number[][] = [];

  /**
   * Returns the place of the child that is spelled `source[start..end)`, of which `hash` is the hash (`keys.ts`); 0 =
   * there is none, or it is not current.
   */
  find(source: Uint8Array, start: number, end: number, hash: number): number {
    const slots = this.#slots;
    const first = bucketOf(hash, this.#buckets) * lineWords;
    for (let at = first; at < first + lineWords; at += slotWords) {
      const place = slots[at + 1]!;
      if (slots[at] !== hash || place === 0) continue;
      if (this.#isAt(place, source, start, end)) return this.#isCurrent(place) ? place : 0;
    }
    return 0;
  }

  /**
   * Returns the end of the spelling at this place when `source` has it at `start` with its closing quote, and the child
   * is current, else -1. The record may have been removed.
   */
  endOf(place: number, source: Uint8Array, start: number, last: number): number {
    if (place === 0 || !this.#isCurrent(place)) return -1;
    const end = start + this.#words[place * lineWords + lengthWord]!;
    return end <= last && source[end] === quote && this.#isAt(place, source, start, end) ? end : -1;
  }

  childAt(place: number): Child {
    return this.#children[place]!;
  }

  /** Returns the number of the device. */
  deviceAt(place: number): number {
    return this.#numbers[(place * lineWords) / 2]!;
  }

  /** Returns the place of the child that last followed this child in a message; 0 = unknown. It may be free by now. */
  nextOf(place: number): number {
    return place === 0 ? 0 : this.#words[place * lineWords + nextWord]!;
  }

  setNext(place: number, next: number): void {
    this.#words[place * lineWords + nextWord] = next;
  }

  /** Notes that a message names the child. Returns false when this message has named the child before. */
  markNamed(place: number, message: number): boolean {
    const at = place * lineWords + namedByWord;
    if (this.#words[at] === message) return false;
    this.#words[at] = message;
    return true;
  }

  /** Keeps the spelling of a child, in place of an earlier one. A message may name the child by both. */
  set(child: Child, spelling: Uint8Array): void {
    const namedBy = child.place === 0 ? 0 : this.#words[child.place * lineWords + namedByWord]!;
    this.delete(child);
    if (this.#size >= this.#buckets * fullness) this.#enterAll(this.#buckets * 2);
    const place = this.#take(sizeOf(spelling.length));
    const at = place * lineWords;
    this.#numbers[at / 2] = child.number;
    this.#words[at + comparedAtWord] = child.isCurrent ? renames.count : -1;
    this.#words[at + namedByWord] = namedBy;
    this.#words[at + nextWord] = 0;
    this.#words[at + lengthWord] = spelling.length;
    this.#bytes.set(spelling, at * 4 + headBytes);
    this.#enter(place);
    this.#size += 1;
    this.#children[place] = child;
    child.place = place;
  }

  delete(child: Child): void {
    const { place } = child;
    if (place === 0) return;
    const slots = this.#slots;
    const first = bucketOf(this.#hashOf(place), this.#buckets) * lineWords;
    for (let at = first; at < first + lineWords; at += slotWords) if (slots[at + 1] === place) slots[at + 1] = 0;
    // A message may still expect the record after that of another child.
    this.#words[place * lineWords + comparedAtWord] = -1;
    this.#children[place] = undefined;
    const size = sizeOf(this.#words[place * lineWords + lengthWord]!);
    this.#free[size] ??= [];
    this.#free[size].push(place);
    this.#size -= 1;
    child.place = 0;
  }

  clear(): void {
    for (const child of this.#children) if (child !== undefined) child.place = 0;
    this.#children.length = 0;
    this.#free.length = 0;
    this.#size = 0;
    this.#end = 1;
    this.#slots.fill(0);
  }

  /** Returns false when the record was removed, or when the device has another name by now. */
  #isCurrent(place: number): boolean {
    const at = place * lineWords + comparedAtWord;
    if (this.#words[at] === renames.count) return true;
    if (!this.#children[place]?.isCurrent) return false;
    this.#words[at] = renames.count;
    return true;
  }

  #isAt(place: number, source: Uint8Array, start: number, end: number): boolean {
    if (this.#words[place * lineWords + lengthWord] !== end - start) return false;
    const bytes = this.#bytes;
    for (let i = start, at = place * lineBytes + headBytes; i < end; i += 1, at += 1) {
      if (bytes[at] !== source[i]) return false;
    }
    return true;
  }

  #hashOf(place: number): number {
    const from = place * lineBytes + headBytes;
    return hashOf(this.#bytes.subarray(from, from + this.#words[place * lineWords + lengthWord]!));
  }

  /** Takes a place for a record of this size. */
  #take(size: number): number {
    const free = this.#free[size]?.pop();
    if (free !== undefined) return free;
    const place = this.#end;
    this.#end += 1 << size;
    if (this.#end * lineWords > this.#words.length) {
      const former = this.#words;
      this.#words = new Int32Array(this.#end * lineWords * 2);
      this.#words.set(former);
      this.#bytes = new Uint8Array(this.#words.buffer);
      this.#numbers = new Float64Array(this.#words.buffer);
    }
    return place;
  }

  /** Enters a record into its bucket, unless the bucket is full. */
  #enter(place: number): void {
    const slots = this.#slots;
    const hash = this.#hashOf(place);
    const first = bucketOf(hash, this.#buckets) * lineWords;
    for (let at = first; at < first + lineWords; at += slotWords) {
      if (slots[at + 1] !== 0) continue;
      slots[at] = hash;
      slots[at + 1] = place;
      return;
    }
  }

  /** Enters all records into new buckets. */
  #enterAll(buckets: number): void {
    this.#buckets = buckets;
    this.#slots = new Int32Array(buckets * lineWords);
    for (const child of this.#children) if (child !== undefined) this.#enter(child.place);
  }
}

function bucketOf(hash: number, buckets: number): number {
  return (hash ^ (hash >>> 15)) & (buckets - 1);
}

/** Returns the binary logarithm of the lines of the record of a spelling. */
function sizeOf(bytes: number): number {
  return 32 - Math.clz32((headBytes + bytes - 1) >>> 6);
}
