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
 * standby that takes over begins a new
 * timeline, and uses the numbers of lost transactions again.
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

/** Rows of a transaction `$1` or of later ones. */
export const changedCredentials = 'credential_changes where transaction_id >= $1::text::xid8';

/** Returns changes by `transaction` or later ones with an id above `afterId`, the oldest id first. */
export async function readCredentialChanges(
  queries: Queries,
  transaction: bigint,
  afterId: number,
  rowsMax: number,
): Promise<LoggedChange[]> {
  return await queries.query(`select ${changeColumns} from ${changedCredentials} and id > $2 order by id limit $3`, [
    String(transaction),
    afterId,
    rowsMax,
  ]);
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
