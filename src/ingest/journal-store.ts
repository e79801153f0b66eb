/**
 * SQL of the journals of all hosts: how far each is stored, so that deletes wait for the journals that may still ship
 * rows that they cover, and receipts say what is stored. `erase/erase.ts` writes the journals of its host.
 */
import { limits } from '../base/limits.ts';
import { writerIdMax } from '../journal/identity.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { JournalReport } from './journal-report.ts';
import { orderUpTo } from './order-number.ts';

/** A row that this host writes. */
export interface OwnJournal extends JournalReport {
  settled: number;
}

export interface JournalRow {
  writer: number;
  run: string;
  orderHigh: string;
  settled: number;
  orderHeld: string | null;
  host: string;
  /** As in `JournalReport`. */
  mapVersion: number;
  /** The host has reported within `limits.journalStaleMs`. */
  isLive: boolean;
}

/** Returns the newest value of the sequence of tombstones, and whether a tombstone waits. */
export async function readFence(queries: Queries): Promise<{ fence: number; isWaiting: boolean }> {
  const [row] = await queries.query<{ fence: number; isWaiting: boolean }>(
    `select case when is_called then last_value else 0 end as fence,
            exists (select from tombstones where applied_at is null) as "isWaiting"
       from tombstones_id_seq`,
    [],
    { prepared: true },
  );
  return row!;
}

export async function readJournals(queries: Queries): Promise<JournalRow[]> {
  return await queries.query<JournalRow>(
    `select writer, run, order_high::text as "orderHigh", settled, held_order::text as "orderHeld", host,
            map_version as "mapVersion",
            -- a report of the future was made before the clock was set back, so nothing is known since
            heard_at between clock_timestamp() - $1 * interval '1 millisecond'
                         and clock_timestamp() + $1 * interval '1 millisecond' as "isLive"
       from journals order by writer`,
    [limits.journalStaleMs],
  );
}

/** The journals of a host that no longer reports, with rows that ClickHouse lacked at their last reports. */
export interface LeftJournals {
  host: string;
  journals: number;
  /** The highest order of their rows. */
  orderHigh: string;
  /** Milliseconds since the last report. */
  ageMs: number;
}

/** Rows that a host accepted after its last report, which is at most ten seconds before its end, are not known. */
export async function readLeftJournals(queries: Queries): Promise<LeftJournals[]> {
  return await queries.query<LeftJournals>(
    `select host, count(*)::int as journals, max(order_high)::text as "orderHigh",
            (extract(epoch from clock_timestamp() - max(heard_at)) * 1000)::float8 as "ageMs"
       from journals
      where heard_at < clock_timestamp() - $1 * interval '1 millisecond'
        and (done_order < order_high or held_order is not null)
        and not exists (select from streams where streams.writer = journals.writer)
      group by host order by host`,
    [limits.journalStaleMs],
  );
}

/** Returns the highest reported orders by writer, also of journals that are gone and that were ahead of the clock. */
export async function readHighOrders(queries: Queries): Promise<Pick<JournalRow, 'writer' | 'orderHigh'>[]> {
  return await queries.query<Pick<JournalRow, 'writer' | 'orderHigh'>>(
    `select writer, max(order_high)::text as "orderHigh"
       from (select writer, order_high from journals union all select writer, order_high from former_journals) as known
      group by writer order by writer`,
  );
}

/** Writes all journals of this host in one statement. */
export async function writeJournals(queries: Queries, host: string, journals: OwnJournal[]): Promise<void> {
  const column = <T>(of: (journal: OwnJournal) => T): T[] => journals.map(of);
  await queries.query(
    `insert into journals (writer, host, run, order_high, done_order, settled, held_order, map_version)
     select writer, $1, run, order_high, done, settled, held, map
       from unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
         as given (writer, run, order_high, done, settled, held, map)
     on conflict (writer) do update
        set host = excluded.host, run = excluded.run, order_high = excluded.order_high, done_order = excluded.done_order,
            held_order = excluded.held_order, map_version = excluded.map_version, heard_at = clock_timestamp(),
            -- what this opening has settled stays so, also when another worker of the host begins to report it
            settled = case journals.run when excluded.run then greatest(journals.settled, excluded.settled)
                      else excluded.settled end`,
    [
      host,
      column(({ writer }) => writer),
      column(({ run }) => run),
      column(({ orderHigh }) => orderHigh),
      column(({ orderDone }) => orderDone),
      column(({ settled }) => settled),
      column(({ orderHeld }) => orderHeld),
      column(({ mapVersion = 0 }) => mapVersion),
    ],
  );
}

