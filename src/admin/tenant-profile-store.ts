/** SQL of tenant profiles. */

import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readByIds, readPage } from '../postgres/page.ts';
import { isUniqueViolation } from '../postgres/postgres-error.ts';

export interface TenantProfile {
  id: string;
  createdTime: number;
  name: string;
  description: string | null;
  isDefault: boolean;
  profileData: TenantProfileData;
  version: number;
}

export interface TenantProfileData {
  configuration: Readonly<Record<string, unknown>>;
  queueConfiguration: unknown;
}

const columns = `id, created_time as "createdTime", name, description, is_default as "isDefault",
  profile_data as "profileData", version`;
const documents = { columns: ['profile_data'], rowBytesMax: limits.documentBytesMax };

const sortColumns = new Map([
  ['id', 'id'],
  ['createdTime', 'created_time'],
  ['name', 'name'],
  ['description', 'description'],
  ['isDefault', 'is_default'],
]);

export async function listTenantProfiles(queries: Queries, link: PageLink): Promise<Page<TenantProfile>> {
  const values: unknown[] = [];
  const where = link.textSearch ? contains('name', `$${values.push(containsPattern(link.textSearch))}`) : 'true';
  const list = { columns, from: 'tenant_profile', where, values, sortColumns, idColumn: 'id', documents };
  return await readPage<TenantProfile>(queries, list, link);
}

/** Returns those of `ids` that exist, the oldest first. */
export async function findTenantProfilesById(queries: Queries, ids: string[]): Promise<TenantProfile[]> {
  const list = { columns, from: 'tenant_profile', where: 'id = any($1)', values: [ids], idColumn: 'id', documents };
  return await readByIds<TenantProfile>(queries, list, ids);
}

export async function findTenantProfile(queries: Queries, id: string): Promise<TenantProfile | undefined> {
  const [profile] = await queries.query<TenantProfile>(`select ${columns} from tenant_profile where id = $1`, [id]);
  return profile;
}

export async function findDefaultTenantProfile(queries: Queries): Promise<TenantProfile> {
  const [profile] = await queries.query<TenantProfile>(`select ${columns} from tenant_profile where is_default`);
  return profile!;
}

/** Locks the row until the transaction ends. */
export async function lockTenantProfile(queries: Queries, id: string): Promise<TenantProfile | undefined> {
  const [profile] = await queries.query<TenantProfile>(
    `select ${columns} from tenant_profile where id = $1 for update`,
    [id],
  );
  return profile;
}

/**
 * Locks the row against changes until the transaction ends: a later change of its limits sees the tenants that this
 * transaction gives the profile.
 */
export async function holdTenantProfile(queries: Queries, id: string): Promise<TenantProfile | undefined> {
  const [profile] = await queries.query<TenantProfile>(
    `select ${columns} from tenant_profile where id = $1 for share`,
    [id],
  );
  return profile;
}

export async function insertTenantProfile(queries: Queries, profile: TenantProfile, days: number): Promise<void> {
  const { id, createdTime, name, description, profileData } = profile;
  await refusingTakenName(
    queries.query(
      `insert into tenant_profile (id, created_time, name, description, profile_data, telemetry_ttl_days)
       values ($1, $2, $3, $4, $5, $6)`,
      [id, createdTime, name, description, JSON.stringify(profileData), days || null],
    ),
  );
}

export async function updateTenantProfile(queries: Queries, profile: TenantProfile, days: number): Promise<void> {
  const { id, name, description, profileData } = profile;
  await refusingTakenName(
    queries.query(
      `update tenant_profile set name = $2, description = $3, profile_data = $4, telemetry_ttl_days = $5,
              version = version + 1
        where id = $1`,
      [id, name, description, JSON.stringify(profileData), days || null],
    ),
  );
}

async function refusingTakenName(statement: Promise<unknown>): Promise<void> {
  try {
    await statement;
  } catch (error) {
    if (!isUniqueViolation(error, 'tenant_profile_name_unique')) throw error;
    throw badRequest('tenant_profile_name_taken', 'Tenant profile with such name already exists!');
  }
}

/** Called first in a transaction that makes a profile the default: such transactions run one after the other. */
export async function holdDefaultTenantProfile(queries: Queries): Promise<void> {
  await queries.query(`select pg_advisory_xact_lock(hashtextextended('default-tenant-profile', 0))`);
}

/** Makes one profile the default, after `holdDefaultTenantProfile`. */
export async function setDefaultTenantProfile(queries: Queries, id: string): Promise<void> {
  await queries.query(
    'update tenant_profile set is_default = false, version = version + 1 where is_default and id <> $1',
    [id],
  );
  await queries.query(
    'update tenant_profile set is_default = true, version = version + 1 where id = $1 and not is_default',
    [id],
  );
}

/** Throws a violation of a foreign key while a tenant has the profile. */
export async function deleteTenantProfileRow(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from tenant_profile where id = $1', [id]);
}
