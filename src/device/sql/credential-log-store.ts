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
 * The oldest transaction that has not ended, and the timeline of the server: all earlier transactions are settled. A
 * standby that takes over begins a new timeline, and uses the numbers of lost transactions again.
 */
export const settledColumns = 'pg_snapshot_xmin(pg_current_snapshot())::text as settled, server_timeline() as timeline';

export interface Settled {
  transaction: bigint;
  /** Null on a standby, and on a server that does not tell its timeline. */
  timeline: string | null;
}

export async function readSettled(queries: Queries): Promise<Settled> {
  const [row] = await queries.query<SettledRow>(`select ${settledColumns}`);
  return settledOf(row!);
}

export interface SettledRow {
  settled: string;
  timeline: string | null;
}

export function settledOf({ settled, timeline }: SettledRow): Settled {
  return { transaction: BigInt(settled), timeline };
}

/** True when the numbers of transactions cannot be compared: the store was restored, or another server took over. */
export function isOtherHistory(now: Settled, last: Settled): boolean {
  return now.transaction < last.transaction || now.timeline !== last.timeline;
}

/** True when there are rows of transaction `$1` or of later ones. Reads one row, also without statistics. */
export const hasChangedCredentials =
  '(select transaction_id from credential_changes order by transaction_id desc, id desc limit 1) >= $1::text::xid8';

/**
 * Yields pages of the changes by `transaction` and by later ones, in the order of transactions. Pages follow the index,
 * because PostgreSQL has no statistics of a log that has just grown: by `id` alone it would read the whole log.
 */
export async function* changesSince(
  queries: Queries,
  transaction: bigint,
  pageRows: number,
): AsyncGenerator<LoggedChange[]> {
  let [after, afterId] = [String(transaction), 0];
  for (;;) {
    const rows = await queries.query<LoggedChange & { transaction: string }>(
      `select ${changeColumns}, transaction_id::text as transaction from credential_changes
        where (transaction_id, id) > ($1::text::xid8, $2::bigint) order by transaction_id, id limit $3`,
      [after, afterId, pageRows],
    );
    yield rows;
    if (rows.length < pageRows) return;
    ({ transaction: after, id: afterId } = rows.at(-1)!);
  }
}

/**
 * Deletes changes that are older than `keptMs` by the caller's clock `now` and by that of the database: a host whose
 * clock is ahead deletes no change that others have not read.
 */
export async function pruneCredentialChanges(queries: Queries, now: number, keptMs: number): Promise<void> {
  // `clock_timestamp()` could change with each row, so PostgreSQL would read all rows instead of the index.
  const database = '(extract(epoch from now()) * 1000)::bigint';
  await queries.query(`delete from credential_changes where created_time < least($1, ${database}) - $2::bigint`, [
    now,
    keptMs,
  ]);
}
