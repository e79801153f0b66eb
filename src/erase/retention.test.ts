/** Retention on a table whose days were stored before the setting was made. */

import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { dayMs } from '../base/durations.ts';
import { deleteExpiredOfDaysStatement } from '../clickhouse/retention-statements.ts';
import type { Postgres } from '../postgres/client.ts';
import { takeLease } from '../postgres/lease.ts';
import { Retention, type RetentionDeps } from './retention.ts';
import { isDue } from './retention-store.ts';
import { SteadyClock } from './steady-clock.ts';

let stores: TestPostgres;
let embedded: SharedClickHouse;

const now = Date.UTC(2026, 10, 21, 12);
let installationNow = now;
let databaseNow = now;
const clock = { now: () => installationNow, monotonic: () => performance.now() };
/** PostgreSQL with a clock that tests set. */
let postgres: Postgres;

beforeAll(async () => {
  [stores, embedded] = await Promise.all([startTestPostgres(), shareTestClickHouse()]);
  postgres = new Proxy(stores.postgres, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (name !== 'query') return typeof value === 'function' ? value.bind(target) : value;
      return (text: string, ...rest: never[]) =>
        target.query(text.replaceAll('clock_timestamp()', `to_timestamp(${databaseNow} / 1000.0)`), ...rest);
    },
  });
  await trust();
  const days = ['2026-01-05', '2026-10-21', '2026-10-22', '2026-10-23', '2026-11-21', '2041-01-01', '1999-01-01'];
  for (const [device, day] of days.entries()) {
    const ts = Date.parse(`${day}T11:00:00Z`);
    for (const table of ['telemetry', 'latest']) {
      await embedded.clickhouse.exec(
        `INSERT INTO ${table} (device, key, ts, kind, num, version) VALUES (${device + 1}, 'k', ${ts}, 3, 1, 1)`,
      );
    }
  }
}, 120_000);

afterAll(async () => {
  await Promise.all([stores?.stop(), embedded?.stop()]);
});

/** The clock was checked a moment ago. */
async function trust(): Promise<void> {
  await postgres.query(`insert into retention (name, done_at) values ('clock', clock_timestamp())
    on conflict (name) do update set done_at = excluded.done_at`);
}

async function forgetRounds(): Promise<void> {
  await postgres.query('delete from retention');
  await trust();
}

function retention(parts: Partial<RetentionDeps> = {}): Retention {
  const { clickhouse } = embedded;
  const steadyClock = new SteadyClock({ postgres, clock, log: parts.log ?? log });
  const rest = { postgres, clickhouse, cluster: '', clock, steadyClock, log, isLeader: () => true };
  return new Retention({ ...rest, ttlDays: 30, ttlOfLatest: false, ...parts });
}

async function days(table: string): Promise<string[]> {
  const rows = await embedded.clickhouse.rows<{ day: string }>(
    `SELECT toString(toDate(intDiv(ts, 1000))) AS day FROM ${table} FINAL ORDER BY ts`,
  );
  return rows.map(({ day }) => day);
}

test('days that were there before the setting are dropped, by the day, and nothing that is newer', async () => {
  expect(await days('telemetry')).toHaveLength(7);
  // October 22 has not ended 30 days ago.
  await retention().round();
  expect(await days('telemetry')).toEqual(['1999-01-01', '2026-10-22', '2026-10-23', '2026-11-21', '2041-01-01']);
  expect(await days('latest')).toHaveLength(7);
});

test('latest values of emptied keys go when that is wanted, once a day', async () => {
  await retention({ ttlOfLatest: true }).round();
  expect(await days('latest')).toEqual(['2026-10-23', '2026-11-21', '2041-01-01']);
  await embedded.clickhouse.exec(
    `INSERT INTO latest (device, key, ts, kind, num, version) VALUES (99, 'k', ${Date.UTC(2026, 0, 5)}, 3, 1, 1)`,
  );
  await retention({ ttlOfLatest: true }).round();
  expect(await days('latest')).toHaveLength(4);
  await postgres.query(`update retention set done_at = done_at - interval '25 hours' where name not like 'clock%'`);
  await retention({ ttlOfLatest: true }).round();
  expect(await days('latest')).toHaveLength(3);
});

