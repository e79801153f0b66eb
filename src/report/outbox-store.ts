/** SQL of the outbox: the changes of devices, and the present state of the devices. */
import { serverScope } from '../attributes/scope.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { Kind } from '../value/typed.ts';

/**
 * Names the rows to copy: a device or one of its attributes, devices of a profile, devices of a customer, or
 * everything.
 */
export interface OutboxRow {
  id: number;
  device: number | null;
  profileId: string | null;
  customerId: string | null;
  scope: number | null;
  key: string | null;
}

/** A row of `device_metadata` in ClickHouse; without `id` the device was deleted. */
export interface DeviceCopy {
  device: number;
  id: string;
  tenant: string;
  name: string;
  label: string;
  profile: string;
  owner: string;
}

export interface AttributeCopy {
  device: number;
  scope: number;
  key: string;
  kind: number;
  text: string;
}

/** The key of the advisory lock; no other part uses this constant. */
const lockKey = 7_155_720_362;

/** Returns true on the one host that may copy. The lock ends with the transaction. */
export async function tryCopyLock(queries: Queries): Promise<boolean> {
  const [row] = await queries.query<{ taken: boolean }>('select pg_try_advisory_xact_lock($1) as taken', [lockKey]);
  return row!.taken;
}

export async function hasWork(queries: Queries, settledBefore: number): Promise<boolean> {
  const [row] = await queries.query<{ some: boolean }>(
    `select exists (select from device_outbox)
         or exists (select from report_key where filled_time is null or (not settled and filled_time < $1)) as some`,
    [settledBefore],
  );
  return row!.some;
}

/** Returns a version number. Numbers increase over all hosts, in the order of the reads. */
export async function nextVersion(queries: Queries): Promise<number> {
  const [row] = await queries.query<{ version: number }>(`select nextval('device_copy_version') as version`);
  return row!.version;
}

export async function outboxRows(queries: Queries): Promise<OutboxRow[]> {
  return await queries.query<OutboxRow>(
    `select id, device, device_profile_id as "profileId", customer_id as "customerId", scope, key
       from device_outbox order by id limit ${limits.outboxRowsMax}`,
  );
}

export async function deleteOutboxRows(queries: Queries, ids: number[]): Promise<void> {
  await queries.query('delete from device_outbox where id = any($1)', [ids]);
}

/** Requests a new copy of all devices; does nothing when there are none. */
export async function askForAll(queries: Queries): Promise<void> {
  await queries.query(
    `insert into device_outbox (device) select null where exists (select from device)
        and not exists (select from device_outbox where device is null and device_profile_id is null and customer_id is null)`,
  );
}

const deviceColumns = `d.number as device, d.id, d.tenant_id as tenant, d.name, coalesce(d.label, '') as label,
  p.name as profile, coalesce(c.title, '') as owner`;
const deviceTables = `device d join device_profile p on p.id = d.device_profile_id
  left join customer c on c.id = d.customer_id`;

export async function devicesOf(queries: Queries, numbers: number[]): Promise<DeviceCopy[]> {
  return await queries.query<DeviceCopy>(`select ${deviceColumns} from ${deviceTables} where d.number = any($1)`, [
    numbers,
  ]);
}

/** A page of the devices of profiles or customers, or of all devices, after the number `after`. */
export async function devicesAfter(queries: Queries, after: number, of: DeviceGroup): Promise<DeviceCopy[]> {
  const all = of.profileIds.length === 0 && of.customerIds.length === 0;
  const condition = all ? 'true' : '(d.device_profile_id = any($2) or d.customer_id = any($3))';
  return await queries.query<DeviceCopy>(
    `select ${deviceColumns} from ${deviceTables} where d.number > $1 and ${condition}
      order by d.number limit ${limits.outboxPageRowsMax}`,
    all ? [after] : [after, of.profileIds, of.customerIds],
  );
}

/** Both empty: all devices. */
export interface DeviceGroup {
  profileIds: string[];
  customerIds: string[];
}

interface AttributeRow {
  device: number;
  scope: number;
  key: string;
  kind: number;
  value: string;
}

/**
 * Returns the copies of those attributes that exist, and the attributes that were not read: the values that are read
 * before the last one have at most `outboxPageBytesMax` bytes.
 */
