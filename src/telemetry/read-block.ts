/**
 * Decodes and cuts blocks that `block.ts` wrote, for shards, records, receipts, quarantine, bisection and tests. Bytes
 * that are not such a block throw an Error with the position.
 */
import type { Kind } from '../value/typed.ts';
import { blockParts, type Columns, encodeColumns, orderOfVersion } from './block.ts';
import { pickNumbers, RowPicker, sliceColumns } from './pick-rows.ts';

export interface BlockRow {
  device: number;
  key: string;
  ts: number;
  kind: Kind;
  num: number;
  int: bigint;
  text: string;
  /** 0: the message had its own `ts`. */
  seq: number;
  /** Seconds since 1970; 0 = no time to live. */
  expires: number;
  version: bigint;
  /** The order number that `version` encodes. */
  order: bigint;
}

interface Block {
  columns: Columns;
  device: Uint8Array;
  ts: Uint8Array;
  seq: Uint8Array | undefined;
  expires: Uint8Array | undefined;
  version: Uint8Array;
}

/** Returns the rows of one or more blocks. */
export function readBlock(bytes: Uint8Array): BlockRow[] {
  const source = new Source(bytes);
  const rows: BlockRow[] = [];
  while (source.at < bytes.length) addRows(source.block(), rows);
  return rows;
}

/** Returns each block of concatenated blocks. */
export function blocksOf(bytes: Uint8Array): Uint8Array[] {
  const source = new Source(bytes);
  const blocks: Uint8Array[] = [];
  while (source.at < bytes.length) {
    const start = source.at;
    source.block();
    blocks.push(bytes.subarray(start, source.at));
  }
  return blocks;
}

/** Returns the number of rows of one block, from its first bytes. */
export function rowsOfBlock(bytes: Uint8Array): number {
  const source = new Source(bytes);
  source.varint();
  return source.varint();
}

/** Returns rows [from, to) as a separate block, with only the keys that they need. */
export function splitBlock(bytes: Uint8Array, from: number, to: number): Uint8Array {
  const { columns, device, ts, seq, expires, version } = new Source(bytes).block();
  const cut64 = (column: Uint8Array): Uint8Array => column.subarray(8 * from, 8 * to);
  const cut32 = (column: Uint8Array | undefined) => column?.subarray(4 * from, 4 * to);
  const some = { ...encodeColumns(sliceColumns(columns, from, to)), expires: cut32(expires) };
  return Buffer.concat(blockParts(some, cut64(device), cut64(ts), cut32(seq), cut64(version)));
}

/**
 * Returns the block without the rows that a later row of the same block replaces. The rows of a frame have one order
 * number, so of two rows of one point the store keeps the row that is inserted last. Parts of a block must therefore
 * not share a point.
 */
export function withoutReplaced(bytes: Uint8Array): Uint8Array {
  const block = new Source(bytes).block();
  const reader = new RowReader(block);
  const last = new Map<string, number>();
  const { count } = block.columns;
  for (let row = 0; row < count; row += 1) last.set(reader.nameOf(row), row);
  if (last.size === count) return bytes;
  // The map has the order of first occurrences, so the rows are sorted.
  return pickRows(block, new RowPicker(block.columns), Uint32Array.from(last.values()).sort());
}

/** Returns some rows of a block as a separate block, for each list of rows; the lists are ascending. */
export function pickBlocks(bytes: Uint8Array, lists: readonly Uint32Array[]): Uint8Array[] {
  const block = new Source(bytes).block();
  const picker = new RowPicker(block.columns);
  return lists.map((rows) => pickRows(block, picker, rows));
}

function pickRows({ device, ts, seq, expires, version }: Block, picker: RowPicker, rows: Uint32Array): Uint8Array {
  const pick = (column: Uint8Array, bytesOfRow: 4 | 8) => pickNumbers(column, bytesOfRow, rows);
  const columns = { ...encodeColumns(picker.pick(rows)), expires: expires && pick(expires, 4) };
  return Buffer.concat(blockParts(columns, pick(device, 8), pick(ts, 8), seq && pick(seq, 4), pick(version, 8)));
}

function addRows(block: Block, rows: BlockRow[]): void {
  const reader = new RowReader(block);
  for (let row = 0; row < block.columns.count; row += 1) rows.push(reader.row(row));
}

/** Reads single rows of one block. Rows in rising order cost least, because texts are read forwards. */
export class RowReader {
  readonly #columns: Columns;
  readonly #keys: string[];
  readonly #devices: DataView;
  readonly #times: DataView;
  readonly #versions: DataView;
  readonly #nums: DataView;
  readonly #ints: DataView | undefined;
  readonly #seqs: DataView | undefined;
  readonly #ends: DataView | undefined;
  #texts: Source | undefined;
  /** The row whose text comes next. */
  #textRow = 0;

  constructor({ columns, device, ts, seq, expires, version }: Block) {
    this.#columns = columns;
    this.#keys = columns.keys.map((key) => Buffer.from(key).toString('utf8'));
    this.#devices = view(device);
    this.#times = view(ts);
    this.#versions = view(version);
    this.#nums = view(columns.num);
    this.#ints = columns.int && view(columns.int);
    this.#seqs = seq && view(seq);
    this.#ends = expires && view(expires);
  }

