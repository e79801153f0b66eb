/** Statements that copy the telemetry of some buckets to another shard, and delete what moved. */
import { localTables } from './local-tables.ts';
import { bucketCount } from './shards.ts';

const ofBuckets = `device % ${bucketCount} IN {buckets:Array(UInt64)}`;
const columns = {
  telemetry: 'device, key, ts, seq, origin, kind, num, int, text, expires, version',
  latest: 'device, key, ts, seq, kind, num, int, text, version',
} as const;
export type MovedTable = keyof typeof columns;

/**
 * Returns the days with rows, oldest first. The markers of deletes count: they are copied as well. `intDiv` would round
 * a time before 1970 up, to a day that `movedRows` reads without that time.
 */
export const movedDaysQuery = `SELECT toInt64(floor(ts / 86400000)) AS day, count() AS count FROM telemetry
  WHERE ${ofBuckets} GROUP BY day ORDER BY day`;

export const movedLatestQuery = `SELECT count() AS count FROM latest WHERE ${ofBuckets}`;

/** Rows of the days from `first` to `last`; `latest` has no days. */
export function movedRows(table: MovedTable): string {
  const days = table === 'telemetry' ? 'AND ts >= {first:Int64} * 86400000 AND ts < ({last:Int64} + 1) * 86400000' : '';
  return `SELECT ${columns[table]} FROM ${table} FINAL WHERE ${ofBuckets} ${days} FORMAT Native`;
}

export function insertMoved(table: MovedTable): string {
  return `INSERT INTO ${table} (${columns[table]}) FORMAT Native`;
}

/** Deletes rows that are there now. Rows that are inserted later stay. */
export function deleteBuckets(table: MovedTable, cluster: string, buckets: readonly number[]): string {
  return `ALTER TABLE ${localTables(table, cluster)} DELETE WHERE device % ${bucketCount} IN (${buckets.join(', ')})`;
}
