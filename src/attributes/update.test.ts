import { describe, expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { ownValue } from './attributes.ts';
import { cursorStateOf, updateOf } from './update.ts';
import type { Head, UpdateRow } from './update-store.ts';

const head: Head = {
  device: 7,
  version: 9,
  changesSeen: 4,
  deletionsSeen: 5,
  changesOffered: null,
  deletionsOffered: null,
  offeredMs: 0,
  repeated: false,
};

const row = (key: string, value?: string): UpdateRow => ({
  device: 7,
  headVersion: 9,
  key,
  value: value === undefined ? undefined : ownValue.string(value),
});

describe('the cursor of a device', () => {
  it('starts at the present version when it never asked', () => {
    expect(cursorStateOf(7, undefined)).toMatchObject({ version: 0, changesSeen: 0, deletionsSeen: 0, isNew: true });
    const never = { ...head, changesSeen: null, deletionsSeen: null };
    expect(cursorStateOf(7, never)).toMatchObject({ version: 9, changesSeen: 9, deletionsSeen: 9, isNew: true });
    // A write between the subscription and this read of the store is sent.
    expect(cursorStateOf(7, never, 6)).toMatchObject({ version: 9, changesSeen: 6, deletionsSeen: 6, isNew: true });
  });

  it('is as it was when nothing was offered', () => {
    expect(cursorStateOf(7, head)).toMatchObject({ changesSeen: 4, deletionsSeen: 5, repeated: false, isNew: false });
  });

  it('has seen the last answer when the next poll comes soon after it', () => {
    const offered = { ...head, changesOffered: 8, offeredMs: limits.updateConfirmMs };
    expect(cursorStateOf(7, offered)).toMatchObject({ changesSeen: 8, deletionsSeen: 5, repeated: false, isNew: true });
  });

  it('may have missed the last answer when the next poll comes late: it is sent once more', () => {
    const offered = { ...head, deletionsOffered: 8, offeredMs: limits.updateConfirmMs + 1 };
    expect(cursorStateOf(7, offered)).toMatchObject({ changesSeen: 4, deletionsSeen: 5, repeated: true, isNew: true });
  });
});

describe('update', () => {
  it('sends changes before deletions, and nothing when there is none', () => {
    expect(updateOf([])).toBeUndefined();
    expect(updateOf([row('gone'), row('k', 'x'), row('m', 'y')])).toEqual({
      kind: 'changes',
      version: 9,
      json: '{"k":"x","m":"y"}',
    });
    expect(updateOf([row('gone'), row('more')])).toEqual({
      kind: 'deletions',
      version: 9,
      json: '{"deleted":["gone","more"]}',
    });
  });
});
