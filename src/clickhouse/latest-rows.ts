/**
 * Selects rows of the table `latest`. A row is a point, or a record: the points of one device and time
 * (`telemetry/latest-records.ts`).
 */

/** The value of a record in the column `kind`; the other values are those of `Kind`. */
export const recordKind = 6;
export const isRecord: string = `kind = ${recordKind}`;

/** A row as `latestColumns` selects it. */
export interface LatestRow {
  name: string;
  ts: string;
  kind: number;
  num: number;
  int: string;
  string: string;
  /** Key and text of a record in hexadecimal digits, because JSON has no bytes that are not UTF-8; '' for a point. */
  record: string;
  rank: string;
}

/** The aliases `name` and `string` are no names of columns: a condition on `key` would compare an alias `key`. */
export const latestColumns: string = `if(${isRecord}, '', key) AS name, ts, kind, num, int,
  if(${isRecord}, '', text) AS string, if(${isRecord}, concat(hex(key), ' ', hex(text)), '') AS record,
  toString(rank) AS rank`;

/** A row as `latestKeyColumns` selects it: `record` has only the key of a record, without its text. */
export type LatestKeys = Pick<LatestRow, 'name' | 'record'>;

export const latestKeyColumns: string = `if(${isRecord}, '', key) AS name, if(${isRecord}, hex(key), '') AS record`;

/**
 * The condition of rows that have some of the keys of the parameter `keys`. Other records of a device are not sent:
 * they may be many, and large.
 */
export const haveKeys: string = `(key IN {keys:Array(String)}
  OR ${isRecord} AND hasAny(splitByChar('\\xFF', toString(key)), {keys:Array(String)}))`;
