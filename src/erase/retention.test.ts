/** Retention on a table whose days were stored before the setting was made. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { silentLog as log, type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { Retention, type RetentionDeps } from './retention.ts';

let stores: TestPostgres;
let house: SharedClickHouse;

const now = Date.UTC(2026, 10, 21, 12);
const dayMs = 86_400_000;
const clock = { now: () => now, monotonic: () => performance.now() };

beforeAll(async () => {
  [stores, house] = await Promise.all([startTestPostgres(), shareTestClickHouse()]);
  const days = ['2026-01-05', '2026-10-21', '2026-10-22', '2026-10-23', '2026-11-21', '2041-01-01', '1999-01-01'];
  for (const [device, day] of days.entries()) {
    const ts = Date.parse(`${day}T11:00:00Z`);
    for (const table of ['telemetry', 'latest']) {
      await house.clickhouse.exec(
        `INSERT INTO ${table} (device, key, ts, kind, num, version) VALUES (${device + 1}, 'k', ${ts}, 3, 1, 1)`,
      );
    }
  }
}, 120_000);

afterAll(async () => {
  await Promise.all([stores?.stop(), house?.stop()]);
});

function retention(parts: Partial<RetentionDeps> = {}): Retention {
  const { clickhouse } = house;
  const { postgres } = stores;
  const rest = { postgres, clickhouse, cluster: '', clock, log, isLeader: () => true };
  return new Retention({ ...rest, ttlDays: 30, ttlOfLatest: false, ...parts });
}

async function days(table: string): Promise<string[]> {
  const rows = await house.clickhouse.rows<{ day: string }>(
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
  await house.clickhouse.exec(
    `INSERT INTO latest (device, key, ts, kind, num, version) VALUES (99, 'k', ${Date.UTC(2026, 0, 5)}, 3, 1, 1)`,
  );
  await retention({ ttlOfLatest: true }).round();
  expect(await days('latest')).toHaveLength(4);
  await stores.postgres.query(`update retention set done_at = done_at - interval '25 hours' where name <> 'clock'`);
  await retention({ ttlOfLatest: true }).round();
  expect(await days('latest')).toHaveLength(3);
});

test('many expired rows outside the days are deleted, those of the future stay', async () => {
  const old = Date.UTC(1999, 0, 1);
  await house.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) SELECT 5, 'k', ${old} + number, 3, 1, 1 FROM numbers(100000)`,
  );
  await stores.postgres.query('delete from retention');
  await retention().round();
  const left = async () =>
    (await house.clickhouse.rows<{ n: string }>('SELECT count() AS n FROM telemetry WHERE ts < 1577836800000'))[0]!.n;
  await expect.poll(left, { timeout: 20_000 }).toBe('0');
  expect(await days('telemetry')).toEqual(['2026-10-22', '2026-10-23', '2026-11-21', '2041-01-01']);
});

test('a host that does not hold the lease does nothing', async () => {
  await house.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) VALUES (1, 'k', ${Date.UTC(2026, 0, 6)}, 3, 1, 1)`,
  );
  await stores.postgres.query(
    `insert into lease (name, holder, until) values ('retention', 'other', clock_timestamp() + interval '1 hour')`,
  );
  await retention().round();
  expect((await days('telemetry'))[0]).toBe('2026-01-06');
  await stores.postgres.query(`update lease set until = clock_timestamp() - interval '1 second'`);
  await retention().round();
  expect((await days('telemetry'))[0]).toBe('2026-10-22');
});

test('after a jump of the clock nothing expires for a day, and what is left expires then', async () => {
  const clockRow = (change: string) =>
    stores.postgres.query(`update retention set done_at = done_at - interval '${change}' where name like 'clock%'`);
  const old = Date.UTC(2026, 0, 7);
  await house.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) VALUES (1, 'k', ${old}, 3, 1, 1)`,
  );
  const lines: string[] = [];
  const noting = { ...log, warn: (event: string) => lines.push(event) };
  const first = async () => {
    await retention({ log: noting }).round();
    return (await days('telemetry'))[0];
  };
  // The database was set ahead by a year since the last round.
  await clockRow('365 days');
  expect(await first()).toBe('2026-01-07');
  await clockRow('23 hours');
  expect(await first()).toBe('2026-01-07');
  expect(lines).toEqual(['expiry_waits']);
  // Set right again, and ahead once more: the day begins again.
  await stores.postgres.query(`update retention set done_at = done_at + interval '2 years' where name = 'clock ahead'`);
  expect(await first()).toBe('2026-01-07');
  expect(lines).toEqual(['expiry_waits', 'expiry_waits']);
  await clockRow('25 hours');
  expect(await first()).toBe('2026-10-22');
  expect(await stores.postgres.query(`select from retention where name = 'clock ahead'`)).toHaveLength(0);
  // A clock that was set back is trusted: it deletes less.
  await clockRow('-30 days');
  expect(await first()).toBe('2026-10-22');
  expect(lines).toHaveLength(2);
});

/** Devices 101 to 103 have profiles of 10, 20 and no days. */
async function profiles(): Promise<void> {
  const tenant = `'00000000-0000-0000-0000-000000000001'`;
  await stores.postgres.query(`insert into tenant (id, created_time, title) values (${tenant}, 0, 't')
    on conflict do nothing`);
  for (const [at, days] of [10, 20, null].entries()) {
    const id = `'00000000-0000-0000-0000-00000000010${at + 1}'`;
    await stores.postgres.query(`insert into device_profile (id, tenant_id, created_time, is_default, name,
        profile_data, telemetry_ttl_days) values (${id}, ${tenant}, 0, false, 'p${at}', '{}', ${days})`);
    await stores.postgres.query(`insert into device (number, id, created_time, tenant_id, device_profile_id, name,
        device_data) overriding system value values (${101 + at}, ${id}, 0, ${tenant}, ${id}, 'd${at}', '{}')`);
  }
}

