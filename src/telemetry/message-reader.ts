/**
 * Reads the records of one telemetry message from its bytes into rows. Usual records take one pass over the bytes. Rare
 * values (escapes, exponents, long numbers) go through the exact reader (`value/json.ts`) one by one. An unusual record
 * (a repeated name, `values` before `ts`, malformed JSON) is read again by the exact reader, which decides: the fast
 * reader never refuses. One object serves all messages of the event loop, so that a message allocates nothing.
 */
import { isUtf8 } from 'node:buffer';
import { assert, badRequest } from '../base/errors.ts';
import { decimal, powersOfTen } from '../value/decimal.ts';
import { invalidUtf8, JsonReader, startOfJson } from '../value/json.ts';
import { endOfPlain } from '../value/plain.ts';
import { Kind, typedValue } from '../value/typed.ts';
import { type DecodeOptions, tooManyPoints } from './decode-options.ts';
import { hashFactor, hashStart, internKey, Key, nextKey } from './keys.ts';
import { addRecord, type Form, type TelemetrySource, wrongShape } from './record.ts';
import { newMark, type Rows } from './rows.ts';

/** Bytes of JSON. */
const quote = 0x22;
const comma = 0x2c;
const minus = 0x2d;
const colon = 0x3a;
const openBracket = 0x5b;
const backslash = 0x5c;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;
/** '.', 'e' and 'E' by their distance from '0'. */
const point = 0x2e - 0x30;
const smallE = 0x65 - 0x30;
const largeE = 0x45 - 0x30;

const empty = new Uint8Array();
const valuesName = Buffer.from('"values"');
const metadataName = Buffer.from('"metadata"');
const trueWord = Buffer.from('true');
const falseWord = Buffer.from('false');
const nullWord = Buffer.from('null');
/** The predecessor of the first key of a record, because devices of a kind send their keys in the same order. */
const beforeFirst = new Key(empty, hashStart);

const recordMark = newMark();

/**
 * Expects calls in this order: for the message of a device `read`; for a gateway's body `open`, `records` for each
 * device, and `finish`; at last `release`, also after a Fault.
 */
