/**
 * Rewrites JSON as people and small devices write it, `{temperature: 25, 'unit': 'C',} // ok`, to strict JSON. The
 * strict readers run first. Only a body that the strict readers refuse as malformed is rewritten, so strict JSON keeps
 * its meaning and its speed. Allowed in addition: names without quotes, strings and names in single quotes, comments
 * (`//` or `#` to the end of the line, and blocks), a comma after the last element, and `true`, `false`, `null` in any
 * letter case. An unquoted word is a name, never a value, because such a value may be a broken number (`NaN`, `None`,
 * `12V`).
 */
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { malformedJson, startOfJson, tooDeep } from './json.ts';

/** Decodes the body of a sender: `strictly` or `leniently`; `read` is a strict reader. */
export type ReadBody = <Value>(body: Uint8Array, read: (strict: Uint8Array) => Value) => Value;

export const strictly: ReadBody = (body, read) => read(body);

/** Calls `read` once or twice, so a `read` that throws must change nothing. */
export const leniently: ReadBody = (body, read) => {
  try {
    return read(body);
  } catch (error) {
    return read(strictAfter(error, body));
  }
};

/** Returns the strict form of a body that a strict reader refused with `error`; throws the fault for the sender. */
export function strictAfter(error: unknown, body: Uint8Array): Uint8Array {
  if (error instanceof Fault && error.reason === 'malformed_json') return strictJson(body);
  throw error;
}

/**
 * Returns compact strict JSON with the same values. Digits and escapes are copied, so that no number changes. The
 * strict reader checks UTF-8 and finite numbers. Throws a Fault `malformed_json` or `json_too_deep`.
 */
export function strictJson(body: Uint8Array): Uint8Array {
  return new Rewriter(body).rewrite();
}

/** Rewrites in one pass, byte by byte: a hostile body costs no more than a valid one of its length. */
class Rewriter {
  readonly #body: Uint8Array;
  /**
   * A quote that must be escaped becomes two bytes. A name of one letter becomes three, and the colon and the value
   * after it stay. So the result has at most twice the bytes of the body.
   */
  readonly #out: Buffer;
  #at = 0;
  #length = 0;

  constructor(body: Uint8Array) {
    this.#body = body;
    this.#out = Buffer.allocUnsafe(2 * body.length + 2);
  }

  rewrite(): Uint8Array {
    this.#at = startOfJson(this.#body);
    this.#value(1);
    this.#skipBlank();
    if (this.#at < this.#body.length) throw this.#malformed('the end of the body');
    return this.#out.subarray(0, this.#length);
  }

  #value(depth: number): void {
    this.#skipBlank();
    const byte = this.#body[this.#at]!;
    if (byte === doubleQuote || byte === singleQuote) this.#string(byte);
    else if (byte === 0x7b) this.#object(depth);
    else if (byte === 0x5b) this.#array(depth);
    else if (byte === 0x2d || isDigit(byte)) this.#number();
    else this.#word();
  }

  #object(depth: number): void {
    this.#open(depth);
    while (!this.#isClosed(0x7d)) {
      this.#name();
      this.#skipBlank();
      if (this.#body[this.#at] !== 0x3a) throw this.#malformed('":"');
      this.#copy();
      this.#value(depth + 1);
      this.#next(0x7d, '"," or "}"');
    }
  }

