/**
 * Carries out deletes in ClickHouse. Each step may be repeated: a finished step is detected by a read and costs no
 * write. Latest values are deleted first, so that they disappear even when the points take long. Points are marked for
 * some days at a time, so a call that runs out of time has made progress. Called by `erase.ts` and `delete-series.ts`.
 */
import { limits } from '../base/limits.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import {
  deleteLatestOfDevicesStatement,
  deleteLatestStatement,
  deleteRecordsStatement,
  erasedDaysQuery,
  erasedDevices,
  erasedLatestQuery,
  erasedRanges,
  insertLatestPoints,
  latestOfDevicesQuery,
  latestOfKeysQuery,
  markErasedStatement,
  markersQuery,
  mutationsOfLatestQuery,
  recordsQuery,
  rewriteLatestStatement,
} from '../clickhouse/erase-statements.ts';
import type { LatestRow } from '../clickhouse/latest-rows.ts';
import type { Parameters } from '../clickhouse/read.ts';
import { orderOfVersion } from '../telemetry/block.ts';
import { latestPointsOf } from '../telemetry/latest-records.ts';
import { type Erased, erasesRow } from './tombstone-store.ts';

interface CarryOutDeps {
  clickhouse: ClickHouse;
  /** Name of the ClickHouse cluster, '' without a cluster. */
  cluster: string;
  /** A point more than this many milliseconds ahead of its arrival becomes no latest value; 0 = every point may. */
  latestAheadMsMax?: number;
  /** Returns the milliseconds that are left, the timeout of each statement. */
  msLeft: () => number;
}

/** Rewrites of one latest value by one call. Each repetition means that another delete has marked one more point. */
const rewritesMax = 10;

/** Records that one statement deletes. */
const recordsMax = 200;

/** The delete has not ended in time; the next call does the rest. */
export class NotYet extends Error {}

/** Deletes series. Many deletes share their statements; the result of one does not depend on the others. */
export async function eraseSeries(deps: CarryOutDeps, all: readonly Erased[]): Promise<void> {
  const affected = await deleteLatest(deps, all);
  await markErased(deps, erasedRanges(all.length), parametersOf(all));
  // Another process may have made a point the latest one that was not marked yet.
  const again = await deleteLatest(deps, all);
  for (const [i, { erased, keys }] of affected.entries()) {
    // Includes keys that were not found now: an earlier call may have ended between the two steps.
    const rewritten = erased.keys ?? [...new Set([...keys, ...again[i]!.keys])];
    if (erased.latest === 'rewrite' && rewritten.length > 0) await rewriteLatest(deps, erased, rewritten);
  }
}

/** A delete that concerns latest values, with the keys of the rows in `latest` that are deleted. */
interface Affected {
  erased: Erased;
  keys: string[];
}

/** Deletes the latest values that lie in a range. Returns each delete that concerns latest values, with their keys. */
async function deleteLatest(deps: CarryOutDeps, all: readonly Erased[]): Promise<Affected[]> {
  let affected = await affectedLatest(deps, all);
  if (await divideRecords(deps, affected)) affected = await affectedLatest(deps, all);
  const found = affected.filter(({ keys }) => keys.length > 0);
  if (found.length > 0) {
    const statement = deleteLatestStatement(deps.cluster, found.length);
    await mutateLatest(deps, statement, parametersOf(found.map(({ erased, keys }) => ({ ...erased, keys }))));
  }
  return affected;
}

/**
 * Divides the records of each device of which a latest value is deleted into rows of one point. Returns false when no
 * record was divided. All records of such a device are divided, because an older record may have the deleted key, and a
 * read would then return the value of the older record.
 */
