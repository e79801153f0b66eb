/**
 * Activity on a real PostgreSQL: the rows that are written, the time after which a silent device is inactive, and the
 * reports of workers to each other.
 */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { seedDemoData, seedFirstTenant } from '../admin/seed.ts';
import { ownValue } from '../attributes/attributes.ts';
import { readAttributes, readKeys } from '../attributes/store.ts';
import { upsertAttributes } from '../attributes/write-store.ts';
import { PasswordHasher } from '../auth/password.ts';
import { type Clock, systemClock as clock } from '../base/clock.ts';
import { unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { nullUuid } from '../base/uuid.ts';
import { CachedDevice } from '../device/model/cached-device.ts';
import { lookUpTokens } from '../device/sql/look-up-store.ts';
import type { Postgres } from '../postgres/client.ts';
import type { OnPoll } from '../postgres/shared-poll.ts';
import { Activity } from './activity.ts';
import { recordMarks, reportSettled } from './activity-store.ts';
import { Silence } from './silence.ts';
import { endActivity } from './silence-store.ts';

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

/** Makes devices of the first tenant, and returns their numbers. */
async function make(name: string, count: number): Promise<number[]> {
  const rows = await postgres.query<{ number: number }>(
    `insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
     select gen_random_uuid(), 0, tenant_id, device_profile_id, $1 || '-' || n, '{}'
       from generate_series(1, $2::int) n, (select tenant_id, device_profile_id from device limit 1) d returning number`,
    [name, count],
  );
  return rows.map(({ number }) => number);
}

async function attributes({ number }: CachedDevice): Promise<Record<string, string>> {
  const rows = await readAttributes(postgres, number, [serverScope], null);
  return Object.fromEntries(rows.map(({ key, value }) => [key, value.int]));
}

async function timeline(): Promise<string | null> {
  const [row] = await postgres.query<{ timeline: string | null }>('select server_timeline() as timeline');
  return row!.timeline;
}

/** As if a standby took over. */
async function takenOver(name: string): Promise<void> {
  await postgres.query(
    `create or replace function server_timeline() returns text language sql as 'select ''${name}'''`,
  );
}

const minute = 60_000;
const { activityLateMs: lateMs } = limits;

/** The database, with something that happens before each call. */
function onEachCall(before: () => unknown): Postgres {
  return new Proxy(postgres, {
    get: (target, name) => {
      const member = Reflect.get(target, name) as (...args: unknown[]) => unknown;
      if (typeof member !== 'function') return member;
      return async (...args: unknown[]) => {
        await before();
        return await member.apply(target, args);
      };
    },
  });
}

interface WorkerOptions {
  inactivityMs?: number;
  store?: Postgres;
  checkMs?: number;
  databaseTime?: () => Promise<number>;
  onPoll?: OnPoll;
}

/** Rounds and polls run when the test calls them. */
const unscheduled: Scheduler = { ...systemScheduler, after: () => () => {} };

/** A worker whose clock and rounds the test drives. */
class Worker {
  time: number;
  monotonic = 0;
  readonly events: string[] = [];
  readonly activity: Activity;

  constructor(time: number, options: WorkerOptions = {}) {
    const { inactivityMs = minute, store = postgres, checkMs = 0, databaseTime, onPoll } = options;
    this.time = time;
    const note = (event: string) => this.events.push(event);
    this.activity = new Activity({
      postgres: store,
      clock: this.clock,
      log: { ...log, warn: note, error: note },
      inactivityMs,
      checkMs,
      ...(databaseTime && { databaseTime }),
      scheduler: unscheduled,
      ...(onPoll && { onPoll }),
    });
  }

  get clock(): Clock {
    return { now: () => this.time, monotonic: () => this.monotonic };
  }

  pass(ms: number): void {
    this.time += ms;
    this.monotonic += ms;
  }

  /** As many rounds as each block has its turn in, within `ms`. */
  async rounds(ms: number, count = 60): Promise<void> {
    for (let n = 0; n < count; n += 1) {
      this.pass(ms / count);
      await this.activity.round();
    }
  }
}

/** The devices send at `ts` to a worker that ends immediately afterwards. */
async function sent(ts: number, ...senders: CachedDevice[]): Promise<void> {
  const { activity } = new Worker(ts);
  for (const device of senders) activity.touch(device);
  await activity.stop();
}

/** A check that judges silence up to `judgedTime`, if workers have stored all up to then. */
async function check(judgedTime: number, { inactivityMs = minute, checkMs = 1_000 } = {}): Promise<number> {
  const now = judgedTime + lateMs;
  const at: Clock = { now: () => now, monotonic: () => now };
  const databaseTime = async () => now;
  return await new Silence({ postgres, clock: at, log, inactivityMs, checkMs, databaseTime }).check();
}

/** As if the last check was a second before one that judges up to `judgedTime`. */
async function checkedBefore(judgedTime: number, floorTime = 0): Promise<void> {
  const time = judgedTime + lateMs - 1_000;
  await postgres.query('update activity_check set checked_time = $1, floor_time = $2', [time, floorTime]);
}

beforeEach(async () => {
  await postgres.query('truncate device_activity, activity_block, activity_writer, activity_ended');
  await postgres.query(`delete from attribute where key = 'inactivityTimeout'`);
});

test('a message makes a device active; silence since then ends that, once', async () => {
  const [device] = devices as [CachedDevice];
  await sent(1_000, device);
  expect(await attributes(device)).toEqual({ active: '1', lastActivityTime: '1000' });
  await checkedBefore(1_000 + minute);
  expect(await check(1_000 + minute)).toBe(0);
  const judgement = { floorTime: 0, judgedTime: 1_001 + minute, now: 4_000, keptMax: 10 };
  const due = [{ device: device.number, wokeTime: 1_000 }];
  const ended = await Promise.all([1, 2, 3].map(() => endActivity(postgres, due, judgement)));
  expect(ended.flat()).toEqual([device.number]);
  expect(await attributes(device)).toEqual({ active: '0', lastActivityTime: '1000', inactivityAlarmTime: '4000' });
  await sent(900_000, device);
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: '900000' });
  await checkedBefore(900_001 + minute);
  expect(await check(900_001 + minute)).toBe(1);
  expect(await attributes(device)).toMatchObject({ active: '0', lastActivityTime: '900000' });
});

