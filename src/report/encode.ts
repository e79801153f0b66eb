/** Encodes a table as JSON or CSV, in pieces, up to a number of rows and bytes; reports whether rows were left out. */
import { emptyText } from './devices.ts';
import { type Cell, cellText, type Table } from './table.ts';

export type ReportFormat = 'json' | 'csv';

export interface EncodedReport {
  bytes: Uint8Array<ArrayBuffer>;
  rows: number;
  /** The limit that left out rows. */
  cutBy: 'rows' | 'bytes' | undefined;
}

interface Writer {
  head: string;
  /** `first`: true for the first row of the table. */
  row(cells: Cell[], first: boolean): string;
  tail: string;
}

const pieceChars = 64 * 1024;

export function encodeTable(table: Table, format: ReportFormat, rowsMax: number, bytesMax: number): EncodedReport {
  const writer = format === 'json' ? jsonWriter(table.labels) : csvWriter(table.labels);
  const pieces: Buffer[] = [];
  let gathered = writer.head;
  let bytes = 0;
  let rows = 0;
  let cutBy: EncodedReport['cutBy'];
  const flush = () => {
    const piece = Buffer.from(gathered);
    pieces.push(piece);
    bytes += piece.length;
    gathered = '';
  };
  for (const cells of table.rows) {
    if (rows === rowsMax) cutBy = 'rows';
    else if (bytes >= bytesMax) cutBy = 'bytes';
    if (cutBy) break;
    gathered += writer.row(cells, rows === 0);
    rows += 1;
    if (gathered.length >= pieceChars) flush();
  }
  gathered += writer.tail;
  flush();
  const whole = new Uint8Array(bytes);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return { bytes: whole, rows, cutBy };
}

/** Does not use JSON.stringify: a label may be `__proto__`, and a number may have more digits than a double keeps. */
function jsonWriter(labels: string[]): Writer {
  const names = labels.map((label) => JSON.stringify(label));
  return {
    head: `{"columnLabels":[${names.join(',')}],"dataTable":[`,
    row(cells, first) {
      let text = first ? '{' : ',{';
      for (let n = 0; n < cells.length; n += 1) text += `${n > 0 ? ',' : ''}${names[n]}:${jsonCell(cells[n]!)}`;
      return `${text}}`;
    },
    tail: ']}',
  };
}

function jsonCell(cell: Cell): string {
  if (typeof cell === 'object') return cell.exact;
  return typeof cell === 'number' ? String(cell) : JSON.stringify(cell);
}

/** Writes RFC 4180. A string that a spreadsheet would run as a formula gets an apostrophe. */
function csvWriter(labels: string[]): Writer {
  return {
    head: `${labels.map(csvText).join(',')}\r\n`,
    row: (cells) => `${cells.map((cell) => (typeof cell === 'string' ? csvText(cell) : cellText(cell))).join(',')}\r\n`,
    tail: '',
  };
}

function csvText(text: string): string {
  const safe = text !== emptyText && /^[\s]*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
