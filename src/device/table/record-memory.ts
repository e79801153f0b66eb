/**
 * Keeps many small records outside the heap of JavaScript, so that a million of them cost the garbage collector
 * nothing. A record takes whole units of 8 bytes in a chunk of 64 KiB, and all records of a chunk have as many units. A
 * freed record is used again for a record of as many units, so no step moves records. A chunk without records is used
 * again for any size, so a fleet whose records change their sizes does not keep the memory of each former size. A place
 * is the number of a record's first unit; 0 is no place.
 */
import { assert } from '../../base/errors.ts';

export const unitBytes = 8;
export const unitsMax = 136;
const unitBits = 13;
const chunkUnits = 2 ** unitBits;
const unitMask = chunkUnits - 1;
const chunksMax = 2 ** (32 - unitBits);

/** No chunk: the end of a list. */
const none = -1;

/** The use of a chunk. */
interface Use {
  /** Units of each record. */
  units: number;
  /** The number of records. */
  records: number;
  /** The first freed record, whose first word is the place of the next one; 0 = none. */
  freed: number;
  /** The unit after the last record that was ever used. */
  unused: number;
  /** The neighbours among the chunks of these units that have room. */
  previous: number;
  next: number;
}

export class RecordMemory {
  /** The chunks, as bytes and as words of 32 bits. */
  readonly bytes: Buffer[] = [];
  readonly words: Uint32Array[] = [];
  readonly #uses: Use[] = [];
  /** For each number of units: the first chunk that has room. */
  readonly #withRoom = new Int32Array(unitsMax + 1).fill(none);
  /** The chunks without records. */
  readonly #empty: number[] = [];

  /** Bytes of all chunks. */
  get byteSize(): number {
    return this.bytes.length * chunkUnits * unitBytes;
  }

  /** Returns the place of a record of so many units, whose contents are undefined. */
  take(units: number): number {
    assert(units > 0 && units <= unitsMax, 'a record of known size');
    if (this.#withRoom[units] === none) this.#open(this.#empty.pop() ?? this.#addChunk(), units);
    const chunk = this.#withRoom[units]!;
    const use = this.#uses[chunk]!;
    let place = use.freed;
    if (place !== 0) {
      use.freed = this.words[chunk]![wordOf(place)]!;
    } else {
      place = chunk * chunkUnits + use.unused;
      use.unused += units;
    }
    use.records += 1;
    if (isFull(use)) this.#unlist(chunk);
    return place;
  }

  give(place: number, units: number): void {
    const chunk = chunkOf(place);
    const use = this.#uses[chunk]!;
    assert(use.units === units, 'a record of the size of its chunk');
    if (isFull(use)) this.#list(chunk);
    this.words[chunk]![wordOf(place)] = use.freed;
    use.freed = place;
    use.records -= 1;
    if (use.records > 0) return;
    this.#unlist(chunk);
    this.#empty.push(chunk);
  }

  #addChunk(): number {
    const chunk = this.bytes.length;
    assert(chunk < chunksMax, 'places have 32 bits');
    const buffer = new ArrayBuffer(chunkUnits * unitBytes);
    this.bytes.push(Buffer.from(buffer));
    this.words.push(new Uint32Array(buffer));
    this.#uses.push({ units: 0, records: 0, freed: 0, unused: 0, previous: none, next: none });
    return chunk;
  }

  /** Begins to use a chunk without records for records of so many units. */
  #open(chunk: number, units: number): void {
    // Place 0 stays unused.
    Object.assign(this.#uses[chunk]!, { units, freed: 0, unused: chunk === 0 ? 1 : 0 });
    this.#list(chunk);
  }

  #list(chunk: number): void {
    const use = this.#uses[chunk]!;
    use.previous = none;
    use.next = this.#withRoom[use.units]!;
    if (use.next !== none) this.#uses[use.next]!.previous = chunk;
    this.#withRoom[use.units] = chunk;
  }

  #unlist(chunk: number): void {
    const { units, previous, next } = this.#uses[chunk]!;
    if (previous === none) this.#withRoom[units] = next;
    else this.#uses[previous]!.next = next;
    if (next !== none) this.#uses[next]!.previous = previous;
  }
}

function isFull({ freed, unused, units }: Use): boolean {
  return freed === 0 && unused + units > chunkUnits;
}

export function chunkOf(place: number): number {
  return place >>> unitBits;
}

/** Returns the index of the first word of a record in its chunk. */
export function wordOf(place: number): number {
  return (place & unitMask) << 1;
}
