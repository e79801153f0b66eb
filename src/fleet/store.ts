/** SQL of what has no room of its own yet: tenants, customers, marks in the settings. */
import type { Queries } from '../postgres/client.ts';

export async function findSetting(queries: Queries, name: string): Promise<string | undefined> {
  const [row] = await queries.query<{ value: string }>('select value from setting where name = $1', [name]);
  return row?.value;
}

export async function insertTenant(
  queries: Queries,
  tenant: { id: string; createdTime: number; title: string },
): Promise<void> {
  const values = [tenant.id, tenant.createdTime, tenant.title];
  await queries.query('insert into tenant (id, created_time, title) values ($1, $2, $3)', values);
}

export async function insertCustomer(
  queries: Queries,
  customer: { id: string; tenantId: string; createdTime: number; title: string },
): Promise<void> {
  const { id, createdTime, tenantId, title } = customer;
  const values = [id, createdTime, tenantId, title];
  await queries.query('insert into customer (id, created_time, tenant_id, title) values ($1, $2, $3, $4)', values);
}
