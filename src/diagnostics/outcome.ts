/**
 * One thing that happened to a device and that its owner wants to know: a refused message, or a change of a connection.
 * Equal outcomes are one entry with a count, so that a device that repeats a mistake fills no memory. Entries travel
 * over the bus as they are.
 */
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import { isText, isWhole } from '../bus/messages.ts';

export const doors = ['http', 'mqtt', 'gateway'] as const;
/** `gateway`: a message that a gateway sent for the device. */
export type Door = (typeof doors)[number];

export const events = ['refused', 'connected', 'disconnected', 'connect_refused'] as const;
export type Event = (typeof events)[number];

/** What a door reports. */
interface Happening {
  event: Event;
  door: Door;
  /** The stable word: of `base/reasons.ts`, or of `mqtt/wire/close-reason.ts`. */
  reason: string;
  /** The sentence that the sender got, or would have got. */
  message: string;
  /** '' = unknown. */
  address: string;
  /** The first bytes of the message, escaped and without secrets (`excerpt.ts`); '' = none. */
  excerpt: string;
}

export interface Outcome extends Happening {
  /** Milliseconds of the first and of the last one. */
  since: number;
  ts: number;
  count: number;
}

export function isOutcome(value: unknown): value is Outcome {
  if (!isObject(value)) return false;
  const { event, door, reason, message, address, excerpt, since, ts, count } = value;
  return (
    events.includes(event as Event) &&
    doors.includes(door as Door) &&
    [reason, message, address, excerpt].every(isText) &&
    [since, ts, count].every(isWhole)
  );
}

/** Adds an outcome to those of a device, oldest first. An equal one is counted, and becomes the newest. */
export function addOutcome(outcomes: Outcome[], happening: Happening, now: number): void {
  const message = happening.message.slice(0, limits.diagnosedMessageCharsMax);
  const at = outcomes.findIndex(
    (known) =>
      known.event === happening.event &&
      known.reason === happening.reason &&
      known.door === happening.door &&
      known.message === message &&
      known.address === happening.address,
  );
  if (at < 0) {
    if (outcomes.length >= limits.diagnosedOutcomesMax) outcomes.shift();
    outcomes.push({ ...happening, message, since: now, ts: now, count: 1 });
    return;
  }
  const [known] = outcomes.splice(at, 1) as [Outcome];
  known.ts = now;
  known.count += 1;
  known.excerpt = happening.excerpt;
  outcomes.push(known);
}

/** The outcomes of several workers as one list, newest first. */
export function mergeOutcomes(lists: readonly Outcome[][]): Outcome[] {
  return lists
    .flat()
    .sort((a, b) => b.ts - a.ts || b.since - a.since || (a.message < b.message ? -1 : 1))
    .slice(0, limits.diagnosedOutcomesMax);
}
