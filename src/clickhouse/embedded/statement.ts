/**
 * Reads as much of a statement as HTTP needs: where an INSERT's data begins, in which format a result leaves, and that
 * there is one statement only. The reader knows words, literals, comments and brackets; the engine parses the
 * statement.
 */
import { Exception } from './exception.ts';

export interface Statement {
  /** The first word in upper case. */
  verb: string;
  /** The FORMAT of the result, when the statement names one. */
  resultFormat: string | undefined;
  /** Set when the statement is an INSERT whose rows follow it. */
  rows: InsertedRows | undefined;
}

interface InsertedRows {
  /** Offset of the rows in the statement; its length when the rows are sent separately. */
  offset: number;
  /** Returns the statement with its rows read from a file instead. */
  fromFile: (path: string) => string;
}

interface Word {
  text: string;
  upper: string;
  start: number;
  end: number;
}

export function readStatement(text: string): Statement {
  let verb = '';
  let resultFormat: string | undefined;
  let settings: Word | undefined;
  let input: Call | undefined;
  let selects = false;
  let previous: Word | undefined;
  for (const { word, sign, at, depth } of tokensOf(text)) {
    if (!word) {
      if (sign === '(' && previous?.upper === 'INPUT' && verb === 'INSERT') input ??= readCall(text, previous, at);
      previous = undefined;
      continue;
    }
    previous = word;
    verb ||= word.upper;
    if (depth !== 0) continue;
    const isInsert = verb === 'INSERT';
    if (word.upper === 'SETTINGS') settings = word;
    if (word.upper === 'SELECT' || word.upper === 'WITH') selects = true;
    if (isInsert && word.upper === 'VALUES') return { verb, resultFormat, rows: valuesRows(text, word, settings) };
    if (word.upper !== 'FORMAT') continue;
    const format = wordAt(text, skipSpaces(text, word.end));
    // INSERT ... SELECT has no rows after it unless it reads `input`: the word is then a column.
    if (format && isInsert && (!selects || input)) {
      return { verb, resultFormat, rows: formatRows(text, word, format, settings, input) };
    }
    resultFormat = format?.text;
  }
  return { verb, resultFormat, rows: undefined };
}

/** A word, or one other character that is no blank. */
interface Token {
  word: Word | undefined;
  /** The first character. */
  sign: string;
  at: number;
  /** Brackets that are open before the token. */
  depth: number;
}

/** Leaves out literals and comments. Throws at the beginning of a second statement. */
function* tokensOf(text: string): Generator<Token> {
  let depth = 0;
  let ended = false;
  for (let at = 0; at < text.length; ) {
    const sign = text[at]!;
    if (ended && !/[\s;]/.test(sign) && !isComment(text, at)) throw severalStatements();
    const skipped = ' \n\t\r\v\f'.includes(sign) ? at + 1 : skipLiteralOrComment(text, at);
    if (skipped !== at) {
      at = skipped;
      continue;
    }
    const word = wordAt(text, at);
    yield { word, sign, at, depth };
    at = word?.end ?? at + 1;
    if (word) continue;
    if ('([{'.includes(sign)) depth += 1;
    else if (')]}'.includes(sign)) depth -= 1;
    else if (sign === ';') ended = true;
  }
}

function formatRows(
  text: string,
  keyword: Word,
  format: Word,
  settings: Word | undefined,
  input: Call | undefined,
): InsertedRows {
  return {
    offset: rowsOffset(text, format.end),
    fromFile: (path) => {
      if (!input) return fromInfile(text, settings, keyword.start, path, format.text);
      const file = `file('${path}', '${format.text}', ${input.argument})`;
      return `${text.slice(0, input.start)}${file}${text.slice(input.end, keyword.start)}`;
    },
  };
}

function valuesRows(text: string, values: Word, settings: Word | undefined): InsertedRows {
  return {
    offset: values.end,
    fromFile: (path) => fromInfile(text, settings, values.start, path, 'Values'),
  };
}

/** `FROM INFILE` keeps the meaning of an INSERT with data: absent columns get their defaults, types are converted. */
function fromInfile(text: string, settings: Word | undefined, end: number, path: string, format: string): string {
  const head = text.slice(0, settings?.start ?? end);
  const tail = settings ? text.slice(settings.start, end) : '';
  return `${head} FROM INFILE '${path}' ${tail} FORMAT ${format}`;
}

/** Returns the offset of the rows: after the first line break, or after the spaces when there is no line break. */
function rowsOffset(text: string, end: number): number {
  let at = end;
  while (at < text.length && ' \t\f'.includes(text[at]!)) at += 1;
  if (text[at] === ';') at += 1;
  if (text[at] === '\r') at += 1;
  if (text[at] === '\n') at += 1;
  return at;
}

interface Call {
  start: number;
  end: number;
  argument: string;
}

function readCall(text: string, name: Word, open: number): Call | undefined {
  let depth = 0;
  for (let at = open; at < text.length; ) {
    const skipped = skipLiteralOrComment(text, at);
    if (skipped !== at) {
      at = skipped;
      continue;
    }
    if (text[at] === '(') depth += 1;
    if (text[at] === ')') depth -= 1;
    at += 1;
    if (depth === 0) return { start: name.start, end: at, argument: text.slice(open + 1, at - 1) };
  }
  return undefined;
}

function wordAt(text: string, at: number): Word | undefined {
  const pattern = /[A-Za-z0-9_$\u0080-\uffff]+/y;
  pattern.lastIndex = at;
  const match = pattern.exec(text);
  if (!match) return undefined;
  return { text: match[0], upper: match[0].toUpperCase(), start: at, end: pattern.lastIndex };
}

function skipSpaces(text: string, at: number): number {
  let end = at;
  while (end < text.length && /\s/.test(text[end]!)) end += 1;
  return end;
}

function isComment(text: string, at: number): boolean {
  if (text[at] === '#') return text[at + 1] === ' ' || text[at + 1] === '!';
  return text.startsWith('--', at) || text.startsWith('/*', at);
}

/** Returns the position after the literal or comment that begins at `at`; `at` itself when none begins there. */
function skipLiteralOrComment(text: string, at: number): number {
  const char = text[at]!;
  if (char === "'" || char === '"' || char === '`') return skipQuoted(text, at, char);
  if (char === '$') {
    const tag = /^\$\w*\$/.exec(text.slice(at, at + 64))?.[0];
    return tag ? after(text, tag, at + tag.length) : at;
  }
  if (!isComment(text, at)) return at;
  return text.startsWith('/*', at) ? after(text, '*/', at + 2) : after(text, '\n', at);
}

function skipQuoted(text: string, start: number, quote: string): number {
  for (let at = start + 1; at < text.length; at += 1) {
    if (text[at] === '\\') at += 1;
    else if (text[at] === quote) return at + 1;
  }
  return text.length;
}

function after(text: string, mark: string, from: number): number {
  const found = text.indexOf(mark, from);
  return found < 0 ? text.length : found + mark.length;
}

function severalStatements(): Exception {
  return new Exception(62, 'SYNTAX_ERROR', 'Syntax error (Multi-statements are not allowed).');
}
