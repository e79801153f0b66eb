/** SQL of device profiles as users manage them. `look-up-store.ts` reads what device traffic needs of a profile. */
import { badRequest } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Queries } from '../../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readByIds, readPage } from '../../postgres/page.ts';
import { isUniqueViolation } from '../../postgres/postgres-error.ts';
import type { FullProfile } from '../model/device.ts';
import { issuerProven } from './issuer-store.ts';

const columns = `p.id, p.created_time as "createdTime", p.tenant_id as "tenantId", p.name, p.description, p.image,
  p.is_default as "isDefault", p.transport_type as "transportType", p.provision_type as "provisionType",
  p.provision_device_key as "provisionKey", p.profile_data as data, p.default_rule_chain_id as "defaultRuleChainId",
  p.default_dashboard_id as "defaultDashboardId", p.default_queue_name as "defaultQueueName",
  p.default_edge_rule_chain_id as "defaultEdgeRuleChainId", p.firmware_id as "firmwareId",
  p.software_id as "softwareId", p.external_id as "externalId", p.version`;

const documents = {
  columns: ['p.profile_data', 'p.description', 'p.image'],
  rowBytesMax: 2 * limits.documentBytesMax + limits.imageBytesMax,
};

const sortColumns = new Map([
  ['id', 'p.id'],
  ['createdTime', 'p.created_time'],
  ['name', 'p.name'],
  ['description', 'p.description'],
  ['isDefault', 'p.is_default'],
  ['transportType', 'p.transport_type'],
]);

/** Locks the row until the transaction ends when `lock` is 'lock'. */
export async function findFullProfile(
  queries: Queries,
  tenantId: string,
  id: string,
  lock: 'lock' | 'read' = 'read',
): Promise<FullProfile | undefined> {
  const [profile] = await queries.query<FullProfile>(
    `select ${columns} from device_profile p where p.id = $1 and p.tenant_id = $2 ${lock === 'lock' ? 'for update' : ''}`,
    [id, tenantId],
  );
  return profile;
}

export async function findFullDefaultProfile(queries: Queries, tenantId: string): Promise<FullProfile | undefined> {
  const [profile] = await queries.query<FullProfile>(
    `select ${columns} from device_profile p where p.tenant_id = $1 and p.is_default`,
    [tenantId],
  );
  return profile;
}

/** Finds a profile of any tenant: a device that provisions itself knows only the key. The image is left out. */
export async function findProfileByProvisionKey(queries: Queries, key: string): Promise<FullProfile | undefined> {
  const [profile] = await queries.query<FullProfile>(
    `select ${columns.replace('p.image', 'null as image')} from device_profile p where p.provision_device_key = $1
        and p.provision_type <> 'X509_CERTIFICATE_CHAIN'`,
    [key],
  );
  return profile;
}

/** Returns those of `ids` that the tenant has. */
export async function findProfiles(queries: Queries, tenantId: string, ids: string[]): Promise<FullProfile[]> {
  const where = 'p.id = any($1) and p.tenant_id = $2';
  const list = { columns, from: 'device_profile p', where, values: [ids, tenantId], idColumn: 'p.id', documents };
  return await readByIds<FullProfile>(queries, list, ids);
}

export async function listProfiles(
  queries: Queries,
  filter: { tenantId: string; transportType?: string | undefined },
  link: PageLink,
): Promise<Page<FullProfile>> {
  const values: unknown[] = [filter.tenantId];
  const conditions = ['p.tenant_id = $1'];
  if (filter.transportType) conditions.push(`p.transport_type = $${values.push(filter.transportType)}`);
  if (link.textSearch) conditions.push(contains('p.name', `$${values.push(containsPattern(link.textSearch))}`));
  const list = { columns, from: 'device_profile p', where: conditions.join(' and '), values, documents };
  return await readPage<FullProfile>(queries, { ...list, sortColumns, idColumn: 'p.id' }, link);
}

/** `onlyUsed`: only profiles that a device has. */
export async function listProfileNames(
  queries: Queries,
  tenantId: string,
  onlyUsed: boolean,
): Promise<{ id: string; name: string }[]> {
  const used = onlyUsed ? 'and exists (select 1 from device d where d.device_profile_id = p.id)' : '';
  return await queries.query(
    `select p.id, p.name from device_profile p where p.tenant_id = $1 ${used} order by p.name, p.id`,
    [tenantId],
  );
}

