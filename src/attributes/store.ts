/** SQL that reads attributes, of devices and of other entities. Large values have a cap in bytes for each read. */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { deletedKind, storedValue } from './attribute-row.ts';
import { serverScope } from './scope.ts';

export interface AttributeRow {
  key: string;
  value: TypedValue;
  lastUpdateTs: number;
}

interface ValueColumns {
  key: string;
  kind: number;
  value: string;
  lastUpdateTs: number;
}

/** The tables of attributes: one for devices, and one for other entities. */
export const deviceRows = { table: 'attribute', owner: 'device' };

export const entityRows = { table: 'entity_attribute', owner: 'entity' };

/**
 * Server attributes that Millrace itself writes for each device (view `activity_attribute`). A user may also write
 * these attributes; a read returns the later value.
 */
export const activityKeys: readonly string[] = [
  'active',
  'lastActivityTime',
  'inactivityAlarmTime',
  'lastConnectTime',
  'lastDisconnectTime',
];

function mayBeActivity(scopes: number[], keys: string[] | null): boolean {
  return scopes.includes(serverScope) && (keys === null || keys.some((key) => activityKeys.includes(key)));
}

/** Bytes that a row counts beside its key and value. */
export const rowBytes = 64;

/** Returns the stored bytes of a scope, including rows of which only the deletion is kept. */
export async function readStoredBytes(
  queries: Queries,
  owner: number,
  scope: number,
  { table, owner: column } = deviceRows,
): Promise<number> {
  const rows = await queries.query<{ bytes: number }>(
    `select coalesce(sum(${rowBytes} + octet_length(key) + octet_length(value)), 0)::bigint as bytes
       from ${table} where ${column} = $1 and scope = $2`,
    [owner, scope],
  );
  return rows[0]?.bytes ?? 0;
}

type ScopedRow = AttributeRow & { scope: number };

/** Throws a 400 fault when the values together exceed `limits.attributesReadBytesMax` bytes. */
export async function readAttributes(
  queries: Queries,
  device: number,
  scopes: number[],
  keys: string[] | null,
  rowsOf = deviceRows,
): Promise<ScopedRow[]> {
  const bytesMax = limits.attributesReadBytesMax;
  const rows = await readAttributesWithin(queries, device, scopes, keys, bytesMax, rowsOf);
  if (rows) return rows;
  throw badRequest('attributes_bytes', `The attributes have more than ${bytesMax} bytes: name fewer keys.`);
}

/** Returns undefined when the values together exceed `bytesMax` bytes; then no value was read. */
export async function readAttributesWithin(
  queries: Queries,
  device: number,
  scopes: number[],
  keys: string[] | null,
  bytesMax: number,
  { table, owner } = deviceRows,
): Promise<ScopedRow[] | undefined> {
  const named = keys === null ? '' : 'and key = any($4)';
  const own = `select scope, key, kind, value, last_update_ts from ${table}
                where ${owner} = $1 and scope = any($2) and kind <> ${deletedKind} ${named}`;
  const withActivity = `select distinct on (scope, key) * from (
           ${own} union all select ${serverScope}, key, kind, value, last_update_ts from activity_attribute
            where device = $1 ${named}) merged order by scope, key, last_update_ts desc`;
  const rows = await queries.query<ValueColumns & { scope: number; fits: boolean }>(
    `select scope, key, kind, case when fits then value else '' end as value, last_update_ts as "lastUpdateTs", fits
       from (select *, sum(octet_length(value)) over () <= $3 as fits
               from (${table === deviceRows.table && mayBeActivity(scopes, keys) ? withActivity : own}) read) a
      order by scope, key`,
    [device, scopes, bytesMax, ...(keys === null ? [] : [keys])],
  );
  if (rows[0]?.fits === false) return undefined;
  return rows.map(({ scope, key, kind, value, lastUpdateTs }) => ({
    scope,
    key,
    value: storedValue(kind, value),
    lastUpdateTs,
  }));
}

/**
 * Returns the attributes that the owners have of the keys. Throws a 400 fault when the values together exceed
 * `limits.attributesReadBytesMax` bytes.
 */
export async function readAttributesOf(
  queries: Queries,
  owners: number[],
  keys: string[],
  { table, owner } = deviceRows,
): Promise<(ScopedRow & { owner: number })[]> {
  if (owners.length === 0 || keys.length === 0) return [];
  const bytesMax = limits.attributesReadBytesMax;
  const own = `select ${owner} as owner, scope, key, kind, value, last_update_ts from ${table}
                where ${owner} = any($1) and key = any($2) and kind <> ${deletedKind}`;
  const withActivity = `select distinct on (owner, scope, key) * from (
           ${own} union all select device, ${serverScope}, key, kind, value, last_update_ts from activity_attribute
            where device = any($1) and key = any($2)) merged order by owner, scope, key, last_update_ts desc`;
  const isActivity = table === deviceRows.table && mayBeActivity([serverScope], keys);
  const rows = await queries.query<ValueColumns & { owner: number; scope: number; fits: boolean }>(
    `select owner, scope, key, kind, case when fits then value else '' end as value, last_update_ts as "lastUpdateTs",
            fits
       from (select *, sum(octet_length(value)) over () <= $3 as fits from (${isActivity ? withActivity : own}) read) a`,
    [owners, keys, bytesMax],
  );
  if (rows[0]?.fits === false) {
    throw badRequest('attributes_bytes', `The attributes have more than ${bytesMax} bytes: ask for fewer entities.`);
  }
  return rows.map(({ kind, value, ...row }) => ({ ...row, value: storedValue(kind, value) }));
}

export async function readKeys(
  queries: Queries,
  device: number,
  scopes: number[],
  { table, owner } = deviceRows,
): Promise<string[]> {
  const activity =
    table === deviceRows.table && mayBeActivity(scopes, null)
      ? 'union select key from activity_attribute where device = $1'
      : '';
  const rows = await queries.query<{ key: string }>(
    `select distinct key from ${table}
      where ${owner} = $1 and scope = any($2) and kind <> ${deletedKind} ${activity} order by key`,
    [device, scopes],
  );
  return rows.map(({ key }) => key);
}

/** Returns the keys that any of the devices has, in any scope. */
export async function readKeysOfDevices(queries: Queries, devices: number[]): Promise<string[]> {
  const rows = await queries.query<{ key: string }>(
    `select distinct key from attribute where device = any($1) and kind <> ${deletedKind}
      union select key from activity_attribute where device = any($1) order by key`,
    [devices],
  );
  return rows.map(({ key }) => key);
}
