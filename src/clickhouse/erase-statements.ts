/**
 * The statements of deletes. In `telemetry` a delete adds a marker for each point: a row of the same key with `kind` 0
 * and the next version, which replaces the point at a merge; every read leaves markers out. A mutation, also one `IN
 * PARTITION`, makes a new part of every part of the table: 35 to 109 s with 1 000 partitions, where markers for one
 * hour of one device take 0.1 s, with 3 650 partitions 0.2 to 0.5 s (a busy machine, test/long/deletes.test.ts). The
 * marker of a deleted row has a greater version than a replay of the row. `latest` is small and has no partitions: rows
 * leave it by a mutation.
 */
import { haveKeys, isRecord, type LatestRow, latestColumns, latestKeysQuery, latestRowOf } from './latest-rows.ts';
import { localTables } from './local-tables.ts';
import type { BinaryRow } from './row-binary.ts';
import { notAhead } from './statements.ts';

const pointKey = 'device, key, ts, seq, origin';
const columnsOfLatest = 'device, key, ts, seq, kind, num, int, text, version';
const markers = `${pointKey}, 0, 0, 0, '', version + 1`;

export const notErased = 'kind != 0';
/** Compares with the clock of ClickHouse, in seconds. */
export const notExpired = '(expires = 0 OR expires > toUInt32(now()))';

/** Each read of `telemetry` has this in its WHERE (never in PREWHERE, which comes before the merge of `FINAL`). */
export const shown = `${notErased} AND ${notExpired}`;

const order = '(toInt256(version) + toInt256(ts) * 1048576 - 9223372036854775808)';
const writer = `bitAnd(toInt64(${order}), 16383)`;
/** Returns the condition of rows up to the order number of range `n`. */
function upToOrder(n: number): string {
  const ahead = `{aheadWriters${n}:Array(Int64)}, {aheadOrders${n}:Array(Int64)}`;
  return `${order} <= transform(${writer}, ${ahead}, {order${n}:Int64})`;
}

/**
 * Returns SQL of `count` ranges, each of one device, without rows of a later order number. The names of parameters end
 * with the number of their range.
 */
export function erasedRanges(count: number): string {
  const range = (n: number) => `(device = {device${n}:UInt64}
  AND ({allKeys${n}:UInt8} = 1 OR key IN {keys${n}:Array(String)})
  AND ts >= {startTs${n}:Int64} AND ts < {endTs${n}:Int64}
  AND ${upToOrder(n)})`;
  return `(${Array.from({ length: count }, (_, n) => range(n)).join(' OR ')})`;
}

export const erasedDevices = 'device IN {devices:Array(UInt64)}';

const exact = 'SETTINGS do_not_merge_across_partitions_select_final = 1';

/**
 * Returns the query of the days that have rows to erase, oldest first. Days are partitions. The query works for a
 * cluster and for a server.
 */
export function erasedDaysQuery(erased: string): string {
  return `SELECT intDiv(ts, 86400000) AS day, min(ts) AS first, max(ts) AS last, count() AS count
    FROM telemetry FINAL WHERE ${erased} AND ${notErased} GROUP BY day ORDER BY first ${exact}`;
}

/**
 * Returns the statement that marks the remaining rows between two moments, both included. A repetition marks only
 * unmarked rows.
 */
export function markErasedStatement(erased: string): string {
  return `INSERT INTO telemetry (${pointKey}, kind, num, int, text, version) SELECT ${markers} FROM telemetry FINAL
    WHERE ${erased} AND ${notErased} AND ts >= {first:Int64} AND ts <= {last:Int64} ${exact}`;
}

/** Returns the query of the latest values in one of the ranges that are rows of their own, not points of records. */
export function erasedLatestQuery(count: number): string {
  return `SELECT device, toString(key) AS key, ts, toString(${order}) AS order FROM latest FINAL
    WHERE NOT ${isRecord} AND ${erasedRanges(count)}`;
}

/** The query of the names of all latest values of some devices, except those in records. */
export const latestPointsQuery = `SELECT device, toString(key) AS key, ts, seq, toString(version) AS version
  FROM latest FINAL WHERE NOT ${isRecord} AND ${erasedDevices}`;

/**
 * Returns the statement that deletes some keys from `latest` up to an order number and to the end of the range, in
 * `count` ranges. The statement also deletes older rows that the store has not merged yet, from before the range too.
 */
export function deleteLatestStatement(cluster: string, count: number): string {
  const keys = (n: number) => `(device = {device${n}:UInt64} AND key IN {keys${n}:Array(String)}
    AND ts < {endTs${n}:Int64} AND ${upToOrder(n)})`;
  const all = Array.from({ length: count }, (_, n) => keys(n)).join(' OR ');
  return `DELETE FROM ${localTables('latest', cluster)} WHERE ${all}`;
}

/** Names the device and the keys of a record in few bytes: parameters are sent in the URL of a request. */
const recordName = 'cityHash64(device, key)';
/** The parameters `hashes` and `ranks` name records that were read; 0 is the rank of a record that is not named. */
const namedRank = `arrayElement({ranks:Array(UInt128)}, indexOf({hashes:Array(UInt64)}, ${recordName}))`;
/** Records that were read, and older ones of the same keys, but no record that was stored after the read. */
const namedRecords = `${isRecord} AND ${erasedDevices} AND rank <= ${namedRank}`;
/**
 * With the names in PREWHERE, ClickHouse does not read the texts of other records. The setting makes `rank` the column,
 * and not the text of it.
 */
