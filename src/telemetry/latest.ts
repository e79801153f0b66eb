/** Reads the latest values of a device from their own table: one query over few granules, however many series exist. */
import { badRequest, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { ClickHouseError, type Parameters, type ReadOptions, type Reads } from '../clickhouse/client.ts';
import {
  haveKeys,
  type LatestRow,
  latestColumns,
  latestKeysQuery,
  latestRowOf,
  newestRowsQuery,
  newestRowsSettings,
} from '../clickhouse/latest-rows.ts';
import type { BinaryRow } from '../clickhouse/row-binary.ts';
import type { ShardReads } from '../clickhouse/shards.ts';
import { integerLiteral } from '../clickhouse/sql/literals.ts';
import type { TypedValue } from '../value/typed.ts';
import { latestPointsOf } from './latest-records.ts';

export interface Point {
  key: string;
  ts: number;
  value: TypedValue;
}

/** Returns the rows of one read, all in memory. */
export async function readRows<Row>(
  clickhouse: Reads,
  sql: string,
  parameters: Parameters,
  settings: ReadOptions['settings'] = {},
): Promise<Row[]> {
  const options = readOptions(limits.latestAnswerBytesMax, settings);
  return await asFaults(clickhouse, () => clickhouse.rows<Row>(sql, parameters, options));
}

/** Like `readRows`, for the columns `latestColumns`. */
async function readLatestRows(
  clickhouse: Reads,
  sql: string,
  parameters: Parameters,
  settings: ReadOptions['settings'],
) {
  const kept = { max_result_rows: String(limits.latestRowsMax) };
  const options = readOptions(limits.latestAnswerBytesMax, { ...kept, ...settings });
  return await asFaults(clickhouse, () => clickhouse.binaryRows(sql, parameters, options, latestRowOf));
}

/** Passes the rows of one read on one by one; an error of `take` ends the read. */
export async function readEachRow<Row>(
  clickhouse: Reads,
  sql: string,
  parameters: Parameters,
  take: (row: Row) => void,
): Promise<void> {
  const options = readOptions(limits.historyReadBytesMax);
  await asFaults(clickhouse, () => clickhouse.eachRow<Row>(sql, parameters, options, take));
}

/** Like `readEachRow`, without parameters, for the columns that `decode` reads. */
export async function readEachBinaryRow<Row>(
  clickhouse: Reads,
  sql: string,
  decode: (row: BinaryRow) => Row,
  take: (row: Row) => void,
  settings: ReadOptions['settings'],
): Promise<void> {
  const options = readOptions(limits.historyReadBytesMax, settings);
  await asFaults(clickhouse, () => clickhouse.eachBinaryRow(sql, {}, options, decode, take));
}

function readOptions(answerBytesMax: number, settings: ReadOptions['settings'] = {}): ReadOptions {
  return {
    timeoutMs: limits.telemetryQueryMsMax,
    answerBytesMax,
    settings: {
      max_result_rows: String(limits.historyRowsMax + 1),
      // A thread that writes JSON beside the query costs 0.35 ms of CPU, and most of these answers are short.
      output_format_parallel_formatting: 0,
      ...settings,
    },
  };
}

/** Maps an unavailable, slow or overloaded store to 503, and an answer that is too large to 400. */
async function asFaults<T>({ shard }: Reads, read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof ClickHouseError)) throw error;
    if (error.answerTooLarge) throw answerTooLarge();
    if (error.kind === 'content') throw error;
    const which = shard === undefined ? 'Telemetry' : `Telemetry of devices on shard ${shard}`;
    const fault = unavailable('clickhouse_away', `${which} cannot be read at the moment. Try again later.`);
    fault.cause = error;
    throw fault;
  }
}

/** The reason of `answerTooLarge`. */
const tooLargeReason = 'answer_bytes';

export function answerTooLarge(): Fault {
  return badRequest(
    tooLargeReason,
    'The answer is too large to be sent: ask for fewer keys, a shorter range or a smaller limit.',
  );
}

