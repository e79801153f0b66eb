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
  let rows = 0;
  let at = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  let line = 1;
  let turnEnd = at + limits.importTurnChars;
  while (at < text.length) {
    const row: CsvRow = { line, cells: [] };
    let isBlank = true;
    for (;;) {
      let quoted = '';
      if (text[at] === '"') {
        const firstLine = line;
        at += 1;
        for (let isClosed = false; !isClosed; ) {
          const end = endOfQuoted(text, at, at + limits.importTurnChars);
          if (end === text.length) throw badRequest('csv_quote', `Line ${firstLine}: a quote is not closed.`);
          const part = text.slice(at, end).replaceAll('""', '"');
          quoted += part;
          line += part.split('\n').length - 1;
          isClosed = text[end] === '"' && text[end + 1] !== '"';
          at = isClosed ? end + 1 : end;
          if (at < turnEnd) continue;
          turnEnd = at + limits.importTurnChars;
          yield undefined;
        }
      }
      const end = endOfCell(text, at, delimiter);
      const cell = quoted + text.slice(at, end);
      if (row.cells.length < limits.importColumnsMax) row.cells.push(cell);
      isBlank &&= cell.trim() === '';
      at = end;
      if (at >= turnEnd) {
        turnEnd = at + limits.importTurnChars;
        yield undefined;
      }
      if (!text.startsWith(delimiter, at)) break;
      at += delimiter.length;
    }
    at += text[at] === '\r' && text[at + 1] === '\n' ? 2 : 1;
    line += 1;
    if (isBlank) continue;
    if (rows === rowsMax) throw badRequest('csv_rows', `The file has more than ${rowsMax} rows: import it in parts.`);
    rows += 1;
    yield row;
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

const quote = 0x22;
const lineFeed = 0x0a;
const carriageReturn = 0x0d;
