/**
 * The updates of shared attributes that a device receives, and the rules of its cursor. Changes and deletions are
 * separate answers, each with a cursor of its own. An answer counts as offered when it is written, and as seen when the
 * next poll comes soon after. After a late poll the answer is repeated once and then counts as seen: an update may be
 * repeated but is never lost.
 */
import { limits } from '../base/limits.ts';
import { strictForm, type TypedValue } from '../value/typed.ts';
import type { Cursor, Head, UpdateRow } from './update-store.ts';

/** One answer. `json` is its body: `{"k":5}` or `{"deleted":["k"]}`. */
export interface Update {
  kind: 'changes' | 'deletions';
  /** The version up to which the device knows every change of this kind after this answer. */
  version: number;
  json: string;
}

export function changesJson(values: Iterable<[string, TypedValue]>): string {
  let json = '{';
  for (const [key, value] of values) json += `${json === '{' ? '' : ','}${JSON.stringify(key)}:${strictForm(value)}`;
  return `${json}}`;
}

export function deletionsJson(keys: string[]): string {
  return `{"deleted":${JSON.stringify(keys)}}`;
}

/** True when the device never polled or subscribed. */
export function isFirst({ changesSeen, deletionsSeen }: Head): boolean {
  return changesSeen === null || deletionsSeen === null;
}

/** The cursor of a device at a read, and whether the cursor must be stored. */
export interface CursorState extends Cursor {
  version: number;
  isNew: boolean;
}

/** `head` undefined: the device has no shared attributes and never polled. */
export function cursorStateOf(device: number, head: Head | undefined, firstVersion = head?.version ?? 0): CursorState {
  // The first poll or subscription only starts the cursor, at the version of that moment.
  if (!head || head.changesSeen === null || head.deletionsSeen === null) {
    const seen = { changesSeen: firstVersion, deletionsSeen: firstVersion };
    return { device, version: head?.version ?? 0, ...seen, repeated: false, isNew: true };
  }
  const { version, changesSeen, deletionsSeen, changesOffered, deletionsOffered } = head;
  const isOffered = changesOffered !== null || deletionsOffered !== null;
  const isConfirmed = head.offeredMs <= limits.updateConfirmMs;
  return {
    device,
    version,
    changesSeen: isConfirmed ? Math.max(changesSeen, changesOffered ?? 0) : changesSeen,
    deletionsSeen: isConfirmed ? Math.max(deletionsSeen, deletionsOffered ?? 0) : deletionsSeen,
    repeated: isOffered && !isConfirmed,
    isNew: isOffered,
  };
}

/** Returns the first update among the rows of one device, undefined when there is none. `rows` are of one snapshot. */
export function updateOf(rows: UpdateRow[]): Update | undefined {
  const changed = rows.flatMap(({ key, value }): [string, TypedValue][] => (value ? [[key, value]] : []));
  const [first] = rows;
  if (!first) return undefined;
  if (changed.length > 0) return { kind: 'changes', version: first.headVersion, json: changesJson(changed) };
  return { kind: 'deletions', version: first.headVersion, json: deletionsJson(rows.map(({ key }) => key)) };
}
