/** The number of devices of a tenant on a real PostgreSQL: exact under concurrent calls, and within the limit. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { PasswordHasher } from '../auth/password.ts';
import { systemClock as clock } from '../base/clock.ts';
import { countDevices } from '../device/list/list-store.ts';
import type { Queries } from '../postgres/client.ts';
import { admitDevice, admitDevices } from './entity-limits.ts';
import { seedDemoData, seedFirstTenant } from './seed.ts';

let server: TestPostgres;
let tenants: string[];

beforeAll(async () => {
  server = await startTestPostgres();
  const { postgres } = server;
  const passwords = new PasswordHasher(1, { ln: 10, r: 8, p: 1 });
  const admins = { email: 'a@b.c', systemEmail: 's@b.c', password: 'pear-tree-7' };
  await seedFirstTenant({ postgres, passwords, clock }, admins);
  await seedDemoData({ postgres, passwords, clock });
  await passwords.close();
  tenants = (await postgres.query<{ id: string }>('select id from tenant order by id')).map(({ id }) => id);
}, 60_000);

afterAll(() => server.stop(), 60_000);

/** Makes `count` devices, each in a separate statement. */
async function make(queries: Queries, tenantId: string, name: string, count: number): Promise<void> {
  await queries.query(`do $$ begin for n in 1..${count} loop
    insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
    select gen_random_uuid(), 0, tenant_id, id, '${name}-' || n, '{}' from device_profile
     where tenant_id = '${tenantId}' limit 1; end loop; end $$`);
}

async function expectExact(): Promise<number[]> {
  const counted = await Promise.all(tenants.map((tenant) => countDevices(server.postgres, tenant)));
  const rows = await server.postgres.query<{ count: number }>(
    'select (select count(*) from device where tenant_id = t.id) as count from tenant t order by t.id',
  );
  expect(counted).toEqual(rows.map(({ count }) => count));
  return counted;
}

test('devices that are made, deleted and rolled back at once are counted exactly', async () => {
  const { postgres } = server;
  expect(tenants.length).toBeGreaterThan(1);
  const before = await expectExact();
  const undone = (tenant: string, name: string) =>
    expect(
      postgres.transaction(async (queries) => {
        await make(queries, tenant, name, 100);
        throw new Error('undone');
      }),
    ).rejects.toThrow('undone');
  await Promise.all(
    tenants.flatMap((tenant) => [
      make(postgres, tenant, 'a', 500),
      make(postgres, tenant, 'b', 500),
      undone(tenant, 'c'),
    ]),
  );
  const made = await expectExact();
  expect(made).toEqual(before.map((count) => count + 1_000));
  await Promise.all([
    postgres.query(`delete from device where name like 'a-%'`),
    make(postgres, tenants[0]!, 'd', 500),
  ]);
  await expectExact();
  // The database adds up the changes at random times, so fewer are left than were made.
  const [changes] = await postgres.query<{ count: number }>('select count(*) as count from device_count_change');
  expect(changes!.count).toBeLessThan(tenants.length * 1_000);
});

test('the limit admits what there is room for, and nothing above it', async () => {
  const { postgres } = server;
  const tenant = tenants[0]!;
  const count = await countDevices(postgres, tenant);
  const admitted = (wanted: number, devicesMax: number) =>
    postgres.transaction((queries) => admitDevices(queries, tenant, wanted, devicesMax));
  expect(await admitted(5, count + 3)).toBe(3);
  expect(await admitted(5, count)).toBe(0);
  expect(await admitted(5, count - 7)).toBe(0);
  expect(await admitted(5, 0)).toBe(5);
  await expect(postgres.transaction((queries) => admitDevice(queries, tenant, count - 7))).rejects.toMatchObject({
    reason: 'device_limit',
  });
});
