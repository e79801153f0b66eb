/** Copies some rows of columns, with only the keys that these rows need. */
import { type Columns, endOfText } from './block.ts';

/** Copies rows [from, to) as whole ranges, which costs less than row by row. */
export function sliceColumns(columns: Columns, from: number, to: number): Columns {
  const { keyIndexes, kind, num, int, text } = columns;
  return {
    count: to - from,
    ...neededKeys(columns.keys, keyIndexes.slice(from, to)),
    kind: copyOf(kind, from, to),
    num: copyOf(num, 8 * from, 8 * to),
    int: int && copyOf(int, 8 * from, 8 * to),
    text: text && sliceTexts(text, from, to),
  };
}

/** Copies any rows of the same columns. The texts are searched for their starts only once. */
export class RowPicker {
  readonly #columns: Columns;
  readonly #textStarts: Uint32Array | undefined;

  constructor(columns: Columns) {
    this.#columns = columns;
    this.#textStarts = columns.text && textStarts(columns.text, columns.count);
  }

  textBytes(row: number): number {
    const starts = this.#textStarts;
    return starts ? starts[row + 1]! - starts[row]! : 0;
  }

  pick(rows: Uint32Array): Columns {
    const { keys, keyIndexes, kind, num, int, text } = this.#columns;
    return {
      count: rows.length,
      ...neededKeys(
        keys,
        rows.map((row) => keyIndexes[row]!),
      ),
      kind: Uint8Array.from(rows, (row) => kind[row]!),
      num: pickNumbers(num, 8, rows),
      int: int && pickNumbers(int, 8, rows),
      text: text && this.#texts(text, rows),
    };
  }

  #texts(text: Uint8Array, rows: Uint32Array): Uint8Array {
    const starts = this.#textStarts!;
    const picked = new Uint8Array(rows.reduce((sum, row) => sum + this.textBytes(row), 0));
    let at = 0;
    for (const row of rows) {
      picked.set(text.subarray(starts[row]!, starts[row + 1]!), at);
      at += this.textBytes(row);
    }
    return picked;
  }
}

/**
 * Returns the numbers of some rows of a column of 4 or 8 bytes. The function copies bits: a copy as a double would
 * change some of the values that are no numbers.
 */
export function pickNumbers(column: Uint8Array, bytesOfRow: 4 | 8, rows: Uint32Array): Uint8Array {
  const source = wordsOf(column);
  const width = bytesOfRow / 4;
  const picked = new Uint32Array(width * rows.length);
  for (let i = 0; i < rows.length; i += 1) {
    const row = rows[i]!;
    picked[width * i] = source[width * row]!;
    if (width === 2) picked[2 * i + 1] = source[2 * row + 1]!;
  }
  return new Uint8Array(picked.buffer);
}

/** A column of a received block may lie at any offset, where a typed array of numbers cannot begin. */
function wordsOf(column: Uint8Array): Uint32Array {
  const { buffer, byteOffset, length } = column.byteOffset % 4 === 0 ? column : new Uint8Array(column);
  return new Uint32Array(buffer, byteOffset, length / 4);
}

function neededKeys(keys: readonly Uint8Array[], keyIndexes: Uint32Array): Pick<Columns, 'keys' | 'keyIndexes'> {
  const needed: Uint8Array[] = [];
  const places = new Map<number, number>();
  const indexes = keyIndexes.map((index) => {
    let place = places.get(index);
    if (place === undefined) places.set(index, (place = needed.push(keys[index]!) - 1));
    return place;
  });
  return { keys: needed, keyIndexes: indexes };
}

function sliceTexts(text: Uint8Array, from: number, to: number): Uint8Array {
  let at = 0;
  let start = 0;
  for (let row = 0; row < to; row += 1) {
    if (row === from) start = at;
    at = endOfText(text, at);
  }
  return copyOf(text, start, at);
}

/** Returns where the text of each row begins, with its length, and the end of the last. */
function textStarts(text: Uint8Array, count: number): Uint32Array {
  const starts = new Uint32Array(count + 1);
  let at = 0;
  for (let row = 0; row < count; row += 1) {
    starts[row] = at;
    at = endOfText(text, at);
  }
  starts[count] = at;
  return starts;
}

/** Copies into separate memory, which can be passed to another thread; `slice` of a Buffer would be a view. */
function copyOf(bytes: Uint8Array, start: number, end: number): Uint8Array {
  return new Uint8Array(bytes.subarray(start, end));
}
