/**
 * SQL of devices, and of the profiles and customers that a saved device names. Each function takes the pool or a
 * transaction; none checks rights. A statement that changes an answer of `lookUpTokens` must be followed by
 * `insertCredentialChanges` in the same transaction.
 */
import { badRequest } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Queries } from '../../postgres/client.ts';
import { readByIds } from '../../postgres/page.ts';
import { isUniqueViolation } from '../../postgres/postgres-error.ts';
import type { DeviceRow } from '../model/cached-device.ts';
import type { Device, DeviceInfo, DeviceProfile } from '../model/device.ts';

const deviceColumns = `d.id, d.number, d.created_time as "createdTime", d.tenant_id as "tenantId",
  d.customer_id as "customerId", d.device_profile_id as "profileId", p.name as type, d.name, d.label,
  d.device_data as "deviceData", d.firmware_id as "firmwareId", d.software_id as "softwareId",
  d.external_id as "externalId", d.additional_info as "additionalInfo", d.version`;

export const infoColumns = `${deviceColumns}, c.title as "customerTitle", coalesce(c.is_public, false) as "customerIsPublic",
  coalesce(a.active, false) as active`;

const deviceTables = 'device d join device_profile p on p.id = d.device_profile_id';

/** What `infoColumns` need beside `device d`. */
export const infoJoins = `join device_profile p on p.id = d.device_profile_id
  left join customer c on c.id = d.customer_id left join device_activity a on a.device = d.number`;

const infoTables = `device d ${infoJoins}`;

export const documents = { columns: ['d.device_data', 'd.additional_info'], rowBytesMax: 2 * limits.documentBytesMax };

/** The columns of a `DeviceRow`, of a table called d. */
export const rowColumns = `d.number, d.id, d.tenant_id as "tenantId", d.customer_id as "customerId",
  d.device_profile_id as "profileId", d.name, d.version, d.is_gateway as "isGateway", (d.is_confined and d.customer_id is null or d.known_to_former_customer) as "isConfined",
  d.made_by as "madeBy"`;

/** Reads from one table only what a call about a device needs. */
export async function findDeviceRow(queries: Queries, tenantId: string, id: string): Promise<DeviceRow | undefined> {
  const [device] = await queries.query<DeviceRow>(
    `select ${rowColumns} from device d where d.id = $1 and d.tenant_id = $2`,
    [id, tenantId],
    { prepared: true },
  );
  return device;
}

export async function findDevice(queries: Queries, tenantId: string, id: string): Promise<DeviceInfo | undefined> {
  const [device] = await queries.query<DeviceInfo>(
    `select ${infoColumns} from ${infoTables} where d.id = $1 and d.tenant_id = $2`,
    [id, tenantId],
    { prepared: true },
  );
  return device;
}

export async function findDeviceByName(queries: Queries, tenantId: string, name: string): Promise<Device | undefined> {
  const [device] = await queries.query<Device>(
    `select ${deviceColumns} from ${deviceTables} where d.tenant_id = $1 and d.name = $2`,
    [tenantId, name],
  );
  return device;
}

/** Returns those of `names` that devices of the tenant have. */
export async function findTakenNames(queries: Queries, tenantId: string, names: string[]): Promise<Set<string>> {
  const rows = await queries.query<{ name: string }>(
    'select name from device where tenant_id = $1 and name = any($2)',
    [tenantId, names],
  );
  return new Set(rows.map(({ name }) => name));
}

/** Returns the number after the greatest `N` among devices named `prefix` and `N`. */
export async function nextNameNumber(queries: Queries, tenantId: string, prefix: string): Promise<number> {
  const [row] = await queries.query<{ next: number }>(
    `select coalesce(max(substr(name, length($2) + 1)::bigint), 0) + 1 as next from device
      where tenant_id = $1 and starts_with(name, $2) and substr(name, length($2) + 1) ~ '^[1-9][0-9]{0,14}$'`,
    [tenantId, prefix],
  );
  return row!.next;
}

export async function findDevices(queries: Queries, tenantId: string, ids: string[]): Promise<Device[]> {
  const where = 'd.id = any($1) and d.tenant_id = $2';
  const list = { columns: deviceColumns, from: deviceTables, where, values: [ids, tenantId], idColumn: 'd.id' };
  return await readByIds<Device>(queries, { ...list, documents }, ids);
}

/** Returns the names of the profiles that devices of the tenant, or of one of its customers, have. */
export async function listDeviceTypes(
  queries: Queries,
  tenantId: string,
  customerId: string | null,
): Promise<string[]> {
  const ofCustomer = customerId === null ? '' : 'and customer_id = $2';
  const rows = await queries.query<{ name: string }>(
    `select name from device_profile
      where tenant_id = $1
        and id in (select device_profile_id from device_group where tenant_id = $1 ${ofCustomer})
      order by name`,
    customerId === null ? [tenantId] : [tenantId, customerId],
  );
  return rows.map(({ name }) => name);
}

type NewDevice = Omit<Device, 'number' | 'type' | 'version'>;

