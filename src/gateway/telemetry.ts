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
import { badRequest, Fault, notFound, tooLarge } from '../base/errors.ts';
import type { Waiter } from '../ingest/accept.ts';
import type { DecodeOptions } from '../telemetry/decode-options.ts';
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
    let at = records.open(body, now, rows, this.#options);
    const { last } = records;
    if (body[at] !== 0x7b || body[last] !== 0x7d) return false;
    at = skipBlank(body, at + 1);
    if (body[at] === 0x7d) return at === last;
    lastPass += 1;
    let first: NamedChild | undefined;
    let previous: NamedChild | undefined;
    for (;;) {
      if (body[at] !== 0x22) return false;
      at += 1;
      let child = previous?.next;
      let end = child?.isCurrent ? gateway.spelled.endOf(child, body, at, last) : -1;
      if (child === undefined || end < 0) {
        end = endOfName(body, at, last);
        child = end < 0 ? undefined : childNamed(gateway, body, at, end);
        if (child === undefined) return false;
        if (previous !== undefined) previous.next = child;
      }
      at = end + 1;
      // The last entry of a repeated name counts.
      if (child.seen === lastPass) return false;
      child.seen = lastPass;
      at = skipBlank(body, at);
      if (body[at] !== 0x3a) return false;
      at = skipBlank(body, at + 1);
      rows.mark(childMark);
      at = readRecords(at, child);
      if (at < 0) return false;
      this.#charge(child, message, rows);
      first ??= child;
      previous = child;
      at = skipBlank(body, at);
      if (body[at] === 0x7d) break;
      if (body[at] !== 0x2c) return false;
      at = skipBlank(body, at + 1);
    }
    if (at < last) return false;
    records.finish();
    let accepted: NamedChild | undefined = first;
    while (accepted !== undefined) {
      this.#touchAccepted(accepted, message, now);
      accepted = accepted === previous ? undefined : accepted.next;
    }
    return true;
  }

  #readCarefully(body: Uint8Array, message: GatewayTelemetry, now: number, rows: Rows): void {
    const { gateway, refused } = message;
    const { pointsPerMessageMax } = this.#options;
    const countMax = rows.count + pointsPerMessageMax;
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
        for (const record of json as Json[]) addRecord(record, child.device, now, rows, this.#options, 'gateway');
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        rows.rollback(childMark);
        refuse(message, name, error);
        continue;
      }
      if (rows.count > countMax) {
        throw tooLarge('too_many_points', `The message holds more than ${pointsPerMessageMax} data points.`);
      }
      this.#charge(child, message, rows);
      children.push(child);
    }
    for (const child of children) this.#touchAccepted(child, message, now);
  }

  /** Counts the points and keys of a child. Above a limit the rows of the child are rolled back. */
  #charge(child: NamedChild, message: GatewayTelemetry, rows: Rows): void {
    const admission = this.#admission;
    if (admission === undefined || !admission.isLimiting) return;
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
    if (child.refusal === undefined) return;
    rows.rollback(childMark);
    refuse(message, child.name, child.refusal);
  }

  /**
   * Notes the activity of a child of an accepted message. A child above a limit was refused. Without a refusal the
   * members of a child that count its messages are not read: no cache holds them in a large fleet.
   */
  #touchAccepted(child: NamedChild, message: GatewayTelemetry, now: number): void {
    const isAccepted = message.refusals === undefined || child.charged !== message.id || child.refusal === undefined;
    if (isAccepted) this.#touch(child, now);
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
function readRecords(at: number, child: NamedChild): number {
  try {
    return records.records(at, child);
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

/**
 * Returns the child whose name `endOfName` has read; undefined when the bytes are not the name of a connected child.
 */
function childNamed(gateway: NamedChildren, body: Uint8Array, start: number, end: number): NamedChild | undefined {
  const child = gateway.spelled.find(body, start, end, hashOfName);
  return child?.isCurrent ? child : childOfOtherSpelling(gateway, body, start, end);
}

function childOfOtherSpelling(
  gateway: NamedChildren,
  body: Uint8Array,
  start: number,
  end: number,
): NamedChild | undefined {
  const bytes = Buffer.from(body.buffer, body.byteOffset + start, end - start);
  let name: string;
  if (bytes.includes(0x5c)) {
    const reader = new JsonReader(body);
    reader.at = start - 1;
    try {
      name = reader.value(2) as string;
    } catch {
      return undefined;
    }
  } else {
    name = bytes.toString('utf8');
  }
  records.noteUnchecked();
  const child = gateway.child(name);
  // Keeps the spelling of this client, because some clients use unnecessary escapes.
  if (child && isUtf8(bytes)) gateway.spelled.set(child, bytes);
  return child;
}

const noArray = badRequest('wrong_shape', 'The value must be an array of records.');
const noneRefused: ReadonlyMap<string, Fault> = new Map();
const records = new MessageReader('gateway');
const messageMark = newMark();
const childMark = newMark();
let hashOfName = 0;
let lastMessage = 0;
let lastPass = 0;
