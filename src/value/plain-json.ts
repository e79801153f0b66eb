/**
 * Parses JSON whose numbers need no exact digits into plain JavaScript values. Refuses the same bodies as the exact
 * reader: malformed JSON, invalid UTF-8, too deep nesting, NUL, unpaired surrogates, numbers beyond a double. A body of
 * so many parts that it would block the event loop is refused before it is parsed.
 */
import { isUtf8 } from 'node:buffer';
import { badRequest, Fault, messageOf, tooLarge } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { endOfBlank, invalidUtf8, readJson, startOfJson } from './json.ts';

/** Up to this size the exact reader names the error and its position. */
const exactBytesMax = 16 * 1024;

/** Returns the parsed value. Throws a 400 fault; a fault of a value names the members on the path to the value. */
export function readPlainJson(bytes: Buffer): unknown {
  const steps = plainJsonSteps(bytes);
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

/**
 * Reads as `readPlainJson` does, in several steps: strings of several megabytes take many milliseconds in each of them.
 */
export function* plainJsonSteps(bytes: Buffer): Generator<undefined, unknown> {
  if (bytes.length > limits.apiBodyCountedBytesMin && hasMoreParts(bytes, limits.apiBodyPartsMax)) throw tooManyParts();
  if (!isUtf8(bytes)) throw invalidUtf8();
  yield;
  const text = bytes.toString('utf8', startOfJson(bytes));
  yield;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    if (bytes.length <= exactBytesMax) readJson(bytes);
    throw badRequest('malformed_json', `The body is not valid JSON: ${messageOf(error)}.`);
  }
  yield;
  const path: string[] = [];
  // Only an escape can produce NUL or an unpaired surrogate.
  const fault = faultIn(value, 1, bytes.includes('\\u'), path);
  if (fault) throw faultAt(path.reverse(), fault);
  return value;
}

function faultAt(path: string[], { reason, message }: Fault): Fault {
  return new Fault(reason, `Validation error: ${path.join('.') || 'the body'}: ${message}`);
}

/** A part of the elements of an array, and the place of the first of them. */
interface PlainRows {
  first: number;
  rows: unknown[];
}

/**
 * Reads a body like `{"devices":[…]}` piece by piece: yields the elements of the array `name`, which are in the root
 * object, a few at a time, and at last returns the root object with that array empty. Each piece takes a few
 * milliseconds, so the caller lets the event loop run in between. Throws the faults of `readPlainJson`, and refuses an
 * element above `limits.apiRowsBytesMax`, and a second array `name`.
 */
export function* readPlainRows(bytes: Buffer, name: string): Generator<PlainRows, unknown> {
  if (!isUtf8(bytes)) throw invalidUtf8();
  const open = bytes.length > exactBytesMax ? startOfArray(bytes, Buffer.from(JSON.stringify(name))) : undefined;
  if (open === undefined) return readPlainJson(bytes);
  const { apiRowsBytesMax: bytesMax } = limits;
  let first = 0;
  let count = 0;
  let start = open + 1;
  let elementStart = start;
  let depth = 0;
  let end = start;
  for (; end < bytes.length; end += 1) {
    const byte = bytes[end]!;
    if (byte === 0x22) end = endOfString(bytes, end);
    else if (byte === 0x7b || byte === 0x5b) depth += 1;
    else if (depth > 0 && (byte === 0x7d || byte === 0x5d)) depth -= 1;
    else if (byte === 0x5d || byte === 0x7d) break;
    else if (byte === 0x2c && depth === 0) {
      count += 1;
      elementStart = end + 1;
      if (end - start < bytesMax / 2) continue;
      yield { first, rows: rowsOf(bytes.subarray(start, end), name, first) };
      first += count;
      count = 0;
      start = elementStart;
    }
    if (end - elementStart > bytesMax) throw tooLongElement(name, first + count);
  }
  const rows = rowsOf(bytes.subarray(start, end), name, first);
  // A comma before the end of the array promises another element.
  if (rows.length === 0 && first > 0) throw malformedRows(name, first);
  yield { first, rows };
  const root = readPlainJson(Buffer.concat([bytes.subarray(0, open + 1), bytes.subarray(end)])) as Record<
    string,
    unknown
  >;
  const rest = root[name];
  if (!Array.isArray(rest) || rest.length > 0) throw badRequest('body', `Validation error: ${name} is given twice`);
  return root;
}

