/**
 * The lists of keys of the records of a unit: `pack-records.ts` packs the records whose list many other records have.
 * Keys and lists have numbers, so a row costs neither an allocation nor a comparison of its key.
 */
import { createHash } from 'node:crypto';
import { assert } from '../base/errors.ts';
import { endOfText, startOfText, varintBytesMax, writeSmall, writeVarint } from './block.ts';
import type { BlockLayout } from './block-layout.ts';
import { keyStart } from './latest-records.ts';

/**
 * A list is chosen when at least one in this many records has the list. So at most this many lists are chosen, and the
 * place of a list fits into a byte.
 */
const chosenMax = 64;
/** Lists that one process packs until it ends. Rows with further lists stay rows. */
export const packedListsMax = 256;
/** Keys of a list. A key that is new after a list is compared with each key of the list. */
const listKeysMax = 64;
/** Different keys of a unit. */
const keysMax = 4_096;
/** Lists of a unit. The beginnings of a list are lists, too. */
const listsMax = 8_192;
/** No key has this byte. */
const endOfKey = Uint8Array.of(keyStart);
/** No list, or no place. */
export const none = -1;
/** The list without keys, with which each record begins. */
export const emptyList = 0;

/** Numbers the keys of a unit. */
export class KeyNumbers {
  readonly texts: Uint8Array[] = [];
  readonly #numbers = new Map<string, number>();
  #last: { bytes: Buffer; numbers: Int32Array } | undefined;

  /** Returns the number of each key of a block; undefined when the unit has too many keys. */
  of(block: Uint8Array, { keys, keysEnd, keyCount }: BlockLayout): Int32Array | undefined {
    const bytes = Buffer.from(block.buffer, block.byteOffset + keys, keysEnd - keys);
    // The frames of one fleet mostly have the same keys in the same order.
    if (this.#last?.numbers.length === keyCount && this.#last.bytes.equals(bytes)) return this.#last.numbers;
    const numbers = new Int32Array(keyCount);
    let at = 0;
    for (let i = 0; i < keyCount; i += 1) {
      const start = startOfText(bytes, at);
      at = endOfText(bytes, at);
      // One character for each byte: keys of any bytes stay different.
      const name = bytes.toString('latin1', start, at);
      let number = this.#numbers.get(name);
      if (number === undefined) {
        if (this.texts.length >= keysMax) return undefined;
        number = this.texts.push(bytes.subarray(start, at)) - 1;
        this.#numbers.set(name, number);
      }
      numbers[i] = number;
    }
    this.#last = { bytes, numbers };
    return numbers;
  }
}

/** The lists of a unit. A list is its last key after the list of its other keys, so each row is one step. */
export class KeyLists {
  #count = 1;
  /** The last key of each list, and the list of its other keys. */
  readonly #keys = new Int32Array(listsMax);
  readonly #before = new Int32Array(listsMax);
  readonly #lengths = new Uint8Array(listsMax);
  readonly #records = new Int32Array(listsMax);
  /** The key that last followed each list, and the list with this key. */
  readonly #lastKeys = new Int32Array(listsMax).fill(none);
  readonly #lastNext = new Int32Array(listsMax);
  readonly #next = new Map<number, number>();
  /** The place of each list in `#chosen`. */
  readonly #places = new Int32Array(listsMax).fill(none);
  readonly #chosen: number[] = [];

  /** Returns the list with one more key; `none` for a key that the list has, and for too many keys or lists. */
  next(list: number, key: number): number {
    if (list === none) return none;
    if (this.#lastKeys[list] === key) return this.#lastNext[list]!;
    const name = list * keysMax + key;
    let next = this.#next.get(name);
    if (next === undefined) {
      next = this.#make(list, key);
      this.#next.set(name, next);
    }
    this.#lastKeys[list] = key;
    this.#lastNext[list] = next;
    return next;
  }

  /** Counts a record with this list. */
  count(list: number): void {
    if (list !== none) this.#records[list]! += 1;
  }

  /** Chooses the lists that enough of `records` records have. Returns the names of those that are not in `known`. */
  choose(records: number, keys: KeyNumbers, known: ReadonlySet<string>): string[] {
    const added: string[] = [];
    for (let list = emptyList + 1; list < this.#count; list += 1) {
      const own = this.#records[list]!;
      if (own === 0 || own * chosenMax < records) continue;
      const name = this.#nameOf(list, keys);
      if (!known.has(name)) {
        if (known.size + added.length >= packedListsMax) continue;
        added.push(name);
      }
      this.#places[list] = this.#chosen.push(list) - 1;
    }
    assert(this.#chosen.length <= chosenMax, 'each chosen list has its share of the records');
    return added;
  }

  /** Returns the place of a list among the chosen lists, or `none`. */
  placeOf(list: number): number {
    return list === none ? none : this.#places[list]!;
  }

  /** Returns at least the bytes that `write` needs. */
  bytesMaxOf({ texts }: KeyNumbers): number {
    let bytes = 8;
    for (const list of this.#chosen) bytes += varintBytesMax + this.#bytesOf(list, texts);
    return bytes;
  }

  /** Writes the chosen lists as keys of a block and returns the offset after the keys. */
  write({ texts }: KeyNumbers, target: Buffer, start: number): number {
    let at = writeSmall(target, start, this.#chosen.length);
    for (const list of this.#chosen) {
      const bytes = this.#bytesOf(list, texts);
      at = writeVarint(target, at, bytes) + bytes;
      let end = at;
      for (let each = list; each !== emptyList; each = this.#before[each]!) {
        const text = texts[this.#keys[each]!]!;
        end -= text.length + 1;
        target[end] = keyStart;
        target.set(text, end + 1);
      }
    }
    return at;
  }

  /** Names a list in all units: the numbers of its keys are those of one unit. */
  #nameOf(list: number, { texts }: KeyNumbers): string {
    const hash = createHash('sha1');
    for (let each = list; each !== emptyList; each = this.#before[each]!) {
      hash.update(texts[this.#keys[each]!]!).update(endOfKey);
    }
    return hash.digest('base64');
  }

  #bytesOf(list: number, texts: readonly Uint8Array[]): number {
    let bytes = 0;
    for (let each = list; each !== emptyList; each = this.#before[each]!) bytes += 1 + texts[this.#keys[each]!]!.length;
    return bytes;
  }

  #make(list: number, key: number): number {
    if (this.#count >= listsMax || this.#lengths[list]! >= listKeysMax) return none;
    for (let each = list; each !== emptyList; each = this.#before[each]!) if (this.#keys[each] === key) return none;
    const made = this.#count;
    this.#count += 1;
    this.#keys[made] = key;
    this.#before[made] = list;
    this.#lengths[made] = this.#lengths[list]! + 1;
    return made;
  }
}