async function divideRecords(deps: CarryOutDeps, affected: readonly Affected[]): Promise<boolean> {
  if (affected.length === 0) return false;
  const readRecords = () => {
    return read<RecordRow>(deps, recordsQuery(affected.length), parametersOf(affected.map(erasedOf)));
  };
  const rows = await readRecords();
  const points = rows.flatMap((row) => {
    const { seq, version } = row;
    return latestPointsOf([row]).map((point) => ({ ...point, device: Number(row.device), seq, version }));
  });
  const divided = affected.filter(({ erased, keys }) => {
    const own = points.filter(({ device }) => device === erased.device);
    return keys.length > 0 ? own.length > 0 : own.some((point) => erasesRow(erased, rowOf(point)));
  });
  if (divided.length === 0) return false;
  const devices = new Set(divided.map(({ erased }) => erased.device));
  const inserted = points.filter(({ device }) => devices.has(device));
  const body = Buffer.from(inserted.map(jsonOf).join('\n'));
  await deps.clickhouse.insertBlocks(insertLatestPoints, body, { timeoutMs: timeLeft(deps) });
  const records = rows.filter(({ device }) => devices.has(Number(device)));
  const left = new Set((await readRecords()).map(({ hash, rank }) => `${hash} ${rank}`));
  const gone = records.filter(({ hash, rank }) => !left.has(`${hash} ${rank}`));
  for (let at = 0; at < records.length; at += recordsMax) {
    const some = records.slice(at, at + recordsMax);
    await mutateLatest(deps, deleteRecordsStatement(deps.cluster), {
      devices: [...new Set(some.map(({ device }) => Number(device)))],
      hashes: `[${some.map(({ hash }) => hash).join()}]`,
      ranks: `[${some.map(({ rank }) => rank).join()}]`,
    });
  }
  // Another delete may have divided a record, and deleted points of it, between the read and the insert. Of a record
  // that is there after the insert, it deletes the inserted points, too: it deletes the record first. Points are not
  // searched for marks without need: a delete may have kept the latest value of a marked point.
  const goneOf = new Set(gone.map(({ device }) => Number(device)));
  for (const { erased } of divided) {
    if (!goneOf.has(erased.device)) continue;
    const own = inserted.filter(({ device }) => device === erased.device);
    await deleteMarked(deps, erased, [...new Set(own.map(({ key }) => key))]);
  }
  return true;
}

/** `JSON.stringify` writes -0 as 0. */
function jsonOf<Row extends { num: number }>(row: Row): string {
  return JSON.stringify(Object.is(row.num, -0) ? { ...row, num: '-0' } : row);
}

function rowOf({ device, key, ts, version }: { device: number; key: string; ts: string; version: string }) {
  return { device, key, ts: Number(ts), order: orderOfVersion(BigInt(version), BigInt(ts)) };
}

function erasedOf({ erased }: Affected): Erased {
  return erased;
}

/**
 * Makes the newest point of each key the latest one, also beside a delete of another process that marks this point
 * between the read and the write of the statement. Of two such calls one sees what the other has written: a delete
 * marks points and then reads the latest values, this function writes latest values and then reads the marks.
 */
async function rewriteLatest(deps: CarryOutDeps, erased: Erased, keys: string[]): Promise<void> {
  const { device } = erased;
  let open = keys;
  for (let round = 0; ; round += 1) {
    if (round === rewritesMax) throw new NotYet('other deletes mark the points that become the latest ones');
    await write(deps, rewriteLatestStatement(deps.latestAheadMsMax ?? 0), { device, keys: open });
    open = await deleteMarked(deps, erased, open);
    if (open.length === 0) return;
  }
}

/** Deletes the latest values of a device whose point is marked as deleted, and returns their keys. */
async function deleteMarked(deps: CarryOutDeps, erased: Erased, keys: string[]): Promise<string[]> {
  const marked = await markedLatest(deps, erased.device, keys);
  if (marked.length === 0) return [];
  const found = [...new Set(marked.map(({ key }) => key))];
  const orderNumber = marked.reduce((max, { order }) => (BigInt(order) > max ? BigInt(order) : max), 0n).toString();
  const stale = { ...erased, keys: found, orderNumber, aheadWriters: [], aheadOrders: [] };
  await mutateLatest(deps, deleteLatestStatement(deps.cluster, 1), parametersOf([stale]));
  return found;
}

interface RecordRow extends LatestRow {
  device: string;
  seq: number;
  version: string;
  hash: string;
}

interface LatestPoint {
  key: string;
  ts: string;
  seq: number;
  /** The version of the marker that deletes the point. */
  marker: string;
  order: string;
}

/** Returns the latest values whose point is marked as deleted. */
async function markedLatest(deps: CarryOutDeps, device: number, keys: string[]): Promise<LatestPoint[]> {
  const latest = await read<LatestPoint>(deps, latestOfKeysQuery, { device, keys });
  if (latest.length === 0) return [];
  const times = `[${latest.map(({ ts }) => ts).join()}]`;
  const markers = await read<Omit<LatestPoint, 'order'>>(deps, markersQuery, { device, keys, times });
  const nameOf = ({ key, ts, seq, marker }: Omit<LatestPoint, 'order'>) => `${ts} ${seq} ${marker} ${key}`;
  const names = new Set(markers.map(nameOf));
  return latest.filter((row) => names.has(nameOf(row)));
}

/** Returns each delete that concerns latest values, with the keys of the covered latest values, except in records. */
async function affectedLatest(deps: CarryOutDeps, all: readonly Erased[]): Promise<Affected[]> {
  const asked = all.filter(({ latest }) => latest !== 'keep');
  if (asked.length === 0) return [];
  const text = await read<{ device: string; key: string; ts: string; order: string }>(
    deps,
    erasedLatestQuery(asked.length),
    parametersOf(asked),
  );
  const rows = text.map(({ device, key, ts, order }) => {
    return { device: Number(device), key, ts: Number(ts), order: BigInt(order) };
  });
  return asked.map((erased) => ({
    erased,
    keys: [...new Set(rows.filter((row) => erasesRow(erased, row)).map(({ key }) => key))],
  }));
}

