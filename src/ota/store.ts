/**
 * SQL of packages and their pieces. Each function takes the pool or a transaction; none checks rights. The SQL of
 * rollouts is `rollout-store.ts`.
 */
import { assert, badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isUuid } from '../base/uuid.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readPage } from '../postgres/page.ts';
import { isForeignKeyViolation, isUniqueViolation } from '../postgres/postgres-error.ts';
import type { OtaPackage, PackageType } from './package.ts';

const columns = `o.id, o.created_time as "createdTime", o.tenant_id as "tenantId",
  o.device_profile_id as "profileId", o.type, o.title, o.version, o.tag, o.url, o.file_name as "fileName",
  o.content_type as "contentType", o.checksum_algorithm as "checksumAlgorithm", o.checksum,
  o.data_size as "dataSize", o.external_id as "externalId", o.additional_info as "additionalInfo"`;

const sortColumns = new Map([
  ['id', 'o.id'],
  ['createdTime', 'o.created_time'],
  ['title', 'o.title'],
  ['name', 'o.title'],
  ['version', 'o.version'],
  ['tag', 'o.tag'],
  ['type', 'o.type'],
  ['fileName', 'o.file_name'],
  ['dataSize', 'o.data_size'],
]);

type NewPackage = Pick<
  OtaPackage,
  | 'id'
  | 'createdTime'
  | 'tenantId'
  | 'profileId'
  | 'type'
  | 'title'
  | 'version'
  | 'tag'
  | 'url'
  | 'externalId'
  | 'additionalInfo'
>;

