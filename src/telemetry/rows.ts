/**
 * The rows of one frame, as columns that grow and are reused: add values, close each record with its device and ts,
 * `encode` the block, `reset`. The result of `encode` is valid until `reset`; a caller that gathers the next frame
 * meanwhile has two objects. No row costs an allocation.
 */
import { assert, type Fault } from '../base/errors.ts';
import type { TimeUnit } from '../diagnostics/odd-time.ts';
import { Kind, type TypedValue } from '../value/typed.ts';
import {
  byteView,
  type Columns,
  encodeColumns,
  type FrameStamp,
  newStamps,
  type Spans,
  type Stamps,
  stampedParts,
  varintBytesMax,
  writeVarint,
} from './block.ts';
import type { Key } from './keys.ts';

/** The reason why this process refuses server times: its clock and the database's differ too much. */
let refusal: Fault | undefined;

export function refuseServerTimes(fault: Fault | undefined): void {
  refusal = fault;
}

export function serverTimeRefusal(): Fault | undefined {
  return refusal;
}

/** A record whose `ts` was converted: its span, and the number as it was sent. */
export interface Converted {
  span: number;
  ts: number;
  unit: TimeUnit;
}

/** A state of the rows to which `rollback` returns; a mark is made once and reused. */
export interface Mark {
  count: number;
  spans: number;
  serverTimes: number;
  keys: number;
  keyBytes: number;
  intRows: number;
  textRows: number;
  textLength: number;
}

export function newMark(): Mark {
  return { count: 0, spans: 0, serverTimes: 0, keys: 0, keyBytes: 0, intRows: 0, textRows: 0, textLength: 0 };
}

export class Rows {
  /** Rows so far, of open and closed records. */
  count = 0;

  #capacity: number;
  #keyIndexes: Uint32Array;
  #kind: Uint8Array;
  #num: Float64Array;
  /** Two halves for each row. */
  #int: Int32Array;
  #stamps: Stamps;
  #spans: Spans;
  /** Records whose `ts` was converted, in the order of their spans. */
  readonly converted: Converted[] = [];

  /** Strings in the form of the block. Strings of rows from `#textRows` on are not written yet. */
  #text: Buffer = Buffer.allocUnsafeSlow(4096);
  #textLength = 0;
  #textRows = 0;
  /** 0 = no row has an int. */
  #intRows = 0;

  /** The dictionary. It contains a key if the key's `index` is below `#keyCount` and its entry there is this key. */
  readonly #keys: Key[] = [];
  #keyCount = 0;
  #keyBytes = 0;