/** True when a profile of another tenant has the provisioning key. */
export async function isOthersProvisionKey(queries: Queries, tenantId: string, key: string): Promise<boolean> {
  const rows = await queries.query('select 1 from device_profile where provision_device_key = $1 and tenant_id <> $2', [
    key,
    tenantId,
  ]);
  return rows.length > 0;
}

export async function insertFullProfile(queries: Queries, profile: FullProfile): Promise<void> {
  try {
    await queries.query(
      `insert into device_profile (id, tenant_id, created_time, is_default, name, description, image, transport_type,
              provision_type, provision_device_key, profile_data, default_rule_chain_id, default_dashboard_id,
              default_queue_name, default_edge_rule_chain_id, firmware_id, software_id, external_id,
              telemetry_ttl_days, ota_per_minute, ota_percent, ota_paused)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`,
      [profile.id, profile.tenantId, profile.createdTime, profile.isDefault, ...changeable(profile)],
    );
  } catch (error) {
    throw asConflict(error);
  }
}

/** Replaces all members that a user may change. */
export async function updateFullProfile(queries: Queries, profile: FullProfile): Promise<void> {
  try {
    await queries.query(
      `update device_profile set name = $3, description = $4, image = $5, transport_type = $6, provision_type = $7,
              provision_device_key = $8, profile_data = $9, default_rule_chain_id = $10, default_dashboard_id = $11,
              default_queue_name = $12, default_edge_rule_chain_id = $13, firmware_id = $14, software_id = $15,
              external_id = $16, telemetry_ttl_days = $17, ota_per_minute = $18, ota_percent = $19, ota_paused = $20,
              version = version + 1
        where id = $1 and tenant_id = $2`,
      [profile.id, profile.tenantId, ...changeable(profile)],
    );
  } catch (error) {
    throw asConflict(error);
  }
}

function changeable(profile: FullProfile): unknown[] {
  return [
    profile.name,
    profile.description,
    profile.image,
    profile.transportType,
    profile.provisionType,
    profile.provisionKey,
    JSON.stringify(profile.data),
    profile.defaultRuleChainId,
    profile.defaultDashboardId,
    profile.defaultQueueName,
    profile.defaultEdgeRuleChainId,
    profile.firmwareId,
    profile.softwareId,
    profile.externalId,
    profile.data.telemetryTtlDays || null,
    profile.data.otaRollout?.perMinute || null,
    profile.data.otaRollout?.percent ?? 100,
    profile.data.otaRollout?.paused ?? false,
  ];
}

function asConflict(error: unknown): unknown {
  if (isUniqueViolation(error, 'device_profile_name_unique')) {
    return badRequest('profile_name_taken', 'Device profile with such name already exists!');
  }
  if (isUniqueViolation(error, 'device_profile_provision_key_unique')) {
    return badRequest('provision_key_taken', 'This provision device key cannot be used: choose another one.');
  }
  if (isUniqueViolation(error, 'device_profile_issuer_of_tenant_unique')) {
    return badRequest('provision_key_taken', 'Another device profile has the certificate of this issuer already.');
  }
  if (isUniqueViolation(error, 'device_profile_issuer_proven_unique')) {
    return issuerProven();
  }
  if (isUniqueViolation(error, 'device_profile_default_unique')) {
    return badRequest('profile_default', 'Another default device profile is present in scope of current tenant!');
  }
  return error;
}

/** Uses two steps, because the unique index is checked row by row. */
export async function moveDefaultProfile(queries: Queries, tenantId: string, id: string): Promise<void> {
  await queries.query(
    `update device_profile set is_default = false, version = version + 1
      where tenant_id = $1 and is_default and id <> $2`,
    [tenantId, id],
  );
  await queries.query(
    `update device_profile set is_default = true, version = version + 1 where id = $1 and not is_default`,
    [id],
  );
}

export async function isProfileUsed(queries: Queries, id: string): Promise<boolean> {
  const [row] = await queries.query<{ used: boolean }>(
    'select exists (select 1 from device where device_profile_id = $1) as used',
    [id],
  );
  return row!.used;
}

export async function deleteProfileRow(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from device_profile where id = $1', [id]);
}

/** Returns numbers of the tenant's devices, of one profile or of all, the newest first. */
export async function findDeviceNumbers(
  queries: Queries,
  tenantId: string,
  profileId: string | undefined,
  countMax: number,
): Promise<number[]> {
  const rows = await queries.query<{ number: number }>(
    `select number from device where tenant_id = $1 and ($2::uuid is null or device_profile_id = $2)
      order by id desc limit $3`,
    [tenantId, profileId ?? null, countMax],
  );
  return rows.map((row) => row.number);
}