/** Points of each table as `device:days before now`. */
async function left(table: string): Promise<string[]> {
  const rows = await house.clickhouse.rows<{ device: number; ago: number }>(
    `SELECT toUInt32(device) AS device, (${now} - ts) / ${dayMs} AS ago FROM ${table} FINAL WHERE device > 100 ORDER BY device, ago`,
  );
  return rows.map(({ device, ago }) => `${device}:${ago}`);
}

test('retention by profile: points of devices expire by the days of their present profile', async () => {
  await stores.postgres.query('delete from retention');
  await profiles();
  const fill = async (device: number) => {
    for (const ago of [9, 10, 11, 20, 21]) {
      for (const table of ['telemetry', 'latest']) {
        await house.clickhouse.exec(`INSERT INTO ${table} (device, key, ts, kind, num, version)
          VALUES (${device}, '${table === 'latest' ? ago : 'k'}', ${now - ago * dayMs}, 3, 1, 1)`);
      }
    }
  };
  await Promise.all([101, 102, 103].map(fill));
  const lines: unknown[] = [];
  const noting = { ...log, info: (event: string, fields?: object) => lines.push({ event, ...fields }) };
  await retention({ ttlDays: 0, log: noting }).round();
  // A point that is exactly so old is kept, as a read shows it.
  const kept = ['101:9', '101:10', '102:9', '102:10', '102:11', '102:20'];
  const other = [9, 10, 11, 20, 21].map((ago) => `103:${ago}`);
  expect(await left('telemetry')).toEqual([...kept, ...other]);
  expect(lines).toEqual([{ event: 'retention_expired', devices: 2, days: 3, points: 4 }]);
  expect(await left('latest')).toHaveLength(15);

  // The device has another profile now; few rows wait for a week, latest values only for the next day.
  await stores.postgres.query(`update device set device_profile_id = '00000000-0000-0000-0000-000000000101'
    where number = 103`);
  await stores.postgres.query(`update retention set done_at = done_at - interval '25 hours' where name <> 'clock'`);
  await retention({ ttlDays: 0, ttlOfLatest: true }).round();
  await expect.poll(() => left('latest'), { timeout: 20_000 }).toEqual([...kept, '103:9', '103:10']);
  expect(await left('telemetry')).toEqual([...kept, ...other]);
  await stores.postgres.query(`update retention set done_at = done_at - interval '7 days' where name <> 'clock'`);
  await retention({ ttlDays: 0 }).round();
  expect(await left('telemetry')).toEqual([...kept, '103:9', '103:10']);

  // The installation's days are the maximum.
  await stores.postgres.query(`update retention set done_at = done_at - interval '8 days' where name <> 'clock'`);
  lines.length = 0;
  await retention({ ttlDays: 10, log: noting }).round();
  expect(lines).toContainEqual(expect.objectContaining({ event: 'retention_dropped' }));
  expect(lines).not.toContainEqual(expect.objectContaining({ event: 'retention_expired' }));
  expect(await left('telemetry')).toEqual(['101:9', '101:10', '102:9', '102:10', '103:9', '103:10']);
});

test('points whose time to live has ended are deleted with what they replaced, on days that are closed', async () => {
  await stores.postgres.query('delete from retention');
  const seconds = now / 1000;
  const insert = (device: number, day: number, version: number, expires: number) =>
    house.clickhouse.exec(`INSERT INTO telemetry (device, key, ts, kind, num, version, expires)
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
  const rows = await house.clickhouse.rows<{ device: string }>(
    'SELECT device FROM telemetry WHERE device > 200 ORDER BY device',
  );
  expect(rows.map(({ device }) => device)).toEqual(['202', '203', '204']);
});