export class MessageReader {
  readonly #form: Form;
  readonly #isFast: boolean;
  /** Objects down to this depth may be records, in which `ts` and `values` have a meaning. */
  readonly #recordDepth: number;
  #body: Uint8Array = empty;
  /** The number of the device whose records are read. */
  #device = 0;
  #now = 0;
  #rows: Rows | undefined;
  #options: DecodeOptions = {
    castNumericStrings: false,
    lenientJson: false,
    pointsPerMessageMax: 0,
    pastMsMax: 0,
    futureMsMax: 0,
    convertsUnits: false,
    fastPastMsMax: 0,
  };
  /**
   * Index of the last byte that is not blank. This byte must be `}` or `]`, which stops every search except that for
   * the end of a string.
   */
  #last = 0;
  #countMax = 0;
  /** True when bytes above 0x7f were not inspected: the body must be checked to be UTF-8. */
  #unchecked = false;
  #reader: JsonReader | undefined;

  /** `exact`: the exact reader reads each record. */
  constructor(form: Form, by: 'fast' | 'exact' = 'fast') {
    this.#form = form;
    this.#isFast = by === 'fast';
    this.#recordDepth = form === 'device' ? 2 : 3;
  }

  /** Adds the records of a device's message. Throws a Fault; then rows of the message may be left over. */
  read(body: Uint8Array, device: TelemetrySource, now: number, rows: Rows, options: DecodeOptions): void {
    if (body.length === 0) throw badRequest('empty_body', 'The body is empty: expected a JSON object or array.');
    let at = this.open(body, now, rows, options);
    this.#device = device.number;
    const last = this.#last;
    const opens = body[at];
    const closes = body[last];
    if (opens === openBrace && closes === closeBrace) at = this.#record(at, 1);
    else if (opens === openBracket && closes === closeBracket) at = this.#records(at);
    else this.#refuse();
    if (at <= last) this.#refuse();
    this.finish();
  }

  /** Begins a message. Returns the index of the first byte that is not blank. */
  open(body: Uint8Array, now: number, rows: Rows, options: DecodeOptions): number {
    assert(this.#rows === undefined, 'a message is read to its end before the next one');
    this.#body = body;
    this.#now = now;
    this.#rows = rows;
    this.#options = options;
    this.#unchecked = false;
    this.#reader = undefined;
    this.#countMax = rows.count + options.pointsPerMessageMax;
    const first = skipBlank(body, startOfJson(body));
    let last = body.length - 1;
    while (last > first && isBlank(body[last]!)) last -= 1;
    this.#last = last;
    return first;
  }

  /** Index of the last byte that is not blank. */
  get last(): number {
    return this.#last;
  }

  /**
   * Adds the records of `device` from the array at `at`; returns the offset after the array. Returns -1 or throws a
   * Fault for an unusual array, which the caller reads exactly; then rows of the device may be left over.
   */
  records(at: number, device: number): number {
    if (this.#body[at] !== openBracket) return -1;
    this.#device = device;
    return this.#records(at);
  }

  /** Throws when uninspected bytes are not UTF-8. */
  finish(): void {
    if (this.#unchecked && !isUtf8(this.#body)) throw invalidUtf8();
  }

  /** Drops all references to the message, which the reused object would otherwise keep in memory. */
  release(): void {
    this.#body = empty;
    this.#rows = undefined;
    this.#reader = undefined;
  }

  /** Reads an array of records from its bracket; returns the offset after it. */
  #records(at: number): number {
    const body = this.#body;
    const depth = this.#recordDepth;
    at = skipBlank(body, at + 1);
    if (body[at] === closeBracket) return at + 1;
    for (;;) {
      at = skipBlank(body, this.#record(at, depth));
      if (body[at] === closeBracket) return at + 1;
      if (body[at] !== comma) this.#refuse();
      at = skipBlank(body, at + 1);
    }
  }

  #record(at: number, depth: number): number {
    const rows = this.#rows!;
    let end = -1;
    if (this.#isFast && this.#body[at] === openBrace) {
      rows.mark(recordMark);
      end = this.#fastRecord(at, depth);
      if (end < 0) rows.rollback(recordMark);
    }
    if (end < 0) end = this.#exactRecord(at, depth);
    if (rows.count > this.#countMax) throw tooManyPoints(this.#options);
    return end;
  }

  // The fast reader. Each function returns the offset after what it has read, or -1: the record must be read exactly.

  /** Reads a record from its brace. */
  #fastRecord(at: number, depth: number): number {
    const body = this.#body;
    const rows = this.#rows!;
    const countBefore = rows.count;
    const first = skipBlank(body, at + 1);
    if (body[first] !== quote || body[first + 1] !== 0x74 || body[first + 2] !== 0x73 || body[first + 3] !== quote) {
      if (this.#form === 'gateway' && isText(body, first, valuesName)) return this.#fastUntimedValues(first, depth);
      const end = this.#fastMembers(first, depth);
      if (end > 0 && rows.count > countBefore) rows.endRecordNow(this.#device, this.#now);
      return end;
    }
    // Expects exactly "ts":<digits>,"values":{…}}.
    at = skipBlank(body, first + 4);
    if (body[at] !== colon) return -1;
    at = skipBlank(body, at + 1);
    const tsStart = at;
    let ts = 0;
    let digit = body[at]! - 0x30;
    for (; digit >= 0 && digit <= 9; digit = body[++at]! - 0x30) ts = ts * 10 + digit;
    // No leading zero, and few enough digits for an exact number.
    if (at === tsStart || at - tsStart > 15 || (body[tsStart] === 0x30 && at - tsStart > 1)) return -1;
    at = skipBlank(body, at);
    if (body[at] !== comma) return -1;
    at = skipBlank(body, at + 1);
    if (!isText(body, at, valuesName) || !this.#isFastTime(ts)) return -1;
    at = this.#fastValuesObject(at + valuesName.length, depth);
    if (at > 0 && rows.count > countBefore) rows.endRecord(this.#device, ts);
    return at;
  }

  #isFastTime(ts: number): boolean {
    const { fastPastMsMax, futureMsMax } = this.#options;
    return ts >= this.#now - fastPastMsMax && ts <= this.#now + futureMsMax;
  }

  /** Reads `"values":{…}}` of a gateway, at server time, from its quote. */
  #fastUntimedValues(at: number, depth: number): number {
    const rows = this.#rows!;
    const countBefore = rows.count;
    at = this.#fastValuesObject(at + valuesName.length, depth);
    if (at > 0 && rows.count > countBefore) rows.endRecordNow(this.#device, this.#now);
    return at;
  }

  /** Reads `:{…}}`, and a gateway's `metadata` before the last brace, starting after the name `values`. */
  #fastValuesObject(at: number, depth: number): number {
    const body = this.#body;
    at = skipBlank(body, at);
    if (body[at] !== colon) return -1;
    at = skipBlank(body, at + 1);
    if (body[at] !== openBrace) return -1;
    at = this.#fastMembers(skipBlank(body, at + 1), depth + 1);
    if (at < 0) return -1;
    at = skipBlank(body, at);
    if (body[at] === comma && this.#form === 'gateway') at = this.#skipMetadata(at + 1, depth);
    return at > 0 && body[at] === closeBrace ? at + 1 : -1;
  }

  /** Skips a gateway's metadata about its connector, which is not data, and blanks. */
  #skipMetadata(at: number, depth: number): number {
    const body = this.#body;
    at = skipBlank(body, at);
    if (!isText(body, at, metadataName)) return -1;
    at = skipBlank(body, at + metadataName.length);
    if (body[at] !== colon) return -1;
    at = skipBlank(body, at + 1);
    if (body[at] !== openBrace) return -1;
    this.#unchecked = true;
    at = endOfPlain(body, at, this.#last, depth + 1);
    return at < 0 ? -1 : skipBlank(body, at);
  }

  /**
   * Reads members from the first name (or the closing brace) on, and the closing brace. Values and blanks are read in
   * this loop, because functions of their own cost 4 % of a message.
   */
  #fastMembers(at: number, depth: number): number {
    const body = this.#body;
    const rows = this.#rows!;
    const last = this.#last;
    const cast = this.#options.castNumericStrings;
    const record = nextRecord();
    let previous = beforeFirst;
    let byte = body[at]!;
    if (byte === closeBrace) return at + 1;
    for (;;) {
      if (byte !== quote) return -1;
      const keyStart = ++at;
      let key = nextKey(previous, body, at, last);
      if (key !== undefined) at += key.bytes.length;
      else {
        let hash = hashStart;
        for (byte = body[at]!; byte !== quote; byte = body[++at]!) {
          if (byte < 0x20 || byte === backslash || at >= last) return -1;
          hash = Math.imul(hash ^ byte, hashFactor);
        }
        key = internKey(body, keyStart, at, hash);
        // Only a cached key is recognized when it is repeated.
        if (key === undefined || key.place < 0) return -1;
        previous.next = key.place;
      }
      previous = key;
      // A repeated name, and `ts` or `values` in a record, need the exact reader.
      if (key.record === record || (key.reserved && depth <= this.#recordDepth)) return -1;
      key.record = record;
      byte = body[++at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;
      if (byte !== colon) return -1;
      byte = body[++at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;

      if (byte === quote) at = this.#fastString(key, at + 1, last, cast);
      else if (byte === minus || (byte >= 0x30 && byte <= 0x39)) at = this.#fastNumber(key, at);
      else if (byte === 0x74 && isWord(body, at, trueWord)) {
        rows.addBoolean(key, true);
        at += 4;
      } else if (byte === 0x66 && isWord(body, at, falseWord)) {
        rows.addBoolean(key, false);
        at += 5;
      } else if (byte === 0x6e && isWord(body, at, nullWord)) at += 4;
      else if (byte === openBrace || byte === openBracket) at = this.#fastJson(key, at, last, depth + 1);
      else return -1;
      if (at < 0) return -1;

      byte = body[at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;
      if (byte === closeBrace) return at + 1;
      if (byte !== comma) return -1;
      byte = body[++at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;
    }
  }

  /** Reads a string, starting after its quote. */
  #fastString(key: Key, start: number, last: number, cast: boolean): number {
    const body = this.#body;
    let at = start;
    let seen = 0;
    for (let byte = body[at]!; byte !== quote; byte = body[++at]!) {
      if (byte < 0x20 || at >= last) return -1;
      if (byte === backslash) return this.#exactValue(key, start - 1, 0);
      seen |= byte;
    }
    if (seen > 0x7f) this.#unchecked = true;
    const first = body[start]!;
    if (cast && first <= 0x39 && first >= minus && looksNumeric(body, start, at)) {
      return this.#exactValue(key, start - 1, 0);
    }
    this.#rows!.addText(key, Kind.string, body, start, at);
    return at + 1;
  }

  /** A number of up to 15 digits, or 16 below 2^53, is exact as an integer, or after one correctly rounded division. */
  #fastNumber(key: Key, start: number): number {
    const body = this.#body;
    const negative = body[start] === minus;
    const wholeStart = negative ? start + 1 : start;
    let at = wholeStart;
    let value = 0;
    let digit = body[at]! - 0x30;
    for (; digit >= 0 && digit <= 9; digit = body[++at]! - 0x30) value = value * 10 + digit;
    const whole = at - wholeStart;
    if (whole === 0 || (whole > 1 && body[wholeStart] === 0x30)) return -1;
    if (digit !== point) {
      if (whole > 16 || value >= 2 ** 53 || digit === smallE || digit === largeE)
        return this.#exactValue(key, start, 0);
      this.#rows!.addLong(key, negative && value !== 0 ? -value : value);
      return at;
    }
    for (digit = body[++at]! - 0x30; digit >= 0 && digit <= 9; digit = body[++at]! - 0x30) value = value * 10 + digit;
    const fraction = at - wholeStart - whole - 1;
    if (fraction === 0) return -1;
    if (digit === smallE || digit === largeE) return this.#exactValue(key, start, 0);
    if (whole + fraction <= 16 && value < 2 ** 53) value /= powersOfTen[fraction]!;
    else if (whole + fraction <= 22) value = longDecimal(body, wholeStart, at, fraction);
    else return this.#exactValue(key, start, 0);
    if (Number.isNaN(value)) return this.#exactValue(key, start, 0);
    // The store has no negative zero.
    this.#rows!.addDouble(key, negative && value !== 0 ? -value : value);
    return at;
  }

  #fastJson(key: Key, at: number, last: number, depth: number): number {
    const end = endOfPlain(this.#body, at, last, depth);
    if (end < 0) return this.#exactValue(key, at, depth);
    this.#unchecked = true;
    this.#rows!.addText(key, Kind.json, this.#body, at, end);
    return end;
  }

  // The exact reader.

  #exactRecord(at: number, depth: number): number {
    const reader = this.#exact(at);
    addRecord(reader.value(depth), this.#device, this.#now, this.#rows!, this.#options, this.#form);
    return reader.at;
  }

  #exactValue(key: Key, at: number, depth: number): number {
    const reader = this.#exact(at);
    const value = typedValue(reader.value(depth), this.#options.castNumericStrings);
    if (value) this.#rows!.addValue(key, value);
    return reader.at;
  }

  /** Returns the exact reader of the body, at `at`. */
  #exact(at: number): JsonReader {
    this.#reader ??= new JsonReader(this.#body);
    this.#reader.at = at;
    this.#unchecked = true;
    return this.#reader;
  }

  /** Throws the fault of an unexpected body. */
  #refuse(): never {
    const reader = this.#exact(startOfJson(this.#body));
    reader.value(1);
    reader.end();
    throw wrongShape();
  }
}

let lastRecord = 0;
/** Returns a number that no recent record had. After 2^30 records a false repetition only costs an exact read. */
function nextRecord(): number {
  lastRecord = (lastRecord + 1) & 0x3fffffff;
  return lastRecord;
}

function isBlank(byte: number): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
}

export function skipBlank(body: Uint8Array, at: number): number {
  while (at < body.length && isBlank(body[at]!)) at += 1;
  return at;
}

function isText(body: Uint8Array, at: number, text: Uint8Array): boolean {
  for (let i = 0; i < text.length; i += 1) if (body[at + i] !== text[i]) return false;
  return true;
}

function isWord(body: Uint8Array, at: number, word: Uint8Array): boolean {
  for (let i = 1; i < word.length; i += 1) if (body[at + i] !== word[i]) return false;
  return true;
}

/** The 16 to 22 digits around the point of `body[at..end)`. */
function longDecimal(body: Uint8Array, at: number, end: number, fraction: number): number {
  let high = 0;
  let low = 0;
  let digits = 0;
  for (; at < end; at += 1) {
    const digit = body[at]! - 0x30;
    if (digit === point) continue;
    if (digits < 15) high = high * 10 + digit;
    else low = low * 10 + digit;
    digits += 1;
  }
  return decimal(high, low, digits - 15, fraction);
}

/** True when a string may be cast to a number: only digits, a leading minus, points. */
function looksNumeric(body: Uint8Array, start: number, end: number): boolean {
  for (let i = end - 1; i >= start; i -= 1) {
    const byte = body[i]!;
    if ((byte < 0x30 || byte > 0x39) && byte !== 0x2e && (byte !== 0x2d || i > start)) return false;
  }
  return end > start;
}
