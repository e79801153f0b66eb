/**
 * Packs the rows of a unit into records for the table `latest` (`latest-records.ts`), for shipping. No row costs an
 * allocation.
 *
 * Rows become a record when enough other devices of the unit sent the same keys in the same order. Otherwise a device
 * that sends other keys each time would have any number of records, and each read of its latest values would read all
 * of them. Records of one device and time stay rows: of two rows with one rank ClickHouse knows the later one only when
 * their keys are equal.
 */
import { assert } from '../base/errors.ts';
import { recordKind } from '../clickhouse/latest-rows.ts';
import { Kind } from '../value/typed.ts';
import { endOfText, columnHeads as heads, startOfText, varintBytesMax, writeSmall, writeVarint } from './block.ts';
import { type BlockLayout, keyIndexOf, layoutOf } from './block-layout.ts';
import { keyStart, recordTextBytesMax } from './latest-records.ts';
import { pickBlocks } from './read-block.ts';

/** One of so many records, at least, has the keys of a record that is packed: there are at most as many such lists. */
const listsMax = 64;
/** A unit with a greater share of rows that stay rows is not packed, because to pick such rows is slow. */
const unpackedShareMax = 1 / 8;
/** Points of a record. */
const pointsMax = 64;
/** Different keys of a unit. */
const keysMax = 4_096;
/** Lists of keys, with their beginnings. */
const statesMax = 8_192;
const none = -1;

/** A block and its columns. */
interface Part extends BlockLayout {
  readonly block: Uint8Array;
  readonly view: DataView;
  /** The number of each key in the unit. */
  readonly keyNumbers: Int32Array;
  /** The runs of the block: from `begin` on, before `end`. */
  begin: number;
  end: number;
}

/** Returns blocks with the rows of `blocks` for `latest`, in memory of `take`; undefined when rows are better. */
export function packRecords(blocks: readonly Uint8Array[], take: (bytes: number) => Buffer): Buffer | undefined {
  const keys = new KeyNumbers();
  const parts: Part[] = [];
  for (const block of blocks) {
    const layout = layoutOf(block);
    const keyNumbers = layout && keys.of(block, layout);
    if (keyNumbers === undefined) return undefined;
    const view = new DataView(block.buffer, block.byteOffset, block.byteLength);
    parts.push({ block, view, keyNumbers, begin: 0, end: 0, ...layout! });
  }
  const lists = new KeyLists();
  findRuns(parts, lists);
  leaveDoubled(parts);
  lists.choose(runs.count / listsMax);
  const rows = parts.reduce((sum, part) => sum + part.rows, 0);
  const packed = placeRuns(parts, lists);
  if (rows - packed.rows > rows * unpackedShareMax || packed.records * 2 > packed.rows) return undefined;
  const rest = restOf(parts);
  const restBytes = rest.reduce((sum, { length }) => sum + length, 0);
  const body = take(bytesMaxOf(parts, packed, lists.bytesOf(keys)) + restBytes);
  let at = writeRecords(parts, packed.records, keys, lists, body);
  for (const block of rest) {
    body.set(block, at);
    at += block.length;
  }
  return body.subarray(0, at);
}

/** Numbers the keys of a unit. */
class KeyNumbers {
  readonly texts: Uint8Array[] = [];
  readonly #numbers = new Map<string, number>();
  #last: { bytes: Buffer; numbers: Int32Array } | undefined;

  /** Returns the number of each key of a block; undefined when there are too many keys. */
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

/**
 * The lists of keys of the records of a unit. A list has a number, which is that of its last key after the list of the
 * earlier ones: so a row costs one step, from list to list.
 */
class KeyLists {
  #count = 1;
  readonly #keys = new Int32Array(statesMax);
  readonly #before = new Int32Array(statesMax);
  readonly #lengths = new Uint8Array(statesMax);
  readonly #records = new Int32Array(statesMax);
  /** The key that last followed the list, and the list with this key. */
  readonly #lastKeys = new Int32Array(statesMax).fill(none);
  readonly #lastNext = new Int32Array(statesMax);
  readonly #next = new Map<number, number>();
  /** List → its place among the chosen ones, which are in `#chosen`. */
  readonly #places = new Int32Array(statesMax).fill(none);
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