test('times never go back, whichever worker writes last', async () => {
  const [, device] = devices as [CachedDevice, CachedDevice];
  await sent(5_000, device);
  await sent(4_000, device);
  expect(await attributes(device)).toMatchObject({ lastActivityTime: '5000' });
});

test('two workers that write one block at once lose nothing of each other', async () => {
  const workers = devices.map((_, n) => new Worker(10_000 + n));
  for (const [n, { activity }] of workers.entries()) {
    activity.touch(devices[n]!);
    activity.touch(devices[(n + 1) % devices.length]!);
  }
  await Promise.all(workers.map(({ activity }) => activity.stop()));
  const expected = devices.map((_, n) => String(10_000 + (n === 0 ? devices.length - 1 : n)));
  const stored = await Promise.all(devices.map(async (device) => (await attributes(device))['lastActivityTime']));
  expect(stored).toEqual(expected);
  expect(await postgres.query('select id from activity_writer')).toEqual([]);
});

test('the time of the device itself overrides the default, a senseless one does not', async () => {
  const [, other, device] = devices as [CachedDevice, CachedDevice, CachedDevice];
  await sent(2_000_000, device, other, devices[0]!);
  const setTimeoutTo = (value: string) =>
    postgres.query(
      `insert into attribute (device, scope, key, kind, value, last_update_ts) values ($1, 3, 'inactivityTimeout', 2, $2, 0)
       on conflict (device, scope, key) do update set value = excluded.value`,
      [device.number, value],
    );
  const judged = async (time: number) => {
    await checkedBefore(time);
    return await check(time);
  };
  await setTimeoutTo('9223372036854775807');
  expect(await judged(2_000_001 + minute)).toBe(2);
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await setTimeoutTo('-5');
  expect(await judged(2_000_000 + minute)).toBe(0);
  await setTimeoutTo('10');
  expect(await judged(2_000_011)).toBe(1);
  expect(await attributes(device)).toMatchObject({ active: '0' });
});

test('what waits for its turn is written at a stop', async () => {
  const device = devices[2]!;
  const worker = new Worker(1_000_000, { inactivityMs: 10 * minute });
  worker.activity.touch(device);
  await worker.activity.round();
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: '1000000' });
  worker.pass(10);
  worker.activity.touch(device);
  await worker.activity.stop();
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: '1000010' });
});

