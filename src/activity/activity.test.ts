/** Activity on a real PostgreSQL: what is written, when silence counts, and that two workers agree. */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { silentLog as log } from '../../test/harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { seedDemoData, seedFirstTenant } from '../admin/seed.ts';
import { readAttributes } from '../attributes/store.ts';
import { PasswordHasher } from '../auth/password.ts';
import { systemClock as clock } from '../base/clock.ts';
import { CachedDevice } from '../device/cached-device.ts';
import { lookUpTokens } from '../device/store.ts';
import type { Postgres } from '../postgres/client.ts';
import { Activity } from './activity.ts';
import { type ActivityMark, endActivity, recordActivity } from './activity-store.ts';

const serverScope = 3;
let server: TestPostgres;
let postgres: Postgres;
let devices: CachedDevice[];

beforeAll(async () => {
  server = await startTestPostgres();
  postgres = server.postgres;
  const passwords = new PasswordHasher(1, { ln: 10, r: 8, p: 1 });
  await seedFirstTenant(
    { postgres, passwords, clock },
    { email: 'a@b.c', systemEmail: 's@b.c', password: 'pear-tree-7' },
  );
  await seedDemoData({ postgres, passwords, clock });
  await passwords.close();
  devices = await cachedDevices();
}, 60_000);

afterAll(() => server.stop(), 60_000);

async function cachedDevices(): Promise<CachedDevice[]> {
  const rows = await lookUpTokens(postgres, ['A1_TEST_TOKEN', 'A2_TEST_TOKEN', 'A3_TEST_TOKEN', 'B1_TEST_TOKEN']);
  return [...rows.values()].map((row) => new CachedDevice(row));
}

async function attributes({ number }: CachedDevice): Promise<Record<string, string>> {
  const rows = await readAttributes(postgres, number, [serverScope], null);
  return Object.fromEntries(rows.map(({ key, value }) => [key, value.int]));
}

function mark(device: CachedDevice, times: Partial<ActivityMark>): ActivityMark {
  return { device: device.number, activeTs: 0, connectTs: 0, disconnectTs: 0, ...times };
}

const minute = 60_000;

test('a mark makes a device active; silence since then ends that, once', async () => {
  const [device] = devices as [CachedDevice];
  await recordActivity(postgres, [mark(device, { activeTs: 1_000 })], 2_000);
  expect(await attributes(device)).toEqual({ active: '1', lastActivityTime: '1000' });
  expect(await endActivity(postgres, 1_000 + minute, minute, 100, 3_000)).toBe(0);
  const ended = await Promise.all([1, 2, 3].map(() => endActivity(postgres, 1_001 + minute, minute, 100, 4_000)));
  expect(ended.reduce((sum, n) => sum + n)).toBe(1);
  expect(await attributes(device)).toEqual({ active: '0', lastActivityTime: '1000', inactivityAlarmTime: '4000' });
  await recordActivity(postgres, [mark(device, { activeTs: 900_000 })], 900_000);
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: '900000' });
});

test('times never go back, whichever worker writes last', async () => {
  const [, device] = devices as [CachedDevice, CachedDevice];
  await recordActivity(postgres, [mark(device, { activeTs: 5_000 })], 5_000);
  await recordActivity(postgres, [mark(device, { activeTs: 4_000 })], 6_000);
  expect(await attributes(device)).toMatchObject({ lastActivityTime: '5000' });
});

test('the time of the device itself overrides the default, a senseless one does not', async () => {
  const [, , device] = devices as [CachedDevice, CachedDevice, CachedDevice];
  await recordActivity(postgres, [mark(device, { activeTs: 2_000_000 })], 2_000_000);
  const setTimeoutTo = (value: string) =>
    postgres.query(
      `insert into attribute (device, scope, key, kind, value, last_update_ts) values ($1, 3, 'inactivityTimeout', 2, $2, 0)
       on conflict (device, scope, key) do update set value = excluded.value`,
      [device.number, value],
    );
  await setTimeoutTo('9223372036854775807');
  expect(await endActivity(postgres, 2_000_001 + minute, minute, 100, 0)).toBe(2);
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await setTimeoutTo('-5');
  expect(await endActivity(postgres, 2_000_000 + minute, minute, 100, 0)).toBe(0);
  await setTimeoutTo('10');
  expect(await endActivity(postgres, 2_000_011, minute, 100, 0)).toBe(1);
  expect(await attributes(device)).toMatchObject({ active: '0' });
});

test('what waits for its turn is written at a stop', async () => {
  const device = devices[2]!;
  const activity = new Activity({ postgres, clock, log, inactivityMs: 10 * minute, checkMs: 0 });
  activity.start();
  activity.touch(device);
  await vi.waitFor(
    async () => expect(await attributes(device)).toMatchObject({ lastActivityTime: String(device.activeTs) }),
    5_000,
  );
  expect(device.isActivitySteady).toBe(true);
  await new Promise((resolve) => setTimeout(resolve, 10));
  activity.touch(device);
  await activity.stop();
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: String(device.activeTs) });
});

