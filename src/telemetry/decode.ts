/**
 * Decodes a telemetry message into rows (docs/http.md#telemetry). Usual messages take one pass over the bytes. Rare
 * values (escapes, exponents, long numbers) go through the exact reader one by one. An unusual record (a repeated name,
 * `values` before `ts`, malformed JSON) is read again by the exact reader, which decides: the fast reader never
 * refuses. A refused message leaves no row.
 */
import { isUtf8 } from 'node:buffer';
import { assert, badRequest, Fault, tooLarge } from '../base/errors.ts';
import type { Config } from '../base/settings/config.ts';
import { inMilliseconds, type OddTime, unitOfTime } from '../diagnostics/odd-time.ts';
import { decimal, powersOfTen } from '../value/decimal.ts';
import { invalidUtf8, type Json, JsonNumber, type JsonObject, JsonReader, startOfJson } from '../value/json.ts';
import { strictAfter } from '../value/lenient.ts';
import { endOfPlain } from '../value/plain.ts';
import { Kind, typedValue } from '../value/typed.ts';
import { tsDistanceMsMax } from './block.ts';
import { hashFactor, hashStart, internKey, Key, keyFault, keyOf, nextKey } from './keys.ts';
import { newMark, type Rows } from './rows.ts';

export interface DecodeOptions {
  castNumericStrings: boolean;
  /** True: a message that is malformed is read again as lenient JSON. */
  lenientJson: boolean;
  pointsPerMessageMax: number;
  /** Accepted distance of a `ts` from now. */
  pastMsMax: number;
  futureMsMax: number;
  /** True: a `ts` that is obviously in another unit is converted. */
  convertsUnits: boolean;
  /** Accepted distance into the past of the fast reader; the exact reader reads older times. */
  quickPastMsMax: number;
}

/** With conversion of seconds: the fast reader passes on unchanged the times within this distance. */
const unconvertedPastMsMax = 20 * 365 * 86_400_000;

/** The kind of sender: a gateway's records are in arrays under the names of devices, with further rules. */
type Form = 'device' | 'gateway';

/** The device of the points. */
export interface TelemetrySource {
  readonly number: number;
}

export function decodeOptions(config: Config): DecodeOptions {
  const { pastDaysMax, futureDaysMax, pointsPerMessageMax, tsUnit } = config.telemetry;
  const distance = (days: number): number =>
    days === 0 ? tsDistanceMsMax : Math.min(days * 86_400_000, tsDistanceMsMax);
  return {
    castNumericStrings: config.values.castNumericStrings,
    lenientJson: config.values.lenientJson,
    pointsPerMessageMax,
    pastMsMax: distance(pastDaysMax),
    futureMsMax: distance(futureDaysMax),
    convertsUnits: tsUnit === 'auto',
    quickPastMsMax: tsUnit === 'auto' ? Math.min(distance(pastDaysMax), unconvertedPastMsMax) : distance(pastDaysMax),
  };
}

/** Adds the points of a message to `rows` and returns their number; a Fault leaves `rows` unchanged. */
export function decodeTelemetry(
  body: Uint8Array,
  device: TelemetrySource,
  now: number,
  rows: Rows,
  options: DecodeOptions,
): number {
  rows.mark(messageMark);
  const countBefore = rows.count;
  try {
    message.read(body, device, now, rows, options, true);
  } catch (error) {
    rows.rollback(messageMark);
    if (!options.lenientJson) throw error;
    message.release();
    return decodeTelemetry(strictAfter(error, body), device, now, rows, { ...options, lenientJson: false });
  } finally {
    message.release();
  }
  return rows.count - countBefore;
}

/** Decodes strict JSON with the exact reader alone. Tests compare the fast reader with this function. */
export function decodeTelemetryExactly(
  body: Uint8Array,
  device: TelemetrySource,
  now: number,
  rows: Rows,
  options: DecodeOptions,
): number {
  const exact = new Message('device');
  const mark = rows.mark();
  try {
    exact.read(body, device, now, rows, options, false);
  } catch (error) {
    rows.rollback(mark);
    throw error;
  }
  return rows.count - mark.count;
}