test('devices that go on sending write their block every 45 s and no row', async () => {
  const worker = new Worker(1_000_000, { inactivityMs: 10 * minute });
  const rowVersions = () =>
    postgres.query(`select (select array_agg(xmin::text order by device) from device_activity) as rows,
                           (select sum(version) from activity_block)::int as written`) as Promise<
      { rows: string[]; written: number }[]
    >;
  for (const device of devices) worker.activity.touch(device);
  await worker.rounds(45_000);
  const [before] = await rowVersions();
  expect(before!.rows).toHaveLength(devices.length);
  for (let second = 0; second < 90; second += 1) {
    for (const device of devices) worker.activity.touch(device);
    await worker.rounds(1_000, 2);
    if (second < 45) continue;
    for (const device of devices) {
      const behind = worker.time - Number((await attributes(device))['lastActivityTime']);
      expect(behind).toBeLessThanOrEqual(46_000);
    }
  }
  const [after] = await rowVersions();
  expect(after!.rows).toEqual(before!.rows);
  expect(after!.written - before!.written).toBe(2);
  await worker.activity.stop();
});

test.each([
  ['a second late', 500, 1_000],
  ['a little late', 700, 0],
])(
  'a reader sees the last activity of a device of a minute ago, also when PostgreSQL answers %s',
  async (_, ms, late) => {
    const [device] = devices as [CachedDevice];
    const worker: Worker = new Worker(1_000_000, {
      inactivityMs: 10 * minute,
      store: onEachCall(() => worker.pass(late)),
    });
    let oldest = 0;
    while (worker.time < 1_000_000 + 10 * minute) {
      worker.activity.touch(device);
      await worker.rounds(ms, 1);
      oldest = Math.max(oldest, worker.time - Number((await attributes(device))['lastActivityTime'] ?? 0));
    }
    expect(oldest).toBeLessThan(minute);
    await worker.activity.stop();
  },
);

test('a device that wakes up is active with the next round, on a worker that knew it as active too', async () => {
  const [device] = devices as [CachedDevice];
  const workers = [new Worker(1_000_000), new Worker(1_000_000)];
  for (const { activity } of workers) {
    activity.touch(device);
    await activity.round();
  }
  for (const worker of workers) await worker.rounds(5 * minute, 10);
  const judged = workers[0]!.time - lateMs;
  await checkedBefore(judged);
  expect(await check(judged)).toBe(1);
  for (const worker of workers) {
    await worker.activity.round();
    worker.activity.touch(device);
    await worker.activity.round();
    expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: String(worker.time) });
    await postgres.query('update device_activity set active = false');
  }
  for (const { activity } of workers) await activity.stop();
});

test('a device that sends while it is judged is active with the next round', async () => {
  const [device] = devices as [CachedDevice];
  const worker = new Worker(1_000_000);
  worker.activity.touch(device);
  await worker.rounds(5 * minute, 10);
  const judged = worker.time - lateMs;
  worker.activity.touch(device);
  await checkedBefore(judged);
  expect(await check(judged)).toBe(1);
  await worker.activity.round();
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await worker.activity.stop();
});

test('a worker that could not read what ended asks for all its devices again', async () => {
  const [device] = devices as [CachedDevice];
  const worker = new Worker(1_000_000);
  worker.activity.touch(device);
  await worker.activity.round();
  await postgres.query('update device_activity set active = false');
  await postgres.query('update activity_check set ended_number = ended_number + 10000');
  worker.activity.touch(device);
  await worker.activity.round();
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await worker.activity.stop();
});

test('a worker that was without PostgreSQL for longer than a device may be silent asks for the device again', async () => {
  const [device] = devices as [CachedDevice];
  const worker = new Worker(1_000_000);
  worker.activity.touch(device);
  await worker.activity.round();
  worker.pass(10 * minute);
  worker.activity.touch(device);
  worker.pass(30 * minute);
  // Other workers have judged meanwhile: this device has a longer time of its own.
  await postgres.query('update device_activity set active = false');
  await postgres.query('update activity_check set ended_number = ended_number + 10000');
  await worker.activity.round();
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await worker.activity.stop();
});

test('a worker asks for all its devices again when another server has used the same numbers', async () => {
  const [device] = devices as [CachedDevice];
  const worker = new Worker(1_000_000);
  worker.activity.touch(device);
  await worker.activity.round();
  await postgres.query('update device_activity set active = false');
  await takenOver('0000000A');
  worker.activity.touch(device);
  await worker.activity.round();
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await worker.activity.stop();
});