/**
 * ClickHouse's `transform` takes no empty arrays, so −1, which is not a writer, is added. Numbers of 63 bits are sent
 * as strings.
 */
function parametersOf(all: readonly Erased[]): Parameters {
  const parameters: Parameters = {};
  for (const [n, erased] of all.entries()) {
    const { device, keys, startTs, endTs, orderNumber, aheadWriters, aheadOrders } = erased;
    const ahead = {
      aheadWriters: `[${[-1, ...aheadWriters].join(',')}]`,
      aheadOrders: `[${['0', ...aheadOrders].join(',')}]`,
    };
    const own = { device, keys: keys ?? [], allKeys: keys === null ? 1 : 0, startTs, endTs, order: orderNumber! };
    for (const [name, value] of Object.entries({ ...own, ...ahead })) parameters[`${name}${n}`] = value;
  }
  return parameters;
}

/** Deletes all telemetry of some devices. */
export async function eraseDevices(deps: CarryOutDeps, devices: number[]): Promise<void> {
  await deleteLatestOfDevices(deps, devices);
  await markErased(deps, erasedDevices, { devices });
  // As in `eraseSeries`.
  await deleteLatestOfDevices(deps, devices);
}

async function deleteLatestOfDevices(deps: CarryOutDeps, devices: number[]): Promise<void> {
  const rows = await read<{ device: string }>(deps, latestOfDevicesQuery, { devices });
  const found = rows.map(({ device }) => Number(device));
  if (found.length > 0) {
    await mutateLatest(deps, deleteLatestOfDevicesStatement(deps.cluster), { devices: found });
  }
}

interface Day {
  first: string;
  last: string;
  count: string;
}

async function markErased(deps: CarryOutDeps, erased: string, parameters: Parameters): Promise<void> {
  const days = await read<Day>(deps, erasedDaysQuery(erased), parameters);
  const statement = markErasedStatement(erased);
  for (const { first, last } of windows(days)) {
    await write(deps, statement, { ...parameters, first, last });
  }
}

/** Groups neighbouring days into one insert, up to a number of days (partitions) and rows. */
function windows(days: Day[]): { first: string; last: string }[] {
  const found: { first: string; last: string; days: number; rows: number }[] = [];
  for (const { first, last, count } of days) {
    const rows = Number(count);
    const open = found.at(-1);
    if (open && open.days < limits.eraseDaysMax && open.rows + rows <= limits.eraseRowsMax) {
      open.last = last;
      open.days += 1;
      open.rows += rows;
    } else {
      found.push({ first, last, days: 1, rows });
    }
  }
  return found;
}

/** Throws while too many mutations of `latest` wait: a statement that timed out continues in the store. */
async function mutateLatest(deps: CarryOutDeps, statement: string, parameters: Parameters): Promise<void> {
  const [row] = await read<{ count: string }>(deps, mutationsOfLatestQuery, {});
  if (Number(row!.count) >= limits.latestMutationsMax) throw new NotYet('mutations of latest values wait');
  const seconds = String(Math.ceil(timeLeft(deps) / 1000));
  await deps.clickhouse.exec(statement, parameters, {
    timeoutMs: timeLeft(deps),
    // In a cluster, a replica that is down must not delay the others; it does its part when it is up again.
    settings: deps.cluster === '' ? {} : { distributed_ddl_task_timeout: seconds, ...ddlOutput },
  });
}

const ddlOutput = { distributed_ddl_output_mode: 'null_status_on_timeout' } as const;

async function write(deps: CarryOutDeps, statement: string, parameters: Parameters): Promise<void> {
  const timeoutMs = timeLeft(deps);
  const settings = { max_partitions_per_insert_block: '0', max_execution_time: Math.ceil(timeoutMs / 1000) };
  await deps.clickhouse.exec(statement, parameters, { timeoutMs, settings });
}

async function read<Row>(deps: CarryOutDeps, query: string, parameters: Parameters): Promise<Row[]> {
  return await deps.clickhouse.rows<Row>(query, parameters, { timeoutMs: timeLeft(deps) });
}

function timeLeft({ msLeft }: CarryOutDeps): number {
  const left = Math.floor(Math.min(msLeft(), limits.eraseStatementMsMax));
  if (left <= 0) throw new NotYet('the delete has taken too long: it is carried out in the background');
  return left;
}
