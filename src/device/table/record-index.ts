/**
 * Digest of 128 bits → place of the record that begins with it (`RecordMemory`). Open addressing in 4 096 parts, 8
 * bytes a slot. A part grows by itself, at last by a quarter, so no step moves more than the entries of one part: 250
 * at a million.
 */
import { chunkOf, type RecordMemory, wordOf } from './record-memory.ts';

const partBits = 12;
const parts = 2 ** partBits;
const slotsMin = 4;
const smallSlots = 64;
/** The largest part of its slots that a part uses. */
const fullness = 0.8;

export class RecordIndex {
  readonly #store: RecordMemory;
  /** Each slot of a part is two words: the second word of the digest, and the place; place 0 = free. */
  readonly #parts: (Uint32Array | undefined)[] = new Array<Uint32Array | undefined>(parts).fill(undefined);
  readonly #sizes = new Uint32Array(parts);
  #size = 0;
  #slots = 0;
  /** The number of calls of `any`, which chooses the part and the slot. */
  #turn = 0;
  #movedMax = 0;

  constructor(store: RecordMemory) {
    this.#store = store;
  }

  get size(): number {
    return this.#size;
  }

  get byteSize(): number {
    return this.#slots * 8;
  }

  /** The largest number of entries that one call has moved. */
  get movedMax(): number {
    return this.#movedMax;
  }

  /** Returns 0 when no record has the digest. */
  find(d0: number, d1: number, d2: number, d3: number): number {
    const part = this.#parts[d0 >>> (32 - partBits)];
    if (part === undefined) return 0;
    const slots = part.length >>> 1;
    for (let slot = homeOf(d1, slots); ; slot = slot + 1 === slots ? 0 : slot + 1) {
      const place = part[slot * 2 + 1]!;
      if (place === 0) return 0;
      if (part[slot * 2] !== d1) continue;
      const words = this.#store.words[chunkOf(place)]!;
      const at = wordOf(place);
      if (words[at] === d0 && words[at + 2] === d2 && words[at + 3] === d3) return place;
    }
  }

  /** Adds a record whose digest no other record has. */
  add(place: number): void {
    const words = this.#store.words[chunkOf(place)]!;
    const at = wordOf(place);
    const number = words[at]! >>> (32 - partBits);
    const size = this.#sizes[number]! + 1;
    let part = this.#parts[number];
    if (part === undefined || size > (part.length >>> 1) * fullness) part = this.#grow(number);
    insert(part, words[at + 1]!, place);
    this.#sizes[number] = size;
    this.#size += 1;
  }

  /** Removes a record that is in the index. Entries after it move up, so no slot is marked as deleted. */
  remove(place: number): void {
    const words = this.#store.words[chunkOf(place)]!;
    const at = wordOf(place);
    const number = words[at]! >>> (32 - partBits);
    const part = this.#parts[number]!;
    const slots = part.length >>> 1;
    let hole = homeOf(words[at + 1]!, slots);
    while (part[hole * 2 + 1] !== place) hole = hole + 1 === slots ? 0 : hole + 1;
    for (
      let slot = hole + 1 === slots ? 0 : hole + 1;
      part[slot * 2 + 1] !== 0;
      slot = slot + 1 === slots ? 0 : slot + 1
    ) {
      const home = homeOf(part[slot * 2]!, slots);
      // An entry whose home lies after the hole, up to its slot, stays.
      if (hole <= slot ? hole < home && home <= slot : hole < home || home <= slot) continue;
      part[hole * 2] = part[slot * 2]!;
      part[hole * 2 + 1] = part[slot * 2 + 1]!;
      hole = slot;
    }
    part[hole * 2 + 1] = 0;
    this.#sizes[number]! -= 1;
    this.#size -= 1;
  }

  /** Returns the place of a record that makes room: another part each time, another slot each round. 0 = none. */
  any(): number {
    if (this.#size === 0) return 0;
    do this.#turn = (this.#turn + 1) >>> 0;
    while (this.#sizes[this.#turn % parts] === 0);
    const part = this.#parts[this.#turn % parts]!;
    const slots = part.length >>> 1;
    let slot = homeOf(Math.imul(this.#turn, 0x9e3779b1) >>> 0, slots);
    while (part[slot * 2 + 1] === 0) slot = slot + 1 === slots ? 0 : slot + 1;
    return part[slot * 2 + 1]!;
  }

  /** Returns the places of one part, of `RecordIndex.parts`. */
  places(number: number): number[] {
    const part = this.#parts[number];
    return part === undefined ? [] : Array.from(part).filter((word, i) => i % 2 === 1 && word !== 0);
  }

  static readonly parts: number = parts;

  #grow(number: number): Uint32Array {
    const former = this.#parts[number];
    const slots = former === undefined ? slotsMin : moreThan(former.length >>> 1);
    const part = new Uint32Array(slots * 2);
    this.#slots += slots - (former === undefined ? 0 : former.length >>> 1);
    if (former !== undefined) {
      for (let i = 0; i < former.length; i += 2) {
        if (former[i + 1] !== 0) insert(part, former[i]!, former[i + 1]!);
      }
    }
    this.#movedMax = Math.max(this.#movedMax, this.#sizes[number]!);
    this.#parts[number] = part;
    return part;
  }
}

/** Returns the slots of a part that grows: twice as many while the part is small, so that a load grows parts rarely. */
function moreThan(slots: number): number {
  return slots < smallSlots ? slots * 2 : Math.ceil(slots * 1.25);
}

/** Returns the slot at which the search for an entry begins. */
function homeOf(word: number, slots: number): number {
  return Math.floor((word * slots) / 2 ** 32);
}

function insert(part: Uint32Array, word: number, place: number): void {
  const slots = part.length >>> 1;
  let slot = homeOf(word, slots);
  while (part[slot * 2 + 1] !== 0) slot = slot + 1 === slots ? 0 : slot + 1;
  part[slot * 2] = word;
  part[slot * 2 + 1] = place;
}