  #array(depth: number): void {
    this.#open(depth);
    while (!this.#isClosed(0x5d)) {
      this.#value(depth + 1);
      this.#next(0x5d, '"," or "]"');
    }
  }

  #open(depth: number): void {
    if (depth > limits.jsonDepthMax) throw tooDeep();
    this.#copy();
    this.#skipBlank();
  }

  /** Copies the closing bracket; returns false when another byte is next. */
  #isClosed(bracket: number): boolean {
    if (this.#body[this.#at] !== bracket) return false;
    this.#copy();
    return true;
  }

  /** Moves past the comma after an element. The comma is copied unless the bracket follows. */
  #next(bracket: number, expected: string): void {
    this.#skipBlank();
    const byte = this.#body[this.#at];
    if (byte === bracket) return;
    if (byte !== 0x2c) throw this.#malformed(expected);
    this.#at += 1;
    this.#skipBlank();
    if (this.#body[this.#at] !== bracket) this.#put(0x2c);
  }

  #name(): void {
    const first = this.#body[this.#at]!;
    if (first === doubleQuote || first === singleQuote) {
      this.#string(first);
      return;
    }
    const end = this.#endOfBare();
    if (end === this.#at) throw this.#malformed('a member name');
    // Unicode blanks are copied from web pages: a key with such a blank looks like the key without it.
    if (/[\s\u200b\ufeff]/.test(this.#text(this.#at, end))) {
      throw this.#malformed('a member name (one with blanks needs quotes)');
    }
    this.#put(doubleQuote);
    this.#copyTo(end);
    this.#put(doubleQuote);
  }

  #string(quote: number): void {
    const body = this.#body;
    this.#at += 1;
    this.#put(doubleQuote);
    for (;;) {
      let end = this.#at;
      let byte = body[end]!;
      while (byte >= 0x20 && byte !== quote && byte !== doubleQuote && byte !== backslash) byte = body[++end]!;
      this.#copyTo(end);
      if (byte === quote) break;
      if (byte === backslash) this.#escape();
      else if (byte === doubleQuote) {
        this.#put(backslash);
        this.#copy();
      } else {
        throw this.#malformed(byte === undefined ? 'the end of a string' : 'no raw control character in a string');
      }
    }
    this.#at += 1;
    this.#put(doubleQuote);
  }

  #escape(): void {
    const letter = this.#body[this.#at + 1];
    if (letter === singleQuote) {
      this.#at += 1;
      this.#copy();
      return;
    }
    if (letter === undefined || !escapeLetters.includes(letter)) throw this.#malformed('a valid escape');
    this.#copy();
    this.#copy();
    if (letter !== 0x75) return;
    for (let i = 0; i < 4; i += 1) {
      if (!isHexDigit(this.#body[this.#at])) throw this.#malformed('a hexadecimal digit');
      this.#copy();
    }
  }

  #number(): void {
    const body = this.#body;
    if (body[this.#at] === 0x2d) this.#copy();
    if (body[this.#at] === 0x30) this.#copy();
    else this.#digits();
    if (body[this.#at] === 0x2e) {
      this.#copy();
      this.#digits();
    }
    if (body[this.#at] === 0x65 || body[this.#at] === 0x45) {
      this.#copy();
      if (body[this.#at] === 0x2b || body[this.#at] === 0x2d) this.#copy();
      this.#digits();
    }
  }

  #digits(): void {
    let end = this.#at;
    while (isDigit(this.#body[end])) end += 1;
    if (end === this.#at) throw this.#malformed('a digit');
    this.#copyTo(end);
  }

  #word(): void {
    const start = this.#at;
    const end = this.#endOfBare();
    if (end === start) throw this.#malformed('a value');
    const word = end - start > 5 ? '' : this.#text(start, end).toLowerCase();
    if (word !== 'true' && word !== 'false' && word !== 'null') throw this.#malformed('a value (text needs quotes)');
    for (let i = 0; i < word.length; i += 1) this.#put(word.charCodeAt(i));
    this.#at = end;
  }

  /** Returns the end of the unquoted word that starts here. */
  #endOfBare(): number {
    const body = this.#body;
    let end = this.#at;
    while (bare[body[end]!] === 1) end += 1;
    return end;
  }

  /** Moves past blanks and comments, which are not copied. */
  #skipBlank(): void {
    const body = this.#body;
    for (;;) {
      let byte = body[this.#at];
      while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) byte = body[++this.#at];
      if (byte === 0x23 || (byte === 0x2f && body[this.#at + 1] === 0x2f)) this.#skipLine();
      else if (byte === 0x2f && body[this.#at + 1] === 0x2a) this.#skipComment();
      else return;
    }
  }

  #skipLine(): void {
    const body = this.#body;
    let end = this.#at;
    while (end < body.length && body[end] !== 0x0a && body[end] !== 0x0d) end += 1;
    this.#at = end;
  }

  #skipComment(): void {
    const body = this.#body;
    let end = this.#at + 2;
    while (end < body.length && (body[end] !== 0x2a || body[end + 1] !== 0x2f)) end += 1;
    this.#at = Math.min(end + 2, body.length);
    if (end >= body.length) throw this.#malformed('the end of a comment');
  }

  #copyTo(end: number): void {
    const body = this.#body;
    const out = this.#out;
    let length = this.#length;
    for (let at = this.#at; at < end; at += 1, length += 1) out[length] = body[at]!;
    this.#length = length;
    this.#at = end;
  }

  #copy(): void {
    this.#put(this.#body[this.#at]!);
    this.#at += 1;
  }

  #put(byte: number): void {
    this.#out[this.#length] = byte;
    this.#length += 1;
  }

  #text(start: number, end: number): string {
    return Buffer.from(this.#body.buffer, this.#body.byteOffset + start, end - start).toString('utf8');
  }

  #malformed(expected: string): Fault {
    return malformedJson(expected, this.#at, this.#body.length);
  }
}

const doubleQuote = 0x22;
const singleQuote = 0x27;
const backslash = 0x5c;
const escapeLetters = Buffer.from('"\\/bfnrtu');
/** 1 for the bytes of unquoted words. */
const bare = Uint8Array.from({ length: 256 }, (_, byte) =>
  byte > 0x20 && byte !== 0x7f && !'"\'\\/{}[]:,;=#'.includes(String.fromCharCode(byte)) ? 1 : 0,
);

function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= 0x30 && byte <= 0x39;
}

function isHexDigit(byte: number | undefined): boolean {
  return isDigit(byte) || (byte !== undefined && (byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66);
}
