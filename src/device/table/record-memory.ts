/**
 * Keeps many small records outside the heap of JavaScript, so that a million of them cost the garbage collector
 * nothing. A record takes whole units of 8 bytes in a chunk of 64 KiB. A record that is freed is used again for a
 * record of as many units, so no step moves records. A place is the number of a record's first unit; 0 is no place.
 */
import { assert } from '../../base/errors.ts';

export const unitBytes = 8;
export const unitsMax = 136;
const unitBits = 13;
const chunkUnits = 2 ** unitBits;
const unitMask = chunkUnits - 1;
const chunksMax = 2 ** (32 - unitBits);

export class RecordMemory {
  /** The chunks, as bytes and as words of 32 bits. */
  readonly bytes: Buffer[] = [];
  readonly words: Uint32Array[] = [];
  /** For each number of units: the first free record, whose first word is the place of the next one. */
  readonly #free = new Uint32Array(unitsMax + 1);
  /**
   * For each number of units: the place after the last record in the chunk that is being filled, and the units left.
   */
  readonly #next = new Uint32Array(unitsMax + 1);
  readonly #left = new Uint32Array(unitsMax + 1);

  /** Bytes of all chunks. */
  get byteSize(): number {
    return this.bytes.length * chunkUnits * unitBytes;
  }

  /** Returns the place of a record of so many units, whose contents are undefined. */
  take(units: number): number {
    assert(units > 0 && units <= unitsMax, 'a record of known size');
    const free = this.#free[units]!;
    if (free !== 0) {
      this.#free[units] = this.words[chunkOf(free)]![wordOf(free)]!;
      return free;
    }
    if (this.#left[units]! < units) this.#addChunk(units);
    const place = this.#next[units]!;
    this.#next[units] = place + units;
    this.#left[units]! -= units;
    return place;
  }

  give(place: number, units: number): void {
    this.words[chunkOf(place)]![wordOf(place)] = this.#free[units]!;
    this.#free[units] = place;
  }

  #addChunk(units: number): void {
    const chunk = this.bytes.length;
    assert(chunk < chunksMax, 'places have 32 bits');
    const buffer = new ArrayBuffer(chunkUnits * unitBytes);
    this.bytes.push(Buffer.from(buffer));
    this.words.push(new Uint32Array(buffer));
    // Place 0 stays unused.
    const first = chunk === 0 ? 1 : 0;
    this.#next[units] = chunk * chunkUnits + first;
    this.#left[units] = chunkUnits - first;
  }
}

export function chunkOf(place: number): number {
  return place >>> unitBits;
}

/** Returns the index of the first word of a record in its chunk. */
export function wordOf(place: number): number {
  return (place & unitMask) << 1;
}
