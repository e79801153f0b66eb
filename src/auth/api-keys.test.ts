/** Reads of a key from the store, and when a read is repeated. */
import { beforeEach, expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import type { Queries } from '../postgres/client.ts';
import { createValue, isExpired, sha256 } from './api-key.ts';
import { ApiKeys } from './api-keys.ts';

let now = 0;
const clock = { now: () => now, monotonic: () => now };
let asked: number;
let rows: object[];
let fails: boolean;
let deliver: Handler;
let keys: ApiKeys;

const store = {
  query: async () => {
    asked += 1;
    if (fails) throw new Error('away');
    return rows;
  },
} as unknown as Queries;

const bus = {
  publish: (channel: string, payload: string) => deliver(Buffer.from(payload), channel),
  subscribe: async (_channel: string, handler: Handler) => {
    deliver = handler;
    return () => {};
  },
} as unknown as Bus;

beforeEach(async () => {
  [now, asked, rows, fails] = [1_000, 0, [{ place: 1, keyEnabled: true, expirationTime: 0, email: 'a@b.c' }], false];
  keys = new ApiKeys({ postgres: store, bus, clock, log: createLog('error', 'test') });
  await keys.start();
});

test('a thousand requests at once ask the store once, and so does a second of them', async () => {
  const found = await Promise.all(Array.from({ length: 1_000 }, () => keys.find('tb_a', 'network')));
  expect(found.every((owner) => owner?.account.email === 'a@b.c')).toBe(true);
  now += limits.apiKeyBelievedMs - 1;
  await keys.find('tb_a', 'network');
  expect(asked).toBe(1);
  now += 1;
  rows = [];
  expect(await keys.find('tb_a', 'network')).toBeUndefined();
  expect(asked).toBe(2);
});

test('a change takes effect at once', async () => {
  await keys.find('tb_a', 'network');
  rows = [];
  keys.changed(sha256('tb_a'));
  expect(await keys.find('tb_a', 'network')).toBeUndefined();
});

test('an unavailable store is read again by the next request', async () => {
  fails = true;
  await expect(keys.find('tb_a', 'network')).rejects.toThrow('away');
  fails = false;
  expect(await keys.find('tb_a', 'network')).toBeDefined();
});

test('a malformed key reads no store', async () => {
  expect(await keys.find('', 'network')).toBeUndefined();
  expect(await keys.find('x'.repeat(10_000), 'network')).toBeUndefined();
  expect(asked).toBe(0);
});

test('a value is long, random and of the alphabet of URLs; it ends at its time', () => {
  expect(createValue('tb_')).toMatch(/^tb_[A-Za-z0-9_-]{86}$/);
  expect(createValue('tb_')).not.toBe(createValue('tb_'));
  expect(isExpired({ expirationTime: 0 }, 5)).toBe(false);
  expect(isExpired({ expirationTime: 5 }, 4)).toBe(false);
  expect(isExpired({ expirationTime: 5 }, 5)).toBe(true);
});

test('expired keys are deleted by a time that is trusted, and none while no time is', async () => {
  const deleted: unknown[] = [];
  const postgres = {
    async query(text: string, values: unknown[]) {
      if (text.startsWith('delete')) deleted.push(values[0]);
      return [];
    },
  } as unknown as Queries;
  const log = createLog('error', 'test');
  for (const time of [undefined, 500]) {
    // The clock of the process is ahead.
    const deleting = new ApiKeys({ postgres, bus, clock, log, purgeTime: async () => time });
    await deleting.start();
    deleting.stop();
  }
  expect(deleted).toEqual([500]);
});
