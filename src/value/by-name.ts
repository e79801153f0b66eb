/**
 * Reads a gateway's message: an object whose members are named after devices. Each member is read separately. A value
 * error inside a member (a number beyond a double, half a surrogate pair) becomes a Fault of that member, and the other
 * members count. A name that no device can have keeps the escapes of the message. Only malformed JSON refuses the whole
 * message.
 */
import { isUtf8 } from 'node:buffer';
import { badRequest, Fault } from '../base/errors.ts';
import { endOfBlank, invalidUtf8, type Json, JsonReader, startOfJson } from './json.ts';

/** Returns the members in the order of first appearance; of equal names the last one counts. */
export function readByName(body: Uint8Array): Map<string, Json | Fault> {
  const members = new Map<string, Json | Fault>();
  eachMember(body, (name, value) => members.set(name, value));
  return members;
}

/**
 * Reads one device's request: an object whose members are the parameters. Throws the Fault of the first bad member,
 * except of `passedOn`, which is forwarded unread.
 */
export function readMembers(body: Uint8Array, passedOn?: string): Map<string, Json> {
  const members = new Map<string, Json>();
  eachMember(body, (name, value) => {
    if (!(value instanceof Fault)) members.set(name, value);
    else if (name !== passedOn) throw value;
  });
  return members;
}

/** Returns the member `wanted` as the body writes it; undefined when it is absent. */
export function textOfMember(body: Uint8Array, wanted: string): string | undefined {
  let text: string | undefined;
  eachMember(body, (name, _, start, end) => {
    if (name === wanted) text = textOf(body, start, end);
  });
  return text;
}

type OnMember = (name: string, value: Json | Fault, start: number, end: number) => void;

function eachMember(body: Uint8Array, onMember: OnMember): void {
  if (body.length === 0) throw badRequest('empty_body', 'The message is empty: expected a JSON object.');
  if (!isUtf8(body)) throw invalidUtf8();
  const reader = new JsonReader(body);
  let at = endOfBlank(body, startOfJson(body));
  if (body[at] !== 0x7b) {
    reader.at = at;
    reader.value(1);
    reader.end();
    throw badRequest('wrong_shape', 'The message must be a JSON object.');
  }
  at = endOfBlank(body, at + 1);
  if (body[at] !== 0x7d) {
    for (;;) {
      if (body[at] !== 0x22) throw malformed('a member name in double quotes', at);
      const name = readMember(reader, body, at, endOfString) as string | Fault;
      const nameEnd = reader.at;
      const nameText = name instanceof Fault ? textOf(body, at + 1, nameEnd - 1) : name;
      at = endOfBlank(body, nameEnd);
      if (body[at] !== 0x3a) throw malformed('":"', at);
      at = endOfBlank(body, at + 1);
      const start = at;
      const value = readMember(reader, body, at, endOfValue);
      at = reader.at;
      onMember(nameText, name instanceof Fault ? name : value, start, at);
      at = endOfBlank(body, at);
      if (body[at] === 0x7d) break;
      if (body[at] !== 0x2c) throw malformed('"," or "}"', at);
      at = endOfBlank(body, at + 1);
    }
  }
  reader.at = at + 1;
  reader.end();
}

/** Faults of the exact reader for JSON that is well-formed. */
const contentReasons = new Set([
  'json_too_deep',
  'lone_surrogate',
  'nul_character',
  'number_not_finite',
  'number_too_long',
]);

type EndOf = (body: Uint8Array, at: number) => number;

function readMember(reader: JsonReader, body: Uint8Array, at: number, endOf: EndOf): Json | Fault {
  reader.at = at;
  try {
    return reader.value(2);
  } catch (error) {
    if (!(error instanceof Fault) || !contentReasons.has(error.reason)) throw error;
    reader.at = endOf(body, at);
    return error;
  }
}

/** Returns the offset after a skipped value. */
function endOfValue(body: Uint8Array, at: number): number {
  let depth = 0;
  for (; at < body.length; at += 1) {
    const byte = body[at]!;
    if (byte === 0x22) at = endOfString(body, at) - 1;
    else if (byte === 0x7b || byte === 0x5b) depth += 1;
    else if (byte === 0x7d || byte === 0x5d) {
      if (depth === 0) return at;
      depth -= 1;
      if (depth === 0) return at + 1;
    } else if (byte === 0x2c && depth === 0) return at;
  }
  throw malformed('"," or "}"', at);
}

function endOfString(body: Uint8Array, at: number): number {
  for (at += 1; at < body.length; at += 1) {
    if (body[at] === 0x5c) at += 1;
    else if (body[at] === 0x22) return at + 1;
  }
  throw malformed('the end of a string', at);
}

function textOf(body: Uint8Array, start: number, end: number): string {
  return Buffer.from(body.buffer, body.byteOffset + start, end - start).toString('utf8');
}

function malformed(expected: string, at: number): Fault {
  return badRequest('malformed_json', `The message is not valid JSON: expected ${expected} at byte ${at}.`);
}
