/** Pages of lists share the connections to PostgreSQL: however many are asked for, other calls find a connection. */

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { embeddedPostgresUrl } from '../../src/postgres/embedded/embedded.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { silentLog as log } from '../harness/silent-log.ts';
import { call, makeTenant } from '../harness/tenants.ts';

let engine: Engine;
let postgres: Postgres;

beforeAll(async () => {
  engine = await startEngine({ workers: 1, env: { DATABASE_POOL_MAX: '4' } });
  const { postgresPassword } = JSON.parse(readFileSync(join(engine.dataDir, 'secrets.json'), 'utf8')) as {
    postgresPassword: string;
  };
  const port = Number(readFileSync(join(engine.dataDir, 'postgres/cluster/postmaster.pid'), 'utf8').split('\n')[3]);
  postgres = openPostgres({ url: embeddedPostgresUrl(postgresPassword, port), poolMax: 2, log });
});

afterAll(async () => {
  await postgres?.close();
  await engine?.destroy();
});

test('other calls are answered while lists and entity queries of several tenants wait in PostgreSQL', async () => {
  const { api } = engine;
  const system = (await api.login('sysadmin@millrace.local', api.address.adminPassword)).token;
  const tenants = [await makeTenant(api, system), await makeTenant(api, system), await makeTenant(api, system)];
  const admin = await api.adminToken();
  const customer = await call(api, 'POST', '/api/customer', { title: randomUUID() }, admin);
  const entityFilter = { type: 'entityType', entityType: 'DEVICE' };
  const find = { entityFilter, pageLink: { pageSize: 10, page: 0 }, entityFields: [], latestValues: [] };
  const pages = (token: string) => [
    call(api, 'GET', '/api/tenant/devices?pageSize=10&page=0&textSearch=a', undefined, token),
    call(api, 'POST', '/api/entitiesQuery/find', find, token),
    call(api, 'POST', '/api/entitiesQuery/count', { entityFilter }, token),
  ];
  const asked = await postgres.transaction(async (queries) => {
    await queries.query('lock table device in access exclusive mode');
    const answers = Promise.allSettled(
      tenants.flatMap(({ admin: { token } }) => Array.from({ length: 10 }, () => pages(token)).flat()),
    );
    await expect.poll(waitingPages, { interval: 20, timeout: 20_000 }).toBeGreaterThanOrEqual(2);
    for (let n = 0; n < 50; n += 1) {
      const { title } = await call(api, 'GET', `/api/customer/${customer.id.id}`, undefined, admin);
      expect(title).toBe(customer.title);
      expect(await waitingPages()).toBeLessThanOrEqual(2);
    }
    return { answers };
  });
  const statuses = (await asked.answers).map(({ status }) => status);
  expect(statuses).toEqual(Array.from({ length: 90 }, () => 'fulfilled'));
});

/** Returns how many pages wait for the lock. A worker also leases persistent commands, with a statement that writes. */
async function waitingPages(): Promise<number> {
  const [row] = await postgres.query<{ count: number }>(
    `select count(*) from pg_locks join pg_stat_activity using (pid)
      where not granted and relation = 'device'::regclass and query !~* '^\\s*(insert|update|delete)'`,
  );
  return row!.count;
}
