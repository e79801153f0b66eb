/**
 * Reads nested JSON that has the form in which it is stored: compact, no escapes, no name twice in an object, small
 * numbers without exponent. Such JSON is checked in place and then copied, without a tree or strings. The exact reader
 * (`json.ts`) reads all other JSON, malformed or rare.
 */
import { limits } from '../base/limits.ts';

const namesMax = 16;
/** Start and end of the names of all open objects. */
const names = new Int32Array(2 * namesMax * (limits.jsonDepthMax + 1));
/** A literal shorter than this is finite, without an exponent. */
const digitsMax = 300;

/**
 * Returns the offset after the value at `at`, or -1 when the value must be read exactly. `depth` as for
 * `JsonReader.value`. `bytes[last]` is `}` or `]`: only the search for the end of a string can pass this byte.
 */
export function endOfPlain(bytes: Uint8Array, at: number, last: number, depth: number): number {
  return plainValue(bytes, at, last, depth, 0);
}

function plainValue(bytes: Uint8Array, at: number, last: number, depth: number, namesTop: number): number {
  const byte = bytes[at]!;
  if (byte === 0x22) return plainString(bytes, at, last);
  if (byte === 0x2d || (byte >= 0x30 && byte <= 0x39)) return plainNumber(bytes, at);
  if (byte === 0x7b) return depth > limits.jsonDepthMax ? -1 : plainObject(bytes, at, last, depth, namesTop);
  if (byte === 0x5b) return depth > limits.jsonDepthMax ? -1 : plainArray(bytes, at, last, depth, namesTop);
  if (byte === 0x74) return isWord(bytes, at, last, trueWord);
  if (byte === 0x66) return isWord(bytes, at, last, falseWord);
  return byte === 0x6e ? isWord(bytes, at, last, nullWord) : -1;
}

function plainObject(bytes: Uint8Array, at: number, last: number, depth: number, namesTop: number): number {
  if (bytes[at + 1] === 0x7d) return at + 2;
  let top = namesTop;
  do {
    const start = at + 1;
    if (start > last || bytes[start] !== 0x22) return -1;
    at = plainString(bytes, start, last);
    if (at < 0 || bytes[at] !== 0x3a || top - namesTop === 2 * namesMax) return -1;
    for (let i = namesTop; i < top; i += 2) if (isSame(bytes, names[i]!, names[i + 1]!, start, at)) return -1;
    names[top] = start;
    names[top + 1] = at;
    top += 2;
    at = plainValue(bytes, at + 1, last, depth + 1, top);
    if (at < 0) return -1;
  } while (bytes[at] === 0x2c);
  return bytes[at] === 0x7d ? at + 1 : -1;
}

function plainArray(bytes: Uint8Array, at: number, last: number, depth: number, namesTop: number): number {
  if (bytes[at + 1] === 0x5d) return at + 2;
  do {
    if (at >= last) return -1;
    at = plainValue(bytes, at + 1, last, depth + 1, namesTop);
    if (at < 0) return -1;
  } while (bytes[at] === 0x2c);
  return bytes[at] === 0x5d ? at + 1 : -1;
}

function plainString(bytes: Uint8Array, at: number, last: number): number {
  at += 1;
  for (let byte = bytes[at]!; byte !== 0x22; byte = bytes[++at]!)
    if (byte < 0x20 || byte === 0x5c || at >= last) return -1;
  return at + 1;
}

function plainNumber(bytes: Uint8Array, start: number): number {
  let at = bytes[start] === 0x2d ? start + 1 : start;
  const wholeStart = at;
  while (bytes[at]! >= 0x30 && bytes[at]! <= 0x39) at += 1;
  if (at === wholeStart || (bytes[wholeStart] === 0x30 && at - wholeStart > 1)) return -1;
  if (bytes[at] === 0x2e) {
    const fractionStart = ++at;
    while (bytes[at]! >= 0x30 && bytes[at]! <= 0x39) at += 1;
    if (at === fractionStart) return -1;
  }
  // An exponent counts as a byte that may not follow a value.
  return at - start > digitsMax ? -1 : at;
}

const trueWord = Buffer.from('true');
const falseWord = Buffer.from('false');
const nullWord = Buffer.from('null');

function isWord(bytes: Uint8Array, at: number, last: number, word: Uint8Array): number {
  if (at + word.length > last) return -1;
  for (let i = 1; i < word.length; i += 1) if (bytes[at + i] !== word[i]) return -1;
  return at + word.length;
}

function isSame(bytes: Uint8Array, aStart: number, aEnd: number, bStart: number, bEnd: number): boolean {
  if (aEnd - aStart !== bEnd - bStart) return false;
  for (let i = 0; i < aEnd - aStart; i += 1) if (bytes[aStart + i] !== bytes[bStart + i]) return false;
  return true;
}
