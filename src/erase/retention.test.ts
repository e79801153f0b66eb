/** Retention on a table whose days were stored before the setting was made. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { silentLog as log, type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { migrate } from '../clickhouse/migrate.ts';
import { Retention, type RetentionDeps } from './retention.ts';

let stores: TestPostgres;
let house: SharedClickHouse;

const now = Date.UTC(2026, 10, 21, 12);
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
  await migrate(house.clickhouse, { database: house.database, cluster: '', ttlDays: 30, log });
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
  await stores.postgres.query(`update retention set done_at = done_at - interval '25 hours'`);
  await retention({ ttlOfLatest: true }).round();
  expect(await days('latest')).toHaveLength(3);
});

test('many expired rows outside the days are deleted, those of the future stay', async () => {
  const old = Date.UTC(1999, 0, 1);
  // The store's own rule would drop what is inserted from now on.
  await migrate(house.clickhouse, { database: house.database, cluster: '', ttlDays: 0, log });
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
