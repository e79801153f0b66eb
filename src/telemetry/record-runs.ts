/**
 * The runs of a unit: rows of one record, which follow each other in a block. `pack-records.ts` makes a record of a run
 * whose list of keys was chosen, unless another run has the same device and time. The arrays are used again by the next
 * unit.
 */
import { Kind } from '../value/typed.ts';
import { endOfText, startOfText } from './block.ts';
import { type BlockLayout, keyIndexOf } from './block-layout.ts';
import { recordTextBytesMax } from './latest-records.ts';
import { emptyList, type KeyLists, none } from './record-keys.ts';

/** A block of a unit, its columns and its runs. */
export interface Part extends BlockLayout {
  readonly block: Uint8Array;
  readonly view: DataView;
  /** The number in the unit of each key of the block. */
  readonly keyNumbers: Int32Array;
  /** The runs of the block are `begin` ≤ run < `end`. */
  begin: number;
  end: number;
}

/** The records of a unit, and the rows that become these records. */
export interface Packed {
  records: number;
  rows: number;
}

/**
 * Slots that a run is compared with. A sender chooses times, and so may choose many that begin at one slot: without a
 * bound these runs would hold up the worker for seconds.
 */
const probesMax = 64;

export class Runs {
  count = 0;
  /** The place of each run among the chosen lists of keys; `none` for a run that stays rows. */
  place: Int32Array = new Int32Array(1024);
  /** The first row of each run in its block. */
  first: Int32Array = new Int32Array(1024);
  #list: Int32Array = new Int32Array(1024);
  #part: Int32Array = new Int32Array(1024);
  /** Hash table of devices and times: the first run that has each of them, plus 1. */
  #firstOf = new Int32Array(0);

  /** Returns the row after the last row of a run. */
  endOf(run: number, { end, rows }: Part): number {
    return run + 1 < end ? this.first[run + 1]! : rows;
  }

  /** Finds the runs of the parts, and counts their lists of keys. */
  find(parts: readonly Part[], lists: KeyLists): void {
    this.count = 0;
    for (const [number, part] of parts.entries()) {
      const { block, view, rows, device, ts, seq, version, kind, text, keyNumbers } = part;
      part.begin = this.count;
      let first = 0;
      let list = emptyList;
      let textAt = text;
      for (let row = 0; row < rows; row += 1) {
        const at = 8 * row;
        const isSame =
          row === 0 ||
          (isRepeated(view, device + at) &&
            isRepeated(view, ts + at) &&
            isRepeated(view, version + at) &&
            (seq === 0 || view.getInt32(seq + 4 * row) === view.getInt32(seq + 4 * row - 4)));
        if (!isSame) {
          lists.count(list);
          this.#add(number, first, list);
          first = row;
          list = emptyList;
        }
        list = lists.next(list, keyNumbers[keyIndexOf(block, part, row)]!);
        if (text === 0) {
          // An empty string: a block without other strings has no texts.
          if (block[kind + row]! > Kind.double) list = none;
          continue;
        }
        const end = endOfText(block, textAt);
        if (block[kind + row]! > Kind.double && end - startOfText(block, textAt) > recordTextBytesMax) list = none;
        textAt = end;
      }
      lists.count(list);
      this.#add(number, first, list);
      part.end = this.count;
    }
  }

  /**
   * Lets runs stay rows that share their device and time with another run, and runs for which all slots are taken: an
   * equal run later finds the same slots taken.
   */
  excludeDoubled(parts: readonly Part[]): void {
    let size = 1024;
    while (size < 2 * this.count) size *= 2;
    if (this.#firstOf.length < size) this.#firstOf = new Int32Array(size);
    else this.#firstOf.fill(0, 0, size);
    const firstOf = this.#firstOf;
    for (let run = 0; run < this.count; run += 1) {
      const { view, device, ts } = parts[this.#part[run]!]!;
      const [deviceAt, tsAt] = [device + 8 * this.first[run]!, ts + 8 * this.first[run]!];
      const hash = Math.imul(
        view.getInt32(deviceAt, true) ^ Math.imul(view.getInt32(tsAt, true), 0x85ebca6b),
        0x9e3779b1,
      );
      const begin = hash >>> 7;
      for (let probe = 0; ; probe += 1) {
        if (probe === probesMax) {
          this.#list[run] = none;
          break;
        }
        const slot = (begin + probe) & (size - 1);
        const other = firstOf[slot]! - 1;
        if (other < 0) {
          firstOf[slot] = run + 1;
          break;
        }
        const part = parts[this.#part[other]!]!;
        const row = 8 * this.first[other]!;
        if (
          !areEqual(view, deviceAt, part.view, part.device + row) ||
          !areEqual(view, tsAt, part.view, part.ts + row)
        ) {
          continue;
        }
        this.#list[other] = none;
        this.#list[run] = none;
        break;
      }
    }
  }

  /** Gives each run the place of its list among the chosen lists. */
  choose(parts: readonly Part[], lists: KeyLists): Packed {
    const packed = { records: 0, rows: 0 };
    for (const part of parts) {
      for (let run = part.begin; run < part.end; run += 1) {
        const place = lists.placeOf(this.#list[run]!);
        this.place[run] = place;
        if (place === none) continue;
        packed.records += 1;
        packed.rows += this.endOf(run, part) - this.first[run]!;
      }
    }
    return packed;
  }

  #add(part: number, first: number, list: number): void {
    if (this.count === this.first.length) this.#grow();
    this.#part[this.count] = part;
    this.first[this.count] = first;
    this.#list[this.count] = list;
    this.count += 1;
  }

  #grow(): void {
    const longer = (array: Int32Array) => {
      const copy = new Int32Array(2 * array.length);
      copy.set(array);
      return copy;
    };
    this.place = longer(this.place);
    this.first = longer(this.first);
    this.#list = longer(this.#list);
    this.#part = longer(this.#part);
  }
}

/** True when the eight bytes before `at` are the same as those from `at` on. */
function isRepeated(view: DataView, at: number): boolean {
  return areEqual(view, at, view, at - 8);
}

function areEqual(a: DataView, aAt: number, b: DataView, bAt: number): boolean {
  return a.getInt32(aAt) === b.getInt32(bAt) && a.getInt32(aAt + 4) === b.getInt32(bAt + 4);
}
