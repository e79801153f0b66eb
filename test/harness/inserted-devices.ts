/** Makes devices in PostgreSQL for tests of SQL, without an engine. */
import { insertTenant } from '../../src/admin/store.ts';
import { createUuid } from '../../src/base/uuid.ts';
import type { Queries } from '../../src/postgres/client.ts';

/** Inserts devices of one new tenant, and returns their numbers. */
export async function insertDevices(postgres: Queries, count: number): Promise<number[]> {
  const [tenantId, profileId] = [createUuid(1), createUuid(1)];
  await insertTenant(postgres, { id: tenantId, createdTime: 1, title: tenantId });
  await postgres.query(
    `insert into device_profile (id, created_time, tenant_id, name, profile_data) values ($1, 1, $2, 'p', '{}')`,
    [profileId, tenantId],
  );
  const rows = await postgres.query<{ number: number }>(
    `insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
     select gen_random_uuid(), 1, $1, $2, 'device ' || n, '{}' from generate_series(1, $3::int) as n returning number`,
    [tenantId, profileId, count],
  );
  return rows.map(({ number }) => number);
}
