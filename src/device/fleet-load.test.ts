/** The load of all devices from the file of known devices: the effect of changes, outages and other databases. */
import { randomBytes } from 'node:crypto';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { FakeDeviceStore } from '../../test/harness/fake-device-store.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { FleetLoad } from './fleet-load.ts';
import { KnownDevicesWriter } from './known/known-devices-writer.ts';
import { LocalDevices } from './local-devices.ts';
import type { CachedDevice, DeviceRow } from './model/cached-device.ts';
import { mqttBasicCredentials, tokenCredentials } from './model/credentials.ts';
import { TokenCache } from './token-cache.ts';

const path = '/data/known/devices';
const events: string[] = [];
/** Devices that each load has logged. */
const loads: unknown[] = [];
const say = (event: string, fields?: Record<string, unknown>) => {
  events.push(event);
  if (event === 'devices_loaded') loads.push(fields?.['devices']);
};
const log: Log = { debug: () => {}, info: say, warn: say, error: say };
const time = { now: 1_800_000_000_000, monotonic: 0 };
/** Each reading of the clock lets time pass, so that a load pauses. */
const clock = {
  now: () => time.now,
  monotonic: () => {
    time.monotonic += 1;
    return time.monotonic;
  },
};
/** The writer reads these devices in one page. */
const count = 900;
let store: FakeDeviceStore;
let disk: SimDisk;
let lookups: string[];

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  events.length = 0;
  loads.length = 0;
  lookups = [];
  store = new FakeDeviceStore();
  disk = new SimDisk();
  for (let n = 1; n <= count; n += 1) store.save(tokenCredentials(`token-${n}`), n);
  store.save(mqttBasicCredentials({ clientId: null, userName: 'miller', password: 'stone-42' }), count + 1);
  await write();
});

afterEach(() => {
  vi.useRealTimers();
});

/** Runs one round of the writer of the primary. */
async function write(): Promise<void> {
  const parts = { path, postgres: store, source: async () => store.source, clock, log, metrics: new Metrics(), disk };
  const writer = new KnownDevicesWriter(parts);
  writer.start();
  await writer.stop();
}

interface Hooks {
  /** Called after each device that was loaded, with their number. */
  onLoaded?: (devices: number) => void;
  devicesMax?: number;
}

function setUp({ onLoaded = () => {}, devicesMax = limits.tokenCacheMax }: Hooks = {}) {
  const lookUp = async (tokens: string[]) => {
    if (store.isAway) throw new Error('connect ECONNREFUSED');
    lookups.push(...tokens);
    const rows = tokens.flatMap((token) => store.rows.get(token) ?? []);
    return new Map<string, DeviceRow>(rows.map((row) => [row.credentialsId, row]));
  };
  const cache = new TokenCache(lookUp, { ...limits, tokenCacheMax: devicesMax }, new LocalDevices(), clock);
  let loaded = 0;
  const tokens: ConstructorParameters<typeof FleetLoad>[0]['tokens'] = {
    beginLoad: (digestOfFile) => cache.beginLoad(digestOfFile),
    load: (digest, device) => {
      cache.load(digest, device);
      onLoaded((loaded += 1));
    },
    forget: (digest) => cache.forget(digest),
    forgetLoaded: (token) => cache.forgetLoaded(token),
    endLoad: () => cache.endLoad(),
    unload: (step) => cache.unload(step),
    get size() {
      return cache.size;
    },
  };
  const load = new FleetLoad({ path, source: store.source, tokens, postgres: store, clock, log, disk });
  return { cache, load };
}

