/**
 * Selects rows of the table `latest`. A row is a point, or a record: the points of one device and time
 * (`telemetry/latest-records.ts`).
 */

/** The value of a record in the column `kind`; the other values are those of `Kind`. */
export const recordKind = 6;
export const isRecord: string = `kind = ${recordKind}`;

/** A row as `latestColumns` selects it. */
export interface LatestRow {
  /** The key in hexadecimal digits, because JSON has no bytes that are not UTF-8, and the key of a record has some. */
  name: string;
  ts: string;
  kind: number;
  num: number;
  int: string;
  /** The text of a point; the text of a record in hexadecimal digits. */
  string: string;
  rank: string;
}

/**
 * The aliases `name` and `string` are no names of columns: a condition on `key` would compare an alias `key`. Each
 * function of a column costs a read of one device about 0.1 ms: with the digits of each key p50 3.9 instead of 4.1 ms.
 */
export const latestColumns: string = `hex(key) AS name, ts, kind, num, int,
  if(${isRecord}, hex(text), text) AS string, rank`;

/** The keys of a row, given whether the row is a record. */
const keysOfRow = (isRecordNow: string) =>
  `if(${isRecordNow}, splitByChar('\\xFF', substring(toString(key), 2)), [toString(key)])`;

/**
 * Returns the query of the keys of the rows that `ofDevices` selects, each key once. Many devices have the same lists,
 * so the query divides each list only once.
 */
export function latestKeysQuery(ofDevices: string): string {
  return `SELECT DISTINCT arrayJoin(${keysOfRow('isList')}) AS name
    FROM (SELECT DISTINCT key, ${isRecord} AS isList FROM latest FINAL ${ofDevices}) LIMIT {rows:UInt32}`;
}

/**
 * The condition of rows that have some of the keys of the parameter `keys`. Other records of a device are not sent:
 * they may be many, and large.
 */
export const haveKeys: string = `(key IN {keys:Array(String)}
  OR ${isRecord} AND hasAny(splitByChar('\\xFF', toString(key)), {keys:Array(String)}))`;

const rowColumns = ['key', 'ts', 'kind', 'num', 'int', 'text', 'rank'] as const;

/**
 * Returns the query of the rows that have a latest value: no more rows than keys, however many records a device has.
 * `wanted`: the WHERE of the rows. The query costs ClickHouse more than one of all rows, so it is for devices that have
 * very many records. A condition that looks up the newest records in a subquery would not do: the subquery may see
 * later rows than the query.
 */
export function newestRowsQuery(wanted: string, hasKeys: boolean): string {
  const columns = rowColumns.join(', ');
  const ofKeys = hasKeys ? 'WHERE each IN {keys:Array(String)}' : '';
  return `SELECT DISTINCT device, ${latestColumns} FROM (
    SELECT device, ${rowColumns.map((column, n) => `newest.${n + 1} AS ${column}`).join(', ')} FROM (
      SELECT device, argMax(tuple(${columns}), rank) AS newest FROM (
        SELECT device, ${columns}, arrayJoin(${keysOfRow(isRecord)}) AS each FROM latest FINAL ${wanted})
      ${ofKeys} GROUP BY device, each))`;
}

/** A block of `newestRowsQuery` repeats the text of each record for each of its keys. */
export const newestRowsSettings = { max_block_size: '256' } as const;