/** Returns the place of the bracket that opens the array `quotedName` of the root object. */
function startOfArray(bytes: Buffer, quotedName: Buffer): number | undefined {
  let depth = 0;
  for (let at = startOfJson(bytes); at < bytes.length; at += 1) {
    const byte = bytes[at]!;
    if (byte === 0x22) {
      const start = at;
      at = endOfString(bytes, at);
      if (depth !== 1 || at + 1 - start !== quotedName.length || !isAt(bytes, start, quotedName)) continue;
      const colon = endOfBlank(bytes, at + 1);
      const open = endOfBlank(bytes, colon + 1);
      if (bytes[colon] === 0x3a && bytes[open] === 0x5b) return open;
    } else if (byte === 0x7b || byte === 0x5b) depth += 1;
    else if (byte === 0x7d || byte === 0x5d) depth -= 1;
  }
  return undefined;
}

function isAt(bytes: Buffer, start: number, wanted: Buffer): boolean {
  for (let i = 0; i < wanted.length; i += 1) if (bytes[start + i] !== wanted[i]) return false;
  return true;
}

/** Parses elements with the commas between them. `first`: the place of the first of them in the array `name`. */
function rowsOf(bytes: Buffer, name: string, first: number): unknown[] {
  let rows: unknown[];
  try {
    rows = JSON.parse(`[${bytes.toString('utf8')}]`) as unknown[];
  } catch {
    throw malformedRows(name, first);
  }
  const hasEscapes = bytes.includes('\\u');
  for (const [i, row] of rows.entries()) {
    const path: string[] = [];
    const fault = faultIn(row, 3, hasEscapes, path);
    if (fault) throw faultAt([name, String(first + i), ...path.reverse()], fault);
  }
  return rows;
}

function malformedRows(name: string, first: number): Fault {
  return badRequest('malformed_json', `The body is not valid JSON: an error in "${name}" from element ${first} on.`);
}

function tooLongElement(name: string, index: number): Fault {
  return tooLarge(
    'message_too_complex',
    `Validation error: ${name}.${index} has more than ${limits.apiRowsBytesMax} bytes.`,
  );
}

/** True when the bytes have more than `most` commas, colons, strings and opening brackets. */
function hasMoreParts(bytes: Buffer, most: number): boolean {
  let left = most;
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at]!;
    if (byte === 0x22) at = endOfString(bytes, at);
    else if (byte !== 0x2c && byte !== 0x3a && byte !== 0x7b && byte !== 0x5b) continue;
    left -= 1;
    if (left < 0) return true;
  }
  return false;
}

/** Returns the place of the closing quote, or the end of the bytes. */
function endOfString(bytes: Buffer, start: number): number {
  let at = start + 1;
  while (at < bytes.length && bytes[at] !== 0x22) at += bytes[at] === 0x5c ? 2 : 1;
  return at;
}

function tooManyParts(): Fault {
  return tooLarge(
    'message_too_complex',
    `The body has more than ${limits.apiBodyPartsMax} members, elements and strings: send less in one call.`,
  );
}

const faults = {
  nul: badRequest('nul_character', 'A string holds the character NUL (\\u0000).'),
  surrogate: badRequest('lone_surrogate', 'A string holds half a surrogate pair.'),
  number: badRequest('number_not_finite', 'A number is beyond the range of a double.'),
  depth: badRequest('json_too_deep', `The JSON is nested deeper than ${limits.jsonDepthMax} levels.`),
};

/** Returns the first fault inside `value`, and appends the names on the path to the fault, the innermost first. */
function faultIn(value: unknown, depth: number, hasEscapes: boolean, path: string[]): Fault | undefined {
  if (typeof value === 'string') return hasEscapes ? faultOfText(value) : undefined;
  if (typeof value === 'number') return Number.isFinite(value) ? undefined : faults.number;
  if (typeof value !== 'object' || value === null) return undefined;
  if (depth > limits.jsonDepthMax) return faults.depth;
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i += 1) {
      const fault = faultIn(value[i], depth + 1, hasEscapes, path);
      if (fault) return named(fault, String(i), depth, path);
    }
    return undefined;
  }
  for (const name of Object.keys(value)) {
    const member = (value as Record<string, unknown>)[name];
    const fault = (hasEscapes ? faultOfText(name) : undefined) ?? faultIn(member, depth + 1, hasEscapes, path);
    if (fault) return named(fault, name, depth, path);
  }
  return undefined;
}

function faultOfText(text: string): Fault | undefined {
  if (text.includes('\0')) return faults.nul;
  return surrogate.test(text) ? faults.surrogate : undefined;
}

const surrogate = /\p{Surrogate}/u;
const pathPartsMax = 4;
const nameCharsMax = 40;

function named(fault: Fault, name: string, depth: number, path: string[]): Fault {
  if (depth <= pathPartsMax) path.push(name.slice(0, nameCharsMax));
  return fault;
}
