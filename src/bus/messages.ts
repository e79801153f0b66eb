/**
 * Messages of the bus as JSON of a known shape. A message can reach every worker of every host at once, so a handler
 * reads with `readMessage`: a message that is no JSON or has another shape is counted and dropped by the bus
 * (`subscriptions.ts`). Members may be added under one protocol number: readers ignore those that they do not know.
 */

import { limits } from '../base/limits.ts';

/** Thrown by a handler that could not read the message and did nothing. */
export class UnreadMessage extends Error {}

/** Returns the message, or throws `UnreadMessage`. */
export function readMessage<T>(payload: Buffer, isMessage: (value: unknown) => value is T): T {
  if (payload.length > limits.busMessageBytesMax) throw new UnreadMessage('too large');
  let message: unknown;
  try {
    message = JSON.parse(payload.toString());
  } catch {
    throw new UnreadMessage('no JSON');
  }
  if (!isMessage(message)) throw new UnreadMessage('another shape');
  return message;
}

export function isText(value: unknown): value is string {
  return typeof value === 'string';
}

/** True for a name or an id. The reader may keep it, because its length has a cap. */
export function isName(value: unknown): value is string {
  return isText(value) && value.length <= limits.busNameCharsMax;
}

/** True for a whole number that a double holds exactly. */
export function isWhole(value: unknown): value is number {
  return Number.isSafeInteger(value);
}

/** True for a number of things, which is not negative. */
export function isCount(value: unknown): value is number {
  return isWhole(value) && value >= 0;
}

export function isListOf<T>(value: unknown, isElement: (element: unknown) => element is T): value is T[] {
  return Array.isArray(value) && value.every(isElement);
}