/** For so few rows one thread is faster than several, and so are conditions that are not compiled. */
const fewGranules = { max_threads: 1, compile_expressions: 0 } as const;

/**
 * The older analyzer plans a simple query in less time: 4.5 instead of 5.3 ms for the latest values of a device, and 12
 * instead of 13 ms for its day. This is the setting's first name, which older servers know, too.
 */
export const olderAnalyzer = { allow_experimental_analyzer: 0 } as const;

const simpleQuery = { ...fewGranules, ...olderAnalyzer } as const;

/**
 * The rows of many devices. ClickHouse does not move conditions to PREWHERE itself in a query with `FINAL`, and then
 * merges whole granules: 51 instead of 32 ms of CPU for 50 devices in twelve parts. For one device there is no
 * difference.
 */
const ofDevices = 'PREWHERE device IN {devices:Array(UInt64)} WHERE true';

/**
 * Returns the condition of the rows of one device, with its number in the text. The embedded engine sets parameters in
 * a statement of their own: a read of one device without any takes 0.3 of 2.9 ms less.
 */
function ofDevice(device: number): string {
  return `WHERE device = ${integerLiteral(device)}`;
}

/**
 * Returns latest values sorted by key: of `keys`, except keys without a value, or of all keys. Rejects with a Fault
 * when the device has too many keys for one answer.
 */
export async function readLatest(clickhouse: Reads, device: number, keys?: string[]): Promise<Point[]> {
  const most = limits.latestValuesMax;
  const filter = keys ? `AND ${haveKeys}` : '';
  const parameters = keys ? { keys } : {};
  const hint = keys ? 'name fewer of them' : 'name the wanted ones with "keys"';
  const wanted = `${ofDevice(device)} ${filter}`;
  const limit = `LIMIT ${most + 1}`;
  const all = `SELECT ${latestColumns} FROM latest FINAL ${wanted} ${limit}`;
  const rows = await undefinedIfTooLarge(readLatestRows(clickhouse, all, parameters, simpleQuery));
  if (rows !== undefined) {
    const points = sortedPoints(rows, keys);
    refuseMore(points, most, hint);
    if (rows.length <= most) return points;
  }
  // The device has very many records, of which few have a latest value.
  const newest = `${newestRowsQuery(wanted, keys !== undefined)} ${limit}`;
  const settings = { ...fewGranules, ...newestRowsSettings };
  const points = sortedPoints(await readLatestRows(clickhouse, newest, parameters, settings), keys);
  refuseMore(points, most, hint);
  return points;
}

/**
 * Returns what `readLatest` returns for each of the devices, from one query. Rejects with a Fault of status 400 when
 * any of them has too many keys, or so many records that only `readLatest` reads them.
 */
export async function readLatestEach(
  clickhouse: Reads,
  devices: number[],
  keys?: string[],
): Promise<Map<number, Point[]>> {
  const filter = keys ? `AND ${haveKeys}` : '';
  const rows = await readLatestRows(
    clickhouse,
    `SELECT ${latestColumns} FROM latest FINAL ${ofDevices} ${filter}
      ORDER BY device LIMIT {rows:UInt32} BY device`,
    { devices, rows: limits.latestValuesMax + 1, ...(keys && { keys }) },
    simpleQuery,
  );
  const rowsOf = byDevice(rows);
  return new Map(
    devices.map((device) => {
      const own = rowsOf.get(device) ?? [];
      const points = sortedPoints(own, keys);
      for (const list of [own, points]) refuseMore(list, limits.latestValuesMax, 'read one device at a time');
      return [device, points];
    }),
  );
}

export async function readLatestKeys(clickhouse: Reads, device: number): Promise<string[]> {
  const rows = await readRows<Named>(clickhouse, latestKeysQuery(ofDevice(device)), { rows: limits.keyNamesMax + 1 });
  return sortedKeys(rows);
}

