/** Parses comma-separated values (RFC 4180). Lines may end in LF or CRLF; a row of blank cells is left out. */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';

export interface CsvRow {
  /** The line of the row's first character, counted from 1. */
  line: number;
  /** The first cells of the row, at most `limits.importColumnsMax`. */
  cells: string[];
}

/**
 * Yields the rows in order, and undefined each time after it has read `limits.importTurnChars` characters: the caller
 * then lets the event loop go on. Throws 400 at a quote that is not closed, and after `rowsMax` rows.
 */
export function* csvRows(text: string, delimiter: string, rowsMax: number): Generator<CsvRow | undefined> {
  const reader = new CsvReader(text, delimiter);
  for (let rows = 0; !reader.hasEnded; ) {
    const row = yield* reader.row();
    if (row === undefined) continue;
    if (rows === rowsMax) throw badRequest('csv_rows', `The file has more than ${rowsMax} rows: import it in parts.`);
    rows += 1;
    yield row;
  }
}

class CsvReader {
  readonly #text: string;
  readonly #delimiter: string;
  #at: number;
  /** The line of `#at`, counted from 1. */
  #line = 1;
  /** The position from which on the event loop must go on first. */
  #turnEnd: number;

  constructor(text: string, delimiter: string) {
    this.#text = text;
    this.#delimiter = delimiter;
    this.#at = text.charCodeAt(0) === byteOrderMark ? 1 : 0;
    this.#turnEnd = this.#at + limits.importTurnChars;
  }

  get hasEnded(): boolean {
    return this.#at >= this.#text.length;
  }

  /** Reads a row with its end of line. Returns undefined when all of its cells are blank. */
  *row(): Generator<undefined, CsvRow | undefined> {
    const text = this.#text;
    const row: CsvRow = { line: this.#line, cells: [] };
    let isBlank = true;
    for (;;) {
      const quoted = text[this.#at] === '"' ? yield* this.#quoted() : '';
      const cell = quoted + this.#unquoted();
      if (row.cells.length < limits.importColumnsMax) row.cells.push(cell);
      isBlank &&= cell.trim() === '';
      if (this.#isTurnOver()) yield undefined;
      if (!text.startsWith(this.#delimiter, this.#at)) break;
      this.#at += this.#delimiter.length;
    }
    this.#at += text[this.#at] === '\r' && text[this.#at + 1] === '\n' ? 2 : 1;
    this.#line += 1;
    return isBlank ? undefined : row;
  }

  /** Reads a quoted cell with both of its quotes. Returns what is between them, with each doubled quote as one. */
  *#quoted(): Generator<undefined, string> {
    const text = this.#text;
    const firstLine = this.#line;
    let content = '';
    this.#at += 1;
    for (;;) {
      const end = endOfQuoted(text, this.#at, this.#at + limits.importTurnChars);
      if (end === text.length) throw badRequest('csv_quote', `Line ${firstLine}: a quote is not closed.`);
      const part = text.slice(this.#at, end).replaceAll('""', '"');
      content += part;
      this.#line += part.split('\n').length - 1;
      const isClosed = text[end] === '"' && text[end + 1] !== '"';
      this.#at = isClosed ? end + 1 : end;
      if (this.#isTurnOver()) yield undefined;
      if (isClosed) return content;
    }
  }

  /** Reads the characters up to the next delimiter or end of line. */
  #unquoted(): string {
    const from = this.#at;
    this.#at = endOfCell(this.#text, from, this.#delimiter);
    return this.#text.slice(from, this.#at);
  }

  /** True once for each turn: the caller lets the event loop go on. */
  #isTurnOver(): boolean {
    if (this.#at < this.#turnEnd) return false;
    this.#turnEnd = this.#at + limits.importTurnChars;
    return true;
  }
}

/**
 * Returns the position of the closing quote, or else the first position from `to` on that does not divide a doubled
 * quote.
 */
function endOfQuoted(text: string, from: number, to: number): number {
  let at = from;
  while (at < text.length && at < to) {
    if (text.charCodeAt(at) === quote) {
      if (text.charCodeAt(at + 1) !== quote) break;
      at += 1;
    }
    at += 1;
  }
  return Math.min(at, text.length);
}

/** Returns the position of the next delimiter or end of line. */
function endOfCell(text: string, from: number, delimiter: string): number {
  const first = delimiter.charCodeAt(0);
  let at = from;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === lineFeed || code === carriageReturn || (code === first && text.startsWith(delimiter, at))) break;
    at += 1;
  }
  return at;
}

const byteOrderMark = 0xfeff;
const quote = 0x22;
const lineFeed = 0x0a;
const carriageReturn = 0x0d;