test('a standby that takes over without the last blocks gets them again, and judges no silence before', async () => {
  const [device] = devices as [CachedDevice];
  // The poll of the host has found nothing since the start.
  const worker = new Worker(1_000_000, { onPoll: () => {} });
  await worker.activity.start();
  worker.activity.touch(device);
  await worker.rounds(40_000, 10);
  const state = () =>
    postgres.query<{ times: Buffer; settled: number }>(
      'select times, settled_time as settled from activity_block, activity_writer',
    );
  const [before] = await state();
  worker.activity.touch(device);
  const sentTs = worker.time;
  await worker.rounds(40_000, 10);
  expect(await attributes(device)).toMatchObject({ lastActivityTime: String(sentTs) });
  await takenOver('0000000B');
  await postgres.query('update activity_block set times = $1', [before!.times]);
  await postgres.query('update activity_writer set settled_time = $1', [before!.settled]);
  await worker.rounds(10_000, 1);
  const judged = worker.time - lateMs;
  await checkedBefore(judged);
  expect(await check(judged)).toBe(0);
  await worker.rounds(6_000, 12);
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: String(sentTs) });
  await worker.activity.stop();
});

test('others wait for a worker from its first statement on, and while a round writes many devices', async () => {
  const [device] = devices as [CachedDevice];
  const many = (await make('woken', 3 * limits.activityRowsMax)).map(
    (number) => new CachedDevice({ ...devices[0]!, number }),
  );
  const reported: number[] = [];
  const store = onEachCall(async () => {
    worker.pass(2_000);
    const [row] = await postgres.query<{ seen: number }>('select seen_time as seen from activity_writer');
    reported.push(row === undefined ? 0 : worker.time - row.seen);
  });
  const worker: Worker = new Worker(1_000_000, { store });
  worker.activity.touch(device);
  for (const one of many) worker.activity.touch(one);
  await worker.activity.round();
  for (const age of reported.slice(3)) {
    expect(age).toBeGreaterThan(0);
    expect(age).toBeLessThan(16_000);
  }
  await worker.activity.stop();
  await postgres.query('delete from device where number = any($1)', [many.map(({ number }) => number)]);
});

test('a clock that jumps within a round ends the activity of no device', async () => {
  const [device] = devices as [CachedDevice];
  const inactivityMs = 20_000;
  let jumpMs = 0;
  const store = onEachCall(() => {
    worker.time += jumpMs;
    jumpMs = 0;
  });
  const worker: Worker = new Worker(1_000_000, { inactivityMs, store });
  worker.activity.touch(device);
  await worker.rounds(10_000, 20);
  await checkedBefore(worker.time - lateMs);
  worker.pass(1_000);
  jumpMs = 15_000;
  await worker.activity.round();
  expect(await check(worker.time - lateMs, { inactivityMs })).toBe(0);
  await worker.activity.round();
  expect(worker.events).toContain('activity_held');
  await worker.activity.stop();
});

test('silence is judged only up to the time up to which every worker has written', async () => {
  const [device, other] = devices as [CachedDevice, CachedDevice];
  const [slow, fast] = [new Worker(1_000_000), new Worker(1_000_000)];
  slow.activity.touch(device);
  fast.activity.touch(other);
  await Promise.all([slow, fast].map((worker) => worker.rounds(40_000, 10)));
  // The slow worker receives from its device and reports no more for a while.
  slow.pass(5_000);
  slow.activity.touch(device);
  await fast.rounds(30_000, 10);
  const judge = async () => {
    await checkedBefore(fast.time - lateMs);
    return await check(fast.time - lateMs);
  };
  expect(await judge()).toBe(0);
  await slow.rounds(25_000, 10);
  expect(await judge()).toBe(1);
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: '1045000' });
  expect(await attributes(other)).toMatchObject({ active: '0' });
  await Promise.all([slow, fast].map(({ activity }) => activity.stop()));
});

test('a worker that died takes nothing along that ends the activity of a device', async () => {
  const [device] = devices as [CachedDevice];
  const [dying, alive] = [new Worker(1_000_000), new Worker(1_000_000)];
  dying.activity.touch(device);
  await Promise.all([dying, alive].map(({ activity }) => activity.round()));
  // Received shortly before the end of the inactivity time, and never written.
  dying.pass(minute - 1_000);
  dying.activity.touch(device);
  const diedAt = dying.time;
  await checkedBefore(alive.time - lateMs);
  for (let silent = 0; silent < minute + 30_000; silent += 5_000) {
    await alive.rounds(5_000, 2);
    await check(alive.time - lateMs, { checkMs: 5_000 });
    if (alive.time < diedAt + minute) expect(await attributes(device)).toMatchObject({ active: '1' });
  }
  const ended = async () => (await attributes(device))['active'] === '0';
  for (let n = 0; n < 40 && !(await ended()); n += 1) {
    await alive.rounds(5_000, 2);
    await check(alive.time - lateMs, { checkMs: 5_000 });
  }
  expect(await ended()).toBe(true);
  expect(Number((await attributes(device))['inactivityAlarmTime'])).toBeGreaterThanOrEqual(diedAt + minute);
  await alive.activity.stop();
});

