/** SQL of tenants and customers. */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import {
  type CredentialChange,
  changeColumns,
  insertCredentialChanges,
  type LoggedChange,
} from '../device/sql/credential-log-store.ts';
import { deleteDeviceRollouts } from '../ota/rollout-store.ts';
import type { Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readByIds, readPage } from '../postgres/page.ts';
import { isUniqueViolation } from '../postgres/postgres-error.ts';
import { forgetClaims } from './claim-store.ts';
import type { Customer, Tenant } from './customer.ts';

const contactColumns = 'country, state, city, address, address2, zip, phone, email';
const tenantColumns = `id, created_time as "createdTime", title, region, ${contactColumns}, profile_id as "profileId",
  (select name from tenant_profile p where p.id = profile_id) as "profileName",
  additional_info as "additionalInfo", version`;

type NewTenant = Pick<Tenant, 'id' | 'createdTime' | 'title'> & Partial<Tenant>;

/** A tenant without `profileId` gets the default profile. */
export async function insertTenant(queries: Queries, tenant: NewTenant): Promise<void> {
  await queries.query(
    `insert into tenant (id, created_time, title, region, ${contactColumns}, additional_info, profile_id)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
             coalesce($14, (select id from tenant_profile where is_default)))`,
    [
      ...[tenant.id, tenant.createdTime, tenant.title, tenant.region ?? null, ...contactValues(tenant)],
      ...[infoValue(tenant), tenant.profileId ?? null],
    ],
  );
}

export async function updateTenant(queries: Queries, tenant: Tenant): Promise<void> {
  await queries.query(
    `update tenant set title = $2, region = $3, country = $4, state = $5, city = $6, address = $7, address2 = $8,
            zip = $9, phone = $10, email = $11, additional_info = $12, profile_id = $13, version = version + 1
      where id = $1`,
    [tenant.id, tenant.title, tenant.region, ...contactValues(tenant), infoValue(tenant), tenant.profileId],
  );
}

export async function findTenant(queries: Queries, id: string): Promise<Tenant | undefined> {
  const [tenant] = await queries.query<Tenant>(`select ${tenantColumns} from tenant where id = $1`, [id]);
  return tenant;
}

const infoDocument = { columns: ['additional_info'], rowBytesMax: limits.documentBytesMax };

/** Returns those of `ids` that exist, the oldest first. */
export async function findTenants(queries: Queries, ids: string[]): Promise<Tenant[]> {
  const list = { columns: tenantColumns, from: 'tenant', where: 'id = any($1)', values: [ids], idColumn: 'id' };
  return await readByIds<Tenant>(queries, { ...list, documents: infoDocument }, ids);
}

const tenantSortColumns = new Map([
  ['id', 'id'],
  ['createdTime', 'created_time'],
  ['title', 'title'],
  ['name', 'title'],
  ['email', 'email'],
  ['region', 'region'],
]);

export async function listTenants(queries: Queries, link: PageLink): Promise<Page<Tenant>> {
  const values: unknown[] = [];
  const where = link.textSearch ? contains('title', `$${values.push(containsPattern(link.textSearch))}`) : 'true';
  const list = { columns: tenantColumns, from: 'tenant', where, values, sortColumns: tenantSortColumns };
  return await readPage<Tenant>(queries, { ...list, idColumn: 'id', documents: infoDocument }, link);
}

/**
 * Locks at most `rowsMax` devices of a tenant until the transaction ends, and returns them with their credentials. A
 * second statement reads the credentials: the first one may have waited for a transaction that changed them.
 */
export async function lockTenantDevices(
  queries: Queries,
  tenantId: string,
  rowsMax: number,
): Promise<CredentialChange[]> {
  const locked = await queries.query<{ id: string }>(
    'select id from device where tenant_id = $1 order by id limit $2 for update',
    [tenantId, rowsMax],
  );
  return await queries.query<CredentialChange>(
    `select k.credentials_id as "credentialsId", d.id as "deviceId", d.number as "deviceNumber", true as deleted
       from device d join device_credentials k on k.device_id = d.id where d.id = any($1) order by d.id`,
    [locked.map(({ id }) => id)],
  );
}