const fromNamed = `FROM latest FINAL PREWHERE ${erasedDevices} AND has({hashes:Array(UInt64)}, ${recordName})
  WHERE ${namedRecords} SETTINGS prefer_column_name_to_alias = 1`;
const nameColumns = `device, toString(${recordName}) AS hash, toString(rank) AS rank`;

/**
 * Returns the query of the names of all records that have keys of one of `count` ranges, up to the order number of the
 * range and whatever their time. `covered`: 1 when the record has points in a range. Neighbours in the table are
 * neighbours in the answer.
 */
export function recordsWithKeysQuery(count: number): string {
  const withKeys = (n: number) => `(device = {device${n}:UInt64}
    AND ({allKeys${n}:UInt8} = 1 OR hasAny(splitByChar('\\xFF', toString(key)), {keys${n}:Array(String)}))
    AND ${upToOrder(n)})`;
  const inTime = (n: number) => `${withKeys(n)} AND ts >= {startTs${n}:Int64} AND ts < {endTs${n}:Int64}`;
  const any = (condition: (n: number) => string) =>
    `(${Array.from({ length: count }, (_, n) => condition(n)).join(' OR ')})`;
  return `SELECT ${nameColumns}, ${any(inTime)} AS covered FROM latest FINAL
    WHERE ${isRecord} AND ${any(withKeys)} ORDER BY device, key`;
}

/** The query of whole records, whose rows `recordOf` decodes. */
export const recordsQuery: string = `SELECT ${latestColumns}, seq, version, ${recordName} ${fromNamed}`;

export interface StoredRecord extends LatestRow {
  seq: number;
  version: string;
  hash: string;
}

export function recordOf(row: BinaryRow): StoredRecord {
  const latest = latestRowOf(row);
  return { ...latest, seq: row.uint32(), version: String(row.uint64()), hash: String(row.uint64()) };
}

export const recordNamesQuery: string = `SELECT ${nameColumns} ${fromNamed}`;

export const insertLatestPoints: string = `INSERT INTO latest (${columnsOfLatest}) FORMAT JSONEachRow`;

/** Returns the statement that deletes records that were read. The values of later records are nowhere else. */
export function deleteRecordsStatement(cluster: string): string {
  return `DELETE FROM ${localTables('latest', cluster)} WHERE ${namedRecords}`;
}

export const latestOfDevicesQuery = `SELECT DISTINCT device FROM latest WHERE ${erasedDevices}`;

export function deleteLatestOfDevicesStatement(cluster: string): string {
  return `DELETE FROM ${localTables('latest', cluster)} WHERE ${erasedDevices}`;
}

const pointName = `concat(toString(ts), ' ', toString(seq), ' ', toString(version), ' ', toString(key))`;

/** Names a point of a device, as `pointName` does. */
export function nameOfPoint({ key, ts, seq, version }: { key: string; ts: string; seq: number; version: string }) {
  return `${ts} ${seq} ${version} ${key}`;
}

/** Returns the condition of points that may become latest values. `aheadMsMax`: as in `LatestRows`. */
function mayBeLatest(aheadMsMax: number): string {
  return aheadMsMax > 0 ? notAhead(aheadMsMax) : 'true';
}

const newestFirst = 'ORDER BY key, ts DESC, seq DESC, origin DESC LIMIT 1 BY key';

/** Returns the query of the newest remaining point of each key that may become the latest value. */
export function newestPointsQuery(aheadMsMax: number): string {
  return `SELECT device, toString(key) AS key, ts, seq, kind, num, int, text, toString(version) AS versionText
    FROM telemetry FINAL
    PREWHERE device = {device:UInt64} WHERE key IN {keys:Array(String)} AND ${shown} AND ${mayBeLatest(aheadMsMax)}
    ${newestFirst} ${exact}`;
}

/** The query of those of some points of a device that are there, neither deleted nor expired. */
export const remainingPointsQuery = `SELECT ${pointName} AS name FROM telemetry FINAL
  PREWHERE device = {device:UInt64} WHERE key IN {keys:Array(String)} AND ts IN {times:Array(Int64)}
  AND ${shown} AND ${pointName} IN {names:Array(String)} ${exact}`;

/** The query of all keys of the rows that have latest values of some keys of a device: a record has other keys, too. */
export const keysWithLatestQuery: string = latestKeysQuery(`WHERE device = {device:UInt64} AND ${haveKeys}`);

/** Returns the statement that deletes single points of a device from `latest`. */
export function deleteLatestPointsStatement(cluster: string): string {
  return `DELETE FROM ${localTables('latest', cluster)} WHERE device = {device:UInt64} AND NOT ${isRecord}
    AND key IN {keys:Array(String)} AND ${pointName} IN {names:Array(String)}`;
}

/** Counts mutations of `latest` that have not ended. */
export const mutationsOfLatestQuery = `SELECT count() AS count FROM system.mutations
  WHERE database = currentDatabase() AND table IN ('latest', 'latest_local') AND NOT is_done`;