test('a device whose worker died with its activity becomes inactive, whichever host noticed the death', async () => {
  const [device] = devices as [CachedDevice];
  let time = 1_000_000;
  const at: Clock = { now: () => time, monotonic: () => time };
  const times = { clock: at, inactivityMs: minute, checkMs: 1_000, databaseTime: async () => time };
  const silenceOfHost = () => new Silence({ postgres, log, ...times });
  const [here, there] = [silenceOfHost(), silenceOfHost()];
  await sent(time, device);
  time += minute + 2 * lateMs;
  await checkedBefore(time - lateMs);
  expect(await here.check()).toBe(1);
  time += 1_000;
  expect(await there.check()).toBe(0);
  // A worker writes that the device woke up, and ends before the turn of its block.
  await recordMarks(postgres, [{ device: device.number, activeTs: time, connectTs: 0, disconnectTs: 0 }], time);
  await reportSettled(postgres, { writer: nullUuid, settledTime: time, now: time, timeline: await timeline() });
  time += minute + 1_000;
  await checkedBefore(time - lateMs);
  expect(await here.check()).toBe(0);
  time += minute + 2 * lateMs;
  await postgres.query('update activity_check set checked_time = $1', [time - 1_000]);
  expect(await there.check()).toBe(1);
  expect(await attributes(device)).toMatchObject({ active: '0' });
});

test('a device that is silent sooner than its block is written becomes inactive after each message', async () => {
  const [device] = devices as [CachedDevice];
  await postgres.query(
    `insert into attribute (device, scope, key, kind, value, last_update_ts) values ($1, 3, 'inactivityTimeout', 2, 5000, 0)`,
    [device.number],
  );
  const [inactivityMs, checkMs] = [10 * minute, 10_000];
  const worker = new Worker(1_000_000, { inactivityMs });
  const databaseTime = async () => worker.time;
  const silence = new Silence({ postgres, clock: worker.clock, log, inactivityMs, checkMs, databaseTime });
  await checkedBefore(worker.time - lateMs);
  for (let message = 0; message < 3; message += 1) {
    worker.activity.touch(device);
    await worker.rounds(1_000, 2);
    expect(await attributes(device)).toMatchObject({ active: '1' });
    // The turn of the block, two checks, and the time between two reports.
    for (let ms = 0; ms < 75_000; ms += checkMs) {
      await worker.rounds(checkMs, 20);
      await silence.check();
    }
    expect(await attributes(device)).toMatchObject({ active: '0' });
  }
  await worker.activity.stop();
});

test('a worker that dies before its first round takes nothing along that ends the activity of a device', async () => {
  const [device] = devices as [CachedDevice];
  const [alive, dying] = [new Worker(1_000_000), new Worker(1_050_000)];
  alive.activity.touch(device);
  await alive.rounds(50_000, 10);
  await dying.activity.start();
  dying.activity.touch(device);
  await checkedBefore(alive.time - lateMs);
  while (alive.time < 1_050_000 + minute) {
    await alive.rounds(5_000, 2);
    expect(await check(alive.time - lateMs, { checkMs: 5_000 })).toBe(0);
  }
  await alive.activity.stop();
});

test('after a short stop of all hosts silence counts from the start on', async () => {
  const [device] = devices as [CachedDevice];
  await sent(1_000_000, device);
  await checkedBefore(1_000_000);
  const worker = new Worker(1_000_000 + minute - 5_000);
  await worker.activity.start();
  const checked = async (ms: number) => {
    await worker.rounds(ms, 2);
    return await check(worker.time - lateMs, { checkMs: 10_000 });
  };
  expect(await checked(10_000)).toBe(0);
  for (let passed = 10_000; passed < minute; passed += 10_000) expect(await checked(10_000)).toBe(0);
  expect(await checked(10_000)).toBe(1);
  await worker.activity.stop();
});

