/**
 * Tombstones in PostgreSQL. Each is a delete of telemetry (device, keys, range, order number) with its state.
 * `delete-series.ts` and the deletion of devices make them, `erase.ts` carries them out for all hosts, and a replay of
 * quarantined rows reads which rows they cover. The queries of a round do not read finished tombstones.
 */
import { limits } from '../base/limits.ts';
import { writerOf } from '../ingest/order-number.ts';
import type { Queries } from '../postgres/client.ts';

/** The effect on a latest value inside the range: deleted, kept, or replaced by the newest remaining value. */
export type LatestFate = 'delete' | 'keep' | 'rewrite';

/** The rows that a tombstone covers. */
export interface Erased {
  device: number;
  /** Null = all keys. */
  keys: string[] | null;
  /** Range [startTs, endTs). */
  startTs: number;
  endTs: number;
  /**
   * Rows up to this order are covered, decimal; null = the device is deleted, and rows that arrive later are covered
   * too.
   */
  orderNumber: string | null;
  /** Writers whose orders were ahead of the clock, each with the order up to which its rows are covered. */
  aheadWriters: number[];
  aheadOrders: string[];
  latest: LatestFate;
}

/** Returns the bytes of the lists: they are parameters of statements, which are sent in the URL of a request. */
export function listBytesOf({ keys, aheadWriters, aheadOrders }: Erased): number {
  const bytesOf = (list: readonly (string | number)[]) =>
    list.reduce<number>((sum, each) => sum + Buffer.byteLength(String(each)), 0);
  return bytesOf(keys ?? []) + bytesOf(aheadWriters) + bytesOf(aheadOrders);
}

export interface Tombstone extends Erased {
  id: number;
  /**
   * The delete is carried out when each journal has settled this value; null = a deleted device that may still be
   * sending.
   */
  fence: number | null;
  /** Changes with each update of the row in PostgreSQL: work begun before an update does not finish the delete. */
  rowVersion: string;
}

const columns = `id, device, keys, start_ts as "startTs", end_ts as "endTs", order_number::text as "orderNumber", latest,
  ahead_writers as "aheadWriters", ahead_orders::text[] as "aheadOrders",
  coalesce(fence, case when order_number is not null then id end) as fence, xmin::text as "rowVersion"`;

/**
 * Returns the tombstones in the order of `deletes`. The request that inserts a tombstone carries it out; `erase.ts`
 * ignores it until `handOver`, or for some seconds.
 */
export async function insertTombstones(
  queries: Queries,
  deletes: readonly (Erased & { createdTime: number })[],
): Promise<Tombstone[]> {
  const rows = await queries.query<{ id: number; rowVersion: string }>(
    `with given as materialized (
       select nextval('tombstones_id_seq') as id, each.*
         from json_to_recordset($1) as each (
           place int, device bigint, keys text[], "startTs" bigint, "endTs" bigint, "orderNumber" bigint,
           "aheadWriters" int[], "aheadOrders" bigint[], latest text, "createdTime" bigint)),
     made as (
       insert into tombstones (id, device, keys, start_ts, end_ts, order_number, ahead_writers, ahead_orders, latest,
                               created_time, handed_over)
       select id, device, keys, "startTs", "endTs", "orderNumber", "aheadWriters", "aheadOrders", latest,
              "createdTime", false
         from given returning id, xmin::text as "rowVersion")
     select id, "rowVersion" from given join made using (id) order by place`,
    [JSON.stringify(deletes.map((each, place) => ({ place, ...each })))],
  );
  return deletes.map(({ createdTime: _, ...erased }, place) => {
    const { id, rowVersion } = rows[place]!;
    return { ...erased, id, rowVersion, fence: id };
  });
}

export async function handOver(queries: Queries, ids: readonly number[]): Promise<void> {
  await queries.query('update tombstones set handed_over = true where id = any($1::bigint[])', [ids]);
}

/**
 * Gives a fence to tombstones of devices that can no longer send: every cache has dropped their credentials. That time
 * is counted from the moment at which a host has seen the tombstone, because its transaction may have taken long. The
 * time begins again when the clock was set back.
 */
export async function fenceDevices(queries: Queries): Promise<void> {
  await queries.query(
    `update tombstones set fence = case when handed_over and recorded_at < clock_timestamp()
                         then (select nextval('tombstones_id_seq')) end,
            recorded_at = clock_timestamp(), handed_over = true
      where applied_at is null and order_number is null and fence is null
        and (not handed_over or recorded_at > clock_timestamp()
             or recorded_at < clock_timestamp() - $1 * interval '1 millisecond')`,
    [limits.deletedDeviceGraceMs],
  );
}

/** Returns the query of the first tombstones of `page`: as many as `eraseReadBytesMax` allows, and at least one. */
function shortPage(page: string): string {
  return `with page as (${page}),
    counted as (select *, sum(coalesce(pg_column_size(keys), 0)) over (order by id)
                          - coalesce(pg_column_size(keys), 0) as "bytesBefore" from page)
    select ${columns} from counted where "bytesBefore" < ${limits.eraseReadBytesMax} order by id`;
}

