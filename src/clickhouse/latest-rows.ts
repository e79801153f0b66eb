/**
 * Selects rows of the table `latest`. A row is a point, or a record: the points of one device and time
 * (`telemetry/latest-records.ts`). The key and the text of a record are not UTF-8, so the rows come in RowBinary.
 */
import type { BinaryRow } from './row-binary.ts';

/** The value of a record in the column `kind`; the other values are those of `Kind`. */
export const recordKind = 6;
export const isRecord: string = `kind = ${recordKind}`;

export interface LatestRow {
  device: number;
  key: Buffer;
  ts: string;
  kind: number;
  num: number;
  int: string;
  text: Buffer;
  rank: bigint;
}

/** The columns that `latestRowOf` decodes, in this order. A function of a column costs a read of one device 0.1 ms. */
export const latestColumns = 'device, key, ts, kind, num, int, text, rank';

export function latestRowOf(row: BinaryRow): LatestRow {
  return {
    device: Number(row.uint64()),
    key: row.text(),
    ts: String(row.int64()),
    kind: row.uint8(),
    num: row.float64(),
    int: String(row.int64()),
    text: row.text(),
    rank: row.uint128(),
  };
}

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
  return `SELECT DISTINCT ${latestColumns} FROM (
    SELECT device, ${rowColumns.map((column, n) => `newest.${n + 1} AS ${column}`).join(', ')} FROM (
      SELECT device, argMax(tuple(${columns}), rank) AS newest FROM (
        SELECT device, ${columns}, arrayJoin(${keysOfRow(isRecord)}) AS each FROM latest FINAL ${wanted})
      ${ofKeys} GROUP BY device, each))`;
}

/** A block of `newestRowsQuery` repeats the text of each record for each of its keys. */
export const newestRowsSettings = { max_block_size: '256' } as const;
