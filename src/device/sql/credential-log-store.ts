/**
 * SQL of the log of changed credentials, which all workers of all hosts follow. Reads follow transactions, because rows
 * become visible in another order than that of their ids.
 */
import type { Queries } from '../../postgres/client.ts';

export interface CredentialChange {
  credentialsId: string;
  deviceId: string;
  deviceNumber: number;
  deleted: boolean;
}

/** A change with its id in the log, which identifies it. */
export interface LoggedChange extends CredentialChange {
  id: number;
  /** A save that changed nothing by which the device is found or admitted. Only the bus carries this member. */
  keepsAccess?: true;
}

export const changeColumns = `id, credentials_id as "credentialsId", device_id as "deviceId", device_number as "deviceNumber",
  deleted`;

export async function insertCredentialChanges(
  queries: Queries,
  changes: CredentialChange[],
  now: number,
): Promise<LoggedChange[]> {
  return await queries.query(
    `insert into credential_changes (credentials_id, device_id, device_number, deleted, created_time)
     select c.*, $1 from unnest($2::text[], $3::uuid[], $4::bigint[], $5::boolean[]) as c
     returning ${changeColumns}`,
    [
      now,
      changes.map(({ credentialsId }) => credentialsId),
      changes.map(({ deviceId }) => deviceId),
      changes.map(({ deviceNumber }) => deviceNumber),
      changes.map(({ deleted }) => deleted),
    ],
  );
}

/**
 * What a reader of the log has seen: the rows of all transactions before `next`, except those of the `running` ones. A
 * transaction that runs for hours costs its own rows only: rows of other transactions are read once.
 */
export interface LogPlace {
  next: bigint;
  running: bigint[];
  /** The id of the last row of `next` that is seen; undefined = none is. */
  id?: number;
}

/** True when a reader at `place` has seen later rows than one at `other`, apart from those of running transactions. */
export function isLater(place: LogPlace, other: LogPlace): boolean {
  return place.next > other.next || (place.next === other.next && (place.id ?? 0) > (other.id ?? 0));
}

/** Returns the place at which only the rows of transactions before `transaction` are seen. */
export function placeAt(transaction: bigint): LogPlace {
  return { next: transaction, running: [] };
}

function hasSeen({ next, running }: LogPlace, transaction: bigint): boolean {
  return transaction < next && !running.includes(transaction);
}

/**
 * The transactions that have not ended, and the timeline of the server with the number of the log's table. A standby
 * that takes over begins a new timeline, and uses the numbers of lost transactions again. A restore of rows makes
 * another table.
 */
export const settledColumns = 'pg_current_snapshot()::text as snapshot, server_timeline() as timeline';

export interface Settled extends LogPlace {
  /** The oldest transaction that has not ended: all earlier ones are settled. */
  transaction: bigint;
  /** Null on a standby, and on a server that does not tell its timeline. */
  timeline: string | null;
}

export async function readSettled(queries: Queries): Promise<Settled> {
  const [row] = await queries.query<SettledRow>(`select ${settledColumns}`);
  return settledOf(row!);
}

export interface SettledRow {
  /** As PostgreSQL writes it: `oldest:next:running,running`. */
  snapshot: string;
  timeline: string | null;
}

export function settledOf({ snapshot, timeline }: SettledRow): Settled {
  const [oldest, next, running] = snapshot.split(':');
  return {
    transaction: BigInt(oldest!),
    next: BigInt(next!),
    running: running === '' ? [] : running!.split(',').map(BigInt),
    timeline,
  };
}

/** True when the numbers of transactions cannot be compared: the store was restored, or another server took over. */
export function isOtherHistory(now: Settled, last: Settled): boolean {
  const isBehind = now.transaction < last.transaction || now.next < last.next;
  return isBehind || now.timeline !== last.timeline;
}

/** Returns the parameters `$1` and `$2` of `hasUnseen` and of `hasChangedCredentials`. */
export function placeValues({ next, running }: LogPlace): [next: string, running: string[]] {
  return [String(next), running.map(String)];
}

/**
 * SQL: true when the table has rows that a reader at the place `$1`, `$2` has not seen. Reads one row of the index for
 * each running transaction and one more, also without statistics.
 */
export function hasUnseen(table: string): string {
  const unseen = (condition: string, direction: string) =>
    `(select transaction_id from ${table} ${condition} order by transaction_id ${direction} limit 1)`;
  return `(${unseen('', 'desc')} >= $1::text::xid8 or exists (
    select from unnest($2::text[]) as running (id)
     where ${unseen('where transaction_id >= running.id::xid8', 'asc')} = running.id::xid8))`;
}