/** Reads tombstones after `afterId` that have not been carried out, oldest first. */
export async function readWaiting(queries: Queries, afterId: number, count: number): Promise<Tombstone[]> {
  return await queries.query<Tombstone>(
    shortPage(`select *, xmin from tombstones
      where applied_at is null and id > $1 and (order_number is not null or fence is not null)
        and (handed_over or recorded_at not between clock_timestamp() - $2 * interval '1 millisecond'
                                                and clock_timestamp() + $2 * interval '1 millisecond')
      order by id limit $3`),
    [afterId, 2 * limits.seriesDeleteMsMax, count],
  );
}

/** Returns finished tombstones for which one of these writers may have shipped covered rows later. */
export async function readMissing(queries: Queries, writers: number[], count: number): Promise<Tombstone[]> {
  return await queries.query<Tombstone>(
    shortPage(`select *, xmin from tombstones t
      where applied_at is not null and missing && $1::int[]
        and exists (select from journals j where j.writer = any(t.missing) and j.writer = any($1)
                       and j.settled >= coalesce(t.fence, t.id)
                       and (j.held_order is null or j.held_order > coalesce(t.order_number, ${orderMax})))
      order by id limit $2`),
    [writers, count],
  );
}

/** Counts deletes that are not carried out, and those that are repeated after a journal has shipped its rows. */
export async function countWaiting(queries: Queries): Promise<{ waiting: number; oldestMs: number; again: number }> {
  const [row] = await queries.query<{ waiting: number; oldestMs: number; again: number }>(
    `select count(*) filter (where applied_at is null)::int as waiting,
            coalesce(extract(epoch from clock_timestamp() - min(recorded_at) filter (where applied_at is null)), 0)::float8
              * 1000 as "oldestMs",
            count(*) filter (where applied_at is not null)::int as again
       from tombstones where applied_at is null or missing <> '{}'`,
    [],
  );
  return row!;
}

/** The state of a journal that a round knew before it carried deletes out. */
interface SeenJournal {
  writer: number;
  run: string;
  settled: number;
  orderHeld: string | null;
}

/** Deletes that were carried out, and the journals as they were before. */
export interface CarriedOut {
  tombstones: readonly Pick<Tombstone, 'id' | 'rowVersion'>[];
  /** Many deletes of one statement have the same list, which is sent once: an installation may have many journals. */
  seen: readonly SeenJournal[];
  /** Writers whose journals are known to have settled these deletes, whatever `seen` says. */
  settledBy: readonly number[];
}

/**
 * Marks deletes that were carried out. A tombstone stays unfinished for a journal that had not settled it, was opened
 * since, or has rows beside it. Returns the ids of the marked tombstones. A tombstone that has changed since it was
 * read is not marked: it was reopened, or a journal was opened.
 */
export async function markApplied(queries: Queries, done: readonly CarriedOut[]): Promise<Set<number>> {
  const lists = [...new Set(done.map(({ seen }) => seen))];
  const given = done.flatMap(({ tombstones, seen, settledBy }) =>
    tombstones.map((tombstone) => ({ ...tombstone, list: lists.indexOf(seen), settledBy: `{${settledBy.join(',')}}` })),
  );
  const seen = lists.flatMap((journals, list) => journals.map((journal) => ({ ...journal, list })));
  const rows = await queries.query<{ id: number }>(
    `update tombstones t set applied_at = clock_timestamp(), missing = coalesce((
       select array_agg(j.writer) from journals j
         left join unnest($5::int[], $6::int[], $7::text[], $8::bigint[], $9::bigint[])
                as seen (list, writer, run, settled, held)
           on seen.list = given.list and seen.writer = j.writer and seen.run = j.run
        where seen.writer is null
           or (seen.settled < coalesce(t.fence, t.id) and j.writer <> all(given.settled_by::int[]))
           or least(j.held_order, seen.held) <= coalesce(t.order_number, ${orderMax})), '{}')
       from unnest($1::bigint[], $2::text[], $3::int[], $4::text[]) as given (id, row_version, list, settled_by)
      where t.id = given.id and t.xmin::text = given.row_version
     returning t.id`,
    [
      given.map(({ id }) => id),
      given.map(({ rowVersion }) => rowVersion),
      given.map(({ list }) => list),
      given.map(({ settledBy }) => settledBy),
      seen.map(({ list }) => list),
      seen.map(({ writer }) => writer),
      seen.map(({ run }) => run),
      seen.map(({ settled }) => settled),
      seen.map(({ orderHeld }) => orderHeld),
    ],
  );
  return new Set(rows.map(({ id }) => id));
}

/**
 * Reopens all deletes after a restore, because the stores may be of different moments. Costs only reads where no
 * deleted row came back.
 */
export async function reopenTombstones(queries: Queries): Promise<void> {
  await queries.query(`update tombstones set applied_at = null, missing = '{}', handed_over = true`);
}

/**
 * Reopens deletes of devices whose number modulo `count` is one of `buckets`, when they were carried out. Returns their
 * ids.
 */
