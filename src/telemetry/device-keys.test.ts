/** How the distinct keys of a device are limited: what a worker remembers, and what it reads from ClickHouse. */
import { expect, test } from 'vitest';
import { readLimits } from '../auth/profile-limits.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { DeviceKeys } from './device-keys.ts';
import { keyOf } from './keys.ts';
import { Rows } from './rows.ts';

const pump = { number: 7, tenantId: 'mill' };

/** Keys of a device in ClickHouse, and the reads of them. */
class Store {
  readonly keys = new Map<number, string[]>();
  reads = 0;
  isAway = false;
  readonly read = async (device: number): Promise<string[]> => {
    this.reads += 1;
    if (this.isAway) throw unavailable('clickhouse_away', 'Telemetry cannot be read at the moment.');
    return this.keys.get(device) ?? [];
  };
}

function open(keysMax: number, store = new Store()) {
  const time = { ms: 0 };
  const clock = { now: () => time.ms, monotonic: () => time.ms };
  return { deviceKeys: new DeviceKeys({ keysMax, readKeys: store.read, clock }), store, time };
}

/** Admits a message with these keys, after another message of the frame. */
function send(deviceKeys: DeviceKeys, names: string[], device = pump): Fault | undefined {
  const rows = new Rows();
  rows.addBoolean(keyOf('of an earlier message')!, true);
  for (const name of names) rows.addBoolean(keyOf(name)!, true);
  return refusal(() => deviceKeys.admit(device, rows, 1));
}

function refusal(act: () => void): Fault | undefined {
  try {
    act();
  } catch (error) {
    if (error instanceof Fault) return error;
    throw error;
  }
  return undefined;
}

const names = (count: number, prefix = 'k') => Array.from({ length: count }, (_, n) => `${prefix}${n}`);

test('a device has its number of keys; a message with one more is refused, known keys go on', async () => {
  const { deviceKeys, store } = open(5);
  expect(send(deviceKeys, names(3))).toBeUndefined();
  expect(send(deviceKeys, names(5))).toBeUndefined();
  // Keys of other workers may be in ClickHouse: ClickHouse is asked before the sender gets 403.
  store.keys.set(pump.number, names(5));
  expect(send(deviceKeys, ['k0', 'more'])).toMatchObject({ status: 503, reason: 'device_keys_unread' });
  await expect.poll(() => send(deviceKeys, ['more'])?.reason).toBe('device_keys');
  expect(send(deviceKeys, ['more'])).toMatchObject({
    status: 403,
    errorCode: 41,
    message: 'Telemetry keys limit reached: a device may have 5 (LIMITS_KEYS_PER_DEVICE).',
  });
  expect(send(deviceKeys, names(5))).toBeUndefined();
  expect(send(deviceKeys, ['more'], { ...pump, number: 8 })).toBeUndefined();
});

test('a first message with too many keys is refused, also when it was decoded in a thread', async () => {
  const { deviceKeys } = open(5);
  await expect.poll(() => send(deviceKeys, names(6))?.reason).toBe('device_keys');
  const bytes = names(6, 't').map((name) => Buffer.from(name));
  expect(refusal(() => deviceKeys.admitKeys(pump, bytes))?.reason).toBe('device_keys');
  expect(refusal(() => deviceKeys.admitKeys(pump, bytes.slice(0, 5)))).toBeUndefined();
  expect(send(deviceKeys, ['t0', 't4'])).toBeUndefined();
  expect(send(deviceKeys, ['t5'])?.reason).toBe('device_keys');
});

test('a message with the keys of the message before, in any order and number, adds none', async () => {
  const { deviceKeys } = open(3);
  for (const keys of [
    ['a', 'b'],
    ['a', 'b', 'a', 'b'],
    ['b', 'a'],
    ['a', 'b', 'a'],
    ['a', 'b', 'c'],
    ['c', 'c'],
    ['a'],
  ]) {
    expect(send(deviceKeys, keys)).toBeUndefined();
  }
  await expect.poll(() => send(deviceKeys, ['a', 'b', 'c', 'd'])?.reason).toBe('device_keys');
  expect(send(deviceKeys, ['a', 'b', 'c'])).toBeUndefined();
  expect(send(deviceKeys, ['a', 'b', 'c', 'd'])?.reason).toBe('device_keys');
});

test('keys above a lowered limit stay, also at a worker that was restarted', async () => {
  const store = new Store();
  store.keys.set(pump.number, names(8));
  const { deviceKeys } = open(5, store);
  await expect.poll(() => send(deviceKeys, names(8))).toBeUndefined();
  expect(send(deviceKeys, ['more'])?.reason).toBe('device_keys');
});

test('deleted series make room after the next read', async () => {
  const { deviceKeys, store, time } = open(5);
  store.keys.set(pump.number, names(5));
  await expect.poll(() => send(deviceKeys, [...names(5), 'more'])?.reason).toBe('device_keys');
  store.keys.set(pump.number, names(2));
  expect(send(deviceKeys, ['more'])?.reason).toBe('device_keys');
  expect(store.reads).toBe(1);
  time.ms += limits.countedKeyReadMs;
  await expect.poll(() => send(deviceKeys, ['more'])).toBeUndefined();
  expect(store.reads).toBe(2);
});

test('a worker learns the keys that other workers have accepted before the device is at its limit', async () => {
  const { deviceKeys, store } = open(100);
  store.keys.set(pump.number, names(90, 'elsewhere'));
  expect(send(deviceKeys, names(9))).toBeUndefined();
  expect(store.reads).toBe(0);
  expect(send(deviceKeys, names(10))).toBeUndefined();
  await expect.poll(() => send(deviceKeys, ['more'])?.reason).toBe('device_keys');
  expect(store.reads).toBe(1);
});

test('while ClickHouse is unavailable a device has its number of keys, and more are refused for now', async () => {
  const { deviceKeys, store, time } = open(30);
  store.isAway = true;
  expect(send(deviceKeys, names(30))).toBeUndefined();
  expect(send(deviceKeys, ['more'])?.reason).toBe('device_keys_unread');
  store.isAway = false;
  store.keys.set(pump.number, []);
  time.ms += limits.countedKeyReadMs;
  // Keys that ClickHouse does not have yet count.
  await expect.poll(() => send(deviceKeys, ['more'])?.reason).toBe('device_keys');
});

test('the profile of a tenant limits its devices, and its sentence names the profile', async () => {
  const { deviceKeys } = open(0);
  expect(deviceKeys.isLimiting).toBe(false);
  const gold = { id: 'g', name: 'Gold', limits: readLimits({ maxTelemetryKeysPerDevice: 2 }), tenantIds: ['mill'] };
  deviceKeys.useProfiles([gold]);
  await expect
    .poll(() => send(deviceKeys, names(3))?.message)
    .toContain('2 (maxTelemetryKeysPerDevice of tenant profile "Gold")');
  expect(send(deviceKeys, names(50), { number: 9, tenantId: 'bakery' })).toBeUndefined();
  deviceKeys.useProfiles([]);
  expect(send(deviceKeys, names(3))).toBeUndefined();
});