export const hasChangedCredentials: string = hasUnseen('credential_changes');

interface LogPage {
  changes: LoggedChange[];
  /** The place of a reader that has the pages until this one; undefined for the last one, and without `to`. */
  place: LogPlace | undefined;
}

/**
 * Yields pages of the changes that a reader at the place has not seen, in the order of transactions. The pages lack
 * changes that a reader at `to` has not seen: so a reader that goes on from there reads each change once. Both parts of
 * the statement have one lower bound and the order of the index, because PostgreSQL would read the whole log otherwise:
 * by `id` alone while it has no statistics of a log that has just grown, or has those of one large transaction. With a
 * second lower bound PostgreSQL 18 read a log of a million changes from its beginning each time, in 40 ms.
 */
export async function* changesSince(
  queries: Queries,
  place: LogPlace,
  pageRows: number,
  to?: LogPlace,
): AsyncGenerator<LogPage> {
  let { next, id: nextId = 0 } = place;
  let running = place.running.map((transaction) => ({ transaction, id: 0 }));
  for (let isLast = false; !isLast; ) {
    const rows = await queries.query<LoggedChange & { transaction: string }>(
      `select ${changeColumns}, transaction_id::text as transaction from (
         select late.* from unnest($1::text[], $2::bigint[]) as running (transaction, id) cross join lateral (
           select * from credential_changes
            where (transaction_id, id) > (running.transaction::xid8, running.id)
              and transaction_id <= running.transaction::xid8 order by transaction_id, id limit $5) as late
         union all
         (select * from credential_changes
           where (transaction_id, id) > ($3::text::xid8, $4::bigint) order by transaction_id, id limit $5)) as unseen
        order by transaction_id, id limit $5`,
      [
        running.map(({ transaction }) => String(transaction)),
        running.map(({ id }) => id),
        String(next),
        nextId,
        pageRows,
      ],
    );
    const last = rows.at(-1);
    const transaction = last ? BigInt(last.transaction) : 0n;
    isLast = rows.length < pageRows || (to !== undefined && transaction >= to.next);
    const changes = to ? rows.filter((row) => hasSeen(to, BigInt(row.transaction))) : rows;
    yield { changes, place: to && last && !isLast ? placeAfter(last.id, transaction, place, to) : undefined };
    if (!last) return;
    running = running.filter((one) => one.transaction >= transaction);
    for (const one of running) if (one.transaction === transaction) one.id = last.id;
    if (transaction >= next) [next, nextId] = [transaction, last.id];
  }
}

/** Returns the place of a reader that read from `place` to `to`, until the row with this id of this transaction. */
function placeAfter(id: number, transaction: bigint, place: LogPlace, to: LogPlace): LogPlace {
  const running = to.running.filter((one) => one < transaction);
  // Rows of a transaction that was running at `to` are in no page, although this reader has met them.
  if (transaction >= place.next && to.running.includes(transaction)) {
    return { next: transaction + 1n, running: [...running, transaction] };
  }
  if (transaction >= place.next) return { next: transaction, id, running };
  return { ...place, running: [...running, ...place.running.filter((one) => one >= transaction)] };
}

/**
 * Deletes changes that are older than `keptMs` by the caller's clock `now` and by that of the database: a host whose
 * clock is ahead deletes no change that others have not read. Deletes at most `rowsMax` of them in a statement, because
 * the changes of ten million devices take longer than a statement may. Several callers divide the rows among them.
 * An aborted `signal` ends it after the current statement.
 */
export async function pruneCredentialChanges(
  queries: Queries,
  now: number,
  keptMs: number,
  rowsMax: number,
  signal?: AbortSignal,
): Promise<void> {
  // `clock_timestamp()` could change with each row, so PostgreSQL would read all rows instead of the index.
  const database = '(extract(epoch from now()) * 1000)::bigint';
  const old = `select id from credential_changes where created_time < least($1, ${database}) - $2::bigint
    order by created_time limit $3 for update skip locked`;
  while (!signal?.aborted) {
    const [row] = await queries.query<{ count: number }>(
      `with gone as (delete from credential_changes where id = any(array(${old})) returning 1)
       select count(*) as count from gone`,
      [now, keptMs, rowsMax],
    );
    if (row === undefined || row.count < rowsMax) return;
  }
}