test.each([
  ['behind', -2 * minute],
  ['ahead', minute / 2],
])('a host whose clock is %s judges no silence, and leaves the time from which it counts', async (_, step) => {
  const [device] = devices as [CachedDevice];
  const right = new Worker(1_000_000);
  right.activity.touch(device);
  await right.rounds(50_000, 10);
  await checkedBefore(right.time - lateMs);
  const state = () => postgres.query('select checked_time, floor_time from activity_check');
  const before = await state();
  const wrong: Worker = new Worker(right.time + step, {
    checkMs: 1_000,
    databaseTime: async () => wrong.time - step,
  });
  await wrong.activity.start();
  await wrong.rounds(10_000, 10);
  expect(await state()).toEqual(before);
  expect(wrong.events).toEqual(['activity_held']);
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await Promise.all([right, wrong].map(({ activity }) => activity.stop()));
});

test('hosts that all have another time than the database judge silence', async () => {
  const [device] = devices as [CachedDevice];
  const worker: Worker = new Worker(1_000_000, {
    checkMs: 10_000,
    databaseTime: async () => worker.time + 60 * minute,
  });
  await worker.activity.start();
  worker.activity.touch(device);
  await checkedBefore(worker.time - lateMs);
  await worker.rounds(3 * minute, 36);
  expect(await attributes(device)).toMatchObject({ active: '0' });
  await worker.activity.stop();
});

test('after an hour in which nothing was checked silence counts from now on', async () => {
  const [device] = devices as [CachedDevice];
  await sent(1_000_000, device);
  await checkedBefore(1_000_000);
  const hour = 60 * minute;
  expect(await check(1_000_000 + hour)).toBe(0);
  expect(await check(1_000_000 + hour + minute)).toBe(0);
  expect(await attributes(device)).toMatchObject({ active: '1' });
  expect(await check(1_000_000 + hour + minute + 2 * lateMs)).toBe(1);
});

test.each([
  ['forwards', 60 * minute],
  ['back', -60 * minute],
])('a clock that jumps %s ends the activity of no device, and times stay in order', async (_, step) => {
  const [device, silent] = devices as [CachedDevice, CachedDevice];
  const start = 100 * minute;
  const inactivityMs = 2 * minute;
  const worker = new Worker(start, { inactivityMs });
  const checked = () => check(worker.time - lateMs, { inactivityMs, checkMs: 5_000 });
  worker.activity.touch(device);
  worker.activity.touch(silent);
  await worker.rounds(10_000, 20);
  await checkedBefore(worker.time - lateMs);
  worker.time += step;
  await worker.rounds(5_000, 2);
  expect(worker.events).toContain('activity_held');
  expect(await checked()).toBe(0);
  for (let passed = 0; passed < 110_000; passed += 10_000) {
    worker.activity.touch(device);
    await worker.rounds(10_000, 10);
    expect(await checked()).toBe(0);
  }
  for (const one of [device, silent]) {
    const { active, lastActivityTime } = await attributes(one);
    expect(active).toBe('1');
    expect(Number(lastActivityTime)).toBeLessThanOrEqual(worker.time);
  }
  for (let passed = 0; passed < minute; passed += 10_000) {
    worker.activity.touch(device);
    await worker.rounds(10_000, 10);
    await checked();
  }
  expect(await attributes(silent)).toMatchObject({ active: '0' });
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await worker.activity.stop();
});

test('after the clock was set back, silence is judged only up to what is written, also in the turn that runs', async () => {
  const [device] = devices as [CachedDevice];
  await postgres.query(
    `insert into attribute (device, scope, key, kind, value, last_update_ts) values ($1, 3, 'inactivityTimeout', 2, 10000, 0)`,
    [device.number],
  );
  const worker = new Worker(400 * minute, { inactivityMs: 10 * minute });
  const written = async () => (await postgres.query('select sum(version) as version from activity_block'))[0];
  const before = await written();
  do {
    worker.activity.touch(device);
    await worker.rounds(500, 1);
  } while (JSON.stringify(await written()) === JSON.stringify(before));
  // The next turn of the block is 45 s later.
  worker.activity.touch(device);
  await checkedBefore(worker.time - lateMs);
  worker.time -= 60 * minute;
  for (let passed = 0; passed < 25_000; passed += 1_000) {
    worker.activity.touch(device);
    await worker.rounds(1_000, 2);
    expect(await check(worker.time - lateMs)).toBe(0);
  }
  expect(await attributes(device)).toMatchObject({ active: '1' });
  await worker.activity.stop();
});