  /** Returns a reader of one block. */
  static of(bytes: Uint8Array): RowReader {
    return new RowReader(new Source(bytes).block());
  }

  row(row: number): BlockRow {
    const { keyIndexes, kind } = this.#columns;
    const ts = this.#times.getBigInt64(8 * row, true);
    const version = this.#versions.getBigUint64(8 * row, true);
    return {
      device: Number(this.#devices.getBigUint64(8 * row, true)),
      key: this.#keys[keyIndexes[row]!]!,
      ts: Number(ts),
      kind: kind[row] as Kind,
      num: this.#nums.getFloat64(8 * row, true),
      int: this.#ints ? this.#ints.getBigInt64(8 * row, true) : 0n,
      text: this.#textOf(row),
      seq: this.#seqs ? this.#seqs.getUint32(4 * row, true) : 0,
      expires: this.#ends ? this.#ends.getUint32(4 * row, true) : 0,
      version,
      order: orderOfVersion(version, ts),
    };
  }

  /** Names the point of a row and the order of the write: of two rows with one name the later one counts. */
  nameOf(row: number): string {
    const device = this.#devices.getBigUint64(8 * row, true);
    const ts = this.#times.getBigInt64(8 * row, true);
    const seq = this.#seqs ? this.#seqs.getUint32(4 * row, true) : 0;
    // A long key may have several indexes.
    const key = this.#keys[this.#columns.keyIndexes[row]!]!;
    return `${device} ${ts} ${seq} ${this.#versions.getBigUint64(8 * row, true)} ${key}`;
  }

  #textOf(row: number): string {
    const { text } = this.#columns;
    if (text === undefined) return '';
    if (this.#texts === undefined || row < this.#textRow) {
      this.#texts = new Source(text);
      this.#textRow = 0;
    }
    for (; this.#textRow < row; this.#textRow += 1) this.#texts.take(this.#texts.varint());
    this.#textRow += 1;
    return this.#texts.text();
  }
}

class Source {
  at = 0;
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  block(): Block {
    const columnCount = this.varint();
    const count = this.varint();
    const found = new Map<string, Uint8Array>();
    let keys: Uint8Array[] = [];
    let keyIndexes: Uint32Array = new Uint32Array();
    for (let i = 0; i < columnCount; i += 1) {
      const column = `${this.text()} ${this.text()}`;
      if (column === 'key LowCardinality(String)') ({ keys, keyIndexes } = this.#keys(count));
      else if (column === 'text String') found.set(column, this.#texts(count));
      else if (column === 'kind UInt8') found.set(column, this.take(count));
      else if (column === 'seq UInt32' || column === 'expires UInt32') found.set(column, this.take(4 * count));
      else if (wideColumns.has(column)) found.set(column, this.take(8 * count));
      else throw new Error(`unknown column "${column}" before byte ${this.at} of a block`);
    }
    const column = (name: string): Uint8Array => {
      const data = found.get(name);
      if (!data) throw new Error(`a block without the column "${name}"`);
      return data;
    };
    const columns: Columns = {
      count,
      keys,
      keyIndexes,
      kind: column('kind UInt8'),
      num: column('num Float64'),
      int: found.get('int Int64'),
      text: found.get('text String'),
    };
    return {
      columns,
      device: column('device UInt64'),
      ts: column('ts Int64'),
      seq: found.get('seq UInt32'),
      expires: found.get('expires UInt32'),
      version: column('version UInt64'),
    };
  }

  varint(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 0x80) {
      const byte = this.take(1)[0]!;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
      if (factor > 2 ** 35) throw new Error(`an endless number before byte ${this.at} of a block`);
    }
  }

  text(): string {
    return Buffer.from(this.take(this.varint())).toString('utf8');
  }

  take(length: number): Uint8Array {
    if (this.at + length > this.#bytes.length) throw new Error(`a block ends early, in the column at byte ${this.at}`);
    this.at += length;
    return this.#bytes.subarray(this.at - length, this.at);
  }

  #keys(count: number): { keys: Uint8Array[]; keyIndexes: Uint32Array } {
    if (this.#small() !== 1) throw new Error('an unknown form of LowCardinality in a block');
    const width = this.#small() - 0x200;
    if (width < 0 || width > 2) throw new Error('unknown flags of LowCardinality in a block');
    const keys = Array.from({ length: this.#small() }, () => this.take(this.varint()));
    if (this.#small() !== count) throw new Error('a block whose keys and rows differ in number');
    const data = view(this.take(count * 2 ** width));
    const keyIndexes = new Uint32Array(count);
    for (let row = 0; row < count; row += 1) {
      keyIndexes[row] =
        width === 0 ? data.getUint8(row) : width === 1 ? data.getUint16(2 * row, true) : data.getUint32(4 * row, true);
    }
    return { keys, keyIndexes };
  }

  #texts(count: number): Uint8Array {
    const start = this.at;
    for (let row = 0; row < count; row += 1) this.take(this.varint());
    return this.#bytes.subarray(start, this.at);
  }

  /** Reads a u64 that fits 32 bits. */
  #small(): number {
    return Number(view(this.take(8)).getBigUint64(0, true));
  }
}

const wideColumns = new Set(['device UInt64', 'ts Int64', 'num Float64', 'int Int64', 'version UInt64']);

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