/** How far a journal is stored, as its host has reported last. */
interface StoredOrder {
  /** True: every row up to the order is in ClickHouse, or in quarantine. Undefined: the journal is no longer known. */
  isStored: boolean | undefined;
  /** True: rows of this journal wait beside its lanes, and a row up to the order may be one of them. */
  mayBeHeld: boolean;
  /** The earliest kept time at which the row was stored; undefined when no such time is kept. */
  storedBefore: number | undefined;
}

export async function readStoredOrder(queries: Queries, writer: number, order: bigint): Promise<StoredOrder> {
  const [row] = await queries.query<{ isStored: boolean | null; mayBeHeld: boolean; storedBefore: number | null }>(
    `select (select done_order >= $2::bigint from journals where writer = $1) as "isStored",
            exists (select from journals where writer = $1 and held_order <= $2::bigint) as "mayBeHeld",
            (select ceil(extract(epoch from at) * 1000)::bigint from stored_orders
              where writer = $1 and stored_order >= $2::bigint order by stored_order limit 1) as "storedBefore"`,
    [writer, order.toString()],
  );
  const { isStored, mayBeHeld, storedBefore } = row!;
  return { isStored: isStored ?? undefined, mayBeHeld, storedBefore: storedBefore ?? undefined };
}

/** Keeps how far journals are stored now: a row of each in `limits.storedOrdersMs`, when the journal has moved. */
export async function keepStoredOrders(queries: Queries, journals: readonly OwnJournal[]): Promise<void> {
  await queries.query(
    `insert into stored_orders (writer, stored_order)
     select writer, done from unnest($1::int[], $2::bigint[]) as given (writer, done)
      where not exists (
        select from (select stored_order, at from stored_orders s where s.writer = given.writer
                      order by stored_order desc limit 1) as last
         where last.stored_order >= given.done
            or last.at between clock_timestamp() - $3 * interval '1 millisecond' and clock_timestamp())
     on conflict do nothing`,
    [journals.map(({ writer }) => writer), journals.map(({ orderDone }) => orderDone), limits.storedOrdersMs],
  );
}

export async function expireStoredOrders(queries: Queries): Promise<void> {
  await queries.query(`delete from stored_orders where at < clock_timestamp() - $1 * interval '1 millisecond'`, [
    limits.storedOrdersKeptMs,
  ]);
}

/**
 * The run of a journal that has lost its id. What its earlier openings shipped is unknown, so all deletes wait for the
 * journal.
 */
export const unknownRun = 'unknown';

/**
 * Returns a writer id that no other journal of any host has. The row that reserves the id makes the journal visible to
 * deletes before its first row. `openings`: the number of earlier openings. There are 16 384 ids; a removed journal,
 * and one without a report for as long as tombstones are kept, frees its id, at the earliest when the clock has passed
 * its orders. Returns undefined when all ids are in use.
 */
export async function takeWriterId(queries: Queries, host: string, run: string): Promise<number | undefined> {
  for (;;) {
    const [taken] = await queries.query<{ writer: number }>(
      `with next as materialized (select nextval('writer_id')::int as writer)
       insert into journals (writer, host, run, order_high, settled)
       select writer, $1, $2, 0, 0 from next where not exists (select from former_journals f where f.writer = next.writer)
       on conflict (writer) do nothing returning writer`,
      [host, run],
    );
    if (taken) {
      // A journal that was forgotten meanwhile has freed this id for another row, and its orders may be ahead.
      const former = await queries.query('select from former_journals where writer = $1', [taken.writer]);
      if (former.length === 0) return taken.writer;
      await giveBackWriterId(queries, taken.writer);
      continue;
    }
    const [used] = await queries.query<{ count: number }>(
      `select count(*)::int as count
         from (select writer from journals union select writer from former_journals) as used
        where writer between 0 and $1`,
      [writerIdMax],
    );
    if (used!.count > writerIdMax) return undefined;
  }
}

/** Called for an id that was taken and that no journal has. */
export async function giveBackWriterId(queries: Queries, writer: number): Promise<void> {
  await queries.query('delete from journals where writer = $1', [writer]);
}

/**
 * Registers openings before their first reports count. An opening may ship rows again that finished deletes cover, so
 * these deletes wait for the journal once more. An opening whose predecessor was not registered counts with everything
 * that the last report does not call done. Waiting and running deletes are changed too: work begun earlier does not
 * finish them.
 */
