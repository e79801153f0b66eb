import { describe, expect, it } from 'vitest';
import { Fault } from '../base/errors.ts';
import type { DeviceRow } from './cached-device.ts';
import { LocalDevices } from './local-devices.ts';
import { TokenCache } from './token-cache.ts';

const limits = {
  tokenCacheMax: 3,
  unknownTokenCacheMax: 2,
  unknownTokenMs: 5_000,
  tokenLookupQueueMax: 4,
  tokenLookupBatchMax: 2,
  tokenLookupTimeoutMs: 50,
  tokenCharsMax: 20,
};

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
      const names = { id: token, tenantId: 't', customerId: null, profileId: 'p', name: token };
      rows.set(token, { number, ...names, version: 1 });
    }
    await hold;
    if (failure) throw failure;
    return rows;
  };
  const clock = { now: () => time.now, monotonic: () => time.monotonic };
  const here = new LocalDevices();
  const cache = new TokenCache(lookUp, { ...limits, ...changes }, here, clock);
  return {
    cache,
    known,
    batches,
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

  it('bounds what it remembers: the oldest goes', async () => {
    const { cache } = setUp();
    for (const token of ['one', 'two', 'three', 'four']) await cache.lookup(token);
    expect(cache.size).toBe(3);
    expect(cache.get('one')).toBeUndefined();
    expect(cache.get('four')).toBeDefined();
  });

  it('refuses with 503 when too many tokens wait', async () => {
    const { cache, holdUntil } = setUp({ tokenLookupTimeoutMs: 1_000 });
    let release = () => {};
    holdUntil(
      new Promise((resolve) => {
        release = resolve;
      }),
    );
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
    let release = () => {};
    holdUntil(
      new Promise((resolve) => {
        release = resolve;
      }),
    );
    const early = cache.lookup('one');
    await new Promise((resolve) => setImmediate(resolve));
    expect(batches).toHaveLength(1);
    known.delete('one');
    cache.invalidate('one');
    release();
    expect((await early)?.number).toBe(1);
    expect(cache.get('one')).toBeUndefined();
    expect(await cache.lookup('one')).toBeNull();
  });

  it('never asks the store for a text that it cannot take', async () => {
    const { cache, batches } = setUp();
    expect(await cache.lookup('a\0b')).toBeNull();
    expect(await cache.lookup('')).toBeNull();
    expect(await cache.lookup('x'.repeat(21))).toBeNull();
    expect(batches).toEqual([]);
  });
});
