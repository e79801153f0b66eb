/**
 * Exact JSON: parses bytes into a small tree, and writes it. Strict RFC 8259; a leading byte-order mark is allowed. A
 * number keeps its literal (`42.0`, all 64 bits). An object is a Map in member order; of equal names the last value
 * counts, at the place of the first; `__proto__` is an ordinary name. Every refusal is a Fault.
 */
import { isUtf8 } from 'node:buffer';
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';

export class JsonNumber {
  /** The literal as written: a valid JSON number; with a fraction or an exponent it is finite as a double. */
  readonly literal: string;

  constructor(literal: string) {
    this.literal = literal;
  }
}

export type JsonObject = Map<string, Json>;
export type Json = null | boolean | string | JsonNumber | Json[] | JsonObject;

export function readJson(bytes: Uint8Array): Json {
  if (!isUtf8(bytes)) throw invalidUtf8();
  const reader = new JsonReader(bytes);
  reader.at = startOfJson(bytes);
  const json = reader.value(1);
  reader.end();
  return json;
}

/** Returns the start of the JSON, after a byte-order mark. */
export function startOfJson(bytes: Uint8Array): number {
  return bytes.length >= 3 && bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? 3 : 0;
}

/** Returns the offset after the blanks at `at`. */
export function endOfBlank(bytes: Uint8Array, at: number): number {
  let end = at;
  while (bytes[end] === 0x20 || bytes[end] === 0x0a || bytes[end] === 0x0d || bytes[end] === 0x09) end += 1;
  return end;
}

export function invalidUtf8(): Fault {
  return badRequest('invalid_utf8', 'The body is not valid UTF-8.');
}

/** `expected` at the byte `at` of a body of `length` bytes. */
export function malformedJson(expected: string, at: number, length: number): Fault {
  const place = at < length ? `byte ${at}` : 'its end';
  return badRequest('malformed_json', `The body is not valid JSON: expected ${expected} at ${place}.`);
}

export function tooDeep(): Fault {
  return badRequest('json_too_deep', `The JSON is nested deeper than ${limits.jsonDepthMax} levels.`);
}

/** Writes compact JSON with member order and number literals unchanged. */
export function writeJson(json: Json): string {
  if (json instanceof JsonNumber) return json.literal;
  if (json instanceof Map) {
    let text = '{';
    for (const [name, member] of json) {
      if (text.length > 1) text += ',';
      text += `${JSON.stringify(name)}:${writeJson(member)}`;
    }
    return `${text}}`;
  }
  if (Array.isArray(json)) return `[${json.map(writeJson).join(',')}]`;
  return JSON.stringify(json);
}

/** Reads value by value; the caller has checked, or will check, that the bytes are UTF-8. */
export class JsonReader {
  /** Offset of the next byte to read; after a value was read, the offset after that value. */
  at = 0;
  readonly #bytes: Buffer;

