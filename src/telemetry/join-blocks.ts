/**
 * Joins small blocks into one, for shipping. ClickHouse processes each block of an insert by itself: a block costs
 * 60 µs of CPU and two switches between threads, a row half a microsecond. At a few thousand messages/s the frames of
 * a second are hundreds of blocks of some rows each. Rows keep their order, so the insert has the same outcome. Bytes
 * that are not a block stay as they are, and the store refuses them.
 */
import { endOfText, hasHead, columnHeads as heads, varintBytesMax, writeSmall, writeVarint } from './block.ts';

/** A block of more rows is not joined: its rows cost much more than the block itself. */
const smallRowsMax = 2_000;
/** Most rows of a joined block, about as many as ClickHouse puts into a block itself. */
const joinedRowsMax = 65_000;
/** A copy by views costs as much as a loop over so many bytes. */
const loopBytesMax = 1024;

/** Where the columns of a block begin, after name and type; 0 = the column is absent. */
interface Layout {
  readonly block: Uint8Array;
  readonly view: DataView;
  readonly rows: number;
  readonly expires: number;
  readonly device: number;
  /** Keys of the block, in their number and place, and their indexes. */
  readonly keyCount: number;
  readonly keys: number;
  readonly keysEnd: number;
  readonly indexes: number;
  /** Bytes of an index as power of two. */
  readonly width: number;
  readonly ts: number;
  readonly seq: number;
  readonly kind: number;
  readonly num: number;
  readonly int: number;
  readonly text: number;
  readonly textEnd: number;
  readonly version: number;
}

type IndexColumn = Pick<Layout, 'indexes' | 'width' | 'rows'>;

/** Blocks that become one. */
interface Run {
  layouts: Layout[];
  rows: number;
  keys: Keys;
}

/** Returns the blocks one after the other, in memory of `take`. */
export function joinBlocks(blocks: readonly Uint8Array[], take: (bytes: number) => Buffer): Buffer {
  const parts = runsOf(blocks);
  let bytesMax = 0;
  for (const part of parts) bytesMax += part instanceof Uint8Array ? part.length : bytesMaxOf(part);
  const body = take(bytesMax);
  let at = 0;
  for (const part of parts) {
    if (part instanceof Uint8Array) {
      body.set(part, at);
      at += part.length;
    } else at = writeRun(part, body, at);
  }
  return body.subarray(0, at);
}

/** Returns the blocks in their order: neighbours that are small as runs, all others as they are. */
function runsOf(blocks: readonly Uint8Array[]): (Uint8Array | Run)[] {
  const parts: (Uint8Array | Run)[] = [];
  let run: Run | undefined;
  const end = (): void => {
    if (run) parts.push(run.layouts.length === 1 ? run.layouts[0]!.block : run);
    run = undefined;
  };
  for (const block of blocks) {
    const layout = layoutOf(block);
    if (layout === undefined) {
      end();
      parts.push(block);
      continue;
    }
    if (run && run.rows + layout.rows > joinedRowsMax) end();
    run ??= { layouts: [], rows: 0, keys: new Keys() };
    run.layouts.push(layout);
    run.rows += layout.rows;
    run.keys.add(layout);
  }
  end();
  return parts;
}

/** Returns undefined for a block that is not small, and for bytes that are not one block as `block.ts` writes it. */
function layoutOf(block: Uint8Array): Layout | undefined {
  const source = new Steps(block);
  const columns = source.varint();
  const rows = source.varint();
  if (rows < 1 || rows > smallRowsMax) return undefined;
  let found = 6;
  const fixed = (head: Uint8Array, bytes: number): number => {
    if (!source.passes(head)) return 0;
    const { at } = source;
    source.at += bytes * rows;
    return at;
  };
  const expires = fixed(heads.expires, 4);
  const device = fixed(heads.device, 8);
  if (device === 0 || !source.passes(heads.key) || source.small() !== 1) return undefined;
  const width = source.small() - 0x200;
  const keyCount = source.small();
  if (!(width >= 0 && width <= 2) || !(keyCount >= 1 && keyCount <= rows)) return undefined;
  const keys = source.at;
  source.skipTexts(keyCount);
  const keysEnd = source.at;
  if (source.small() !== rows) return undefined;
  const indexes = source.at;
  if (!areBelow(keyCount, block, { indexes, width, rows })) return undefined;
  source.at += rows << width;
  const ts = fixed(heads.ts, 8);
  const seq = fixed(heads.seq, 4);
  const kind = fixed(heads.kind, 1);
  const num = fixed(heads.num, 8);
  const int = fixed(heads.int, 8);
  const text = source.passes(heads.text) ? source.at : 0;
  if (text > 0) source.skipTexts(rows);
  const textEnd = source.at;
  const version = fixed(heads.version, 8);
  for (const optional of [expires, seq, int, text]) if (optional > 0) found += 1;
  const isWhole = ts > 0 && kind > 0 && num > 0 && version > 0 && found === columns && source.at === block.length;
  if (!isWhole) return undefined;
  const places = { expires, device, keyCount, keys, keysEnd, indexes, width, ts, seq, kind, num, int, text, textEnd };
  const view = new DataView(block.buffer, block.byteOffset, block.byteLength);
  return { block, view, rows, ...places, version };
}