/** Returns at most `keysMax` of the keys that the device has. */
export async function readSomeKeys(clickhouse: Reads, device: number, keysMax: number): Promise<string[]> {
  const rows = await readRows<Named>(clickhouse, latestKeysQuery(ofDevice(device)), { rows: keysMax }, fewGranules);
  return rows.map(({ name }) => name);
}

/** Returns the latest values that the devices have of the keys, each with its device. */
export async function readLatestOf(
  shards: ShardReads,
  devices: number[],
  keys: string[],
): Promise<(Point & { device: number })[]> {
  if (keys.length === 0) return [];
  const wanted = `${ofDevices} AND ${haveKeys}`;
  const read = (sql: string, settings: ReadOptions['settings'] = {}) => {
    return rowsOfDevices(shards, devices, (reads, of) => readLatestRows(reads, sql, { keys, devices: of }, settings));
  };
  const rows =
    (await undefinedIfTooLarge(read(`SELECT ${latestColumns} FROM latest FINAL ${wanted}`))) ??
    (await read(newestRowsQuery(wanted, true), newestRowsSettings));
  return [...byDevice(rows)].flatMap(([device, own]) => {
    return sortedPoints(own, keys).map((point) => ({ ...point, device }));
  });
}

/** Returns the keys that any of the devices has. */
export async function readLatestKeysOf(shards: ShardReads, devices: number[]): Promise<string[]> {
  const query = latestKeysQuery(ofDevices);
  const rows = await rowsOfDevices(shards, devices, (reads, of) =>
    readRows<Named>(reads, query, { rows: limits.keyNamesMax + 1, devices: of }),
  );
  return sortedKeys(rows);
}

/** A row of `latestKeysQuery`. */
interface Named {
  name: string;
}

/** Returns each key once. Throws when there are too many. */
function sortedKeys(rows: readonly Named[]): string[] {
  const keys = [...new Set(rows.map(({ name }) => name))].sort(byBytes);
  refuseMore(keys, limits.keyNamesMax, 'their names do not fit into one answer');
  return keys;
}

function byDevice(rows: readonly LatestRow[]): Map<number, LatestRow[]> {
  const found = new Map<number, LatestRow[]>();
  for (const row of rows) {
    const own = found.get(row.device);
    if (own) own.push(row);
    else found.set(row.device, [row]);
  }
  return found;
}

/** Returns the points of one device, sorted by key: of `keys`, or of all keys. */
function sortedPoints(rows: readonly LatestRow[], keys: readonly string[] | undefined): Point[] {
  const wanted = keys && new Set(keys);
  return latestPointsOf(rows)
    .filter(({ key }) => wanted?.has(key) ?? true)
    .map(({ key, ts, kind, num, int, text }): Point => ({ key, ts: Number(ts), value: { kind, num, int, text } }))
    .sort((a, b) => byBytes(a.key, b.key));
}

/** Reads rows of many devices: one query for each shard that has some of them. */
async function rowsOfDevices<Row>(
  shards: ShardReads,
  devices: readonly number[],
  read: (reads: Reads, devices: number[]) => Promise<Row[]>,
): Promise<Row[]> {
  const ofShards = shards.each(devices, (device) => device);
  const found = await Promise.all(ofShards.map(({ reads, items }) => read(reads, items)));
  return found.flat();
}

/** Sorts strings as ClickHouse does: by the bytes of UTF-8. */
function byBytes(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}

/** Returns undefined instead of rows that are too many bytes for one answer. */
async function undefinedIfTooLarge<Row>(read: Promise<Row[]>): Promise<Row[] | undefined> {
  try {
    return await read;
  } catch (error) {
    if (error instanceof Fault && error.reason === tooLargeReason) return undefined;
    throw error;
  }
}

/** Throws when there are too many keys, because a device may create any number of keys. */
function refuseMore({ length }: readonly unknown[], most: number, hint: string): void {
  if (length > most) throw badRequest('too_many_keys', `There are more than ${most} keys: ${hint}.`);
}