test('after the clock was set back, times of sessions are those of later sessions, and none lies in the future', async () => {
  const [again, ended, open, silent] = devices as [CachedDevice, CachedDevice, CachedDevice, CachedDevice];
  const worker = new Worker(200 * minute);
  for (const device of devices) worker.activity.connected(device);
  worker.pass(1_000);
  worker.activity.disconnected(again);
  worker.activity.disconnected(silent);
  await worker.rounds(1_000, 2);
  await checkedBefore(worker.time - lateMs);
  worker.time -= 60 * minute;
  const sinceBack = worker.time;
  worker.activity.disconnected(ended);
  worker.pass(500);
  worker.activity.connected(again);
  await worker.rounds(1_000, 2);
  await check(worker.time - lateMs, { checkMs: 5_000 });
  const times = async (device: CachedDevice) => {
    const { lastConnectTime, lastDisconnectTime } = await attributes(device);
    return [Number(lastConnectTime ?? 0), Number(lastDisconnectTime ?? 0)] as const;
  };
  for (const device of devices) {
    for (const time of await times(device)) expect(time).toBeLessThanOrEqual(worker.time);
  }
  expect((await times(again))[0]).toBeGreaterThan((await times(again))[1]);
  expect(await times(ended)).toEqual([sinceBack - 1, sinceBack]);
  expect((await times(open))[0]).toBeGreaterThan((await times(open))[1]);
  expect((await times(silent))[0]).toBeLessThanOrEqual((await times(silent))[1]);
  await worker.rounds(1_000, 2);
  worker.activity.disconnected(again);
  await worker.rounds(1_000, 2);
  expect((await times(again))[0]).toBeLessThan((await times(again))[1]);
  await worker.activity.stop();
});

test('after the clock was set back, a device that was inactive before becomes active and inactive again', async () => {
  const [device] = devices as [CachedDevice];
  const start = 300 * minute;
  await sent(start, device);
  await checkedBefore(start + 2 * minute);
  expect(await check(start + 2 * minute)).toBe(1);
  const worker = new Worker(start - 60 * minute);
  expect(await check(worker.time - lateMs)).toBe(0);
  expect(Number((await attributes(device))['lastActivityTime'])).toBeLessThanOrEqual(worker.time);
  expect(Number((await attributes(device))['inactivityAlarmTime'])).toBeLessThanOrEqual(worker.time);
  worker.pass(1_000);
  worker.activity.touch(device);
  await worker.activity.stop();
  expect(await attributes(device)).toMatchObject({ active: '1', lastActivityTime: String(worker.time) });
  await checkedBefore(worker.time + minute + lateMs);
  expect(await check(worker.time + minute + lateMs)).toBe(1);
});

test('a session tells when it began and ended; its end is no sign of life', async () => {
  const device = devices[3]!;
  const { activity } = new Worker(1_000);
  activity.disconnected(device);
  await activity.stop();
  const before = await attributes(device);
  expect(before).not.toHaveProperty('active');
  expect(Number(before['lastDisconnectTime'])).toBeGreaterThan(0);
  const { activity: again } = new Worker(2_000);
  again.connected(device);
  again.touch(device);
  await again.stop();
  expect(await attributes(device)).toMatchObject({ active: '1', lastDisconnectTime: before['lastDisconnectTime'] });
  expect(Number((await attributes(device))['lastConnectTime'])).toBeGreaterThan(0);
});

test('the first session of an active device has no end before its end', async () => {
  const device = devices[3]!;
  await sent(1_000, device);
  const { activity } = new Worker(2_000);
  activity.connected(device);
  await activity.stop();
  expect(await attributes(device)).toMatchObject({ lastConnectTime: '2000' });
  expect(await attributes(device)).not.toHaveProperty('lastDisconnectTime');
});

test('what cannot be written waits, and all of it is written when the database is back', async () => {
  const device = devices[3]!;
  let isAway = true;
  const away = () => Promise.reject(unavailable('postgres_away', 'away'));
  const store = new Proxy(postgres, {
    get: (target, name) => {
      const member = Reflect.get(target, name) as (...args: unknown[]) => unknown;
      return typeof member === 'function' ? (isAway ? away : member.bind(target)) : member;
    },
  });
  const worker = new Worker(1_000_000, { store });
  worker.activity.connected(device);
  await worker.rounds(60 * minute, 100);
  worker.activity.touch(device);
  worker.activity.disconnected(device);
  const lastTime = worker.time;
  await worker.rounds(minute, 10);
  // The outage of a store is logged once, by the primary.
  expect(worker.events).toEqual([]);
  expect(await attributes(device)).toEqual({});
  isAway = false;
  await worker.activity.round();
  expect(await attributes(device)).toEqual({
    active: '1',
    lastActivityTime: String(lastTime),
    lastConnectTime: '1000000',
    lastDisconnectTime: String(lastTime),
  });
  await worker.activity.stop();
});