/** Reads a block forwards; what would lie after its end makes `at` greater than its length. */
class Steps {
  at = 0;
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** Returns NaN for what is not the varint of a number of 32 bits. */
  varint(): number {
    let value = 0;
    for (let factor = 1; factor <= 2 ** 28; factor *= 0x80) {
      const byte = this.#bytes[this.at++];
      if (byte === undefined) break;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
    return Number.NaN;
  }

  /** Returns true, and goes on, when these bytes come next. */
  passes(head: Uint8Array): boolean {
    if (!hasHead(this.#bytes, this.at, head)) return false;
    this.at += head.length;
    return true;
  }

  /** Reads a u64; NaN when it does not fit 31 bits. */
  small(): number {
    const [bytes, at] = [this.#bytes, this.at];
    this.at += 8;
    const isSmall = bytes[at + 3]! < 0x80 && (bytes[at + 4]! | bytes[at + 5]! | bytes[at + 6]! | bytes[at + 7]!) === 0;
    if (!isSmall) return Number.NaN;
    return bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
  }

  skipTexts(count: number): void {
    for (let i = 0; i < count; i += 1) {
      const length = this.varint();
      this.at = Number.isNaN(length) ? Number.POSITIVE_INFINITY : this.at + length;
    }
  }
}

/** The keys of a joined block, each once. */
class Keys {
  readonly #places = new Map<string, number>();
  /** Length and text of each key. */
  readonly #texts: Uint8Array[] = [];
  /** For each block: the new index of each of its keys. */
  readonly indexes: Uint32Array[] = [];
  bytes = 0;
  #last: Layout | undefined;

  get count(): number {
    return this.#texts.length;
  }

  get width(): number {
    return this.count <= 0x100 ? 0 : this.count <= 0x10000 ? 1 : 2;
  }

  add(layout: Layout): void {
    const last = this.#last;
    this.#last = layout;
    this.indexes.push(last && areEqual(last, layout) ? this.indexes.at(-1)! : this.#indexesOf(layout));
  }

  write(target: Buffer, start: number): number {
    let at = start;
    for (const text of this.#texts) {
      target.set(text, at);
      at += text.length;
    }
    return at;
  }

  #indexesOf({ block, keyCount, keys }: Layout): Uint32Array {
    const bytes = Buffer.from(block.buffer, block.byteOffset, block.byteLength);
    const indexes = new Uint32Array(keyCount);
    let at = keys;
    for (let i = 0; i < keyCount; i += 1) {
      const end = endOfText(bytes, at);
      // One character for each byte: keys of any bytes stay different.
      const name = bytes.toString('latin1', at, end);
      let place = this.#places.get(name);
      if (place === undefined) {
        place = this.#texts.push(bytes.subarray(at, end)) - 1;
        this.#places.set(name, place);
        this.bytes += end - at;
      }
      indexes[i] = place;
      at = end;
    }
    return indexes;
  }
}

/** The frames of one fleet mostly have the same keys in the same order. */
function areEqual(a: Layout, b: Layout): boolean {
  const length = a.keysEnd - a.keys;
  if (a.keyCount !== b.keyCount || length !== b.keysEnd - b.keys) return false;
  for (let i = 0; i < length; i += 1) if (a.block[a.keys + i] !== b.block[b.keys + i]) return false;
  return true;
}

const fixedBytes = 2 * varintBytesMax + Object.values(heads).reduce((sum, { length }) => sum + length, 0) + 32;
/** Of a row: all columns of fixed width, an index of four bytes, an empty text. */
const rowBytesMax = 4 + 8 + 4 + 8 + 4 + 1 + 8 + 8 + 1 + 8;

function bytesMaxOf({ layouts, rows, keys }: Run): number {
  let bytes = fixedBytes + keys.bytes + rows * rowBytesMax;
  for (const { text, textEnd } of layouts) bytes += textEnd - text;
  return bytes;
}

/** Writes a run as one block and returns the offset after it. */
function writeRun({ layouts, rows, keys }: Run, target: Buffer, start: number): number {
  const has = (column: 'expires' | 'seq' | 'int' | 'text') => layouts.some((layout) => layout[column] > 0);
  const optional = [has('expires'), has('seq'), has('int'), has('text')];
  const [hasExpires, hasSeq, hasInt, hasText] = optional;
  const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
  let at = writeVarint(target, start, 6 + optional.filter((each) => each).length);
  at = writeVarint(target, at, rows);
  const column = (name: 'expires' | 'device' | 'ts' | 'seq' | 'kind' | 'num' | 'int' | 'version', width: number) => {
    at = headed(heads[name], target, at);
    for (const layout of layouts) {
      const from = layout[name];
      const bytes = layout.rows * width;
      // What a block does not have is 0, as in ClickHouse.
      if (from === 0) target.fill(0, at, at + bytes);
      else copy(layout, from, bytes, target, view, at);
      at += bytes;
    }
  };
  if (hasExpires) column('expires', 4);
  column('device', 8);
  at = writeKeys(layouts, rows, keys, target, at);
  column('ts', 8);
  if (hasSeq) column('seq', 4);
  column('kind', 1);
  column('num', 8);
  if (hasInt) column('int', 8);
  if (hasText) {
    at = headed(heads.text, target, at);
    for (const layout of layouts) {
      const { text, textEnd } = layout;
      const bytes = text === 0 ? layout.rows : textEnd - text;
      if (text === 0) target.fill(0, at, at + bytes);
      else copy(layout, text, bytes, target, view, at);
      at += bytes;
    }
  }
  column('version', 8);
  return at;
}

function writeKeys(layouts: readonly Layout[], rows: number, keys: Keys, target: Buffer, start: number): number {
  const { width } = keys;
  let at = headed(heads.key, target, start);
  for (const number of [1, 0x200 + width, keys.count]) at = writeSmall(target, at, number);
  at = writeSmall(target, keys.write(target, at), rows);
  for (const [i, layout] of layouts.entries()) {
    writeIndexes(layout, keys.indexes[i]!, width, target, at);
    at += layout.rows << width;
  }
  return at;
}

function writeIndexes(layout: Layout, places: Uint32Array, width: number, target: Buffer, at: number): void {
  const { block, indexes, rows } = layout;
  if (layout.width === 0 && width === 0) {
    // Mostly one byte for each row; a loop without further branches is ten times as fast.
    for (let row = 0; row < rows; row += 1) target[at + row] = places[block[indexes + row]!]!;
    return;
  }
  for (let row = 0; row < rows; row += 1) {
    const place = places[indexOf(layout, row)]!;
    const to = at + (row << width);
    target[to] = place;
    if (width > 0) target[to + 1] = place >>> 8;
    if (width > 1) target.writeUInt16LE(place >>> 16, to + 2);
  }
}

/** True when every index has a key. */
function areBelow(keyCount: number, block: Uint8Array, column: IndexColumn): boolean {
  const { indexes, width, rows } = column;
  let greatest = 0;
  if (width === 0) {
    for (let at = indexes; at < indexes + rows; at += 1) {
      const index = block[at]!;
      if (index > greatest) greatest = index;
    }
  } else {
    for (let row = 0; row < rows; row += 1) greatest = Math.max(greatest, indexOf({ block, ...column }, row));
  }
  return greatest < keyCount;
}

function indexOf({ block, indexes, width }: Pick<Layout, 'block' | 'indexes' | 'width'>, row: number): number {
  const at = indexes + (row << width);
  if (width === 0) return block[at]!;
  const low = block[at]! | (block[at + 1]! << 8);
  return width === 1 ? low : (low | (block[at + 2]! << 16) | (block[at + 3]! << 24)) >>> 0;
}

/** Returns the offset after the name and type of a column. */
function headed(head: Uint8Array, target: Buffer, at: number): number {
  target.set(head, at);
  return at + head.length;
}

function copy({ block, view: from }: Layout, start: number, bytes: number, target: Buffer, to: DataView, at: number) {
  if (bytes > loopBytesMax) {
    target.set(block.subarray(start, start + bytes), at);
    return;
  }
  const rest = bytes & 3;
  for (let i = 0; i < bytes - rest; i += 4) to.setInt32(at + i, from.getInt32(start + i));
  for (let i = bytes - rest; i < bytes; i += 1) target[at + i] = block[start + i]!;
}