  constructor(capacity = 1024) {
    this.#capacity = capacity;
    this.#keyIndexes = new Uint32Array(capacity);
    this.#kind = new Uint8Array(capacity);
    this.#num = new Float64Array(capacity);
    this.#int = new Int32Array(2 * capacity);
    this.#stamps = newStamps(capacity);
    this.#spans = {
      count: 0,
      end: new Uint32Array(capacity),
      device: new Float64Array(capacity),
      ts: new Float64Array(capacity),
      isServerTime: new Uint8Array(capacity),
      serverTimes: 0,
    };
  }

  /** The approximate size of the encoded block. */
  get bytes(): number {
    const rowBytes = 34 + (this.#intRows > 0 ? 8 : 0) + (this.#spans.serverTimes > 0 ? 4 : 0);
    const textBytes = this.#textRows > 0 ? this.#textLength + this.count - this.#textRows : 0;
    return 160 + this.count * rowBytes + textBytes + this.#keyBytes;
  }

  addBoolean(key: Key, value: boolean): void {
    const row = this.#add(key, Kind.boolean);
    this.#num[row] = 0;
    this.#int[2 * row] = value ? 1 : 0;
    this.#int[2 * row + 1] = 0;
    this.#intRows += 1;
  }

  /** Adds a long that is a safe integer. */
  addLong(key: Key, value: number): void {
    const row = this.#add(key, Kind.long);
    this.#num[row] = 0;
    this.#int[2 * row] = value;
    this.#int[2 * row + 1] = Math.floor(value / 2 ** 32);
    this.#intRows += 1;
  }

  addDouble(key: Key, value: number): void {
    const row = this.#add(key, Kind.double);
    this.#num[row] = value;
    this.#int[2 * row] = 0;
    this.#int[2 * row + 1] = 0;
  }

  /** Adds a string, or compact JSON, given as UTF-8 in `source[start..end)`. */
  addText(key: Key, kind: typeof Kind.string | typeof Kind.json, source: Uint8Array, start: number, end: number): void {
    const row = this.#add(key, kind);
    this.#num[row] = 0;
    this.#int[2 * row] = 0;
    this.#int[2 * row + 1] = 0;
    const length = end - start;
    let at = this.#startText(row, length);
    const text = this.#text;
    if (length < 64) for (let i = start; i < end; i += 1) text[at++] = source[i]!;
    else text.set(source.subarray(start, end), at);
    this.#textLength += length;
  }

  addValue(key: Key, value: TypedValue): void {
    const row = this.#add(key, value.kind);
    this.#num[row] = value.num;
    const int = value.int === '0' ? 0n : BigInt(value.int);
    this.#int[2 * row] = Number(int & 0xffffffffn);
    this.#int[2 * row + 1] = Number(int >> 32n);
    if (value.kind === Kind.boolean || value.kind === Kind.long) this.#intRows += 1;
    if (value.text === '') return;
    const length = Buffer.byteLength(value.text);
    const at = this.#startText(row, length);
    this.#text.write(value.text, at, 'utf8');
    this.#textLength += length;
  }

  /** Gives the rows since the last record their device and the `ts` of the message. */
  endRecord(device: number, ts: number): void {
    const i = this.#endSpan(device, ts);
    if (i >= 0) this.#spans.isServerTime[i] = 0;
  }

  /** Notes that the `ts` of the record that was just closed came in another unit. */
  noteConverted(ts: number, unit: TimeUnit): void {
    this.converted.push({ span: this.#spans.count - 1, ts, unit });
  }

  /**
   * Gives the rows since the last record their device and the time of arrival: such points replace no other point.
   * Throws the Fault while server times are refused.
   */
  endRecordNow(device: number, now: number): void {
    if (refusal !== undefined) throw refusal;
    const i = this.#endSpan(device, now);
    if (i < 0) return;
    this.#spans.isServerTime[i] = 1;
    this.#spans.serverTimes += 1;
  }

  /** Marks the present state of the rows, between records or inside an open record. */
  mark(mark: Mark = newMark()): Mark {
    mark.count = this.count;
    mark.spans = this.#spans.count;
    mark.serverTimes = this.#spans.serverTimes;
    mark.keys = this.#keyCount;
    mark.keyBytes = this.#keyBytes;
    mark.intRows = this.#intRows;
    mark.textRows = this.#textRows;
    mark.textLength = this.#textLength;
    return mark;
  }

  /** Removes all rows since `mark`. */
  rollback(mark: Mark): void {
    this.count = mark.count;
    this.#spans.count = mark.spans;
    this.#spans.serverTimes = mark.serverTimes;
    while (this.converted.length > 0 && this.converted.at(-1)!.span >= mark.spans) this.converted.pop();
    this.#keyCount = mark.keys;
    this.#keyBytes = mark.keyBytes;
    this.#intRows = mark.intRows;
    this.#textRows = mark.textRows;
    this.#textLength = mark.textLength;
  }

  reset(): void {
    this.count = 0;
    this.converted.length = 0;
    this.#spans.count = 0;
    this.#spans.serverTimes = 0;
    this.#keyCount = 0;
    this.#keyBytes = 0;
    this.#intRows = 0;
    this.#textRows = 0;
    this.#textLength = 0;
  }

  /** Returns the parts of one block whose rows all have this stamp; none when there are no rows. */
  encode(stamp: FrameStamp): Uint8Array[] {
    if (this.count === 0) return [];
    return stampedParts(encodeColumns(this.columns()), this.#spans, stamp, this.#stamps);
  }

  /** Returns views of the columns, valid until the next change. */
  columns(): Columns {
    const { count } = this;
    assert(count === 0 || this.#spans.end[this.#spans.count - 1] === count, 'the last record is closed');
    // Padding comes before the views are made, because it may move the texts.
    const textEnd = this.#textRows > 0 ? this.#padText(count, 0) : 0;
    const keys: Uint8Array[] = [];
    for (let i = 0; i < this.#keyCount; i += 1) keys.push(this.#keys[i]!.bytes);
    return {
      count,
      keys,
      keyIndexes: this.#keyIndexes.subarray(0, count),
      kind: this.#kind.subarray(0, count),
      num: byteView(this.#num, count),
      int: this.#intRows > 0 ? byteView(this.#int, count) : undefined,
      text: this.#textRows > 0 ? this.#text.subarray(0, textEnd) : undefined,
    };
  }

  keyAt(row: number): Key {
    return this.#keys[this.#keyIndexes[row]!]!;
  }

  /** Returns a view, valid until the next change. */
  spans(): Readonly<Spans> {
    return this.#spans;
  }

  /**
   * Names the points with their own `ts`, from ≤ ts < to, of the records from `first` on: two rows with one name are
   * writes of one point.
   */
  pointNames(first: number, from: number, to: number): string[] {
    const { count, end, device, ts, isServerTime } = this.#spans;
    const names: string[] = [];
    for (let i = first; i < count; i += 1) {
      if (ts[i]! < from || ts[i]! >= to || isServerTime[i] === 1) continue;
      for (let row = i === 0 ? 0 : end[i - 1]!; row < end[i]!; row += 1) {
        names.push(`${device[i]} ${ts[i]} ${this.#keys[this.#keyIndexes[row]!]!.text}`);
      }
    }
    return names;
  }

  /** The place of the closed span; -1 when no row has come since the last one. */
  #endSpan(device: number, ts: number): number {
    const spans = this.#spans;
    const i = spans.count;
    if (this.count === 0 || (i > 0 && spans.end[i - 1] === this.count)) return -1;
    spans.end[i] = this.count;
    spans.device[i] = device;
    spans.ts[i] = ts;
    spans.count = i + 1;
    return i;
  }

  #add(key: Key, kind: Kind): number {
    const row = this.count;
    if (row === this.#capacity) this.#grow();
    const index = key.index;
    this.#keyIndexes[row] = index < this.#keyCount && this.#keys[index] === key ? index : this.#addKey(key);
    this.#kind[row] = kind;
    this.count = row + 1;
    return row;
  }

  #addKey(key: Key): number {
    const index = this.#keyCount;
    this.#keys[index] = key;
    this.#keyCount = index + 1;
    this.#keyBytes += key.bytes.length + 1;
    key.index = index;
    return index;
  }

  /** Writes the length of the text of `row`; the text itself, for which there is room, goes to the returned place. */
  #startText(row: number, length: number): number {
    // Makes room before the length is written, because that may move the texts.
    const end = this.#padText(row, varintBytesMax + length);
    const at = writeVarint(this.#text, end, length);
    this.#textLength = at;
    this.#textRows = row + 1;
    return at;
  }

  /** Writes empty texts for the rows before `row` that have none, and makes room for `more` bytes. Returns the end. */
  #padText(row: number, more: number): number {
    const missing = row - this.#textRows;
    const size = this.#textLength + missing + more;
    if (size > this.#text.length) {
      const text = Buffer.allocUnsafeSlow(2 * size);
      text.set(this.#text.subarray(0, this.#textLength));
      this.#text = text;
    }
    if (missing > 0) this.#text.fill(0, this.#textLength, this.#textLength + missing);
    this.#textLength += missing;
    this.#textRows = row;
    return this.#textLength;
  }

  #grow(): void {
    const capacity = 2 * this.#capacity;
    this.#capacity = capacity;
    this.#keyIndexes = grown(this.#keyIndexes, new Uint32Array(capacity));
    this.#kind = grown(this.#kind, new Uint8Array(capacity));
    this.#num = grown(this.#num, new Float64Array(capacity));
    this.#int = grown(this.#int, new Int32Array(2 * capacity));
    this.#spans.end = grown(this.#spans.end, new Uint32Array(capacity));
    this.#spans.device = grown(this.#spans.device, new Float64Array(capacity));
    this.#spans.ts = grown(this.#spans.ts, new Float64Array(capacity));
    this.#spans.isServerTime = grown(this.#spans.isServerTime, new Uint8Array(capacity));
    this.#stamps = newStamps(capacity);
  }
}

function grown<T extends Uint8Array | Uint32Array | Int32Array | Float64Array>(from: T, into: T): T {
  into.set(from);
  return into;
}
