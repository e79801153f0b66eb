/** SQL that makes many devices for users at once: one statement for each table. */
import { defaultDeviceData } from '../device/model/device.ts';
import type { Queries } from '../postgres/client.ts';

interface NewDeviceRow {
  id: string;
  name: string;
  label: string | null;
  profileId: string;
  customerId: string | null;
  /** A JSON document. */
  additionalInfo: string | null;
}

/**
 * Inserts devices, ordered by name so that two callers lock the same names in one order. Returns the devices whose name
 * was free.
 */
export async function insertDevices(
  queries: Queries,
  tenantId: string,
  rows: NewDeviceRow[],
  now: number,
): Promise<{ id: string; number: number }[]> {
  return await queries.query<{ id: string; number: number }>(
    `insert into device (id, created_time, tenant_id, customer_id, device_profile_id, name, label, device_data,
                         additional_info)
     select n.id, $1, $2, n.customer_id, n.profile_id, n.name, n.label, $3::json, n.info::json
       from unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::text[], $9::text[])
            as n (id, customer_id, profile_id, name, label, info)
      order by n.name collate "C"
     on conflict on constraint device_name_unique do nothing
     returning id, number`,
    [
      now,
      tenantId,
      JSON.stringify(defaultDeviceData),
      rows.map(({ id }) => id),
      rows.map(({ customerId }) => customerId),
      rows.map(({ profileId }) => profileId),
      rows.map(({ name }) => name),
      rows.map(({ label }) => label),
      rows.map(({ additionalInfo }) => additionalInfo),
    ],
  );
}

/** Returns each taken token with whether a device of another tenant has it. Free tokens are left out. */
export async function findTakenTokens(
  queries: Queries,
  tenantId: string,
  tokens: string[],
): Promise<Map<string, boolean>> {
  const rows = await queries.query<{ id: string; isOthers: boolean }>(
    `select k.credentials_id as id, d.tenant_id <> $1 as "isOthers"
       from device_credentials k join device d on d.id = k.device_id where k.credentials_id = any($2)`,
    [tenantId, tokens],
  );
  return new Map(rows.map(({ id, isOthers }) => [id, isOthers]));
}

/** Returns those of the ids that are customers of the tenant, and locks their rows until the transaction ends. */
export async function holdCustomers(queries: Queries, tenantId: string, ids: string[]): Promise<Set<string>> {
  const rows = await queries.query<{ id: string }>(
    'select id from customer where tenant_id = $1 and id = any($2) order by id for key share',
    [tenantId, ids],
  );
  return new Set(rows.map(({ id }) => id));
}

export async function findTenantProfiles(queries: Queries, tenantId: string, ids: string[]): Promise<Set<string>> {
  const rows = await queries.query<{ id: string }>(
    'select id from device_profile where tenant_id = $1 and id = any($2)',
    [tenantId, ids],
  );
  return new Set(rows.map(({ id }) => id));
}
