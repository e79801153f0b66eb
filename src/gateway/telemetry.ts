/**
 * Decodes a gateway's telemetry into rows of a frame, in one pass: `{"name":[{"ts":…,"values":{…}},…],…}`. The next
 * name is usually the one that followed last time, so a known child costs one comparison of bytes; any other known
 * child is found by the bytes of its name. An unusual message (a repeated name, a bad record, malformed JSON) is read
 * again as a whole by the exact reader. The exact reader refuses each child separately: the rows of a refused child are
 * rolled back, other rows stay. Both readers stop at a child that is not connected: the caller connects it and decodes
 * again.
 */
import { isUtf8 } from 'node:buffer';
import type { Admission } from '../activity/admission.ts';
import { badRequest, Fault, notFound } from '../base/errors.ts';
import type { Waiter } from '../ingest/accept.ts';
import { type DecodeOptions, tooManyPoints } from '../telemetry/decode-options.ts';
import { hashFactor, hashStart } from '../telemetry/keys.ts';
import { MessageReader, skipBlank } from '../telemetry/message-reader.ts';
import { addRecord, type TelemetrySource } from '../telemetry/record.ts';
import { newMark, type Rows } from '../telemetry/rows.ts';
import { readByName } from '../value/by-name.ts';
import { type Json, JsonReader } from '../value/json.ts';
import { strictAfter } from '../value/lenient.ts';
import type { NamedChild, NamedChildren } from './named-children.ts';
import type { WantedChild } from './names.ts';
import { Refusals } from './refusals.ts';

/** Thrown by `decode` when the message names a device that is not connected: connect `childrenOf` and decode again. */
export const unknownChild = notFound('A device of the message is not connected.');

/**
 * One message until its acknowledgement. When the rows are durable, the sender gets the outcome, which names the
 * refused children.
 */
export class GatewayTelemetry implements Waiter {
  readonly gateway: NamedChildren;
  readonly id: number;
  /** Children that could not be connected. */
  refused: ReadonlyMap<string, Fault> = noneRefused;
  refusals: Refusals | undefined = undefined;
  readonly #waiter: Waiter;

  constructor(gateway: NamedChildren, waiter: Waiter) {
    this.gateway = gateway;
    this.#waiter = waiter;
    lastMessage += 1;
    this.id = lastMessage;
  }

  get countsRefusals(): boolean {
    return true;
  }

  get receipt(): string | undefined {
    return this.#waiter.receipt;
  }

  set receipt(receipt: string | undefined) {
    this.#waiter.receipt = receipt;
  }

  acknowledge(): void {
    if (this.refusals !== undefined) this.gateway.recordRefusals(this.refusals);
    const fault = this.refusals?.fault();
    if (fault === undefined) this.#waiter.acknowledge();
    else this.#waiter.refuse(fault);
  }

  refuse(fault: Fault): void {
    this.#waiter.refuse(fault);
  }
}

interface GatewayDecoderDeps {
  options: DecodeOptions;
  touch: (device: TelemetrySource, now: number) => void;
  /** Absent in a thread, which counts nothing. */
  admission: Pick<Admission, 'isLimiting' | 'chargeChild'> | undefined;
}

export class GatewayDecoder {
  readonly #options: DecodeOptions;
  readonly #touch: GatewayDecoderDeps['touch'];
  readonly #admission: GatewayDecoderDeps['admission'];

  constructor({ options, touch, admission }: GatewayDecoderDeps) {
    this.#options = options;
    this.#touch = touch;
    this.#admission = admission;
  }

