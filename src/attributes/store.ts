/**
 * SQL of attributes and of the updates that devices have received. Statements lock rows in one order (heads by device,
 * then attributes by primary key), so that two workers never wait for each other.
 */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { doubleText, Kind, type TypedValue } from '../value/typed.ts';

export interface AttributeRow {
  key: string;
  value: TypedValue;
  lastUpdateTs: number;
}

/** One row to write. A batch has at most one row for each (device, scope, key). */
export interface AttributeWrite {
  device: number;
  scope: number;
  key: string;
  value: TypedValue;
  ts: number;
}

export const sharedScope = 2;
const serverScope = 3;
const deletedKind = 0;
const nowMs = '(extract(epoch from clock_timestamp()) * 1000)::bigint';

/**
 * One statement of a queue of writes (its column is `lane`). A statement that reaches the database twice takes effect
 * once.
 */
export interface Turn {
  queue: string;
  number: number;
}

/**
 * SQL that yields a row for the first of two equal statements only. The second one waits for the commit of the first,
 * also when the first still runs on a connection that was lost.
 */
function turnTaken(queue: number): string {
  return `turn as (
       insert into attribute_turn as t (lane, number, used_time) values ($${queue}::uuid, $${queue + 1}::bigint, ${nowMs})
       on conflict (lane) do update set number = excluded.number, used_time = excluded.used_time
        where t.number < excluded.number
       returning number)`;
}

/** Upserts the rows. Without a turn every call takes effect, as inside a transaction. */
export async function upsertAttributes(queries: Queries, rows: AttributeWrite[], turn?: Turn): Promise<void> {
  await queries.query(
    `${turn ? `with ${turnTaken(7)}` : ''}
     insert into attribute as a (device, scope, key, kind, value, last_update_ts)
     select w.* from unnest($1::bigint[], $2::smallint[], $3::text[], $4::smallint[], $5::text[], $6::bigint[])
         as w (device, scope, key, kind, value, ts) ${turn ? ', turn' : ''}
      order by w.device, w.scope, w.key collate "C"
     on conflict (device, scope, key) do update
        set kind = excluded.kind, value = excluded.value, last_update_ts = excluded.last_update_ts`,
    [...columnsOf(rows), ...(turn ? [turn.queue, turn.number] : [])],
  );
}

/** Upserts shared attributes. Returns the new version of each device; empty when the turn was taken earlier. */
export async function upsertShared(queries: Queries, rows: AttributeWrite[], turn: Turn): Promise<Map<number, number>> {
  const [devices, , ...columns] = columnsOf(rows);
  const heads = await queries.query<{ device: number; version: number }>(
    `with ${turnTaken(6)},
     head as (
       insert into attribute_head as h (device, version)
       select distinct w.device, 1 from unnest($1::bigint[]) as w (device), turn order by w.device
       on conflict (device) do update set version = h.version + 1, transaction_id = pg_current_xact_id()
       returning device, version),
     stored as (
       insert into attribute as a (device, scope, key, kind, value, last_update_ts, version)
       select w.device, ${sharedScope}, w.key, w.kind, w.value, w.ts, head.version
         from unnest($1::bigint[], $2::text[], $3::smallint[], $4::text[], $5::bigint[])
              as w (device, key, kind, value, ts)
         join head on head.device = w.device
        order by w.device, w.key collate "C"
       on conflict (device, scope, key) do update set kind = excluded.kind, value = excluded.value,
              last_update_ts = excluded.last_update_ts, version = excluded.version)
     select device, version from head`,
    [devices, ...columns, turn.queue, turn.number],
  );
  return new Map(heads.map(({ device, version }) => [device, version]));
}