/** Deletes devices. Logs the changes that notify the other processes, and inserts tombstones for the telemetry. */
export async function deleteDevices(
  queries: Queries,
  changes: CredentialChange[],
  now: number,
): Promise<LoggedChange[]> {
  const ids = changes.map(({ deviceId }) => deviceId);
  const numbers = changes.map(({ deviceNumber }) => deviceNumber);
  const logged = await insertCredentialChanges(queries, changes, now);
  await queries.query('insert into tombstones (device, created_time) select n, $1 from unnest($2::bigint[]) as n', [
    now,
    numbers,
  ]);
  await queries.query('delete from device_credentials where device_id = any($1)', [ids]);
  await deleteDeviceRollouts(queries, ids);
  await queries.query('delete from device where id = any($1)', [ids]);
  return logged;
}

/** Deletes a tenant that has no devices any more, with all that it still has. */
export async function deleteTenantRows(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from report_view where tenant_id = $1', [id]);
  await queries.query('delete from user_account where tenant_id = $1', [id]);
  await queries.query('delete from customer where tenant_id = $1', [id]);
  await queries.query('update device_profile set firmware_id = null, software_id = null where tenant_id = $1', [id]);
  await queries.query('delete from ota_package where tenant_id = $1', [id]);
  await queries.query('delete from device_profile where tenant_id = $1', [id]);
  await queries.query('delete from tenant where id = $1', [id]);
}

/** Locks the row until the transaction ends. */
export async function lockTenant(queries: Queries, id: string): Promise<{ version: number } | undefined> {
  const [tenant] = await queries.query<{ version: number }>('select version from tenant where id = $1 for update', [
    id,
  ]);
  return tenant;
}

const customerColumns = `id, created_time as "createdTime", tenant_id as "tenantId", title, is_public as "isPublic",
  ${contactColumns}, external_id as "externalId", additional_info as "additionalInfo", version`;

const customerSortColumns = new Map([
  ['id', 'id'],
  ['createdTime', 'created_time'],
  ['title', 'title'],
  ['name', 'title'],
  ['email', 'email'],
  ['country', 'country'],
  ['city', 'city'],
]);

type NewCustomer = Pick<Customer, 'id' | 'tenantId' | 'createdTime' | 'title'> & Partial<Customer>;

