/**
 * The five types of a value (docs/http.md#values): how a JSON value gets its type, and how a stored value is written
 * out again. Doubles stay doubles (`42.0`), longs keep all 64 bits.
 */
import { limits } from '../base/limits.ts';
import { type Json, JsonNumber, writeJson } from './json.ts';

/**
 * Numbers of the column `kind`. A number never changes its meaning. 0 is the marker of a delete (table `telemetry`),
 * and 6 a record (table `latest`).
 */
export const Kind = { boolean: 1, long: 2, double: 3, string: 4, json: 5 } as const;
export type Kind = (typeof Kind)[keyof typeof Kind];

/** A value as the store has it. Members that are not used for `kind` are 0 or empty. */
export interface TypedValue {
  kind: Kind;
  /** Doubles. */
  num: number;
  /** Longs in decimal digits; booleans '0' or '1'. */
  int: string;
  /** Strings; compact JSON. */
  text: string;
}

/** Returns the typed value of a JSON value; undefined for `null`, which stores nothing. */
export function typedValue(json: Json, castNumericStrings: boolean): TypedValue | undefined {
  if (json === null) return undefined;
  if (json instanceof JsonNumber) return typedNumber(json.literal);
  if (typeof json === 'string') return (castNumericStrings ? castString(json) : undefined) ?? string(json);
  if (typeof json === 'boolean') return { kind: Kind.boolean, num: 0, int: json ? '1' : '0', text: '' };
  return { kind: Kind.json, num: 0, int: '0', text: writeJson(json) };
}

/**
 * Returns the typed value of a JSON number literal, which is finite (`JsonReader`). A whole number is a long; beyond 64
 * bits, it is the string of its digits. A number with a fraction is a double. A number with an exponent is a long if
 * its value is whole and fits, else a double.
 */
export function typedNumber(literal: string): TypedValue {
  const exponentAt = Math.max(literal.indexOf('e'), literal.indexOf('E'));
  if (exponentAt >= 0) return scaled(literal, exponentAt);
  if (literal.includes('.')) return double(Number(literal));
  return long(literal) ?? string(literal);
}

/**
 * Returns the number that the string spells: an optional minus, and ASCII digits with at most one point, which is not
 * the last character. `"007"` is 7 and `".5"` is 0.5. Returns undefined when the string stays a string, also when
 * neither a long nor a double holds the number.
 */
export function castString(text: string): TypedValue | undefined {
  if (text.length === 0 || text.length > limits.numberCharsMax) return undefined;
  let point = false;
  const start = text.charCodeAt(0) === 0x2d ? 1 : 0;
  for (let i = start; i < text.length; i += 1) {
    const code = text.charCodeAt(i);
    if (code === 0x2e && !point) point = true;
    else if (code < 0x30 || code > 0x39) return undefined;
  }
  const last = text.charCodeAt(text.length - 1);
  if (last === 0x2e || last === 0x2d) return undefined;
  if (!point) return long(text);
  const num = Number(text);
  return Number.isFinite(num) ? double(num) : undefined;
}

/** Returns the JSON of a value: `42.0`, `73`, `"text"`, nested JSON. */
export function strictForm(value: TypedValue): string {
  switch (value.kind) {
    case Kind.boolean:
      return value.int === '0' ? 'false' : 'true';
    case Kind.long:
      return value.int;
    case Kind.double:
      return doubleText(value.num);
    case Kind.string:
      return JSON.stringify(value.text);
    case Kind.json:
      return value.text;
  }
}

/** Returns the older REST form, in which every value is a JSON string, and a double always has a point: `"42.0"`. */
export function stringForm(value: TypedValue): string {
  if (value.kind === Kind.string) return JSON.stringify(value.text);
  return JSON.stringify(value.kind === Kind.double ? javaText(value.num) : strictForm(value));
}

/** Returns the digits of `doubleText` in the notation of Java: `1.23456785E7` from 10^7 up and below 10^-3. */
function javaText(num: number): string {
  const size = Math.abs(num);
  if (num === 0 || (size >= 1e-3 && size < 1e7)) return doubleText(num);
  const [digits, exponent] = num.toExponential().split('e') as [string, string];
  return `${digits.includes('.') ? digits : `${digits}.0`}E${Number(exponent)}`;
}

/** Returns a double in a notation that is read back as a double. */
export function doubleText(num: number): string {
  const text = String(num);
  return Number.isInteger(num) && !text.includes('e') ? `${text}.0` : text;
}

function string(text: string): TypedValue {
  return { kind: Kind.string, num: 0, int: '0', text };
}

function double(num: number): TypedValue {
  // Plus zero: -0.0 is stored as 0.0.
  return { kind: Kind.double, num: num + 0, int: '0', text: '' };
}

/** Returns the long of an optional minus and digits; undefined beyond 64 bits. */
function long(text: string): TypedValue | undefined {
  const negative = text.charCodeAt(0) === 0x2d;
  let start = negative ? 1 : 0;
  while (start < text.length - 1 && text.charCodeAt(start) === 0x30) start += 1;
  const digits = text.slice(start);
  const digitsMax = negative ? '9223372036854775808' : '9223372036854775807';
  if (digits.length > 19 || (digits.length === 19 && digits > digitsMax)) return undefined;
  return { kind: Kind.long, num: 0, int: negative && digits !== '0' ? `-${digits}` : digits, text: '' };
}

/** Returns the value of a literal with an exponent. Builds at most 19 digits, however large the exponent. */
function scaled(literal: string, exponentAt: number): TypedValue {
  const negative = literal.charCodeAt(0) === 0x2d;
  const mantissa = literal.slice(negative ? 1 : 0, exponentAt);
  const pointAt = mantissa.indexOf('.');
  const fractionLength = pointAt < 0 ? 0 : mantissa.length - pointAt - 1;
  const digits = pointAt < 0 ? mantissa : mantissa.slice(0, pointAt) + mantissa.slice(pointAt + 1);
  let start = 0;
  let end = digits.length;
  while (start < end && digits.charCodeAt(start) === 0x30) start += 1;
  while (end > start && digits.charCodeAt(end - 1) === 0x30) end -= 1;
  if (start === end) return long('0')!;
  const zeros = Number(literal.slice(exponentAt + 1)) - fractionLength + (digits.length - end);
  if (zeros >= 0 && end - start + zeros <= 19) {
    const whole = long((negative ? '-' : '') + digits.slice(start, end) + '0'.repeat(zeros));
    if (whole) return whole;
  }
  return double(Number(literal));
}