/** Lets timers fire until the load has ended or `until` holds. */
async function pass(load: FleetLoad, until = () => false): Promise<void> {
  let isIdle = false;
  void load.idle().then(() => {
    isIdle = true;
  });
  for (let n = 0; !isIdle && !until(); n += 1) {
    expect(n).toBeLessThan(2_000);
    await vi.advanceTimersByTimeAsync(5);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Returns a device that is found without a query. */
async function known(cache: TokenCache, token: string): Promise<CachedDevice | undefined> {
  const asked = lookups.length;
  const device = await cache.lookup(token).catch(() => null);
  return lookups.length === asked ? (device ?? undefined) : undefined;
}

/** Commits a change, which every worker receives. */
function change(cache: TokenCache | undefined, token: string, apply: () => void): void {
  apply();
  cache?.invalidate(token);
}

test('after a load every device is found without a query, with the data of the store', async () => {
  const customerId = '784f394c-42b6-435a-983c-b7beff2784f9';
  store.save(tokenCredentials('hub'), 9_999, {
    isGateway: true,
    isConfined: true,
    customerId,
    name: 'Großer Hub',
    version: 7,
  });
  await write();
  const { cache, load } = setUp();
  load.restart();
  await pass(load);
  const { number, id, tenantId, profileId, name, version } = store.rows.get('hub')!;
  expect(await known(cache, 'hub')).toMatchObject({ number, id, tenantId, profileId, name, version, customerId });
  expect(await known(cache, 'hub')).toMatchObject({ isGateway: true, isConfined: true });
  for (let n = 1; n <= count; n += 1) expect((await known(cache, `token-${n}`))?.number).toBe(n);
  expect(lookups).toEqual([]);
  expect(cache.size).toBe(count + 1);
  expect([await known(cache, 'miller'), await known(cache, 'nobody')]).toEqual([undefined, undefined]);
  // A second use finds the device by the digest of the process.
  expect((await known(cache, 'token-1'))?.number).toBe(1);
});

test('a loaded device has one first request, and is known from then on', async () => {
  await write();
  const { cache, load } = setUp();
  load.restart();
  expect([cache.hasUnserved, cache.first('token-1')]).toEqual([false, undefined]);
  await pass(load);
  expect([cache.hasUnserved, cache.get('token-1')]).toEqual([true, undefined]);
  expect(cache.first('token-1')?.number).toBe(1);
  expect([cache.get('token-1')?.number, cache.first('token-1')]).toEqual([1, undefined]);
  expect(cache.first('nobody')).toBeUndefined();
  for (let n = 2; n <= count; n += 1) expect(cache.first(`token-${n}`)?.number).toBe(n);
  expect(cache.hasUnserved).toBe(false);
});

test('a device of which the file has several records is one device in the log', async () => {
  for (let version = 2; version <= 4; version += 1) {
    store.save(tokenCredentials('token-1'), 1, { name: `renamed-${version}`, version });
    await write();
  }
  const { load } = setUp();
  load.restart();
  await pass(load);
  expect(loads).toEqual([count]);
});

test('a device that changed after the file was written is looked up again', async () => {
  const { cache, load } = setUp();
  const { id } = store.rows.get('token-4')!;
  store.remove('token-1');
  store.save(tokenCredentials('token-2'), 2, { name: 'renamed', version: 2 });
  store.remove('token-4');
  store.save(tokenCredentials('token-4-new'), 4, { id });
  load.restart();
  await pass(load);
  for (const token of ['token-1', 'token-2', 'token-4', 'token-4-new'])
    expect(await known(cache, token)).toBeUndefined();
  expect(await cache.lookup('token-1')).toBeNull();
  expect((await cache.lookup('token-2'))?.name).toBe('renamed');
  expect(await cache.lookup('token-4')).toBeNull();
  expect((await cache.lookup('token-4-new'))?.number).toBe(4);
  expect((await known(cache, 'token-3'))?.number).toBe(3);
});

test('a change during the load wins, wherever the load is', async () => {
  for (const moment of [1, count / 2, count]) {
    const { cache, load } = setUp({
      onLoaded: (loaded) => {
        if (loaded !== moment) return;
        for (const n of [5, 450, count - 1]) {
          change(cache, `token-${n}`, () =>
            store.save(tokenCredentials(`token-${n}`), n, { name: 'new', version: moment + 1 }),
          );
          change(cache, `token-${n + 1}`, () => store.rows.has(`token-${n + 1}`) && store.remove(`token-${n + 1}`));
        }
      },
    });
    load.restart();
    await pass(load);
    for (const n of [5, 450, count - 1]) {
      expect((await cache.lookup(`token-${n}`))?.name, `token ${n} at ${moment}`).toBe('new');
      expect(await cache.lookup(`token-${n + 1}`), `token ${n + 1} at ${moment}`).toBeNull();
    }
    expect((await known(cache, 'token-7'))?.number).toBe(7);
  }
});

test('a change after the log was read, and one whose device was used already, remove the device', async () => {
  const { cache, load } = setUp();
  load.restart();
  await pass(load);
  expect((await known(cache, 'token-1'))?.number).toBe(1);
  for (const token of ['token-1', 'token-2']) change(cache, token, () => store.remove(token));
  expect(await Promise.all(['token-1', 'token-2'].map((token) => cache.lookup(token)))).toEqual([null, null]);
});

test('a device that was looked up during the load stays as it was looked up', async () => {
  let found: Promise<unknown> | undefined;
  const { cache, load } = setUp({
    onLoaded: (loaded) => {
      if (loaded !== 10) return;
      store.save(tokenCredentials('token-2'), 2, { name: 'renamed', version: 2 });
      found = cache.lookup('token-2');
    },
  });
  load.restart();
  await pass(load);
  await found;
  expect((await known(cache, 'token-2'))?.name).toBe('renamed');
});

test('PostgreSQL unavailable in the middle: no device of the file is trusted until it answers', async () => {
  const { cache, load } = setUp({
    onLoaded: (loaded) => {
      if (loaded === 100) store.isAway = true;
    },
  });
  expect((await cache.lookup('token-1'))?.number).toBe(1);
  load.restart();
  await pass(load, () => events.includes('devices_unloaded'));
  expect((await known(cache, 'token-1'))?.number).toBe(1);
  expect(await known(cache, 'token-2')).toBeUndefined();
  store.isAway = false;
  store.remove('token-3');
  await pass(load);
  expect((await known(cache, 'token-2'))?.number).toBe(2);
  expect(await cache.lookup('token-3')).toBeNull();
});

test('a file of another database, an older database or a former primary, and a file that was not kept up are not loaded', async () => {
  const refused = async (spoil: () => void) => {
    spoil();
    const { cache, load } = setUp();
    load.restart();
    let passes = 0;
    await pass(load, () => (passes += 1) > 1_000);
    expect(cache.size).toBe(0);
    // The primary makes the file again.
    await write();
    await pass(load);
    expect((await known(cache, 'token-1'))?.number).toBe(1);
  };
  await refused(() => {
    store.source = randomBytes(16);
  });
  await refused(() => {
    store.settled -= 300;
  });
  await refused(() => {
    store.timeline = '0000000A';
  });
  await refused(() => {
    time.now += limits.credentialChangesKeptMs;
  });
});

test('a file with changes that the database has lost is not loaded, also when transactions have passed its cursor', async () => {
  const goBack = store.keep();
  store.save(tokenCredentials('lost'), 9_998);
  await write();
  goBack();
  store.settled += 300;
  const { cache, load } = setUp();
  load.restart();
  let passes = 0;
  await pass(load, () => (passes += 1) > 1_000);
  expect([cache.size, await cache.lookup('lost')]).toEqual([0, null]);
  await write();
  await pass(load);
  expect(await cache.lookup('lost')).toBeNull();
  expect((await known(cache, 'token-1'))?.number).toBe(1);
});

test('a file that is appended during the load is loaded', async () => {
  let written: Promise<void> | undefined;
  const { cache, load } = setUp({
    onLoaded: (loaded) => {
      if (loaded !== 100) return;
      store.save(tokenCredentials('token-2'), 2, { name: 'renamed', version: 2 });
      written = write();
    },
  });
  load.restart();
  await pass(load);
  await written;
  expect((await known(cache, 'token-1'))?.number).toBe(1);
  expect((await cache.lookup('token-2'))?.name).toBe('renamed');
});

test('a cache that forgets everything during a load is loaded again from the start', async () => {
  const { cache, load } = setUp({
    onLoaded: (loaded) => {
      if (loaded !== 450) return;
      // At the end of the step, as the work of all other parts.
      queueMicrotask(() => {
        cache.clear();
        load.restart();
      });
    },
  });
  load.restart();
  await pass(load);
  expect(cache.size).toBe(count);
  expect((await known(cache, 'token-1'))?.number).toBe(1);
});

test('devices beyond the cap are not loaded, and are known all the same', async () => {
  const { cache, load } = setUp({ devicesMax: 300 });
  load.restart();
  await pass(load);
  expect(cache.size).toBe(300);
  for (let n = 1; n <= count; n += 1) expect((await cache.lookup(`token-${n}`))?.number).toBe(n);
  expect(cache.size).toBe(300);
});

test('a worker that stops during a load ends it', async () => {
  const { cache, load } = setUp({
    onLoaded: (loaded) => {
      if (loaded === 300) void load.stop();
    },
  });
  load.restart();
  await pass(load);
  expect(cache.size).toBeLessThan(count);
  expect(await known(cache, 'token-1')).toBeUndefined();
});

test('a file that cannot be closed is loaded once all the same', async () => {
  const open = disk.open.bind(disk);
  let closes = 0;
  disk.open = async (...args) => {
    const file = await open(...args);
    file.close = () => {
      closes += 1;
      return Promise.reject(new Error('EIO'));
    };
    return file;
  };
  const { cache, load } = setUp();
  load.restart();
  await pass(load);
  expect(closes).toBe(1);
  expect(events).not.toContain('devices_unloaded');
  expect((await known(cache, 'token-1'))?.number).toBe(1);
});