export async function insertCustomer(queries: Queries, customer: NewCustomer): Promise<void> {
  const { id, createdTime, tenantId, title, isPublic = false, externalId = null } = customer;
  try {
    await queries.query(
      `insert into customer (id, created_time, tenant_id, title, is_public, ${contactColumns}, external_id,
                             additional_info)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
      [id, createdTime, tenantId, title, isPublic, ...contactValues(customer), externalId, infoValue(customer)],
    );
  } catch (error) {
    throw asTitleConflict(error);
  }
}

export async function updateCustomer(queries: Queries, customer: Customer): Promise<void> {
  const { id, tenantId, title, externalId } = customer;
  try {
    await queries.query(
      `update customer set title = $3, country = $4, state = $5, city = $6, address = $7, address2 = $8, zip = $9,
              phone = $10, email = $11, external_id = $12, additional_info = $13, version = version + 1
        where id = $1 and tenant_id = $2`,
      [id, tenantId, title, ...contactValues(customer), externalId, infoValue(customer)],
    );
  } catch (error) {
    throw asTitleConflict(error);
  }
}

function contactValues(entity: Partial<Customer> | Partial<Tenant>): (string | null)[] {
  const { country, state, city, address, address2, zip, phone, email } = entity;
  return [country, state, city, address, address2, zip, phone, email].map((text) => text ?? null);
}

function infoValue({ additionalInfo }: { additionalInfo?: unknown }): string | null {
  return additionalInfo === undefined || additionalInfo === null ? null : JSON.stringify(additionalInfo);
}

function asTitleConflict(error: unknown): unknown {
  if (!isUniqueViolation(error, 'customer_title_unique')) return error;
  return badRequest('customer_title_taken', 'Customer with such title already exists!');
}

/** Locks the row until the transaction ends when `lock` is 'lock'. */
export async function findCustomer(
  queries: Queries,
  tenantId: string,
  id: string,
  lock: 'lock' | 'read' = 'read',
): Promise<Customer | undefined> {
  const [customer] = await queries.query<Customer>(
    `select ${customerColumns} from customer where id = $1 and tenant_id = $2 ${lock === 'lock' ? 'for update' : ''}`,
    [id, tenantId],
  );
  return customer;
}

/** Returns those of `ids` that the tenant has, the oldest first. */
export async function findCustomers(queries: Queries, tenantId: string, ids: string[]): Promise<Customer[]> {
  const where = 'id = any($1) and tenant_id = $2';
  const list = { columns: customerColumns, from: 'customer', where, values: [ids, tenantId], idColumn: 'id' };
  return await readByIds<Customer>(queries, { ...list, documents: infoDocument }, ids);
}

export async function findCustomerByTitle(
  queries: Queries,
  tenantId: string,
  title: string,
): Promise<Customer | undefined> {
  const [customer] = await queries.query<Customer>(
    `select ${customerColumns} from customer where tenant_id = $1 and title = $2`,
    [tenantId, title],
  );
  return customer;
}

/** Returns the number after the greatest `N` of the customers whose title is `prefix` followed by `N`. */
export async function nextTitleNumber(queries: Queries, tenantId: string, prefix: string): Promise<number> {
  const [row] = await queries.query<{ next: number }>(
    `select coalesce(max(substr(title, length($2) + 1)::bigint), 0) + 1 as next from customer
      where tenant_id = $1 and starts_with(title, $2) and substr(title, length($2) + 1) ~ '^[1-9][0-9]{0,14}$'`,
    [tenantId, prefix],
  );
  return row!.next;
}

/** Returns the public customer, and creates it when the tenant has none. Two callers at once get the same one. */
export async function findOrInsertPublicCustomer(
  queries: Queries,
  customer: Pick<Customer, 'id' | 'tenantId' | 'createdTime' | 'title'>,
): Promise<string> {
  const { id, createdTime, tenantId, title } = customer;
  await queries.query(
    `insert into customer (id, created_time, tenant_id, title, is_public, additional_info)
     values ($1, $2, $3, $4, true, '{"isPublic":true}') on conflict do nothing`,
    [id, createdTime, tenantId, title],
  );
  const [row] = await queries.query<{ id: string }>('select id from customer where tenant_id = $1 and is_public', [
    tenantId,
  ]);
  // An ordinary customer already has the title.
  if (!row) throw badRequest('customer_title_taken', 'Customer with such title already exists!');
  return row.id;
}

export async function listCustomers(queries: Queries, tenantId: string, link: PageLink): Promise<Page<Customer>> {
  const values: unknown[] = [tenantId];
  const search = link.textSearch ? `and ${contains('title', `$${values.push(containsPattern(link.textSearch))}`)}` : '';
  const where = `tenant_id = $1 ${search}`;
  const list = { columns: customerColumns, from: 'customer', where, values, sortColumns: customerSortColumns };
  return await readPage<Customer>(queries, { ...list, idColumn: 'id', documents: infoDocument }, link);
}

/**
 * Takes at most `rowsMax` devices from a customer, with the claims that were made for them under this customer. Returns
 * the credentials of stale cached devices.
 */
export async function freeDevices(
  queries: Queries,
  customerId: string,
  rowsMax: number,
  now: number,
): Promise<LoggedChange[]> {
  const freed = await queries.query<{ id: string; number: number }>(
    `update device set customer_id = null, version = version + 1
      where id = any(array(select id from device where customer_id = $1 order by id limit $2 for update))
     returning id, number`,
    [customerId, rowsMax],
  );
  await forgetClaims(queries, freed);
  return await queries.query<LoggedChange>(
    `insert into credential_changes (credentials_id, device_id, device_number, created_time)
       select k.credentials_id, freed.id, freed.number, $3 from unnest($1::uuid[], $2::bigint[]) as freed (id, number)
         join device_credentials k on k.device_id = freed.id
     returning ${changeColumns}`,
    [freed.map(({ id }) => id), freed.map(({ number }) => number), now],
  );
}

/** Deletes a customer that has no devices, and its users. */
export async function deleteCustomerRows(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from user_account where customer_id = $1', [id]);
  await queries.query('delete from customer where id = $1', [id]);
}

export async function setDeviceCustomer(queries: Queries, deviceId: string, customerId: string | null): Promise<void> {
  await queries.query('update device set customer_id = $2, version = version + 1 where id = $1', [
    deviceId,
    customerId,
  ]);
}

/** Locks the tenant: until the transaction ends no other transaction makes an entity of this kind for the tenant. */
export async function holdCount(
  queries: Queries,
  tenantId: string,
  kind: 'device' | 'user' | 'customer',
): Promise<void> {
  await queries.query(`select pg_advisory_xact_lock(hashtextextended($1, 0))`, [`${kind}-count ${tenantId}`]);
}

export async function countUsers(queries: Queries, tenantId: string): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    'select count(*) as count from user_account where tenant_id = $1',
    [tenantId],
  );
  return row!.count;
}

export async function countCustomers(queries: Queries, tenantId: string): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    'select count(*) as count from customer where tenant_id = $1 and not is_public',
    [tenantId],
  );
  return row!.count;
}