/**
 * Adds one element: `{"ts":…,"values":{…}}` or bare members at server time. `form` gateway: also `{"values":{…}}` at
 * server time, which only the gateway's protocol allows (docs/mqtt.md#gateways).
 */
export function addElement(
  json: Json,
  device: TelemetrySource,
  now: number,
  rows: Rows,
  options: DecodeOptions,
  form: Form = 'device',
): void {
  if (!(json instanceof Map)) throw form === 'device' ? wrongShape() : wrongRecord();
  const timed = json.has('ts') && json.has('values');
  if (!timed) {
    const inner = form === 'gateway' ? json.get('values') : undefined;
    const members = inner instanceof Map ? inner : json;
    if (addMembers(members, rows, options)) rows.endRecordNow(device.number, now);
    return;
  }
  const given = readTs(json.get('ts')!);
  const unit = options.convertsUnits && given !== undefined ? unitOfTime(given, now) : undefined;
  const ts = unit === undefined ? given : inMilliseconds(given!, unit);
  if (ts === undefined || !isNear(ts, now, options)) throw wrongTs(json.get('ts')!, ts, options, now);
  const values = json.get('values')!;
  if (!(values instanceof Map)) throw badRequest('wrong_shape', 'The member "values" must be an object.');
  if (!addMembers(values, rows, options)) return;
  rows.endRecord(device.number, ts);
  if (unit !== undefined) rows.noteConverted(given!, unit);
}

/** True when at least one row was added. */
function addMembers(members: JsonObject, rows: Rows, options: DecodeOptions): boolean {
  const countBefore = rows.count;
  for (const [name, json] of members) {
    const key = keyOf(name);
    if (!key) throw badRequest('bad_key', keyFault(name) ?? 'A key is not valid text.');
    const value = typedValue(json, options.castNumericStrings);
    if (value) rows.addValue(key, value);
  }
  return rows.count > countBefore;
}

/** Returns the milliseconds of an integer, of a number (truncated), or of a string of digits. */
function readTs(json: Json): number | undefined {
  const text =
    json instanceof JsonNumber ? json.literal : typeof json === 'string' && /^-?\d+$/.test(json) ? json : undefined;
  // Adding zero avoids a ts of -0.
  return text === undefined ? undefined : Math.trunc(Number(text)) + 0;
}

function isNear(ts: number, now: number, options: DecodeOptions): boolean {
  return ts >= now - options.pastMsMax && ts <= now + options.futureMsMax;
}

function isQuick(ts: number, now: number, options: DecodeOptions): boolean {
  return ts >= now - options.quickPastMsMax && ts <= now + options.futureMsMax;
}

function wrongTs(json: Json, ts: number | undefined, options: DecodeOptions, now: number) {
  if (ts === undefined)
    return badRequest('bad_ts', 'The member "ts" must be a whole number of milliseconds since 1970.');
  const days = Math.floor((ts < now ? options.pastMsMax : options.futureMsMax) / 86_400_000);
  const shown = String(json instanceof JsonNumber ? json.literal : json).slice(0, 40);
  const unit = unitOfTime(ts, now);
  const hint = unit === undefined ? '' : ` It looks like ${unit}: send milliseconds.`;
  const message = `The member "ts" is ${shown}: it may be at most ${days} days from now.${hint}`;
  const kind = unit ?? (ts > now ? 'ahead' : undefined);
  return new TimeFault(message, kind && { kind, ts });
}

/** The refusal of a record for its time. */
export class TimeFault extends Fault {
  readonly oddTime: OddTime | undefined;

  constructor(message: string, oddTime: OddTime | undefined) {
    super('ts_out_of_range', message);
    this.oddTime = oddTime;
  }
}

function wrongRecord() {
  return badRequest('wrong_shape', 'Each record must be an object.');
}