export async function reopenBuckets(queries: Queries, count: number, buckets: readonly number[]): Promise<number[]> {
  const rows = await queries.query<{ id: number }>(
    `update tombstones set applied_at = null, handed_over = true
      where applied_at is not null and device % $1 = any($2::bigint[]) returning id`,
    [count, buckets],
  );
  return rows.map(({ id }) => id);
}

/** Returns how many of these deletes are not carried out. */
export async function countOpen(queries: Queries, ids: readonly number[]): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    'select count(*)::int as count from tombstones where id = any($1::bigint[]) and applied_at is null',
    [ids],
  );
  return row!.count;
}

/** Deletes tombstones that were carried out and are older than any journal that could ship their rows again. */
export async function expireTombstones(queries: Queries, keptDays: number): Promise<number> {
  const rows = await queries.query(
    `with old as (select id from tombstones where recorded_at < clock_timestamp() - $1 * interval '1 day'
                     and applied_at is not null limit 10000)
     delete from tombstones using old where tombstones.id = old.id returning tombstones.id`,
    [keptDays],
  );
  return rows.length;
}

/** Returns the tombstones of some devices, for `erasesRow`. */
export async function readTombstonesOf(queries: Queries, devices: number[]): Promise<Tombstone[]> {
  return await queries.query<Tombstone>(`select ${columns} from tombstones where device = any($1::bigint[])`, [
    devices,
  ]);
}

/**
 * Returns other tombstones of the devices of these, without those that keep latest values and those that were carried
 * out long before one of these was stored. The hour is for a clock of the database that was set.
 */
export async function readTombstonesBeside(queries: Queries, ids: number[]): Promise<Tombstone[]> {
  return await queries.query<Tombstone>(
    `select ${columns} from tombstones
      where id in (
        select other.id from tombstones own join tombstones other on other.device = own.device
         where own.id = any($1::bigint[]) and own.latest <> 'keep'
           and not other.id = any($1::bigint[]) and other.latest <> 'keep'
           and (other.applied_at is null or other.applied_at > own.recorded_at - interval '1 hour'))`,
    [ids],
  );
}

const orderMax = '9223372036854775807';

/**
 * True when the tombstone deletes this row. `erasedRanges` and `erasedDevices` (`clickhouse/erase-statements.ts`) are
 * the same rule as SQL.
 */
export function erasesRow(erased: Erased, row: { device: number; key: string; ts: number; order: bigint }): boolean {
  const { device, keys, startTs, endTs, orderNumber, aheadWriters, aheadOrders } = erased;
  if (device !== row.device) return false;
  if (orderNumber === null) return true;
  if (keys !== null && !keys.includes(row.key)) return false;
  if (row.ts < startTs || row.ts >= endTs) return false;
  const ahead = aheadWriters.indexOf(writerOf(row.order));
  return row.order <= BigInt(ahead < 0 ? orderNumber : aheadOrders[ahead]!);
}

/**
 * Reopens deletes that were made while the rows were in transit. A host that carries out such a delete now may have
 * searched before these rows arrived, so unfinished deletes are marked as well. Ids do not show what was visible: a
 * delete with a lower id may have been committed later.
 */
export async function reopenNewer(
  queries: Queries,
  { devices, tombstones }: { devices: number[]; tombstones: number[] },
): Promise<void> {
  await queries.query(
    `update tombstones set applied_at = null, handed_over = true
      where device = any($1::bigint[]) and not id = any($2::bigint[])`,
    [devices, tombstones],
  );
}

/**
 * Reopens deletes of these devices, undefined = of all devices, that cover rows of this order: ClickHouse has got such
 * rows now, and the deletes may have been carried out before. As in `reopenNewer`, unfinished deletes are marked.
 * `ahead`: frames with orders ahead of the clock, of writers that a delete may not know. A delete that was made after
 * such a frame was accepted covers the frame from now on.
 */
export async function reopenCovering(
  queries: Queries,
  devices: readonly number[] | undefined,
  order: bigint,
  ahead: readonly { writer: number; order: bigint; accepted: bigint }[] = [],
): Promise<void> {
  for (const writer of new Set(ahead.map((frame) => frame.writer))) {
    const frames = ahead.filter((frame) => frame.writer === writer);
    const place = 'coalesce(array_position(ahead_writers, $2::int), cardinality(ahead_writers) + 1)';
    await queries.query(
      `update tombstones t
          set ahead_writers[${place}] = $2::int, ahead_orders[${place}] = greatest(ahead_orders[${place}], covered.top)
         from (select tombstones.id, max(frames.number) as top from tombstones
                 join unnest($3::bigint[], $4::bigint[]) as frames (number, accepted)
                   on frames.accepted < order_number and frames.number > order_number
                where ($1::bigint[] is null or device = any($1)) group by tombstones.id) as covered
        where t.id = covered.id`,
      [
        devices ?? null,
        writer,
        frames.map((frame) => frame.order.toString()),
        frames.map(({ accepted }) => accepted.toString()),
      ],
    );
  }
  await queries.query(
    `update tombstones set applied_at = null, handed_over = true
      where ($1::bigint[] is null or device = any($1))
        and (order_number is null or order_number >= $2 or ahead_writers <> '{}')`,
    [devices ?? null, order.toString()],
  );
}