  /**
   * Decodes a message for `ingest.accept`. Throws `unknownChild`, or the Fault of the whole message; a message that
   * throws leaves no row.
   */
  readonly decode = (body: Uint8Array, message: GatewayTelemetry, now: number, rows: Rows): number => {
    try {
      return this.#decode(body, message, now, rows, 'fast');
    } catch (error) {
      if (!this.#options.lenientJson) throw error;
      return this.#decode(strictAfter(error, body), message, now, rows, 'fast');
    }
  };

  /** Decodes strict JSON with the exact reader alone. Tests compare the fast reader with this function. */
  readonly decodeExactly = (body: Uint8Array, message: GatewayTelemetry, now: number, rows: Rows): number => {
    return this.#decode(body, message, now, rows, 'exact');
  };

  /** `fast`: the exact reader reads an unusual message only. */
  #decode(body: Uint8Array, message: GatewayTelemetry, now: number, rows: Rows, by: 'fast' | 'exact'): number {
    rows.mark(messageMark);
    const countBefore = rows.count;
    message.refusals = undefined;
    try {
      if (by === 'exact' || !this.#isReadFast(body, message, now, rows)) {
        rows.rollback(messageMark);
        message.refusals = undefined;
        this.#readCarefully(body, message, now, rows);
      }
    } catch (error) {
      rows.rollback(messageMark);
      throw error;
    } finally {
      records.release();
    }
    return rows.count - countBefore;
  }

  /** Returns false when the exact reader must read the message. */
  #isReadFast(body: Uint8Array, message: GatewayTelemetry, now: number, rows: Rows): boolean {
    const { gateway } = message;
    const { spelled } = gateway;
    const isLimiting = this.#admission?.isLimiting === true;
    let at = records.open(body, now, rows, this.#options);
    const { last } = records;
    if (body[at] !== 0x7b || body[last] !== 0x7d) return false;
    at = skipBlank(body, at + 1);
    if (body[at] === 0x7d) return at === last;
    // After 2^30 messages a false repetition only costs an exact read.
    lastPass = (lastPass + 1) & 0x3fffffff;
    let acceptedCount = 0;
    let previous = 0;
    for (;;) {
      if (body[at] !== 0x22) return false;
      at += 1;
      let place = spelled.nextOf(previous);
      let end = spelled.endOf(place, body, at, last);
      if (end < 0) {
        end = endOfName(body, at, last);
        place = end < 0 ? 0 : placeNamed(gateway, body, at, end);
        if (place === 0) return false;
        if (previous !== 0) spelled.setNext(previous, place);
      }
      at = end + 1;
      // The last entry of a repeated name counts.
      if (!spelled.markNamed(place, lastPass)) return false;
      at = skipBlank(body, at);
      if (body[at] !== 0x3a) return false;
      at = skipBlank(body, at + 1);
      rows.mark(childMark);
      const device = spelled.deviceAt(place);
      at = readRecords(at, device);
      if (at < 0) return false;
      // Without a limit the object of the child is not read: no cache holds it in a large fleet.
      if (!isLimiting || this.#isAdmitted(spelled.childAt(place), message, rows)) {
        accepted[acceptedCount] = device;
        acceptedCount += 1;
      }
      previous = place;
      at = skipBlank(body, at);
      if (body[at] === 0x7d) break;
      if (body[at] !== 0x2c) return false;
      at = skipBlank(body, at + 1);
    }
    if (at < last) return false;
    records.finish();
    for (let i = 0; i < acceptedCount; i += 1) this.#touch({ number: accepted[i]! }, now);
    return true;
  }

