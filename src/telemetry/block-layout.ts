/**
 * Finds the columns of a block as `block.ts` writes it, without a copy and without an object for a row. Every length in
 * the block is compared with the bytes that are there. Bytes that are no such block have no layout. ClickHouse would
 * reserve memory for whatever number of rows they name, and its answer may not say that the bytes are the cause.
 */
import { hasHead, columnHeads as heads } from './block.ts';

/** The columns up to `ts`; 0 = the column is absent. A place is where the data of a column begins. */
interface BlockStart {
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
}

/** All columns. */
export interface BlockLayout extends BlockStart {
  readonly kind: number;
  readonly num: number;
  readonly int: number;
  readonly text: number;
  readonly textEnd: number;
  readonly version: number;
}

/** The indexes of keys of a block. */
type IndexColumn = Pick<BlockStart, 'indexes' | 'width' | 'rows'>;

/** `device`, `key`, `ts`, `kind`, `num` and `version`. */
const requiredColumns = 6;

/** Returns undefined when the bytes do not begin as a block, or end before its column `ts` does. */
export function startOfBlock(block: Uint8Array): BlockStart | undefined {
  const steps = new Steps(block);
  steps.varint();
  return startAfterCount(steps, Number.POSITIVE_INFINITY);
}

/** Returns undefined for bytes that are not exactly one block, and for a block of more rows. */
export function layoutOf(block: Uint8Array, rowsMax: number = Number.POSITIVE_INFINITY): BlockLayout | undefined {
  const steps = new Steps(block);
  const columns = steps.varint();
  const start = startAfterCount(steps, rowsMax);
  if (start === undefined || !areBelow(block, start)) return undefined;
  const { rows, expires, device, keyCount, keys, keysEnd, indexes, width, ts, seq } = start;
  const kind = steps.column(heads.kind, rows);
  const num = steps.column(heads.num, 8 * rows);
  const int = steps.column(heads.int, 8 * rows);
  const text = steps.passes(heads.text) ? steps.at : 0;
  if (text > 0) steps.skipTexts(rows);
  const textEnd = steps.at;
  const version = steps.column(heads.version, 8 * rows);
  const optional = Number(expires > 0) + Number(seq > 0) + Number(int > 0) + Number(text > 0);
  const isWhole = kind > 0 && num > 0 && version > 0 && columns === requiredColumns + optional && steps.isAtEnd;
  if (!isWhole) return undefined;
  const later = { kind, num, int, text, textEnd, version };
  return { rows, expires, device, keyCount, keys, keysEnd, indexes, width, ts, seq, ...later };
}

function startAfterCount(steps: Steps, rowsMax: number): BlockStart | undefined {
  const rows = steps.varint();
  if (!(rows >= 1 && rows <= rowsMax)) return undefined;
  const expires = steps.column(heads.expires, 4 * rows);
  const device = steps.column(heads.device, 8 * rows);
  if (device === 0 || !steps.passes(heads.key) || steps.small() !== 1) return undefined;
  const width = steps.small() - 0x200;
  const keyCount = steps.small();
  // Some rows of a block, as those of one shard, have all of its keys: there may be more keys than rows.
  if (!(width >= 0 && width <= 2) || !(keyCount >= 1)) return undefined;
  const keys = steps.at;
  steps.skipTexts(keyCount);
  const keysEnd = steps.at;
  if (steps.small() !== rows) return undefined;
  const indexes = steps.at;
  steps.at += rows * 2 ** width;
  const ts = steps.column(heads.ts, 8 * rows);
  const seq = steps.column(heads.seq, 4 * rows);
  if (ts === 0 || steps.isBeyondEnd) return undefined;
  return { rows, expires, device, keyCount, keys, keysEnd, indexes, width, ts, seq };
}

/** True when every index has a key. */
function areBelow(block: Uint8Array, column: BlockStart): boolean {
  const { keyCount, indexes, width, rows } = column;
  let greatest = 0;
  if (width === 0) {
    const end = indexes + rows;
    for (let at = indexes | 0; at < end; at += 1) {
      const index = block[at]!;
      if (index > greatest) greatest = index;
    }
  } else {
    for (let row = 0; row < rows; row += 1) greatest = Math.max(greatest, keyIndexOf(block, column, row));
  }
  return greatest < keyCount;
}

export function keyIndexOf(block: Uint8Array, { indexes, width }: IndexColumn, row: number): number {
  const at = indexes + (row << width);
  if (width === 0) return block[at]!;
  const low = block[at]! | (block[at + 1]! << 8);
  return width === 1 ? low : (low | (block[at + 2]! << 16) | (block[at + 3]! << 24)) >>> 0;
}

/** Reads a block forwards; what would lie after its end makes `at` greater than its length. */
class Steps {
  at = 0;
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.at === this.#bytes.length;
  }

  get isBeyondEnd(): boolean {
    return this.at > this.#bytes.length;
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

  /** Returns the place of a column, and goes on after its data; 0 when another column comes next. */
  column(head: Uint8Array, bytes: number): number {
    if (!this.passes(head)) return 0;
    const { at } = this;
    this.at += bytes;
    return at;
  }

  /** Reads a u64; NaN when it does not fit 31 bits. */
  small(): number {
    const [bytes, at] = [this.#bytes, this.at];
    this.at += 8;
    const isSmall = bytes[at + 3]! < 0x80 && (bytes[at + 4]! | bytes[at + 5]! | bytes[at + 6]! | bytes[at + 7]!) === 0;
    if (!isSmall) return Number.NaN;
    return bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
  }

  /**
   * A frame of strings has one text for each row. `at` stays an integer for the machine in this loop, which is twice
   * as fast.
   */
  skipTexts(count: number): void {
    const bytes = this.#bytes;
    if (this.isBeyondEnd) return;
    let at = this.at | 0;
    for (let i = 0; i < count; i += 1) {
      const length = at < bytes.length ? bytes[at]! : 0xff;
      if (length < 0x80) {
        at += 1 + length;
        continue;
      }
      this.at = at;
      const longer = this.varint();
      if (!(this.at + longer <= bytes.length)) {
        this.at = Number.POSITIVE_INFINITY;
        return;
      }
      at = (this.at + longer) | 0;
    }
    this.at = at;
  }
}
