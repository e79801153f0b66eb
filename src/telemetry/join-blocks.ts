/**
 * Joins small blocks into one, for shipping. ClickHouse processes each block of an insert by itself: a block costs
 * 60 µs of CPU and two switches between threads, a row half a microsecond. At a few thousand messages/s the frames of
 * a second are hundreds of blocks of some rows each. Rows keep their order, so the insert has the same outcome. Bytes
 * that are not a block stay as they are, and the store refuses them.
 */
import { endOfText, columnHeads as heads, varintBytesMax, writeSmall, writeVarint } from './block.ts';
import { type BlockLayout, keyIndexOf, layoutOf } from './block-layout.ts';

/** A block of more rows is not joined: its rows cost much more than the block itself. */
const smallRowsMax = 2_000;
/** Most rows of a joined block, about as many as ClickHouse puts into a block itself. */
const joinedRowsMax = 65_000;
/** The number of bytes for which a copy by views costs as much as a loop over the bytes. */
const loopBytesMax = 1024;

/** A block that is joined, and its columns. */
interface Part extends BlockLayout {
  readonly block: Uint8Array;
  readonly view: DataView;
}

/** Blocks that become one. */
interface Run {
  layouts: Part[];
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
    const layout = partOf(block);
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

/** Returns undefined for a block that is not small, and for bytes that are no block. */
function partOf(block: Uint8Array): Part | undefined {
  const layout = layoutOf(block, smallRowsMax);
  return layout && { block, view: new DataView(block.buffer, block.byteOffset, block.byteLength), ...layout };
}

/** The keys of a joined block, each once. */
class Keys {
  readonly #places = new Map<string, number>();
  /** Length and text of each key. */
  readonly #texts: Uint8Array[] = [];
  /** For each block: the new index of each of its keys. */
  readonly indexes: Uint32Array[] = [];
  bytes = 0;
  #last: Part | undefined;

  get count(): number {
    return this.#texts.length;
  }

  get width(): number {
    return this.count <= 0x100 ? 0 : this.count <= 0x10000 ? 1 : 2;
  }

  add(layout: Part): void {
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

  #indexesOf({ block, keyCount, keys }: Part): Uint32Array {
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
function areEqual(a: Part, b: Part): boolean {
  const length = a.keysEnd - a.keys;
  if (a.keyCount !== b.keyCount || length !== b.keysEnd - b.keys) return false;
  for (let i = 0; i < length; i += 1) if (a.block[a.keys + i] !== b.block[b.keys + i]) return false;
  return true;
}

const fixedBytes = 2 * varintBytesMax + Object.values(heads).reduce((sum, { length }) => sum + length, 0) + 32;
/** Bytes of a row in the columns that each block has: `device`, `ts`, `kind`, `num` and `version`. */
const rowBytes = 8 + 8 + 1 + 8 + 8;

/** Columns that only some blocks have. */
type OptionalColumns = Record<'expires' | 'seq' | 'int' | 'text', boolean>;

/** Returns the columns that a block of the run has. */
function optionalOf(layouts: readonly Part[]): OptionalColumns {
  const has = (column: keyof OptionalColumns) => layouts.some((layout) => layout[column] > 0);
  return { expires: has('expires'), seq: has('seq'), int: has('int'), text: has('text') };
}

/** Returns the bytes of the joined block, or slightly more: the heads of columns that it does not have. */
function bytesMaxOf({ layouts, rows, keys }: Run): number {
  const { expires, seq, int, text } = optionalOf(layouts);
  const ofRow = rowBytes + (1 << keys.width) + (expires ? 4 : 0) + (seq ? 4 : 0) + (int ? 8 : 0);
  let bytes = fixedBytes + keys.bytes + rows * ofRow;
  if (text) for (const layout of layouts) bytes += textBytesOf(layout);
  return bytes;
}

/** Returns the bytes of the texts of a block. Each row of a block without texts has an empty one, of one byte. */
function textBytesOf({ text, textEnd, rows }: Part): number {
  return text === 0 ? rows : textEnd - text;
}

/** Writes a run as one block and returns the offset after it. */
function writeRun({ layouts, rows, keys }: Run, target: Buffer, start: number): number {
  const optional = optionalOf(layouts);
  const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
  let at = writeVarint(target, start, 6 + Object.values(optional).filter((each) => each).length);
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
  if (optional.expires) column('expires', 4);
  column('device', 8);
  at = writeKeys(layouts, rows, keys, target, at);
  column('ts', 8);
  if (optional.seq) column('seq', 4);
  column('kind', 1);
  column('num', 8);
  if (optional.int) column('int', 8);
  if (optional.text) {
    at = headed(heads.text, target, at);
    for (const layout of layouts) {
      const { text } = layout;
      const bytes = textBytesOf(layout);
      if (text === 0) target.fill(0, at, at + bytes);
      else copy(layout, text, bytes, target, view, at);
      at += bytes;
    }
  }
  column('version', 8);
  return at;
}

function writeKeys(layouts: readonly Part[], rows: number, keys: Keys, target: Buffer, start: number): number {
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

function writeIndexes(layout: Part, places: Uint32Array, width: number, target: Buffer, at: number): void {
  const { block, indexes, rows } = layout;
  if (layout.width === 0 && width === 0) {
    // Mostly one byte for each row; a loop without further branches is ten times as fast.
    for (let row = 0; row < rows; row += 1) target[at + row] = places[block[indexes + row]!]!;
    return;
  }
  for (let row = 0; row < rows; row += 1) {
    const place = places[keyIndexOf(block, layout, row)]!;
    const to = at + (row << width);
    target[to] = place;
    if (width > 0) target[to + 1] = place >>> 8;
    if (width > 1) target.writeUInt16LE(place >>> 16, to + 2);
  }
}

/** Returns the offset after the name and type of a column. */
function headed(head: Uint8Array, target: Buffer, at: number): number {
  target.set(head, at);
  return at + head.length;
}

function copy({ block, view: from }: Part, start: number, bytes: number, target: Buffer, to: DataView, at: number) {
  if (bytes > loopBytesMax) {
    target.set(block.subarray(start, start + bytes), at);
    return;
  }
  const rest = bytes & 3;
  for (let i = 0; i < bytes - rest; i += 4) to.setInt32(at + i, from.getInt32(start + i));
  for (let i = bytes - rest; i < bytes; i += 1) target[at + i] = block[start + i]!;
}
