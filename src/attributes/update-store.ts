/** SQL of the updates of shared attributes that devices have received: versions, cursors and offers. */
import { limits } from '../base/limits.ts';
import { hasUnseen, type LogPlace, placeValues } from '../device/sql/credential-log-store.ts';
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { deletedKind, nowMs, storedValue } from './attribute-row.ts';
import { sharedScope } from './scope.ts';

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

export const hasChangedHeads: string = hasUnseen('attribute_head');

/** Returns versions of devices that a reader at the place has not seen. A version may be returned twice. */
export async function readChangedHeads(
  queries: Queries,
  place: LogPlace,
  rowsMax: number,
): Promise<{ device: number; version: number }[]> {
  return await queries.query(
    `(select late.device, late.version from unnest($2::text[]) as running (transaction) cross join lateral (
        select device, version from attribute_head where transaction_id = running.transaction::xid8 limit $3) as late)
     union all
     (select device, version from attribute_head where transaction_id >= $1::text::xid8 order by transaction_id limit $3)
     limit $3`,
    [...placeValues(place), rowsMax],
  );
}

/**
 * The version up to which a device certainly has every change. It decreases only while several workers start the cursor
 * of a device at once (`startCursors`).
 */
export interface Cursor {
  device: number;
  changesSeen: number;
  deletionsSeen: number;
  repeated: boolean;
}

/**
 * Stores the first cursors of devices and returns those that are stored then. Of cursors that several workers start at
 * once the least counts, because the device began to listen at its time. Devices that no longer exist are left out.
 */
export async function startCursors(
  queries: Queries,
  cursors: Cursor[],
): Promise<Pick<Cursor, 'device' | 'changesSeen' | 'deletionsSeen'>[]> {
  return await queries.query(
    `insert into attribute_head as h (device, version, changes_seen, deletions_seen, repeated)
     select c.device, 0, c.seen, c.seen, false from unnest($1::bigint[], $2::bigint[]) as c (device, seen)
       join device d on d.number = c.device order by c.device
     on conflict (device) do update set
       changes_seen = least(h.changes_seen, excluded.changes_seen),
       deletions_seen = least(h.deletions_seen, excluded.deletions_seen)
     returning device, changes_seen as "changesSeen", deletions_seen as "deletionsSeen"`,
    [cursors.map(({ device }) => device), cursors.map(({ changesSeen }) => changesSeen)],
  );
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

/** The versions that a device has seen. */
interface Seen {
  device: number;
  changesSeen: number;
  deletionsSeen: number;
}

/**
 * Returns the rows that devices have not seen, and the last of the cursors, which were not read: the values of the
 * cursors that are read before the last one have at most `updateReadBytesMax` bytes.
 */
export async function readUpdateRows<Cursor extends Seen>(
  queries: Queries,
  cursors: readonly Cursor[],
): Promise<{ rows: UpdateRow[]; unread: Cursor[] }> {
  interface Row {
    device: number;
    headVersion: number;
    key: string;
    kind: number;
    value: string;
    place: number;
    isFull: boolean;
  }
  const rows = await queries.query<Row>(
    `select device, "headVersion", key, kind, value, place, through >= ${limits.updateReadBytesMax} as "isFull" from (
       select a.device, h.version as "headVersion", a.version, a.key, a.kind, a.value, c.place,
              sum(octet_length(a.value)) over (order by c.place) as through,
              sum(octet_length(a.value)) over (partition by c.place) as own
         from unnest($1::bigint[], $2::bigint[], $3::bigint[]) with ordinality as c (device, changes, deletions, place)
         join attribute_head h on h.device = c.device
         join attribute a on a.device = c.device and a.scope = ${sharedScope}
          and a.version > case when a.kind = ${deletedKind} then c.deletions else c.changes end) as measured
      where through - own < ${limits.updateReadBytesMax}
      order by place, version, key`,
    [
      cursors.map(({ device }) => device),
      cursors.map(({ changesSeen }) => changesSeen),
      cursors.map(({ deletionsSeen }) => deletionsSeen),
    ],
  );
  const last = rows.at(-1);
  return {
    rows: rows.map(({ device, headVersion, key, kind, value }) => ({
      device,
      headVersion,
      key,
      value: kind === deletedKind ? undefined : storedValue(kind, value),
    })),
    unread: last?.isFull ? cursors.slice(last.place) : [],
  };
}