test('many expired rows outside the days are deleted, those of the future stay', async () => {
  const old = Date.UTC(1999, 0, 1);
  await embedded.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) SELECT 5, 'k', ${old} + number, 3, 1, 1 FROM numbers(100000)`,
  );
  await forgetRounds();
  await retention().round();
  const left = async () =>
    (await embedded.clickhouse.rows<{ n: string }>('SELECT count() AS n FROM telemetry WHERE ts < 1577836800000'))[0]!
      .n;
  await expect.poll(left).toBe('0');
  expect(await days('telemetry')).toEqual(['2026-10-22', '2026-10-23', '2026-11-21', '2041-01-01']);
});

test('a host that does not hold the lease does nothing', async () => {
  await embedded.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) VALUES (1, 'k', ${Date.UTC(2026, 0, 6)}, 3, 1, 1)`,
  );
  await postgres.query(
    `insert into lease (name, holder, until) values ('retention', 'other', clock_timestamp() + interval '5 minutes')`,
  );
  await retention().round();
  expect((await days('telemetry'))[0]).toBe('2026-01-06');
  await postgres.query(`update lease set until = clock_timestamp() - interval '1 second'`);
  await retention().round();
  expect((await days('telemetry'))[0]).toBe('2026-10-22');
});

/** Lets time pass after the last check of the clock, or sets the clock. */
async function pass(time: string): Promise<void> {
  await postgres.query(`update retention set done_at = done_at - interval '${time}' where name like 'clock%'`);
}