test('a device that is gone is left out', async () => {
  await recordMarks(postgres, [{ device: 999_999_999, activeTs: 1, connectTs: 0, disconnectTs: 0 }], 10_000);
  expect(await postgres.query('select 1 from device_activity where device = 999999999')).toEqual([]);
});

test('a deleted device leaves no activity, also when its first message is written during the delete', async () => {
  const numbers = await make('gone', 3);
  const marks = numbers.map((device) => ({ device, activeTs: 1, connectTs: 2, disconnectTs: 0 }));
  const rows = () =>
    postgres.query<{ device: number }>('select device from device_activity where device = any($1) order by 1', [
      numbers,
    ]);
  await recordMarks(postgres, marks.slice(0, 2), 10_000);
  expect(await rows()).toEqual(numbers.slice(0, 2).map((device) => ({ device })));
  let written: Promise<unknown> | undefined;
  await postgres.transaction(async (queries) => {
    await queries.query('delete from device where number = any($1)', [numbers.slice(1)]);
    written = Promise.all([
      recordMarks(postgres, marks.slice(0, 2), 10_000),
      recordMarks(postgres, marks.slice(2), 10_000),
    ]);
    // The stored row of one device is locked, and the row that is new needs the lock of its device.
    const waiting = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    while ((await postgres.query(waiting)).length < 2);
  });
  await written;
  expect(await rows()).toEqual([{ device: numbers[0] }]);
  await postgres.query('delete from device where number = any($1)', [numbers]);
  expect(await rows()).toEqual([]);
});

test('a session of a known device changes its row and no other field', async () => {
  const [device] = devices as [CachedDevice];
  const mark = { device: device.number, activeTs: 0, connectTs: 0, disconnectTs: 0 };
  await recordMarks(postgres, [{ ...mark, activeTs: 5_000 }], 10_000);
  await recordMarks(postgres, [{ ...mark, connectTs: 6_000 }], 10_000);
  await recordMarks(postgres, [{ ...mark, connectTs: 5_500, disconnectTs: 7_000 }], 10_000);
  expect(await attributes(device)).toMatchObject({
    active: '1',
    lastActivityTime: '5000',
    lastConnectTime: '6000',
    lastDisconnectTime: '7000',
  });
});

test('a user may write these attributes: the later write is read', async () => {
  const device = devices[1]!;
  await sent(5_000, device);
  const write = (ts: number) => {
    const value = ownValue.long(77);
    return upsertAttributes(postgres, [
      { device: device.number, scope: serverScope, key: 'lastActivityTime', value, ts },
      { device: device.number, scope: serverScope, key: 'note', value, ts },
    ]);
  };
  await write(4_000);
  expect(await attributes(device)).toEqual({ active: '1', lastActivityTime: '5000', note: '77' });
  await write(6_000);
  expect(await attributes(device)).toMatchObject({ lastActivityTime: '77' });
  await sent(7_000, device);
  expect(await attributes(device)).toMatchObject({ lastActivityTime: '7000' });
  const named = await readAttributes(postgres, device.number, [serverScope], ['active', 'note']);
  expect(named.map(({ key, value, lastUpdateTs }) => [key, value.int, lastUpdateTs])).toEqual([
    ['active', '1', 5_000],
    ['note', '77', 6_000],
  ]);
  expect(await readKeys(postgres, device.number, [1, 2, serverScope])).toEqual(['active', 'lastActivityTime', 'note']);
  expect(await readKeys(postgres, device.number, [1, 2])).toEqual([]);
  await postgres.query(`delete from attribute where key in ('note', 'lastActivityTime')`);
});

test('ten thousand devices are written, active ones again and again', async () => {
  const numbers = await make('many', 10_000);
  const many = numbers.map((number) => new CachedDevice({ ...devices[0]!, number }));
  for (const ts of [10_000_000, 10_002_000, 10_004_000]) await sent(ts, ...many);
  await checkedBefore(10_004_001 + minute);
  expect(await check(10_004_001 + minute)).toBe(numbers.length);
}, 60_000);