export async function findAttributeCopies(
  queries: Queries,
  asked: AttributePlace[],
): Promise<{ copies: AttributeCopy[]; unread: AttributePlace[] }> {
  const rows = await queries.query<AttributeRow & { isRead: boolean }>(
    `with asked as (select * from unnest($1::bigint[], $2::smallint[], $3::text[]) as a (device, scope, key))
     select device, scope, key, kind, case when "isRead" then value else '' end as value, "isRead" from (
       select *, ${bytesBefore} < ${limits.outboxPageBytesMax} as "isRead" from (
         select distinct on (device, scope, key) device, scope, key, kind, value from (
           select device, scope, key, kind, value, last_update_ts from attribute
            where (device, scope, key) in (select * from asked) and kind > 0
           union all
           select device, ${serverScope}, key, kind, value, last_update_ts from activity_attribute
            where device in (select device from asked where scope = ${serverScope})
              and (device, ${serverScope}, key) in (select * from asked)) merged
          order by device, scope, key, last_update_ts desc) as latest) as measured`,
    [asked.map(({ device }) => device), asked.map(({ scope }) => scope), asked.map(({ key }) => key)],
  );
  return {
    copies: rows.filter(({ isRead }) => isRead).map(copyOf),
    unread: rows.flatMap(({ device, scope, key, isRead }) => (isRead ? [] : [{ device, scope, key }])),
  };
}

/** SQL of the bytes of the values of earlier rows. Values that are stored apart are not read for it. */
const bytesBefore = 'sum(octet_length(value)) over (order by device, scope, key) - octet_length(value)';

export interface KeyToFill {
  scope: number;
  key: string;
  /** True when the key was copied once. */
  isFilled: boolean;
}

/** Returns keys that need a full copy: new ones, and those whose first copy may have missed a slow statement. */
export async function keysToFill(queries: Queries, settledBefore: number): Promise<KeyToFill[]> {
  return await queries.query<KeyToFill>(
    'select scope, key, filled_time is not null as "isFilled" from report_key where filled_time is null or (not settled and filled_time < $1)',
    [settledBefore],
  );
}

/** `settled`: the copy began after the end of every statement that did not know the key. */
export async function markFilled(queries: Queries, keys: { scope: number; key: string }[], now: number): Promise<void> {
  await queries.query(
    `update report_key set settled = filled_time is not null, filled_time = coalesce(filled_time, $3)
      where (scope, key) in (select * from unnest($1::smallint[], $2::text[]))`,
    [keys.map(({ scope }) => scope), keys.map(({ key }) => key), now],
  );
}

export async function forgetFilled(queries: Queries): Promise<void> {
  await queries.query('update report_key set filled_time = null, settled = false');
}

/** The place of an attribute in the order of their primary key. */
export interface AttributePlace {
  device: number;
  scope: number;
  key: string;
}

/** Returns a page of attributes after a place. Without the last one they have at most `outboxPageBytesMax` bytes. */
export async function attributesAfter(
  queries: Queries,
  after: AttributePlace,
  keys: { scope: number; key: string }[],
): Promise<AttributeCopy[]> {
  const rows = await queries.query<AttributeRow>(
    `select device, scope, key, kind, value from (
       select *, ${bytesBefore} as before from (
         select device, scope, key, kind, value from attribute
          where (device, scope, key) > ($1, $2, $3)
            and (scope, key) in (select * from unnest($4::smallint[], $5::text[])) and kind > 0
          order by device, scope, key limit ${limits.outboxPageRowsMax}) as page) as measured
      where before < ${limits.outboxPageBytesMax} order by device, scope, key`,
    [after.device, after.scope, after.key, keys.map(({ scope }) => scope), keys.map(({ key }) => key)],
  );
  return rows.map(copyOf);
}

/**
 * As `attributesAfter`, of what the service says about activity (view `activity_attribute`). An attribute that a user
 * has written since is left out. `last`: the page ends with this device; undefined when there is no further one.
 */
export async function activityAfter(
  queries: Queries,
  after: number,
  keys: string[],
): Promise<{ rows: AttributeCopy[]; last: number | undefined }> {
  const devices = await queries.query<{ device: number }>(
    `select device from device_activity where device > $1 order by device limit ${limits.outboxPageRowsMax}`,
    [after],
  );
  const rows = await queries.query<AttributeRow>(
    `select v.device, ${serverScope} as scope, v.key, v.kind, v.value from activity_attribute v
      where v.device = any($1) and v.key = any($2)
        and not exists (select from attribute t where t.device = v.device and t.scope = ${serverScope} and t.key = v.key
                           and t.last_update_ts > v.last_update_ts)`,
    [devices.map(({ device }) => device), keys],
  );
  return { rows: rows.map(copyOf), last: devices.at(-1)?.device };
}

function copyOf({ device, scope, key, kind, value }: AttributeRow): AttributeCopy {
  return { device, scope, key, kind, text: reportedText(kind, value) };
}

/** Returns a value as reports show and compare it: each number in one form, integers with all digits. */
function reportedText(kind: number, value: string): string {
  if (kind === Kind.boolean) return value === '1' ? 'true' : 'false';
  return kind === Kind.double ? String(Number(value) + 0) : value;
}
