/** Parses comma-separated values (RFC 4180). Lines may end in LF or CRLF; a row of blank cells is left out. */
import { badRequest } from '../base/errors.ts';

export interface CsvRow {
  /** The line of the row's first character, counted from 1. */
  line: number;
  cells: string[];
  /** The characters of the file up to the end of the row. */
  end: number;
}

/** Yields the rows in order. Throws 400 at a quote that is not closed, and after `rowsMax` rows. */
export function* csvRows(text: string, delimiter: string, rowsMax: number): Generator<CsvRow> {
  let rows = 0;
  let at = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  let line = 1;
  while (at < text.length) {
    const row: CsvRow = { line, cells: [], end: at };
    for (;;) {
      let cell = '';
      if (text[at] === '"') {
        const start = line;
        for (at += 1; ; at += 1) {
          const end = text.indexOf('"', at);
          if (end < 0) throw badRequest('csv_quote', `Line ${start}: a quote is not closed.`);
          cell += text.slice(at, end);
          at = end + 1;
          if (text[at] !== '"') break;
          cell += '"';
        }
        line += cell.split('\n').length - 1;
      }
      const end = endOfCell(text, at, delimiter);
      row.cells.push(cell + text.slice(at, end));
      at = end;
      if (!text.startsWith(delimiter, at)) break;
      at += delimiter.length;
    }
    at += text[at] === '\r' && text[at + 1] === '\n' ? 2 : 1;
    row.end = at;
    line += 1;
    if (row.cells.every((cell) => cell.trim() === '')) continue;
    if (rows === rowsMax) throw badRequest('csv_rows', `The file has more than ${rowsMax} rows: import it in parts.`);
    rows += 1;
    yield row;
  }
}

/** Returns the position of the next delimiter or end of line. */
function endOfCell(text: string, from: number, delimiter: string): number {
  const first = delimiter[0];
  let at = from;
  while (at < text.length) {
    const letter = text[at];
    if (letter === '\n' || letter === '\r' || (letter === first && text.startsWith(delimiter, at))) break;
    at += 1;
  }
  return at;
}