  #readCarefully(body: Uint8Array, message: GatewayTelemetry, now: number, rows: Rows): void {
    const { gateway, refused } = message;
    const countMax = rows.count + this.#options.pointsPerMessageMax;
    const children: NamedChild[] = [];
    for (const [name, json] of readByName(body)) {
      const fault = refused.get(name) ?? faultOf(json);
      if (fault) {
        refuse(message, name, fault);
        continue;
      }
      const child = gateway.child(name);
      if (!child) throw unknownChild;
      rows.mark(childMark);
      try {
        for (const record of json as Json[]) addRecord(record, child.number, now, rows, this.#options, 'gateway');
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        rows.rollback(childMark);
        refuse(message, name, error);
        continue;
      }
      if (rows.count > countMax) throw tooManyPoints(this.#options);
      if (this.#isAdmitted(child, message, rows)) children.push(child);
    }
    for (const child of children) this.#touch(child, now);
  }

  /** Counts the points and keys of a child. Above a limit returns false and rolls back the rows of the child. */
  #isAdmitted(child: NamedChild, message: GatewayTelemetry, rows: Rows): boolean {
    const admission = this.#admission;
    if (admission === undefined || !admission.isLimiting) return true;
    // A message may be decoded twice but is counted once.
    if (child.charged !== message.id) {
      child.charged = message.id;
      child.refusal = undefined;
      try {
        admission.chargeChild(message.gateway.device, child.device, rows, childMark.count);
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        child.refusal = error;
        if (error.status === 429) child.noteRefused('rate_limit');
      }
    }
    if (child.refusal === undefined) return true;
    rows.rollback(childMark);
    refuse(message, child.name, child.refusal);
    return false;
  }
}

/** Returns the children that a message needs. Throws the Fault of the whole message. */
export function childrenOf(body: Uint8Array): WantedChild[] {
  const wanted: WantedChild[] = [];
  for (const [name, json] of readByName(body)) if (!faultOf(json)) wanted.push({ name, type: '' });
  return wanted;
}

function faultOf(json: Json | Fault): Fault | undefined {
  if (json instanceof Fault) return json;
  return Array.isArray(json) ? undefined : noArray;
}

function refuse(message: GatewayTelemetry, name: string, fault: Fault): void {
  message.refusals ??= new Refusals();
  message.refusals.add(name, fault);
}

/** Returns the offset after the records, or -1 when the exact reader must decide, also for a Fault. */
function readRecords(at: number, device: number): number {
  try {
    return records.records(at, device);
  } catch (error) {
    if (error instanceof Fault) return -1;
    throw error;
  }
}

/** Returns the offset of the closing quote, or -1; leaves the hash of the name in `hashOfName`. */
function endOfName(body: Uint8Array, at: number, last: number): number {
  let hash = hashStart;
  for (let byte = body[at]!; byte !== 0x22; byte = body[++at]!) {
    if (byte < 0x20 || at >= last) return -1;
    hash = Math.imul(hash ^ byte, hashFactor);
    if (byte === 0x5c) hash = Math.imul(hash ^ body[++at]!, hashFactor);
  }
  hashOfName = hash;
  return at;
}

/** Returns the place of the child whose name `endOfName` has read; 0 = the exact reader must decide. */
function placeNamed(gateway: NamedChildren, body: Uint8Array, start: number, end: number): number {
  return gateway.spelled.find(body, start, end, hashOfName) || placeOfOtherSpelling(gateway, body, start, end);
}

function placeOfOtherSpelling(gateway: NamedChildren, body: Uint8Array, start: number, end: number): number {
  const bytes = Buffer.from(body.buffer, body.byteOffset + start, end - start);
  let name: string;
  if (bytes.includes(0x5c)) {
    const reader = new JsonReader(body);
    reader.at = start - 1;
    try {
      name = reader.value(2) as string;
    } catch {
      return 0;
    }
  } else {
    name = bytes.toString('utf8');
  }
  const child = isUtf8(bytes) ? gateway.child(name) : undefined;
  if (child === undefined) return 0;
  // Keeps the spelling of this client, because some clients use unnecessary escapes.
  gateway.spelled.set(child, bytes);
  return child.place;
}

const noArray = badRequest('wrong_shape', 'The value must be an array of records.');
const noneRefused: ReadonlyMap<string, Fault> = new Map();
const records = new MessageReader('gateway');
const messageMark = newMark();
const childMark = newMark();
/** The accepted devices of a message, reused by the next one. */
const accepted: number[] = [];
let hashOfName = 0;
let lastMessage = 0;
let lastPass = 0;
