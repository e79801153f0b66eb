import { describe, expect, it } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { Fault } from '../base/errors.ts';
import { LocalDevices } from './local-devices.ts';
import type { DeviceRow } from './model/cached-device.ts';
import { TokenCache } from './token-cache.ts';

const limits = {
  tokenCacheMax: 3,
  recentDevicesMax: 2,
  unknownTokenCacheMax: 2,
  unknownTokenMs: 5_000,
  tokenLookupQueueMax: 4,
  tokenLookupBatchMax: 2,
  tokenLookupTimeoutMs: 50,
  tokenCharsMax: 20,
};

const uuid = (n: number) => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`;

/** A cache over a fake store that counts its queries and may be held, or fail. */
function setUp(changes: Partial<typeof limits> = {}) {
  const known = new Map<string, number>([
    ['one', 1],
    ['two', 2],
    ['three', 3],
    ['four', 4],
  ]);
  const batches: string[][] = [];
  const time = { now: 1_000, monotonic: 0 };
  let hold: Promise<void> | undefined;
  let failure: Error | undefined;
  const lookUp = async (tokens: string[]) => {
    batches.push(tokens);
    const rows = new Map<string, DeviceRow>();
    for (const token of tokens) {
      const number = known.get(token);
      if (!number) continue;
      const ids = { id: uuid(number), tenantId: uuid(100), customerId: null, profileId: uuid(101) };
      rows.set(token, { number, ...ids, name: token, version: 1 });
    }
    await hold;
    if (failure) throw failure;
    return rows;
  };
  const clock = { now: () => time.now, monotonic: () => time.monotonic };
  const here = new LocalDevices();
  const doubted: [string, DeviceRow][] = [];
  const withoutStore = {
    isStoreUnavailable: false,
    storeFailed: () => {},
    tokens: async () => new Map<string, DeviceRow>(),
    doubt: (token: string, row: DeviceRow) => void doubted.push([token, row]),
  };
  const cache = new TokenCache(lookUp, { ...limits, ...changes }, here, clock, withoutStore);
  return {
    cache,
    here,
    known,
    batches,
    doubted,
    time,
    holdUntil: (promise: Promise<void> | undefined) => {
      hold = promise;
    },
    failWith: (error: Error | undefined) => {
      failure = error;
    },
  };
}

const faultOf = async (promise: Promise<unknown>) => {
  const error = await promise.then(
    () => undefined,
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(Fault);
  return error as Fault;
};

/** Holds the answers of the store. Returns the function that lets them go. */
function held(holdUntil: (released: Promise<void>) => void): () => void {
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  holdUntil(released);
  return release;
}

describe('TokenCache', () => {
  it('answers a known token from memory', async () => {
    const { cache, batches } = setUp();
    expect(cache.get('one')).toBeUndefined();
    expect((await cache.lookup('one'))?.number).toBe(1);
    expect(cache.get('one')?.number).toBe(1);
    await cache.lookup('one');
    expect(batches).toEqual([['one']]);
  });

  it('asks once for all misses of a tick, in batches, and gives all waiters of a token the same device', async () => {
    const { cache, batches } = setUp();
    const devices = await Promise.all(['one', 'two', 'one', 'three'].map((token) => cache.lookup(token)));
    expect(batches).toEqual([['one', 'two'], ['three']]);
    expect(devices[0]).toBe(devices[2]);
  });

  it('remembers for a while that a token is unknown, and forgets it when the token is created', async () => {
    const { cache, batches, known, time } = setUp();
    expect(await cache.lookup('new')).toBeNull();
    expect(await cache.lookup('new')).toBeNull();
    expect(batches).toHaveLength(1);
    known.set('new', 9);
    cache.invalidate('new');
    expect((await cache.lookup('new'))?.number).toBe(9);
    expect(await cache.lookup('other')).toBeNull();
    time.monotonic += limits.unknownTokenMs + 1;
    expect(await cache.lookup('other')).toBeNull();
    expect(batches).toHaveLength(4);
  });

  it('makes a device again that did not send lately, and keeps it when it sends often', async () => {
    const { cache, here, batches } = setUp();
    const first = await cache.lookup('one');
    for (const token of ['two', 'three']) await cache.lookup(token);
    const made = Array.from({ length: 16 }, () => cache.get('one'));
    for (const again of made) expect(again).toEqual({ ...first, holders: again!.holders });
    expect(made[0]).not.toBe(first);
    expect(made[15]).toBe(made[14]);
    expect(here.get(1)).toBe(made[15]);
    expect([here.size, batches.length]).toEqual([2, 3]);
  });

  it('bounds what it remembers, and finds again what it forgot', async () => {
    const { cache, here, batches } = setUp();
    for (const token of ['one', 'two', 'three', 'four']) await cache.lookup(token);
    expect([cache.size, here.size, batches.length]).toEqual([3, 2, 4]);
    for (const token of ['one', 'two', 'three', 'four']) expect((await cache.lookup(token))?.name).toBe(token);
    expect([cache.size, here.size]).toEqual([3, 2]);
  });

  it('forgets a changed device, whether it sent lately or not, and everything at once', async () => {
    const { cache, here, known } = setUp();
    for (const token of ['one', 'two', 'three']) await cache.lookup(token);
    for (const token of ['one', 'three']) {
      known.delete(token);
      cache.invalidate(token);
      expect(cache.get(token)).toBeUndefined();
      expect(await cache.lookup(token)).toBeNull();
    }
    expect([cache.size, here.size]).toEqual([1, 1]);
    cache.clear();
    expect([cache.size, here.size, cache.get('two')]).toEqual([0, 0, undefined]);
    expect((await cache.lookup('two'))?.number).toBe(2);
  });

  it('refuses with 503 when too many tokens wait', async () => {
    const { cache, holdUntil } = setUp({ tokenLookupTimeoutMs: 1_000 });
    const release = held(holdUntil);
    const waiting = ['a', 'b', 'c', 'd'].map((token) => cache.lookup(token));
    expect((await faultOf(cache.lookup('e'))).status).toBe(503);
    release();
    await Promise.all(waiting);
    expect(await cache.lookup('e')).toBeNull();
  });

  it('keeps known devices and answers 503, not 401, while the store is unavailable', async () => {
    const { cache, failWith } = setUp();
    await cache.lookup('one');
    failWith(new Error('connection refused'));
    expect(cache.get('one')?.number).toBe(1);
    expect((await faultOf(cache.lookup('two'))).status).toBe(503);
    failWith(undefined);
    expect((await cache.lookup('two'))?.number).toBe(2);
  });

  it('gives up a lookup after its deadline and works on', async () => {
    const { cache, holdUntil } = setUp();
    holdUntil(new Promise(() => {}));
    expect((await faultOf(cache.lookup('one'))).reason).toBe('token_lookup_timeout');
    holdUntil(undefined);
    expect((await cache.lookup('one'))?.number).toBe(1);
  });

  it('does not keep what a query read before the change', async () => {
    const { cache, known, holdUntil, batches } = setUp();
    const release = held(holdUntil);
    const early = cache.lookup('one');
    await new Promise((resolve) => setImmediate(resolve));
    expect(batches).toHaveLength(1);
    known.delete('one');
    cache.invalidate('one');
    release();
    expect(await early).toBeNull();
    expect(batches).toHaveLength(2);
    expect(cache.get('one')).toBeUndefined();
    expect(await cache.lookup('one')).toBeNull();
  });

  it('keeps a new device whose first request met the message about its creation', async () => {
    const { cache, holdUntil, failWith } = setUp();
    const release = held(holdUntil);
    const first = cache.lookup('one');
    await new Promise((resolve) => setImmediate(resolve));
    cache.invalidate('one');
    release();
    expect((await first)?.number).toBe(1);
    failWith(new Error('connection refused'));
    expect((await cache.lookup('one'))?.number).toBe(1);
  });

  it('has a device checked whose change met the last answer before an outage', async () => {
    const { cache, known, holdUntil, failWith, doubted } = setUp();
    const release = held(holdUntil);
    const first = cache.lookup('one');
    await new Promise((resolve) => setImmediate(resolve));
    known.delete('one');
    cache.invalidate('one');
    const failing = new Promise<void>((_, reject) => reject(new Error('connection refused')));
    failing.catch(() => {});
    holdUntil(failing);
    release();
    expect((await first)?.number).toBe(1);
    expect(doubted).toEqual([['one', expect.objectContaining({ number: 1 })]]);
    holdUntil(undefined);
    failWith(undefined);
    cache.invalidate('one');
    expect(await cache.lookup('one')).toBeNull();
  });

  it('never asks the store for a text that it cannot take', async () => {
    const { cache, batches } = setUp();
    expect(await cache.lookup('a\0b')).toBeNull();
    expect(await cache.lookup('')).toBeNull();
    expect(await cache.lookup('x'.repeat(21))).toBeNull();
    expect(batches).toEqual([]);
  });

  it('finds exactly the device of a token through any changes, and holds no device after all are forgotten', async () => {
    const { cache, here, known, time } = setUp({ tokenCacheMax: 24, recentDevicesMax: 8, tokenLookupQueueMax: 64 });
    known.clear();
    const random = new Random(14);
    const tokens = Array.from({ length: 48 }, (_, n) => `token-${n}`);
    let last = 0;
    for (let n = 0; n < 4_000; n += 1) {
      const token = random.pick(tokens);
      const what = random.below(200);
      // Another device gets the token, or the token is deleted; a lookup of the token may be waiting.
      if (what < 40) {
        const waiting = what < 10 ? cache.lookup(token) : undefined;
        if (what % 2 === 0) known.set(token, (last += 1));
        else known.delete(token);
        cache.invalidate(token);
        await waiting;
      } else if (what === 40) {
        cache.clear();
      } else if (what < 120) {
        const device = cache.get(token);
        if (device) expect([token, device.number, device.name]).toEqual([token, known.get(token), token]);
      } else {
        expect((await cache.lookup(token))?.number).toBe(known.get(token));
      }
      time.monotonic += 100;
      expect(here.size).toBeLessThanOrEqual(8);
    }
    cache.clear();
    expect(here.size).toBe(0);
  });
});
