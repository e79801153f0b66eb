/** The statements of retention. A day is a partition of `telemetry`; rows outside 2020 to 2039 share partition 0. */
import { daysEndMs, firstDayMs } from './day-partitions.ts';
import { localTable, localTables } from './local-tables.ts';

const others = `(ts < ${firstDayMs} OR ts >= ${daysEndMs})`;
/** The partition of a row, computed as in the definition of the table. */
const dayOfRow = `if(${others}, 0, toYYYYMMDD(toDateTime(intDiv(ts, 1000), 'UTC')))`;

/** A number of days for which profiles keep points, and the time before which such points are expired. */
export interface ExpiringDays {
  days: number;
  /** Points before this time are expired. */
  before: number;
}

export const insertExpiringDevices = 'INSERT INTO expiring_devices (round, days, device) FORMAT JSONEachRow';

export function forgetExpiringDevicesStatement(cluster: string): string {
  return `TRUNCATE TABLE ${localTables('expiring_devices', cluster)}`;
}

/**
 * Returns the query of the days with expired points of profiles; day 0 has the points outside 2020 to 2039. The query
 * reads the points of these devices only.
 */
export function expiredDaysQuery(expiring: ExpiringDays[]): string {
  return `SELECT ${dayOfRow} AS day, count() AS count FROM telemetry
    WHERE ${expiredByDays(expiring, 'GLOBAL IN', 'expiring_devices').join(' OR ')} GROUP BY day`;
}

const timeToLiveEnded = '(expires > 0 AND expires <= {nowSeconds:UInt32})';

/** Finds days with points whose time to live has ended. Reads one column of the table, which is sparse. */
export const endedDaysQuery = `SELECT ${dayOfRow} AS day, count() AS count FROM telemetry
  PREWHERE ${timeToLiveEnded} GROUP BY day`;

export const partsOfDayQuery = `SELECT name FROM system.parts
  WHERE database = currentDatabase() AND table = 'telemetry' AND active AND partition = {day:String}`;

/**
 * Copies the other points of some parts, each with its version, so reads and merges treat a point and its copy as one.
 * A mutation would make a new part of every part of the table: 80 s with 1 000 days of five points each, where the copy
 * of 5 000 000 points of one day took 38 s (a busy machine). `FINAL` leaves out the points that an expired point has
 * replaced.
 */
export function copyOthersStatement(expiring: ExpiringDays[]): string {
  return `INSERT INTO telemetry SELECT * FROM telemetry FINAL
    WHERE _part IN {parts:Array(String)} AND NOT (${expiredOf(expiring, 'expiring_devices')})`;
}

/** Fails without effect when a part was merged meanwhile. The name of a part is never used again. */
export function dropPartsStatement(parts: string[]): string {
  return `ALTER TABLE telemetry ${parts.map((part) => `DROP PART '${part}'`).join(', ')}`;
}

/**
 * Deletes expired points of some days in a cluster: the mutation of a replicated table touches only the partitions that
 * it names. A device and its row of `expiring_devices` are on the same shard, so the table of each server suffices. The
 * points that an ended point has replaced go with it: they would show again otherwise.
 */
export function deleteExpiredOfDaysStatement(cluster: string, expiring: ExpiringDays[], days: number[]): string {
  const rows = expiredOf(expiring, localTable('expiring_devices', cluster));
  const each = days.map((day) => `DELETE IN PARTITION ${day} WHERE ${rows} OR ${replacedByEnded(day, cluster)}`);
  return `ALTER TABLE ${localTables('telemetry', cluster)} ${each.join(', ')}`;
}

/**
 * Returns the condition of rows whose key has several rows, of which the last one has ended. The rows are read in the
 * order of the table, so the memory does not grow with the day. Of rows with one version the later row of their part is
 * the last one, as for `FINAL`.
 */
function replacedByEnded(day: number, cluster: string): string {
  const key = 'device, key, ts, seq, origin';
  return `(${key}) IN (
    SELECT ${key} FROM ${localTable('telemetry', cluster)} WHERE _partition_id = '${day}' GROUP BY ${key}
    HAVING count() > 1 AND argMax(${timeToLiveEnded}, (version, _part_offset))
    SETTINGS optimize_aggregation_in_order = 1)`;
}

export function countExpiredLatestQuery(expiring: ExpiringDays[]): string {
  return `SELECT count() AS count FROM latest WHERE ${expiredByDays(expiring, 'GLOBAL IN', 'expiring_devices').join(' OR ')}`;
}

export function deleteExpiredLatestOfStatement(cluster: string, expiring: ExpiringDays[]): string {
  const rows = expiredByDays(expiring, 'IN', localTable('expiring_devices', cluster)).join(' OR ');
  return `ALTER TABLE ${localTables('latest', cluster)} DELETE WHERE ${rows}`;
}

/** Returns the condition of rows that have expired by the days of their profile, or by a time to live of their own. */
function expiredOf(expiring: ExpiringDays[], devices: string): string {
  return [...expiredByDays(expiring, 'IN', devices), timeToLiveEnded].join(' OR ');
}

/** The parameters are `round`, and `before<days>` for each entry of `expiring`. */
function expiredByDays(expiring: ExpiringDays[], within: 'IN' | 'GLOBAL IN', devices: string): string[] {
  return expiring.map(
    ({ days }) =>
      `(ts < {before${days}:Int64} AND device ${within} (SELECT device FROM ${devices} WHERE round = {round:UInt64} AND days = ${days}))`,
  );
}

/** Returns the query of days that have rows, as numbers (20261121), oldest first. */
export function storedDaysQuery(cluster: string): string {
  const parts = cluster === '' ? 'system.parts' : `clusterAllReplicas('${cluster}', system.parts)`;
  return `SELECT DISTINCT toUInt32(partition) AS day FROM ${parts}
    WHERE database = currentDatabase() AND table = '${localTable('telemetry', cluster)}' AND active AND partition != '0'
    ORDER BY day`;
}

export function dropDaysStatement(cluster: string, days: number[]): string {
  return `ALTER TABLE ${localTables('telemetry', cluster)} ${days.map((day) => `DROP PARTITION ${day}`).join(', ')}`;
}

export const expiredLatestQuery = 'SELECT count() AS count FROM latest WHERE ts < {limit:Int64}';

export function deleteExpiredLatestStatement(cluster: string): string {
  return `DELETE FROM ${localTables('latest', cluster)} WHERE ts < {limit:Int64}`;
}

export const expiredOthersQuery = `SELECT count() AS count FROM telemetry WHERE ${others} AND ts < {limit:Int64}`;

/** Does not use a lightweight delete, whose rows would stay on the disk. */
export function deleteExpiredOthersStatement(cluster: string): string {
  return `ALTER TABLE ${localTables('telemetry', cluster)} DELETE IN PARTITION 0 WHERE ts < {limit:Int64}`;
}

/** Returns the first moment after a day, given as a number (20261121). */
export function endOfDay(day: number): number {
  return Date.UTC(Math.floor(day / 10_000), (Math.floor(day / 100) % 100) - 1, (day % 100) + 1);
}
