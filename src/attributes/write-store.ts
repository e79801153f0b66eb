/**
 * SQL that writes and deletes attributes. Statements lock rows in one order (heads by device, then attributes by
 * primary key), so that two workers never wait for each other.
 */
import type { Queries } from '../postgres/client.ts';
import { type AttributeWrite, columnsOf, deletedKind, nowMs } from './attribute-row.ts';
import { sharedScope } from './scope.ts';

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