function wrongShape() {
  return badRequest('wrong_shape', 'The body must be an object or an array of objects.');
}

/**
 * Reads one message. One object serves all messages of the event loop, so that a message allocates nothing. For a
 * gateway's body call `open`, then `records` for each device, then `finish`.
 */
export class Message {
  readonly #form: Form;
  /** Objects down to this depth may be records, in which `ts` and `values` have a meaning. */
  readonly #recordDepth: number;
  #body: Uint8Array = empty;
  #device: TelemetrySource = noDevice;
  #now = 0;
  #rows: Rows | undefined;
  #options: DecodeOptions = {
    castNumericStrings: false,
    lenientJson: false,
    pointsPerMessageMax: 0,
    pastMsMax: 0,
    futureMsMax: 0,
    convertsUnits: false,
    quickPastMsMax: 0,
  };
  /** The last byte that is not blank, `}` or `]`: only the search for the end of a string can pass it. */
  #last = 0;
  #countMax = 0;
  /** True when bytes above 0x7f were not inspected: the body must be checked to be UTF-8. */
  #unchecked = false;
  #reader: JsonReader | undefined;

  constructor(form: Form) {
    this.#form = form;
    this.#recordDepth = form === 'device' ? 2 : 3;
  }

  read(
    body: Uint8Array,
    device: TelemetrySource,
    now: number,
    rows: Rows,
    options: DecodeOptions,
    fast: boolean,
  ): void {
    if (body.length === 0) throw badRequest('empty_body', 'The body is empty: expected a JSON object or array.');
    let at = this.open(body, now, rows, options);
    this.#device = device;
    const countMax = this.#countMax;
    const last = this.#last;
    const opens = body[at];
    const closes = body[last];
    if (opens === 0x7b && closes === 0x7d) at = this.#element(at, 1, fast, countMax);
    else if (opens === 0x5b && closes === 0x5d) at = this.#elements(at, fast, countMax);
    else this.#refuse();
    if (at <= last) this.#refuse();
    this.finish();
  }

  /** Returns the first byte that is not blank. */
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

  /** The last byte that is not blank. */
  get last(): number {
    return this.#last;
  }

  /**
   * Adds the records of `device` from the array at `at`; returns the offset after the array. Returns -1 or throws a
   * Fault for an unusual array, which the caller reads exactly; then rows of the device may be left over.
   */
  records(at: number, device: TelemetrySource): number {
    if (this.#body[at] !== 0x5b) return -1;
    this.#device = device;
    return this.#elements(at, true, this.#countMax);
  }

  /** Throws when uninspected bytes are not UTF-8. */
  finish(): void {
    if (this.#unchecked && !isUtf8(this.#body)) throw invalidUtf8();
  }

  /** Called when the caller passed over bytes above 0x7f. */
  noteUnchecked(): void {
    this.#unchecked = true;
  }

  /** Drops all references to the message, which the reused object would otherwise keep in memory. */
  release(): void {
    this.#body = empty;
    this.#device = noDevice;
    this.#rows = undefined;
    this.#reader = undefined;
  }

  #elements(at: number, fast: boolean, countMax: number): number {
    const body = this.#body;
    const depth = this.#recordDepth;
    at = skipBlank(body, at + 1);
    if (body[at] === 0x5d) return at + 1;
    for (;;) {
      at = skipBlank(body, this.#element(at, depth, fast, countMax));
      if (body[at] === 0x5d) return at + 1;
      if (body[at] !== 0x2c) this.#refuse();
      at = skipBlank(body, at + 1);
    }
  }

  #element(at: number, depth: number, fast: boolean, countMax: number): number {
    const rows = this.#rows!;
    let end = -1;
    if (fast && this.#body[at] === 0x7b) {
      rows.mark(elementMark);
      end = this.#quickElement(at, depth);
      if (end < 0) rows.rollback(elementMark);
    }
    if (end < 0) {
      const reader = this.#exact(at);
      addElement(reader.value(depth), this.#device, this.#now, rows, this.#options, this.#form);
      end = reader.at;
    }
    if (rows.count > countMax) {
      const { pointsPerMessageMax } = this.#options;
      throw tooLarge('too_many_points', `The message holds more than ${pointsPerMessageMax} data points.`);
    }
    return end;
  }

  /** Reads an element from its brace; returns the offset after it, or -1 when the element must be read exactly. */
  #quickElement(at: number, depth: number): number {
    const body = this.#body;
    const rows = this.#rows!;
    const countBefore = rows.count;
    const first = skipBlank(body, at + 1);
    if (body[first] !== 0x22 || body[first + 1] !== 0x74 || body[first + 2] !== 0x73 || body[first + 3] !== 0x22) {
      if (this.#form === 'gateway' && isText(body, first, valuesName)) return this.#quickValues(first, depth);
      const end = this.#quickMembers(first, depth);
      if (end > 0 && rows.count > countBefore) rows.endRecordNow(this.#device.number, this.#now);
      return end;
    }
    // Expects exactly "ts":<digits>,"values":{…}}.
    at = skipBlank(body, first + 4);
    if (body[at] !== 0x3a) return -1;
    at = skipBlank(body, at + 1);
    const tsStart = at;
    let ts = 0;
    let digit = body[at]! - 0x30;
    for (; digit >= 0 && digit <= 9; digit = body[++at]! - 0x30) ts = ts * 10 + digit;
    // No leading zero, and few enough digits for an exact number.
    if (at === tsStart || at - tsStart > 15 || (body[tsStart] === 0x30 && at - tsStart > 1)) return -1;
    at = skipBlank(body, at);
    if (body[at] !== 0x2c) return -1;
    at = skipBlank(body, at + 1);
    if (!isText(body, at, valuesName) || !isQuick(ts, this.#now, this.#options)) return -1;
    at = this.#quickTail(at + valuesName.length, depth);
    if (at > 0 && rows.count > countBefore) rows.endRecord(this.#device.number, ts);
    return at;
  }

  /** Reads `"values":{…}}`, at server time, from its quote. */
  #quickValues(at: number, depth: number): number {
    const rows = this.#rows!;
    const countBefore = rows.count;
    at = this.#quickTail(at + valuesName.length, depth);
    if (at > 0 && rows.count > countBefore) rows.endRecordNow(this.#device.number, this.#now);
    return at;
  }

  /** Reads `:{…}}`, and a gateway's `metadata` before the last brace, starting after the name `values`. */
  #quickTail(at: number, depth: number): number {
    const body = this.#body;
    at = skipBlank(body, at);
    if (body[at] !== 0x3a) return -1;
    at = skipBlank(body, at + 1);
    if (body[at] !== 0x7b) return -1;
    at = this.#quickMembers(skipBlank(body, at + 1), depth + 1);
    if (at < 0) return -1;
    at = skipBlank(body, at);
    if (body[at] === 0x2c && this.#form === 'gateway') at = this.#skipMetadata(at + 1, depth);
    return at > 0 && body[at] === 0x7d ? at + 1 : -1;
  }

  /**
   * Skips a gateway's metadata about its connector, which is not data; returns the next place that is not blank, or -1.
   */
  #skipMetadata(at: number, depth: number): number {
    const body = this.#body;
    at = skipBlank(body, at);
    if (!isText(body, at, metadataName)) return -1;
    at = skipBlank(body, at + metadataName.length);
    if (body[at] !== 0x3a) return -1;
    at = skipBlank(body, at + 1);
    if (body[at] !== 0x7b) return -1;
    this.#unchecked = true;
    at = endOfPlain(body, at, this.#last, depth + 1);
    return at < 0 ? -1 : skipBlank(body, at);
  }

  /** Reads members from the first name (or the closing brace) on; returns the offset after the brace, or -1. */
  #quickMembers(at: number, depth: number): number {
    const body = this.#body;
    const rows = this.#rows!;
    const last = this.#last;
    const cast = this.#options.castNumericStrings;
    const record = nextRecord();
    let previous = beforeFirst;
    let byte = body[at]!;
    if (byte === 0x7d) return at + 1;
    for (;;) {
      if (byte !== 0x22) return -1;
      const keyStart = ++at;
      let key = nextKey(previous, body, at, last);
      if (key !== undefined) at += key.bytes.length;
      else {
        let hash = hashStart;
        for (byte = body[at]!; byte !== 0x22; byte = body[++at]!) {
          if (byte < 0x20 || byte === 0x5c || at >= last) return -1;
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
      if (byte !== 0x3a) return -1;
      byte = body[++at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;

      if (byte === 0x22) at = this.#quickString(key, at + 1, last, cast);
      else if (byte === 0x2d || (byte >= 0x30 && byte <= 0x39)) at = this.#quickNumber(key, at);
      else if (byte === 0x74 && isWord(body, at, trueWord)) {
        rows.addBoolean(key, true);
        at += 4;
      } else if (byte === 0x66 && isWord(body, at, falseWord)) {
        rows.addBoolean(key, false);
        at += 5;
      } else if (byte === 0x6e && isWord(body, at, nullWord)) at += 4;
      else if (byte === 0x7b || byte === 0x5b) at = this.#quickJson(key, at, last, depth + 1);
      else return -1;
      if (at < 0) return -1;

      byte = body[at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;
      if (byte === 0x7d) return at + 1;
      if (byte !== 0x2c) return -1;
      byte = body[++at]!;
      if (byte <= 0x20) byte = body[(at = skipBlank(body, at))]!;
    }
  }

  /** Reads a string, starting after its quote. */
  #quickString(key: Key, start: number, last: number, cast: boolean): number {
    const body = this.#body;
    let at = start;
    let seen = 0;
    for (let byte = body[at]!; byte !== 0x22; byte = body[++at]!) {
      if (byte < 0x20 || at >= last) return -1;
      if (byte === 0x5c) return this.#exactValue(key, start - 1, 0);
      seen |= byte;
    }
    if (seen > 0x7f) this.#unchecked = true;
    const first = body[start]!;
    if (cast && first <= 0x39 && first >= 0x2d && looksNumeric(body, start, at)) {
      return this.#exactValue(key, start - 1, 0);
    }
    this.#rows!.addText(key, Kind.string, body, start, at);
    return at + 1;
  }

  /** A number of up to 15 digits, or 16 below 2^53, is exact as an integer, or after one correctly rounded division. */
  #quickNumber(key: Key, start: number): number {
    const body = this.#body;
    const negative = body[start] === 0x2d;
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

  #quickJson(key: Key, at: number, last: number, depth: number): number {
    const end = endOfPlain(this.#body, at, last, depth);
    if (end < 0) return this.#exactValue(key, at, depth);
    this.#unchecked = true;
    this.#rows!.addText(key, Kind.json, this.#body, at, end);
    return end;
  }

  #exactValue(key: Key, at: number, depth: number): number {
    const reader = this.#exact(at);
    const value = typedValue(reader.value(depth), this.#options.castNumericStrings);
    if (value) this.#rows!.addValue(key, value);
    return reader.at;
  }

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

const empty = new Uint8Array();
const noDevice: TelemetrySource = { number: 0 };
const valuesName = Buffer.from('"values"');
const metadataName = Buffer.from('"metadata"');
const trueWord = Buffer.from('true');
const falseWord = Buffer.from('false');
const nullWord = Buffer.from('null');
/** '.', 'e' and 'E' by their distance from '0'. */
const point = 0x2e - 0x30;
const smallE = 0x65 - 0x30;
const largeE = 0x45 - 0x30;

/** The predecessor of the first key of a record, because devices of a kind send their keys in the same order. */
const beforeFirst = new Key(empty);

const message = new Message('device');
const messageMark = newMark();
const elementMark = newMark();

let lastRecord = 0;
/** Returns a number that no key has recently. After 2^30 records a false repetition only costs an exact read. */
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
