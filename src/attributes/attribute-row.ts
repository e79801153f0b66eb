/** The form in which attributes are stored: kinds, and values as columns. */
import { doubleText, Kind, type TypedValue } from '../value/typed.ts';

/** The kind of a row of which only the deletion is kept. */
export const deletedKind = 0;
/** The time of the database, in milliseconds. */
export const nowMs = '(extract(epoch from clock_timestamp()) * 1000)::bigint';

/** One row to write. A batch has at most one row for each (device, scope, key). */
export interface AttributeWrite {
  device: number;
  scope: number;
  key: string;
  value: TypedValue;
  ts: number;
}

export function textOf(value: TypedValue): string {
  switch (value.kind) {
    case Kind.boolean:
    case Kind.long:
      return value.int;
    case Kind.double:
      return doubleText(value.num);
    case Kind.string:
    case Kind.json:
      return value.text;
  }
}

/** Returns the rows as columns for `unnest`: device, scope, key, kind, value, ts. */
export function columnsOf(rows: AttributeWrite[]): unknown[] {
  let devices = '{';
  let scopes = '{';
  let kinds = '{';
  let times = '{';
  const keys: string[] = [];
  const values: string[] = [];
  for (const { device, scope, key, value, ts } of rows) {
    const comma = keys.length === 0 ? '' : ',';
    devices += `${comma}${device}`;
    scopes += `${comma}${scope}`;
    kinds += `${comma}${value.kind}`;
    times += `${comma}${ts}`;
    keys.push(key);
    values.push(textOf(value));
  }
  return [`${devices}}`, `${scopes}}`, textArray(keys), `${kinds}}`, textArray(values), `${times}}`];
}

/** Returns an array literal. The function of the driver costs much more, because it visits each element twice. */
function textArray(texts: string[]): string {
  let literal = '{';
  for (const text of texts) {
    if (literal.length > 1) literal += ',';
    literal += needsEscape.test(text) ? `"${text.replace(/["\\]/g, '\\$&')}"` : `"${text}"`;
  }
  return `${literal}}`;
}

const needsEscape = /["\\]/;

export function storedValue(kind: number, text: string): TypedValue {
  switch (kind) {
    case Kind.boolean:
    case Kind.long:
      return { kind, num: 0, int: text, text: '' };
    case Kind.double:
      return { kind, num: Number(text), int: '0', text: '' };
    default:
      return { kind: kind as Kind, num: 0, int: '0', text };
  }
}