/** Returns the places of those shared rows that no later write has replaced, with their versions. */
export async function readUnreplaced(
  queries: Queries,
  rows: AttributeWrite[],
): Promise<{ place: number; version: number }[]> {
  const [devices, , ...columns] = columnsOf(rows);
  return await queries.query(
    `select w.place - 1 as place, a.version
       from unnest($1::bigint[], $2::text[], $3::smallint[], $4::text[], $5::bigint[])
            with ordinality as w (device, key, kind, value, ts, place)
       join attribute a on a.device = w.device and a.scope = ${sharedScope} and a.key = w.key
        and a.kind = w.kind and a.value = w.value and a.last_update_ts = w.ts
      order by w.place`,
    [devices, ...columns],
  );
}

export async function deleteAttributes(
  queries: Queries,
  device: number,
  scope: number,
  keys: string[],
  turn: Turn,
): Promise<string[]> {
  const rows = await queries.query<{ key: string | null; taken: boolean }>(
    `with ${turnTaken(4)},
     gone as (
       delete from attribute using turn where device = $1 and scope = $2 and key = any($3) returning key)
     select gone.key, exists (select from turn) as taken from (values (1)) as always left join gone on true`,
    [device, scope, keys, turn.queue, turn.number],
  );
  if (rows[0]?.taken === false) return await missingKeys(queries, device, scope, keys);
  return rows.flatMap(({ key }) => (key === null ? [] : [key]));
}

/** Deletes rows of a device that has no cursor; the rows of other devices stay as deletions of the new version. */
export async function deleteShared(
  queries: Queries,
  device: number,
  keys: string[],
  now: number,
  turn: Turn,
): Promise<{ removed: string[]; version: number }> {
  const rows = await queries.query<{ key: string | null; version: number | null; taken: boolean }>(
    `with ${turnTaken(4)},
     head as (
       insert into attribute_head as h (device, version) select d.number, 1 from device d, turn where d.number = $1
       on conflict (device) do update set version = h.version + 1, transaction_id = pg_current_xact_id()
       returning version, deletions_seen is not null as has_cursor),
     gone as (
       delete from attribute using head
        where device = $1 and scope = ${sharedScope} and key = any($2) and kind <> ${deletedKind} and not head.has_cursor
       returning key),
     marked as (
       update attribute set kind = ${deletedKind}, value = '', last_update_ts = $3, version = head.version from head
        where device = $1 and scope = ${sharedScope} and key = any($2) and kind <> ${deletedKind} and head.has_cursor
       returning key)
     select removed.key, (select head.version from head) as version, exists (select from turn) as taken
       from (values (1)) as always left join (table gone union all table marked) as removed on true`,
    [device, keys, now, turn.queue, turn.number],
  );
  if (rows[0]?.taken === false) {
    const [head] = await queries.query<{ version: number }>('select version from attribute_head where device = $1', [
      device,
    ]);
    return { removed: await missingKeys(queries, device, sharedScope, keys), version: head?.version ?? 0 };
  }
  return { removed: rows.flatMap(({ key }) => (key === null ? [] : [key])), version: rows[0]?.version ?? 0 };
}

/**
 * Returns the deleted keys after a removal whose answer was lost. A key that exists was written after the removal, and
 * its write announces the key.
 */
async function missingKeys(queries: Queries, device: number, scope: number, keys: string[]): Promise<string[]> {
  const rows = await queries.query<{ key: string }>(
    `select key from attribute where device = $1 and scope = $2 and kind <> ${deletedKind} and key = any($3)`,
    [device, scope, keys],
  );
  const live = new Set(rows.map(({ key }) => key));
  return keys.filter((key) => !live.has(key));
}