/** Stores a point that has expired. The returned round says whether the point is still there. */
async function expired(): Promise<{ lines: string[]; round: (parts?: Partial<RetentionDeps>) => Promise<boolean> }> {
  const ts = Date.UTC(2026, 0, 7);
  await forgetRounds();
  await embedded.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) VALUES (1, 'k', ${ts}, 3, 1, 1)`,
  );
  const lines: string[] = [];
  const note = (event: string) => event === 'expiry_waits' && lines.push(event);
  const one = retention({ log: { ...log, warn: note, info: note } });
  const round = async () => {
    await one.round();
    return (await days('telemetry'))[0] === '2026-01-07';
  };
  return { lines, round };
}

test('after a jump of the clock nothing expires until Millrace has run for a day, in pieces', async () => {
  const { lines, round } = await expired();
  // The database was set ahead by a year since the last round.
  await pass('365 days');
  expect(await round()).toBe(true);
  for (let piece = 0; piece < 11; piece += 1) {
    await pass('2 hours');
    expect(await round()).toBe(true);
    // The instance did not run for some days.
    await pass('5 days');
    expect(await round()).toBe(true);
  }
  expect(lines).toEqual(['expiry_waits']);
  await pass('2 hours');
  expect(await round()).toBe(false);
  expect(await postgres.query(`select from retention where name like 'clock %'`)).toHaveLength(0);
});

test('a clock that is set right ends the doubt, and the next jump begins it again', async () => {
  const { lines, round } = await expired();
  await pass('365 days');
  expect(await round()).toBe(true);
  for (let piece = 0; piece < 11; piece += 1) {
    await pass('2 hours');
    expect(await round()).toBe(true);
  }
  // The last trusted time is recent again.
  await trust();
  expect(await round()).toBe(false);
  await expired();
  await pass('365 days');
  await pass('2 hours');
  expect(await round()).toBe(true);
  expect(lines).toEqual(['expiry_waits', 'expiry_waits']);
  await trust();
  expect(await round()).toBe(false);
});

test('a clock that was set back deletes less, and is trusted after a day', async () => {
  const { lines, round } = await expired();
  const trustedAheadMs = async () => {
    const [row] = await postgres.query<{ ms: number }>(
      `select (extract(epoch from done_at) * 1000)::float8 - $1::float8 as ms from retention where name = 'clock'`,
      [now],
    );
    return row!.ms;
  };
  await pass('-30 days');
  expect(await round()).toBe(false);
  for (let piece = 0; piece < 11; piece += 1) {
    await pass('2 hours');
    await round();
  }
  // A start at the earlier time, for a moment, does not begin the day of a later time again.
  expect(await trustedAheadMs()).toBe(30 * dayMs - 22 * 3_600_000);
  await pass('2 hours');
  await round();
  expect(await trustedAheadMs()).toBe(0);
  expect(lines).toEqual([]);
});

test('a clock that starts late each time does not keep expiry from being resumed', async () => {
  const { lines, round } = await expired();
  await pass('10 days');
  expect(await round()).toBe(true);
  for (let start = 0; start < 11; start += 1) {
    // The host has no clock that runs while it is off: it starts years ago until its time is set.
    installationNow = databaseNow = now - 300 * dayMs;
    expect(await round()).toBe(true);
    installationNow = databaseNow = now;
    expect(await round()).toBe(true);
    await pass('2 hours');
    await round();
  }
  expect(lines).toEqual(['expiry_waits']);
  await pass('2 hours');
  expect(await round()).toBe(false);
});

test('a day at earlier times does not count for a later time', async () => {
  const steadyClock = new SteadyClock({ postgres, clock, log });
  await forgetRounds();
  await pass('-30 days');
  for (let piece = 0; piece < 11; piece += 1) {
    await pass('2 hours');
    expect(await steadyClock.time()).toBe(now);
  }
  await pass('400 days');
  for (let piece = 0; piece < 12; piece += 1) {
    expect(await steadyClock.time()).toBeUndefined();
    await pass('2 hours');
  }
  expect(await steadyClock.time()).toBe(now);
});

test('nothing expires before the clock was ever trusted', async () => {
  const { lines, round } = await expired();
  await postgres.query('delete from retention');
  expect(await round()).toBe(true);
  expect(await round()).toBe(true);
  expect(lines).toEqual(['expiry_waits']);
  await trust();
  expect(await round()).toBe(false);
});

test.each([6_000, -6_000])('nothing expires while the clock of the database differs by %i ms', async (differenceMs) => {
  const { lines, round } = await expired();
  databaseNow = now + differenceMs;
  expect(await round()).toBe(true);
  expect(await round()).toBe(true);
  expect(lines).toEqual(['expiry_waits']);
  databaseNow = now;
  expect(await round()).toBe(false);
});

test('the earlier of the two times decides', async () => {
  await expired();
  const endOfDay = Date.UTC(2026, 0, 8);
  installationNow = endOfDay + 30 * dayMs + 1_000;
  databaseNow = installationNow - 2_000;
  await trust();
  const [first] = await days('telemetry');
  await retention().round();
  expect((await days('telemetry'))[0]).toBe(first);
  [installationNow, databaseNow] = [databaseNow, installationNow];
  await retention().round();
  expect((await days('telemetry'))[0]).toBe(first);
  installationNow = databaseNow;
  await retention().round();
  expect((await days('telemetry'))[0]).not.toBe(first);
  installationNow = databaseNow = now;
  await trust();
});

test('a clock that is set while a round runs deletes nothing more', async () => {
  await expired();
  const { clickhouse } = embedded;
  const changing = new Proxy(clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (name !== 'rows') return typeof value === 'function' ? value.bind(target) : value;
      return async (...parameters: Parameters<typeof clickhouse.rows>) => {
        const rows = await target.rows(...parameters);
        installationNow = databaseNow = now - 300 * dayMs;
        return rows;
      };
    },
  });
  await retention({ clickhouse: changing }).round();
  expect((await days('telemetry'))[0]).toBe('2026-01-07');
  installationNow = databaseNow = now;
  await trust();
  await retention().round();
  expect((await days('telemetry'))[0]).toBe('2026-10-22');
});

test('a database that counts microseconds, as each does, lets everything expire', async () => {
  await forgetRounds();
  await embedded.clickhouse.exec(
    `INSERT INTO latest (device, key, ts, kind, num, version) VALUES (90, 'k', ${Date.UTC(2026, 0, 5)}, 3, 1, 1)`,
  );
  await embedded.clickhouse.exec(`INSERT INTO telemetry (device, key, ts, kind, num, version, expires)
    VALUES (90, 'k', ${now - 5 * dayMs}, 3, 1, 1, ${now / 1000 - 3600})`);
  const failures: unknown[] = [];
  databaseNow = now - 0.377;
  await retention({ ttlOfLatest: true, log: { ...log, warn: (_, fields) => failures.push(fields) } }).round();
  databaseNow = now;
  expect(failures).toEqual([]);
  for (const table of ['latest', 'telemetry']) {
    const left = () => embedded.clickhouse.rows(`SELECT device FROM ${table} WHERE device = 90`);
    await expect.poll(left).toEqual([]);
  }
});

test('work that was done in the future is due, and a lease of the future ends soon', async () => {
  await postgres.query(`insert into retention (name, done_at) values ('latest', clock_timestamp() + interval '1 year')
    on conflict (name) do update set done_at = excluded.done_at`);
  expect(await isDue(postgres, 'latest')).toBe(true);
  await postgres.query(`update retention set done_at = clock_timestamp() - interval '1 hour' where name = 'latest'`);
  expect(await isDue(postgres, 'latest')).toBe(false);
  await postgres.query(
    `insert into lease (name, holder, until) values ('x', 'other', clock_timestamp() + interval '1 year')`,
  );
  // The holder may be at work: the clock of the database was set back.
  expect(await takeLease(postgres, 'x', 'own', 60_000)).toBe(false);
  expect(await takeLease(postgres, 'x', 'other', 60_000)).toBe(true);
  databaseNow += 60_001;
  expect(await takeLease(postgres, 'x', 'own', 60_000)).toBe(true);
  expect(await takeLease(postgres, 'x', 'third', 60_000)).toBe(false);
  databaseNow = now;
});

/** Devices 101 to 103 have profiles of 10, 20 and no days. */
async function profiles(): Promise<void> {
  const tenant = `'00000000-0000-0000-0000-000000000001'`;
  await postgres.query(`insert into tenant (id, created_time, title) values (${tenant}, 0, 't')
    on conflict do nothing`);
  for (const [at, days] of [10, 20, null].entries()) {
    const id = `'00000000-0000-0000-0000-00000000010${at + 1}'`;
    await postgres.query(`insert into device_profile (id, tenant_id, created_time, is_default, name,
        profile_data, telemetry_ttl_days) values (${id}, ${tenant}, 0, false, 'p${at}', '{}', ${days})`);
    await postgres.query(`insert into device (number, id, created_time, tenant_id, device_profile_id, name,
        device_data) overriding system value values (${101 + at}, ${id}, 0, ${tenant}, ${id}, 'd${at}', '{}')`);
  }
}

/** Points of each table as `device:days before now`. */
async function left(table: string): Promise<string[]> {
  const rows = await embedded.clickhouse.rows<{ device: number; ago: number }>(
    `SELECT toUInt32(device) AS device, (${now} - ts) / ${dayMs} AS ago FROM ${table} FINAL WHERE device > 100 ORDER BY device, ago`,
  );
  return rows.map(({ device, ago }) => `${device}:${ago}`);
}

test('retention by profile: points of devices expire by the days of their present profile', async () => {
  await forgetRounds();
  await profiles();
  const fill = async (device: number) => {
    for (const ago of [9, 10, 11, 20, 21]) {
      for (const table of ['telemetry', 'latest']) {
        await embedded.clickhouse.exec(`INSERT INTO ${table} (device, key, ts, kind, num, version)
          VALUES (${device}, '${table === 'latest' ? ago : 'k'}', ${now - ago * dayMs}, 3, 1, 1)`);
      }
    }
  };
  await Promise.all([101, 102, 103].map(fill));
  const lines: unknown[] = [];
  const noting = { ...log, info: (event: string, fields?: object) => lines.push({ event, ...fields }) };
  await retention({ ttlDays: 0, log: noting }).round();
  // A point of exactly the maximum age is kept, because reads still show it.
  const kept = ['101:9', '101:10', '102:9', '102:10', '102:11', '102:20'];
  const other = [9, 10, 11, 20, 21].map((ago) => `103:${ago}`);
  expect(await left('telemetry')).toEqual([...kept, ...other]);
  expect(lines).toEqual([{ event: 'retention_expired', devices: 2, days: 3, points: 4 }]);
  expect(await left('latest')).toHaveLength(15);

  // The device has another profile now; few rows wait for a week, latest values only for the next day.
  await postgres.query(`update device set device_profile_id = '00000000-0000-0000-0000-000000000101'
    where number = 103`);
  await postgres.query(`update retention set done_at = done_at - interval '25 hours' where name not like 'clock%'`);
  await retention({ ttlDays: 0, ttlOfLatest: true }).round();
  await expect.poll(() => left('latest')).toEqual([...kept, '103:9', '103:10']);
  expect(await left('telemetry')).toEqual([...kept, ...other]);
  await postgres.query(`update retention set done_at = done_at - interval '7 days' where name not like 'clock%'`);
  await retention({ ttlDays: 0 }).round();
  expect(await left('telemetry')).toEqual([...kept, '103:9', '103:10']);

  // The installation's days are the maximum.
  await postgres.query(`update retention set done_at = done_at - interval '8 days' where name not like 'clock%'`);
  lines.length = 0;
  await retention({ ttlDays: 10, log: noting }).round();
  expect(lines).toContainEqual(expect.objectContaining({ event: 'retention_dropped' }));
  expect(lines).not.toContainEqual(expect.objectContaining({ event: 'retention_expired' }));
  expect(await left('telemetry')).toEqual(['101:9', '101:10', '102:9', '102:10', '103:9', '103:10']);
});

test('points whose time to live has ended are deleted with what they replaced, on days that are closed', async () => {
  await forgetRounds();
  const seconds = now / 1000;
  const insert = (device: number, day: number, version: number, expires: number) =>
    embedded.clickhouse.exec(`INSERT INTO telemetry (device, key, ts, kind, num, version, expires)
      VALUES (${device}, 'k', ${now - day * dayMs}, 3, 1, ${version}, ${expires})`);
  // 201: replaced an older point and has ended; 202: has not; 203: replaced by one that does not expire.
  for (const [device, first, second] of [
    [201, 0, seconds],
    [202, 0, seconds + 1],
    [203, seconds, 0],
  ] as const) {
    await insert(device, 4, 1, first);
    await insert(device, 4, 2, second);
  }
  await insert(204, 0, 1, seconds - 3600);
  await retention({ ttlDays: 0 }).round();
  const rows = await embedded.clickhouse.rows<{ device: string }>(
    'SELECT device FROM telemetry WHERE device > 200 ORDER BY device',
  );
  expect(rows.map(({ device }) => device)).toEqual(['202', '203', '204']);
});

test('what another host has taken over meanwhile, or what a stop has ended, is not done', async () => {
  const fill = () =>
    embedded.clickhouse.exec(`INSERT INTO telemetry (device, key, ts, kind, num, version, expires)
      VALUES (211, 'k', ${now - 5 * dayMs}, 3, 1, 1, ${now / 1000 - 3600})`);
  const ends: ((round: Retention) => unknown)[] = [
    () => postgres.query(`update lease set holder = 'other' where name = 'retention'`),
    (round) => void round.stop(),
  ];
  for (const end of ends) {
    await forgetRounds();
    await fill();
    const clickhouse = new Proxy(embedded.clickhouse, {
      get(target, name) {
        const value = Reflect.get(target, name) as unknown;
        if (name !== 'rows') return typeof value === 'function' ? value.bind(target) : value;
        return async (...asked: Parameters<typeof target.rows>) => {
          const rows = await target.rows(...asked);
          await end(round);
          return rows;
        };
      },
    });
    const round: Retention = retention({ ttlDays: 0, clickhouse });
    await round.round();
    expect([await isDue(postgres, 'expired points'), await isDue(postgres, 'few expired points', 7)]).toEqual([
      true,
      true,
    ]);
    await postgres.query(`delete from lease where name = 'retention'`);
  }
  await retention({ ttlDays: 0 }).round();
  expect(await isDue(postgres, 'expired points')).toBe(false);
  expect(await embedded.clickhouse.rows('SELECT device FROM telemetry WHERE device = 211')).toEqual([]);
});

test('in a cluster, too, an ended point takes along what it has replaced, in one insert or in several', async () => {
  const day = 4;
  const ts = now - day * dayMs;
  const ended = now / 1000;
  // 301 and 304: replaced an older point and have ended; 302: has not; 303: replaced by a point that does not expire.
  const inserts = [
    [
      [301, 1, 0],
      [302, 1, ended],
      [303, 1, ended],
      [304, 1, 0],
      [304, 1, ended],
      [305, 1, ended],
      [305, 1, 0],
    ],
    [
      [301, 2, ended],
      [302, 2, ended + 1],
      [303, 2, 0],
    ],
  ];
  for (const rows of inserts) {
    const values = rows.map(([device, version, expires]) => `(${device}, 'k', ${ts}, 3, 1, ${version}, ${expires})`);
    await embedded.clickhouse.exec(
      `INSERT INTO telemetry (device, key, ts, kind, num, version, expires) SETTINGS optimize_on_insert = 0
       VALUES ${values.join(', ')}`,
    );
  }
  const statement = deleteExpiredOfDaysStatement('', [], [Number(dayOf(ts))]);
  await embedded.clickhouse.exec(statement, { nowSeconds: ended }, { settings: { mutations_sync: '2' } });
  const rows = await embedded.clickhouse.rows<{ device: string; expires: number }>(
    'SELECT device, expires FROM telemetry FINAL WHERE device > 300 ORDER BY device',
  );
  expect(rows.map((row) => [Number(row.device), row.expires])).toEqual([
    [302, ended + 1],
    [303, 0],
    [305, 0],
  ]);
});

function dayOf(ts: number): string {
  return new Date(ts).toISOString().slice(0, 10).replaceAll('-', '');
}