export async function insertPackage(queries: Queries, added: NewPackage): Promise<void> {
  try {
    await queries.query(
      `insert into ota_package (id, created_time, tenant_id, device_profile_id, type, title, version, tag, url,
                                external_id, additional_info)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
      [
        added.id,
        added.createdTime,
        added.tenantId,
        added.profileId,
        added.type,
        added.title,
        added.version,
        added.tag,
        added.url,
        added.externalId,
        jsonOrNull(added.additionalInfo),
      ],
    );
  } catch (error) {
    if (!isUniqueViolation(error, 'ota_package_title_version_unique')) throw error;
    throw badRequest('ota_package_taken', 'OtaPackage with such title and version already exists!');
  }
}

export async function updatePackage(
  queries: Queries,
  id: string,
  change: { externalId: string | null; additionalInfo: unknown },
): Promise<void> {
  await queries.query('update ota_package set external_id = $2, additional_info = $3 where id = $1', [
    id,
    change.externalId,
    jsonOrNull(change.additionalInfo),
  ]);
}

function jsonOrNull(value: unknown): string | null {
  return value === null ? null : JSON.stringify(value);
}

export async function findPackage(queries: Queries, tenantId: string, id: string): Promise<OtaPackage | undefined> {
  const [found] = await queries.query<OtaPackage>(
    `select ${columns} from ota_package o where o.id = $1 and o.tenant_id = $2`,
    [id, tenantId],
  );
  return found;
}

/** Returns those of these packages that there are, of any tenant. */
export async function findPackages(queries: Queries, ids: string[]): Promise<OtaPackage[]> {
  return await queries.query<OtaPackage>(`select ${columns} from ota_package o where o.id = any($1)`, [ids]);
}

/** Like `findPackage`, and locks the package against a delete until the transaction ends. */
export async function holdPackage(queries: Queries, tenantId: string, id: string): Promise<OtaPackage | undefined> {
  const [found] = await queries.query<OtaPackage>(
    `select ${columns} from ota_package o where o.id = $1 and o.tenant_id = $2 for key share`,
    [id, tenantId],
  );
  return found;
}

/** Locks the row until the transaction ends, so that two uploads take turns. */
export async function lockPackage(queries: Queries, tenantId: string, id: string): Promise<OtaPackage | undefined> {
  const [found] = await queries.query<OtaPackage>(
    `select ${columns} from ota_package o where o.id = $1 and o.tenant_id = $2 for update`,
    [id, tenantId],
  );
  return found;
}

export interface PackageFilter {
  tenantId: string;
  /** Lists only packages that a device of this profile could get. */
  profileId?: string | undefined;
  type?: PackageType | undefined;
}

export async function listPackages(queries: Queries, filter: PackageFilter, link: PageLink): Promise<Page<OtaPackage>> {
  const values: unknown[] = [filter.tenantId];
  const conditions = ['o.tenant_id = $1'];
  const where = (condition: string, value: unknown) => {
    values.push(value);
    conditions.push(condition.replaceAll('?', `$${values.length}`));
  };
  if (filter.profileId) {
    where('(o.device_profile_id = ? or o.device_profile_id is null)', filter.profileId);
    conditions.push('(o.data_size is not null or o.url is not null)');
  }
  if (filter.type) where('o.type = ?', filter.type);
  if (link.textSearch) {
    where(
      `(${['o.title', 'o.version', 'o.tag'].map((column) => contains(column, '?')).join(' or ')})`,
      containsPattern(link.textSearch),
    );
  }
  const documents = { columns: ['o.additional_info'], rowBytesMax: limits.documentBytesMax };
  const list = { columns, from: 'ota_package o', where: conditions.join(' and '), values, documents };
  return await readPage<OtaPackage>(queries, { ...list, sortColumns, idColumn: 'o.id' }, link);
}

const usedBy = new Map([
  ['device_firmware_fkey', 'The otaPackage referenced by the devices cannot be deleted!'],
  ['device_software_fkey', 'The software referenced by the devices cannot be deleted!'],
  ['device_profile_firmware_fkey', 'The otaPackage referenced by the device profile cannot be deleted!'],
  ['device_profile_software_fkey', 'The software referenced by the device profile cannot be deleted!'],
]);

/** Deletes a package that is not in use. Returns false when there is none. */
export async function deletePackageRow(queries: Queries, tenantId: string, id: string): Promise<boolean> {
  try {
    const rows = await queries.query('delete from ota_package where id = $1 and tenant_id = $2 returning 1', [
      id,
      tenantId,
    ]);
    return rows.length === 1;
  } catch (error) {
    for (const [constraint, message] of usedBy) {
      if (isForeignKeyViolation(error, constraint)) throw badRequest('ota_package_used', message);
    }
    throw error;
  }
}

export async function insertPiece(queries: Queries, packageId: string, number: number, bytes: Buffer): Promise<void> {
  await queries.query('insert into ota_piece (package_id, number, bytes) values ($1, $2, $3)', [
    packageId,
    number,
    bytes,
  ]);
}

export async function findPiece(postgres: Postgres, packageId: string, number: number): Promise<Buffer | undefined> {
  assert(isUuid(packageId) && Number.isInteger(number), 'a statement without parameters contains only checked values');
  return await postgres.bytes(`select bytes from ota_piece where package_id = '${packageId}' and number = ${number}`);
}

/** Called after the last piece: from then on the package can be assigned. */
export async function completePackage(
  queries: Queries,
  id: string,
  file: Pick<OtaPackage, 'fileName' | 'contentType' | 'checksumAlgorithm' | 'checksum' | 'dataSize'>,
): Promise<void> {
  await queries.query(
    `update ota_package set file_name = $2, content_type = $3, checksum_algorithm = $4, checksum = $5, data_size = $6
      where id = $1`,
    [id, file.fileName, file.contentType, file.checksumAlgorithm, file.checksum, file.dataSize],
  );
}

const slot = { FIRMWARE: 'firmware_id', SOFTWARE: 'software_id' } as const;

/** Returns the package of the device if it has one, else the package of its profile. */
export async function findAssigned(
  queries: Queries,
  deviceId: string,
  type: PackageType,
): Promise<OtaPackage | undefined> {
  const [found] = await queries.query<OtaPackage>(
    `select ${columns} from device d join device_profile p on p.id = d.device_profile_id
       join ota_package o on o.id = coalesce(d.${slot[type]}, p.${slot[type]})
      where d.id = $1`,
    [deviceId],
  );
  return found;
}

/** Returns whether any package has that title, and whether one has that title and version. */
export async function findTitle(
  queries: Queries,
  tenantId: string,
  type: PackageType,
  title: string,
  version: string,
): Promise<{ title: boolean; version: boolean }> {
  const [row] = await queries.query<{ title: boolean; version: boolean }>(
    `select count(*) > 0 as title, coalesce(bool_or(version = $4), false) as version
       from ota_package where tenant_id = $1 and type = $2 and title = $3`,
    [tenantId, type, title, version],
  );
  return row!;
}

/** Counts the devices that have the package of their profile because they have no package of their own. */
export async function countProfileDevices(
  queries: Queries,
  tenantId: string,
  profileId: string,
  type: PackageType,
): Promise<number> {
  // Few devices have a package of their own, and an index has these.
  const [row] = await queries.query<{ count: number }>(
    `select (select coalesce(sum(count), 0)::bigint from device_group where tenant_id = $1 and device_profile_id = $2)
          - (select count(*) from device
              where tenant_id = $1 and device_profile_id = $2 and ${slot[type]} is not null) as count`,
    [tenantId, profileId],
  );
  return row!.count;
}