/** Deletes the turns of queues whose workers ended long ago. */
export async function pruneTurns(queries: Queries, keptMs: number): Promise<void> {
  await queries.query(`delete from attribute_turn where used_time < ${nowMs} - $1::bigint`, [keptMs]);
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

/** Returns the stored bytes of a scope, including rows of which only the deletion is kept. */
export async function readStoredBytes(
  queries: Queries,
  owner: number,
  scope: number,
  { table, owner: column } = deviceRows,
): Promise<number> {
  const rows = await queries.query<{ bytes: number }>(
    `select coalesce(sum(64 + octet_length(key) + octet_length(value)), 0)::bigint as bytes
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

/** The version of a device's shared attributes, and the version that the device has received. */
export interface Head {
  device: number;
  version: number;
  /** Null before the first poll or subscription; then `deletionsSeen` is null too. */
  changesSeen: number | null;
  deletionsSeen: number | null;
  changesOffered: number | null;
  deletionsOffered: number | null;
  /** Milliseconds since the last answer, by the clock of the database. */
  offeredMs: number;
  repeated: boolean;
}

export async function readHeads(queries: Queries, devices: number[]): Promise<Head[]> {
  return await queries.query<Head>(
    `select device, version, changes_seen as "changesSeen", deletions_seen as "deletionsSeen",
            changes_offered as "changesOffered", deletions_offered as "deletionsOffered",
            ${nowMs} - offered_time as "offeredMs", repeated
       from attribute_head where device = any($1)`,
    [devices],
  );
}

/** Returns the version that the shared attributes of each device had at a time, as far as the stored rows show it. */
export async function readVersionsBefore(
  queries: Queries,
  asked: { device: number; since: number }[],
): Promise<Map<number, number>> {
  const rows = await queries.query<{ device: number; version: number }>(
    `select c.device, coalesce(max(a.version), 0) as version
       from unnest($1::bigint[], $2::bigint[]) as c (device, since)
       left join attribute a on a.device = c.device and a.scope = ${sharedScope} and a.last_update_ts < c.since
      group by c.device`,
    [asked.map(({ device }) => device), asked.map(({ since }) => since)],
  );
  return new Map(rows.map(({ device, version }) => [device, version]));
}

/** Rows of a transaction `$1` or of later ones. */
export const changedHeads = 'attribute_head where transaction_id >= $1::text::xid8';

/** Returns versions of devices that were not settled before `transaction`. A version may be returned twice. */
export async function readChangedHeads(
  queries: Queries,
  transaction: bigint,
  rowsMax: number,
): Promise<{ device: number; version: number }[]> {
  return await queries.query(`select device, version from ${changedHeads} limit $2`, [String(transaction), rowsMax]);
}

/** The version up to which a device certainly has every change. A cursor never decreases. */
export interface Cursor {
  device: number;
  changesSeen: number;
  deletionsSeen: number;
  repeated: boolean;
}

/** Stores cursors and clears the offered versions. Devices that no longer exist are left out. */
export async function storeCursors(queries: Queries, cursors: Cursor[]): Promise<void> {
  await queries.query(
    `insert into attribute_head as h (device, version, changes_seen, deletions_seen, repeated)
     select c.device, 0, c.changes, c.deletions, c.repeated
       from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[]) as c (device, changes, deletions, repeated)
       join device d on d.number = c.device order by c.device
     on conflict (device) do update set
       changes_seen = greatest(h.changes_seen, excluded.changes_seen),
       deletions_seen = greatest(h.deletions_seen, excluded.deletions_seen),
       changes_offered = null, deletions_offered = null, repeated = excluded.repeated`,
    [
      cursors.map(({ device }) => device),
      cursors.map(({ changesSeen }) => changesSeen),
      cursors.map(({ deletionsSeen }) => deletionsSeen),
      cursors.map(({ repeated }) => repeated),
    ],
  );
}

/** Versions that were written to a client. A repeated answer, and one that the client confirmed, counts as seen. */
export interface UpdateOffer {
  device: number;
  changes: number | null;
  deletions: number | null;
  confirmed: boolean;
}

export async function storeOffers(queries: Queries, offers: UpdateOffer[]): Promise<void> {
  await queries.query(
    `update attribute_head h set
       changes_seen = case when o.confirmed or h.repeated then greatest(h.changes_seen, o.changes)
                           else h.changes_seen end,
       deletions_seen = case when o.confirmed or h.repeated then greatest(h.deletions_seen, o.deletions)
                             else h.deletions_seen end,
       changes_offered = case when o.confirmed or h.repeated then h.changes_offered
                              else greatest(h.changes_offered, o.changes) end,
       deletions_offered = case when o.confirmed or h.repeated then h.deletions_offered
                                else greatest(h.deletions_offered, o.deletions) end,
       offered_time = ${nowMs}, repeated = false
     from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[]) as o (device, changes, deletions, confirmed)
     where h.device = o.device`,
    [
      offers.map(({ device }) => device),
      offers.map(({ changes }) => changes),
      offers.map(({ deletions }) => deletions),
      offers.map(({ confirmed }) => confirmed),
    ],
  );
}

/** Deletes the deletions that their device has received. */
export async function pruneDeletions(queries: Queries, devices: number[]): Promise<void> {
  await queries.query(
    `delete from attribute a using attribute_head h
      where h.device = any($1) and a.device = h.device and a.scope = ${sharedScope}
        and a.kind = ${deletedKind} and a.version <= h.deletions_seen`,
    [devices],
  );
}

/** A shared row that its device has not seen; `value` undefined = deleted. */
export interface UpdateRow {
  device: number;
  /** The version of the device's shared attributes at the time of the read. */
  headVersion: number;
  key: string;
  value: TypedValue | undefined;
}

export async function readUpdateRows(
  queries: Queries,
  cursors: { device: number; changesSeen: number; deletionsSeen: number }[],
): Promise<UpdateRow[]> {
  const rows = await queries.query<{ device: number; headVersion: number; key: string; kind: number; value: string }>(
    `select a.device, h.version as "headVersion", a.key, a.kind, a.value
       from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as c (device, changes, deletions)
       join attribute_head h on h.device = c.device
       join attribute a on a.device = c.device and a.scope = ${sharedScope}
        and a.version > case when a.kind = ${deletedKind} then c.deletions else c.changes end
      order by a.device, a.version, a.key`,
    [
      cursors.map(({ device }) => device),
      cursors.map(({ changesSeen }) => changesSeen),
      cursors.map(({ deletionsSeen }) => deletionsSeen),
    ],
  );
  return rows.map(({ device, headVersion, key, kind, value }) => ({
    device,
    headVersion,
    key,
    value: kind === deletedKind ? undefined : storedValue(kind, value),
  }));
}

/** Returns the rows as columns for `unnest`: device, scope, key, kind, value, ts. */
function columnsOf(rows: AttributeWrite[]): unknown[] {
  let devices = '{';
  let scopes = '{';
  let kinds = '{';
  let times = '{';
  const keys: string[] = [];
  const values: string[] = [];
  for (const { device, scope, key, value, ts } of rows) {
    const comma = keys.length === 0 ? '' : ',';
    devices += `${comma}${device}`;
    scopes += `${comma}${scope}`;
    kinds += `${comma}${value.kind}`;
    times += `${comma}${ts}`;
    keys.push(key);
    values.push(textOf(value));
  }
  return [`${devices}}`, `${scopes}}`, textArray(keys), `${kinds}}`, textArray(values), `${times}}`];
}

/** Returns an array literal. The function of the driver costs much more, because it visits each element twice. */
function textArray(texts: string[]): string {
  let literal = '{';
  for (const text of texts) {
    if (literal.length > 1) literal += ',';
    literal += needsEscape.test(text) ? `"${text.replace(/["\\]/g, '\\$&')}"` : `"${text}"`;
  }
  return `${literal}}`;
}

const needsEscape = /["\\]/;

export function textOf(value: TypedValue): string {
  switch (value.kind) {
    case Kind.boolean:
    case Kind.long:
      return value.int;
    case Kind.double:
      return doubleText(value.num);
    case Kind.string:
    case Kind.json:
      return value.text;
  }
}

function storedValue(kind: number, text: string): TypedValue {
  switch (kind) {
    case Kind.boolean:
    case Kind.long:
      return { kind, num: 0, int: text, text: '' };
    case Kind.double:
      return { kind, num: Number(text), int: '0', text: '' };
    default:
      return { kind: kind as Kind, num: 0, int: '0', text };
  }
}