/** Returns the number of the device in ClickHouse. */
export async function insertDevice(queries: Queries, device: NewDevice): Promise<number> {
  try {
    const [row] = await queries.query<{ number: number }>(
      `insert into device (id, created_time, tenant_id, customer_id, device_profile_id, name, label, device_data,
                           firmware_id, software_id, external_id, additional_info)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) returning number`,
      [device.id, device.createdTime, device.tenantId, ...changeable(device)],
    );
    return row!.number;
  } catch (error) {
    throw asNameConflict(error);
  }
}

/** Replaces all members that a user may change. Returns false when the device does not exist. */
export async function updateDevice(queries: Queries, device: NewDevice): Promise<boolean> {
  try {
    const rows = await queries.query(
      `update device set customer_id = $3, device_profile_id = $4, name = $5, label = $6, device_data = $7,
              firmware_id = $8, software_id = $9, external_id = $10, additional_info = $11, version = version + 1
        where id = $1 and tenant_id = $2 returning 1`,
      [device.id, device.tenantId, ...changeable(device)],
    );
    return rows.length === 1;
  } catch (error) {
    throw asNameConflict(error);
  }
}

function changeable(device: NewDevice): unknown[] {
  return [
    device.customerId,
    device.profileId,
    device.name,
    device.label,
    JSON.stringify(device.deviceData),
    device.firmwareId,
    device.softwareId,
    device.externalId,
    device.additionalInfo === null ? null : JSON.stringify(device.additionalInfo),
  ];
}

function asNameConflict(error: unknown): unknown {
  if (!isUniqueViolation(error, 'device_name_unique')) return error;
  return badRequest('device_name_taken', 'Device with such name already exists!');
}

export type LockedDevice = Pick<
  Device,
  | 'number'
  | 'version'
  | 'createdTime'
  | 'name'
  | 'additionalInfo'
  | 'customerId'
  | 'profileId'
  | 'firmwareId'
  | 'softwareId'
>;

/** Locks the row until the transaction ends, so that two saves of one device take turns. */
export async function lockDevice(queries: Queries, tenantId: string, id: string): Promise<LockedDevice | undefined> {
  const [row] = await queries.query<LockedDevice>(
    `select number, version, created_time as "createdTime", name, additional_info as "additionalInfo",
            customer_id as "customerId", device_profile_id as "profileId", firmware_id as "firmwareId",
            software_id as "softwareId"
       from device where id = $1 and tenant_id = $2 for update`,
    [id, tenantId],
  );
  return row;
}

/** Deletes the device row and its credentials. */
export async function deleteDeviceRow(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from device_credentials where device_id = $1', [id]);
  await queries.query('delete from device where id = $1', [id]);
}

/**
 * Requests the deletion of all telemetry of the device, for good. `erase/tombstone-store.ts` begins after the commit.
 */
export async function insertDeviceTombstone(queries: Queries, deviceNumber: number, now: number): Promise<void> {
  await queries.query('insert into tombstones (device, created_time, handed_over) values ($1, $2, false)', [
    deviceNumber,
    now,
  ]);
}

const profileColumns = `id, tenant_id as "tenantId", name, is_default as "isDefault"`;

/** Finds a profile of any tenant: the caller distinguishes a missing profile from a foreign one. */
export async function findProfile(queries: Queries, id: string): Promise<DeviceProfile | undefined> {
  const [profile] = await queries.query<DeviceProfile>(`select ${profileColumns} from device_profile where id = $1`, [
    id,
  ]);
  return profile;
}

export async function findProfileByName(
  queries: Queries,
  tenantId: string,
  name: string,
): Promise<DeviceProfile | undefined> {
  const [profile] = await queries.query<DeviceProfile>(
    `select ${profileColumns} from device_profile where tenant_id = $1 and name = $2`,
    [tenantId, name],
  );
  return profile;
}

export async function findDefaultProfile(queries: Queries, tenantId: string): Promise<DeviceProfile | undefined> {
  const [profile] = await queries.query<DeviceProfile>(
    `select ${profileColumns} from device_profile where tenant_id = $1 and is_default`,
    [tenantId],
  );
  return profile;
}

/**
 * Does nothing when the tenant has a profile of that name, or has a default one and this would be the second. Two
 * devices of a new type may arrive at once. There is no conflict target: the second insert may conflict on either
 * index.
 */
export async function insertProfile(
  queries: Queries,
  profile: DeviceProfile & { createdTime: number; data: unknown },
): Promise<void> {
  await queries.query(
    `insert into device_profile (id, created_time, tenant_id, name, is_default, profile_data)
     values ($1, $2, $3, $4, $5, $6) on conflict do nothing`,
    [profile.id, profile.createdTime, profile.tenantId, profile.name, profile.isDefault, JSON.stringify(profile.data)],
  );
}

/** True when the customer exists in this tenant. */
export async function hasCustomer(queries: Queries, tenantId: string, id: string): Promise<boolean> {
  const rows = await queries.query('select 1 from customer where id = $1 and tenant_id = $2', [id, tenantId]);
  return rows.length === 1;
}

/**
 * Like `hasCustomer`, and locks the customer until the transaction ends, so that it cannot be deleted during an
 * assignment.
 */
export async function holdCustomer(queries: Queries, tenantId: string, id: string): Promise<boolean> {
  const rows = await queries.query('select 1 from customer where id = $1 and tenant_id = $2 for key share', [
    id,
    tenantId,
  ]);
  return rows.length === 1;
}
