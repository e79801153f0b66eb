import { expect, test } from 'vitest';
import type { Log } from '../base/log.ts';
import type { TakesFrames } from '../journal/seam.ts';
import { diskFull, JournalHealth, journalFailed } from './journal-health.ts';

const room = { backlogDiskBytes: 0, free: 10_000, freeBytes: () => room.free };
const events: string[] = [];
const write = (event: string) => void events.push(event);
const log: Log = { debug: write, info: write, warn: write, error: write };
let now = 0;
const health = new JournalHealth({
  journal: room as Partial<TakesFrames> as TakesFrames,
  clock: { now: () => now, monotonic: () => now },
  log,
  backlogBytesMax: 1_000,
  freeDiskBytesMin: 1_000,
  unsyncedMsMax: 200,
});

function reasonAfter(ms: number): string | undefined {
  now += ms;
  health.check();
  return health.refusal?.reason;
}

test.each([
  ['a journal', { backlogDiskBytes: 950, free: 10_000 }],
  ['a disk', { backlogDiskBytes: 0, free: 1_050 }],
])('%s that is nearly full accepts messages again after a slow write', (_, state) => {
  Object.assign(room, state);
  expect(reasonAfter(100)).toBeUndefined();
  health.writeBegan(now);
  expect([reasonAfter(100), reasonAfter(100), reasonAfter(100)]).toEqual([undefined, undefined, 'journal_slow']);
  health.writeEnded();
  expect(reasonAfter(100)).toBeUndefined();
});

test('a journal or disk that was full accepts messages again when a tenth is free', () => {
  Object.assign(room, { backlogDiskBytes: 1_001, free: 10_000 });
  expect(reasonAfter(100)).toBe('backlog_full');
  room.backlogDiskBytes = 950;
  expect(reasonAfter(100)).toBe('backlog_full');
  room.backlogDiskBytes = 890;
  expect(reasonAfter(100)).toBeUndefined();
  room.free = 999;
  expect(reasonAfter(100)).toBe('disk_full');
  room.free = 1_100;
  expect(reasonAfter(100)).toBe('disk_full');
  room.free = 1_200;
  expect(reasonAfter(100)).toBeUndefined();
});

test('after a write that the disk refused the reason is that of the write, for a second', () => {
  Object.assign(room, { backlogDiskBytes: 0, free: 10_000 });
  for (const fault of [journalFailed(), diskFull()]) {
    health.writeFailed(fault);
    expect([reasonAfter(100), reasonAfter(800), reasonAfter(200)]).toEqual([fault.reason, fault.reason, undefined]);
  }
});

test('a sender that has its share is an event, and so is the end', () => {
  const sender = { id: 'gateway', number: 1, tenantId: 'mill', customerId: null };
  const other = { id: 'meter', number: 2, tenantId: 'mill', customerId: null };
  Object.assign(room, { backlogDiskBytes: 600, free: 10_000 });
  expect(reasonAfter(100)).toBeUndefined();
  health.shares!.admit(sender);
  health.shares!.add(sender, 250);
  expect(() => health.shares!.admit(sender)).toThrow('this device has its share');
  health.shares!.admit(other);
  expect(events).toEqual(['ingest_share_refusing']);
  expect(reasonAfter(100)).toBeUndefined();
  room.backlogDiskBytes = 100;
  expect(reasonAfter(100)).toBeUndefined();
  expect(events).toEqual(['ingest_share_refusing', 'ingest_share_accepting']);
});