  constructor(bytes: Uint8Array) {
    this.#bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  /** `depth` of the value to read: 1 for the root. */
  value(depth: number): Json {
    this.#skipBlank();
    switch (this.#bytes[this.at]) {
      case 0x22:
        return this.#string();
      case 0x7b:
        return this.#object(depth);
      case 0x5b:
        return this.#array(depth);
      case 0x74:
        return this.#word('true', true);
      case 0x66:
        return this.#word('false', false);
      case 0x6e:
        return this.#word('null', null);
      default:
        return this.#number();
    }
  }

  /** Throws unless only blanks follow. */
  end(): void {
    this.#skipBlank();
    if (this.at < this.#bytes.length) throw this.#malformed('the end of the body');
  }

  #object(depth: number): JsonObject {
    this.#checkDepth(depth);
    const members: JsonObject = new Map();
    this.at += 1;
    if (this.#take(0x7d)) return members;
    do {
      this.#skipBlank();
      if (this.#bytes[this.at] !== 0x22) throw this.#malformed('a member name in double quotes');
      const name = this.#string();
      if (!this.#take(0x3a)) throw this.#malformed('":"');
      members.set(name, this.value(depth + 1));
    } while (this.#take(0x2c));
    if (!this.#take(0x7d)) throw this.#malformed('"," or "}"');
    return members;
  }

  #array(depth: number): Json[] {
    this.#checkDepth(depth);
    const items: Json[] = [];
    this.at += 1;
    if (this.#take(0x5d)) return items;
    do items.push(this.value(depth + 1));
    while (this.#take(0x2c));
    if (!this.#take(0x5d)) throw this.#malformed('"," or "]"');
    return items;
  }

  #string(): string {
    const bytes = this.#bytes;
    let start = this.at + 1;
    let text = '';
    let escaped = false;
    for (let at = start; ; at += 1) {
      const byte = bytes[at];
      if (byte === 0x22) {
        this.at = at + 1;
        text += bytes.toString('utf8', start, at);
        // Only an escape can produce an unpaired surrogate, which has no UTF-8 form.
        if (escaped && /\p{Surrogate}/u.test(text))
          throw badRequest('lone_surrogate', 'A string holds half a surrogate pair.');
        return text;
      }
      if (byte === 0x5c) {
        text += bytes.toString('utf8', start, at);
        this.at = at;
        text += this.#escape();
        escaped = true;
        start = this.at;
        at = start - 1;
      } else if (byte === undefined || byte < 0x20) {
        this.at = at;
        throw this.#malformed(byte === undefined ? 'the end of a string' : 'no raw control character in a string');
      }
    }
  }

  /** Reads the escape at `at` and moves past it. */
  #escape(): string {
    const letter = this.#bytes[this.at + 1];
    const plain = letter === undefined ? undefined : plainEscapes.get(letter);
    if (plain !== undefined) {
      this.at += 2;
      return plain;
    }
    if (letter !== 0x75) throw this.#malformed('a valid escape');
    const digits = this.#bytes.toString('latin1', this.at + 2, this.at + 6);
    if (!/^[0-9A-Fa-f]{4}$/.test(digits)) throw this.#malformed('four hexadecimal digits');
    if (digits === '0000') throw badRequest('nul_character', 'A string holds the character NUL (\\u0000).');
    this.at += 6;
    return String.fromCharCode(Number.parseInt(digits, 16));
  }

  #number(): JsonNumber {
    const start = this.at;
    const bytes = this.#bytes;
    if (bytes[this.at] === 0x2d) this.at += 1;
    if (bytes[this.at] === 0x30) this.at += 1;
    else this.#digits('a value');
    const wholeEnd = this.at;
    if (bytes[this.at] === 0x2e) {
      this.at += 1;
      this.#digits('a digit');
    }
    if (bytes[this.at] === 0x65 || bytes[this.at] === 0x45) {
      this.at += 1;
      if (bytes[this.at] === 0x2b || bytes[this.at] === 0x2d) this.at += 1;
      this.#digits('a digit');
    }
    if (this.at - start > limits.numberCharsMax) {
      throw badRequest('number_too_long', `A number has more than ${limits.numberCharsMax} characters.`);
    }
    const literal = bytes.toString('latin1', start, this.at);
    if (this.at > wholeEnd && !Number.isFinite(Number(literal))) throw notFinite(literal);
    return new JsonNumber(literal);
  }

  #digits(expected: string): void {
    const start = this.at;
    const bytes = this.#bytes;
    while (bytes[this.at]! >= 0x30 && bytes[this.at]! <= 0x39) this.at += 1;
    if (this.at === start) throw this.#malformed(expected);
  }

  #word<T extends boolean | null>(word: string, value: T): T {
    if (this.#bytes.toString('latin1', this.at, this.at + word.length) !== word) throw this.#malformed('a value');
    this.at += word.length;
    return value;
  }

  #take(byte: number): boolean {
    this.#skipBlank();
    if (this.#bytes[this.at] !== byte) return false;
    this.at += 1;
    return true;
  }

  #skipBlank(): void {
    const bytes = this.#bytes;
    let byte = bytes[this.at];
    while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) byte = bytes[++this.at];
  }

  #checkDepth(depth: number): void {
    if (depth > limits.jsonDepthMax) throw tooDeep();
  }

  #malformed(expected: string): Fault {
    return malformedJson(expected, this.at, this.#bytes.length);
  }
}

const plainEscapes = new Map(
  Object.entries({ '"': '"', '\\': '\\', '/': '/', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }).map(
    ([letter, text]) => [letter.charCodeAt(0), text],
  ),
);

function notFinite(literal: string): Fault {
  const shown = literal.length > 40 ? `${literal.slice(0, 40)}…` : literal;
  return badRequest('number_not_finite', `The number ${shown} is beyond the range of a double.`);
}