export async function registerRuns(postgres: Postgres, host: string, reports: JournalReport[]): Promise<void> {
  await postgres.transaction(async (queries) => {
    const known = await queries.query<Pick<JournalRow, 'writer' | 'run'> & { orderDone: string }>(
      'select writer, run, done_order::text as "orderDone" from journals where writer = any($1) for update',
      [reports.map(({ writer }) => writer)],
    );
    const before = new Map(known.map((row) => [row.writer, row]));
    const opened = reports.filter(({ writer, run }) => before.get(writer)?.run !== run);
    for (const report of opened) {
      const lowest = lowestReplayed(report, before.get(report.writer));
      if (lowest === undefined) continue;
      await queries.query(
        `update tombstones set missing = array_append(array_remove(missing, $1::int), $1::int) where ${mayCover(2)}`,
        [report.writer, lowest],
      );
    }
    await writeJournals(
      queries,
      host,
      opened.map((report) => ({ ...report, settled: 0 })),
    );
  });
}

/** Returns the lowest order of rows that may have been shipped again; undefined when there are none. */
function lowestReplayed(
  { run, orderRecovered }: JournalReport,
  before: { run: string; orderDone: string } | undefined,
): string | undefined {
  if (before === undefined) return '0';
  const isNext = Number(run) === Number(before.run) + 1;
  return isNext ? (orderRecovered ?? undefined) : String(BigInt(before.orderDone) + 1n);
}

/** A journal of which ClickHouse has every row. */
export type StoredJournal = Pick<JournalReport, 'writer' | 'orderRecovered' | 'orderHigh'>;

/**
 * Called for a journal that is stored, before its directory is removed, so that a crash repeats the call. The journal
 * may have shipped rows between two reports. Deletes carried out before its last rows are repeated, and running deletes
 * do not count as finished.
 */
export async function forgetJournal(
  postgres: Postgres,
  { writer, orderRecovered, orderHigh }: StoredJournal,
): Promise<void> {
  await postgres.transaction(async (queries) => {
    await queries.query(
      `update tombstones set applied_at = null, missing = array_remove(missing, $1::int), handed_over = true
        where $1::int = any(missing) or $2::bigint is not null and ${mayCover(2)}`,
      [writer, orderRecovered],
    );
    await queries.query(
      `with gone as (delete from journals where writer = $1 returning order_high)
       ${keepFormer} select $1::int, greatest($2::bigint, (select order_high from gone)) ${onFormer}`,
      [writer, orderHigh],
    );
  });
}

/**
 * Deletes journals without a report for so long that no tombstone refers to them. Deletes former journals whose orders
 * the clock has passed: the order of a new delete covers their rows.
 */
export async function forgetOldJournals(queries: Queries, keptDays: number): Promise<void> {
  await queries.query(
    `with gone as (delete from journals where heard_at < clock_timestamp() - $1 * interval '1 day'
                   returning writer, order_high)
     ${keepFormer} select writer, order_high from gone where writer >= 0 ${onFormer}`,
    [keptDays],
  );
  await queries.query(
    `delete from former_journals
      where order_high < (extract(epoch from clock_timestamp()) * 1000 - $1)::bigint * ${ordersPerMs}`,
    [limits.journalStaleMs],
  );
}

/**
 * Called for a database from a backup, before the first start: its journals have new writer ids from then on. A report
 * may be older than the rows of the backup, so the highest orders are taken to be later than reported.
 */
export async function forgetRestoredJournals(queries: Queries): Promise<void> {
  // The streams are journals as well; they get new ids when they are seen.
  await queries.query('delete from streams');
  await queries.query(
    `with gone as (delete from journals returning writer, order_high)
     ${keepFormer} select writer, order_high + $1::bigint * ${ordersPerMs} from gone where writer >= 0 ${onFormer}`,
    [limits.journalStaleMs],
  );
}

const keepFormer = 'insert into former_journals (writer, order_high)';
const onFormer =
  'on conflict (writer) do update set order_high = greatest(former_journals.order_high, excluded.order_high)';
const ordersPerMs = orderUpTo(0) + 1n;

/** SQL that is true when a tombstone may cover rows with orders from this parameter on. */
function mayCover(parameter: number): string {
  return `(order_number is null
    or greatest(order_number, (select max(ahead) from unnest(ahead_orders) as ahead)) >= $${parameter}::bigint)`;
}
