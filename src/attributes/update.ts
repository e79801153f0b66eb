/**
 * What a device is told of its shared attributes, and the rules of its cursor. Changes and deletions are separate
 * answers; each has a cursor of its own, the version up to which the device certainly knows. An answer is offered
 * when it is written; a further poll soon after shows that it arrived. One that comes late leaves it open whether the
 * device was still there, so the same is told once more, and then counts as seen: nothing is lost, repeats may be.
 */
import { limits } from '../base/limits.ts';
import { strictForm, type TypedValue } from '../value/typed.ts';
import type { Cursor, Head, NewsRow } from './store.ts';

/** One answer. `json` is its body: `{"k":5}` or `{"deleted":["k"]}`. */
export interface News {
  kind: 'changes' | 'deletions';
  /** Up to which the device knows everything of this kind, once it has the answer. */
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

/** The device never polled or subscribed before. */
export function isFirst({ changesSeen, deletionsSeen }: Head): boolean {
  return changesSeen === null || deletionsSeen === null;
}

/** How a device stands when it asks for news: what it has certainly seen, and whether that is to be written down. */
export interface Standing extends Cursor {
  version: number;
  isNew: boolean;
}

/** `head` undefined: nothing shared was ever written to the device, nor did it ask. */
export function standingOf(device: number, head: Head | undefined, firstVersion = head?.version ?? 0): Standing {
  // The first poll or subscription only starts the cursor, at the version that was there when it came.
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

/** The first news among the rows of one device; undefined when it knows all. `rows` are of one snapshot. */
export function newsOf(rows: NewsRow[]): News | undefined {
  const changed = rows.flatMap(({ key, value }): [string, TypedValue][] => (value ? [[key, value]] : []));
  const [first] = rows;
  if (!first) return undefined;
  if (changed.length > 0) return { kind: 'changes', version: first.headVersion, json: changesJson(changed) };
  return { kind: 'deletions', version: first.headVersion, json: deletionsJson(rows.map(({ key }) => key)) };
}