  count(list: number): void {
    if (list !== none) this.#records[list]! += 1;
  }

  /** Chooses the lists that as many records have. */
  choose(recordsMin: number): void {
    for (let list = 1; list < this.#count; list += 1) {
      if (this.#records[list]! > 0 && this.#records[list]! >= recordsMin) {
        this.#places[list] = this.#chosen.push(list) - 1;
      }
    }
    assert(this.#chosen.length <= listsMax, 'each chosen list has its share of the records');
  }

  /** Returns the place of a list among the chosen ones, or `none`. */
  placeOf(list: number): number {
    return list === none ? none : this.#places[list]!;
  }

  bytesOf({ texts }: KeyNumbers): number {
    let bytes = 0;
    for (const list of this.#chosen) bytes += varintBytesMax + this.#bytesOf(list, texts);
    return bytes;
  }

  /** Writes the chosen lists as keys of a block and returns the offset after them. */
  write({ texts }: KeyNumbers, target: Buffer, start: number): number {
    let at = writeSmall(target, start, this.#chosen.length);
    for (const list of this.#chosen) {
      const bytes = this.#bytesOf(list, texts);
      at = writeVarint(target, at, bytes) + bytes;
      let end = at;
      for (let each = list; each > 0; each = this.#before[each]!) {
        const text = texts[this.#keys[each]!]!;
        end -= text.length + 1;
        target[end] = keyStart;
        target.set(text, end + 1);
      }
    }
    return at;
  }

  #bytesOf(list: number, texts: readonly Uint8Array[]): number {
    let bytes = 0;
    for (let each = list; each > 0; each = this.#before[each]!) bytes += 1 + texts[this.#keys[each]!]!.length;
    return bytes;
  }

  #make(list: number, key: number): number {
    if (this.#count >= statesMax || this.#lengths[list]! >= pointsMax) return none;
    for (let each = list; each > 0; each = this.#before[each]!) if (this.#keys[each] === key) return none;
    const made = this.#count;
    this.#count += 1;
    this.#keys[made] = key;
    this.#before[made] = list;
    this.#lengths[made] = this.#lengths[list]! + 1;
    return made;
  }
}

/** The runs of a unit: rows of one record, which follow each other. Used again by the next unit. */
class Runs {
  count = 0;
  /** The first row of each run in its part. */
  first = new Int32Array(1024);
  /** The list of keys of each run, and then its place among the chosen lists; `none` for rows that stay rows. */
  list = new Int32Array(1024);
  part = new Int32Array(1024);

  clear(): void {
    this.count = 0;
  }

  add(part: number, first: number, list: number): void {
    if (this.count === this.first.length) this.#grow();
    this.part[this.count] = part;
    this.first[this.count] = first;
    this.list[this.count] = list;
    this.count += 1;
  }

  /** Returns the row after the last one of a run; `end`: the first run after those of its part. */
  endOf(run: number, { end, rows }: Part): number {
    return run + 1 < end ? this.first[run + 1]! : rows;
  }

  #grow(): void {
    const longer = (array: Int32Array<ArrayBuffer>) => {
      const copy = new Int32Array(2 * array.length);
      copy.set(array);
      return copy;
    };
    this.first = longer(this.first);
    this.list = longer(this.list);
    this.part = longer(this.part);
  }
}

const runs = new Runs();

function findRuns(parts: readonly Part[], lists: KeyLists): void {
  runs.clear();
  for (const [number, part] of parts.entries()) {
    const { block, view, rows, device, ts, seq, version, kind, text, keyNumbers } = part;
    part.begin = runs.count;
    let first = 0;
    let list = 0;
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
        runs.add(number, first, list);
        first = row;
        list = 0;
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
    runs.add(number, first, list);
    part.end = runs.count;
  }
}

/** True when the eight bytes before `at` are the same. */
function isRepeated(view: DataView, at: number): boolean {
  return view.getInt32(at) === view.getInt32(at - 8) && view.getInt32(at + 4) === view.getInt32(at - 4);
}

let firstOf = new Int32Array(0);

/** Makes runs of one device and time rows. */
function leaveDoubled(parts: readonly Part[]): void {
  let places = 1024;
  while (places < 2 * runs.count) places *= 2;
  // One device and time → the first run that has them, plus 1.
  if (firstOf.length < places) firstOf = new Int32Array(places);
  else firstOf.fill(0, 0, places);
  for (let run = 0; run < runs.count; run += 1) {
    const { view, device, ts } = parts[runs.part[run]!]!;
    const [deviceAt, tsAt] = [device + 8 * runs.first[run]!, ts + 8 * runs.first[run]!];
    const hash = Math.imul(
      view.getInt32(deviceAt, true) ^ Math.imul(view.getInt32(tsAt, true), 0x85ebca6b),
      0x9e3779b1,
    );
    for (let place = (hash >>> 7) & (places - 1); ; place = (place + 1) & (places - 1)) {
      const other = firstOf[place]! - 1;
      if (other === none) {
        firstOf[place] = run + 1;
        break;
      }
      const part = parts[runs.part[other]!]!;
      const row = 8 * runs.first[other]!;
      if (!areEqual(view, deviceAt, part.view, part.device + row) || !areEqual(view, tsAt, part.view, part.ts + row)) {
        continue;
      }
      runs.list[other] = none;
      runs.list[run] = none;
      break;
    }
  }
}

function areEqual(a: DataView, aAt: number, b: DataView, bAt: number): boolean {
  return a.getInt32(aAt) === b.getInt32(bAt) && a.getInt32(aAt + 4) === b.getInt32(bAt + 4);
}

interface Packed {
  records: number;
  /** Rows of which these records are made. */
  rows: number;
}

/** Gives each run the place of its list among the chosen ones. */
function placeRuns(parts: readonly Part[], lists: KeyLists): Packed {
  const packed = { records: 0, rows: 0 };
  for (const part of parts) {
    for (let run = part.begin; run < part.end; run += 1) {
      const place = lists.placeOf(runs.list[run]!);
      runs.list[run] = place;
      if (place === none) continue;
      packed.records += 1;
      packed.rows += runs.endOf(run, part) - runs.first[run]!;
    }
  }
  return packed;
}

/** Returns the rows that stay rows, as blocks. */
function restOf(parts: readonly Part[]): Uint8Array[] {
  return parts.flatMap((part) => {
    const rows: number[] = [];
    for (let run = part.begin; run < part.end; run += 1) {
      if (runs.list[run] !== none) continue;
      for (let row = runs.first[run]!; row < runs.endOf(run, part); row += 1) rows.push(row);
    }
    return rows.length > 0 ? pickBlocks(part.block, [Uint32Array.from(rows)]) : [];
  });
}

const headBytes = Object.values(heads).reduce((sum, { length }) => sum + length, 0) + 2 * varintBytesMax + 64;
/** Bytes of a record beside its text: device, key, ts, seq, kind, num, version and the length of the text. */
const recordBytes = 8 + 1 + 8 + 4 + 1 + 8 + 8 + varintBytesMax;
/** Bytes of a point that is a number, with its kind: at least those of a text without its characters. */
const pointBytes = 1 + 8;

function bytesMaxOf(parts: readonly Part[], { records, rows }: Packed, keyBytes: number): number {
  const texts = parts.reduce((sum, { text, textEnd }) => sum + textEnd - text, 0);
  return headBytes + keyBytes + records * recordBytes + rows * pointBytes + texts;
}

/** Writes the records as one block and returns the offset after it. */
function writeRecords(
  parts: readonly Part[],
  records: number,
  keys: KeyNumbers,
  lists: KeyLists,
  target: Buffer,
): number {
  const hasSeq = parts.some(({ seq }) => seq > 0);
  const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
  let at = writeVarint(target, 0, hasSeq ? 8 : 7);
  at = writeVarint(target, at, records);
  const head = (column: keyof typeof heads) => {
    target.set(heads[column], at);
    at += heads[column].length;
  };
  const copied = (column: 'device' | 'ts' | 'version') => {
    head(column);
    for (const part of parts) at = copyFirst(part, part[column], view, at);
  };
  copied('device');
  head('key');
  at = writeSmall(target, writeSmall(target, at, 1), 0x200);
  at = writeSmall(target, lists.write(keys, target, at), records);
  for (let run = 0; run < runs.count; run += 1) if (runs.list[run] !== none) target[at++] = runs.list[run]!;
  copied('ts');
  if (hasSeq) {
    head('seq');
    for (const part of parts) {
      const { seq, begin, end } = part;
      for (let run = begin; run < end; run += 1) {
        if (runs.list[run] === none) continue;
        view.setInt32(at, seq === 0 ? 0 : part.view.getInt32(seq + 4 * runs.first[run]!));
        at += 4;
      }
    }
  }
  head('kind');
  target.fill(recordKind, at, at + records);
  at += records;
  head('num');
  target.fill(0, at, at + 8 * records);
  at += 8 * records;
  head('text');
  for (const part of parts)
    at = part.text === 0 ? writeNumbers(part, target, view, at) : writeTexts(part, target, view, at);
  copied('version');
  return at;
}

/** Copies the value of each record from its first row and returns the offset after them. */
function copyFirst({ view, begin, end }: Part, column: number, target: DataView, start: number): number {
  const { first, list } = runs;
  let at = start;
  for (let run = begin; run < end; run += 1) {
    if (list[run] === none) continue;
    const from = column + 8 * first[run]!;
    target.setInt32(at, view.getInt32(from));
    target.setInt32(at + 4, view.getInt32(from + 4));
    at += 8;
  }
  return at;
}

/** Writes the text of each record of a block without texts, and returns the offset after them. */
function writeNumbers(part: Part, target: Buffer, view: DataView, start: number): number {
  const { block, kind } = part;
  let at = start;
  for (let run = part.begin; run < part.end; run += 1) {
    if (runs.list[run] === none) continue;
    const end = runs.endOf(run, part);
    at = writeVarint(target, at, (end - runs.first[run]!) * pointBytes);
    for (let row = runs.first[run]!; row < end; row += 1) {
      target[at] = block[kind + row]!;
      copyNumber(part, row, view, at + 1);
      at += pointBytes;
    }
  }
  return at;
}

/** As `writeNumbers`, for a block with texts. */
function writeTexts(part: Part, target: Buffer, view: DataView, start: number): number {
  const { block, kind } = part;
  let at = start;
  let textAt = part.text;
  for (let run = part.begin; run < part.end; run += 1) {
    const isPacked = runs.list[run] !== none;
    const end = runs.endOf(run, part);
    if (isPacked) at = writeVarint(target, at, textBytesOf(part, runs.first[run]!, end, textAt));
    for (let row = runs.first[run]!; row < end; row += 1) {
      const from = startOfText(block, textAt);
      textAt = endOfText(block, textAt);
      if (!isPacked) continue;
      target[at] = block[kind + row]!;
      if (block[kind + row]! <= Kind.double) {
        copyNumber(part, row, view, at + 1);
        at += pointBytes;
        continue;
      }
      target[at + 1] = textAt - from;
      for (let i = from; i < textAt; i += 1) target[at + 2 + i - from] = block[i]!;
      at += 2 + textAt - from;
    }
  }
  return at;
}

function copyNumber({ block, view, kind, num, int }: Part, row: number, target: DataView, at: number): void {
  const column = block[kind + row] === Kind.double ? num : int;
  // Without the column `int` all longs and booleans are 0.
  const from = column + 8 * row;
  target.setInt32(at, column === 0 ? 0 : view.getInt32(from));
  target.setInt32(at + 4, column === 0 ? 0 : view.getInt32(from + 4));
}

/** Returns the bytes of the text of a record; `textAt`: the text of its first row. */
function textBytesOf({ block, kind }: Part, first: number, end: number, textAt: number): number {
  let bytes = 0;
  let at = textAt;
  for (let row = first; row < end; row += 1) {
    const next = endOfText(block, at);
    bytes += block[kind + row]! > Kind.double ? 2 + next - startOfText(block, at) : pointBytes;
    at = next;
  }
  return bytes;
}