test('a device that goes on sending is written every ten seconds, one that woke up at once', async () => {
  vi.useFakeTimers();
  try {
    const [steady, asleep] = [3, 5].map((number) => new CachedDevice({ ...devices[0]!, number }));
    const written: { number: number; at: number }[] = [];
    const query = async (text: string, values: unknown[]) => {
      if (text.startsWith('insert into device_activity')) {
        for (const number of values[0] as number[]) written.push({ number, at: Date.now() });
      }
      return [];
    };
    const store = { transaction: (work: (queries: object) => unknown) => work({ query }), ping: async () => {} };
    const postgres = store as unknown as Postgres;
    const activity = new Activity({ postgres, clock, log, inactivityMs: 10 * minute, checkMs: 0 });
    activity.start();
    const begin = Date.now();
    for (let second = 0; second < 60; second += 1) {
      activity.touch(steady!);
      if (second % 20 === 0) activity.touch(asleep!);
      await vi.advanceTimersByTimeAsync(1_000);
    }
    const timesOf = ({ number }: CachedDevice) =>
      written.filter((one) => one.number === number).map(({ at }) => at - begin);
    const [first, second, ...later] = timesOf(steady!);
    expect(first).toBeLessThanOrEqual(1_000);
    expect(later.length).toBeGreaterThanOrEqual(4);
    for (const [n, at] of later.entries()) expect(at - second!).toBe((n + 1) * 10_000);
    const wakings = timesOf(asleep!);
    expect(wakings).toHaveLength(3);
    for (const [n, at] of wakings.entries()) expect(at - n * 20_000).toBeLessThanOrEqual(1_000);
    void activity.stop();
  } finally {
    vi.useRealTimers();
  }
});

test('a session tells when it began and ended; its end is no sign of life', async () => {
  const device = devices[3]!;
  const activity = new Activity({ postgres, clock, log, inactivityMs: minute, checkMs: 0 });
  activity.disconnected(device);
  await activity.stop();
  const before = await attributes(device);
  expect(before).not.toHaveProperty('active');
  expect(Number(before['lastDisconnectTime'])).toBeGreaterThan(0);
  const again = new Activity({ postgres, clock, log, inactivityMs: minute, checkMs: 0 });
  again.connected(device);
  again.touch(device);
  await again.stop();
  expect(await attributes(device)).toMatchObject({ active: '1', lastDisconnectTime: before['lastDisconnectTime'] });
  expect(Number((await attributes(device))['lastConnectTime'])).toBeGreaterThan(0);
});

test('what cannot be written waits; a device that is gone is left out', async () => {
  const device = devices[3]!;
  const fails = { ...postgres, transaction: () => Promise.reject(new Error('away')), ping: () => Promise.resolve() };
  const activity = new Activity({
    postgres: fails as unknown as Postgres,
    clock,
    log,
    inactivityMs: minute,
    checkMs: 0,
  });
  activity.touch(device);
  await activity.stop();
  expect(device.isActivityNoted).toBe(true);
  await recordActivity(postgres, [{ device: 999_999_999, activeTs: 1, connectTs: 0, disconnectTs: 0 }], 1);
  expect(await postgres.query('select 1 from device_activity where device = 999999999')).toEqual([]);
});

test('ten thousand devices are written in a few seconds, active ones again and again', async () => {
  await postgres.query(
    `insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
     select gen_random_uuid(), 0, tenant_id, device_profile_id, 'many-' || n, '{}'
       from generate_series(1, 10000) n, (select tenant_id, device_profile_id from device limit 1) d`,
  );
  const rows = await postgres.query<{ number: number }>(`select number from device where name like 'many-%'`);
  for (const ts of [10_000_000, 10_002_000, 10_004_000]) {
    const startedAt = performance.now();
    for (let i = 0; i < rows.length; i += 2_000) {
      const marks = rows
        .slice(i, i + 2_000)
        .map(({ number }) => ({ device: number, activeTs: ts, connectTs: 0, disconnectTs: 0 }));
      await recordActivity(postgres, marks, ts);
    }
    const ms = performance.now() - startedAt;
    if (process.env['TELL_RATES']) process.stdout.write(`${Math.round((rows.length / ms) * 1000)} devices/s\n`);
    expect(ms).toBeLessThan(30_000);
  }
  const startedAt = performance.now();
  await endActivity(postgres, 10_000_000, minute, 2_000, 10_004_000);
  expect(performance.now() - startedAt).toBeLessThan(20_000);
}, 60_000);
