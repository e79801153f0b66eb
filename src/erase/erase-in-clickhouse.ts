/**
 * Carries out deletes in ClickHouse. Each step may be repeated: a finished step is detected by a read and costs no
 * write. Latest values are deleted first, so that they disappear even when the points take long. Points are marked for
 * some days at a time, so a call that runs out of time has made progress. Called by `erase.ts` and `delete-series.ts`.
 */
import { limits } from '../base/limits.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import {
  deleteLatestOfDevicesStatement,
  deleteLatestPointsStatement,
  deleteLatestStatement,
  deleteRecordsStatement,
  erasedDaysQuery,
  erasedDevices,
  erasedLatestQuery,
  erasedRanges,
  insertLatestPoints,
  keysWithLatestQuery,
  latestOfDevicesQuery,
  markErasedStatement,
  mutationsOfLatestQuery,
  nameOfPoint,
  newestOfAllQuery,
  newestPointsQuery,
  recordNamesQuery,
  recordsQuery,
  recordsWithKeysQuery,
  remainingPointsQuery,
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
  /** Returns the deletes of some devices, whether they were carried out or not. */
  deletesOf: (devices: number[]) => Promise<Erased[]>;
  /** True when an earlier call may have carried out a part of the deletes. */
  mayHaveBegun: boolean;
}

/** The largest limit of a query. */
const rowsMax = 2 ** 32 - 1;

/** Rewrites of one latest value by one call. Each repetition means that another delete has marked one more point. */
const rewritesMax = 10;

/** Records that one statement reads or deletes. Their points may take some MiB. */
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
    if (erased.latest !== 'rewrite') continue;
    const deleted = [...new Set([...keys, ...again[i]!.keys])];
    const before = deps.mayHaveBegun ? await deletedBefore(deps, erased, deleted) : [];
    await rewriteLatest(deps, erased.device, [...deleted, ...before]);
  }
}

/**
 * Returns the keys of which an earlier call may have deleted the latest value without a rewrite: a key has no latest
 * value, and the newest of all its points was deleted and lies in the range.
 */
async function deletedBefore(deps: CarryOutDeps, erased: Erased, deleted: readonly string[]): Promise<string[]> {
  const { device } = erased;
  const others = (erased.keys ?? []).filter((key) => !deleted.includes(key));
  if (others.length === 0) return [];
  const parameters = { device, keys: others, rows: rowsMax };
  const present = new Set(
    (await read<{ name: string }>(deps, keysWithLatestQuery, parameters)).map(({ name }) => name),
  );
  const keys = others.filter((key) => !present.has(key));
  if (keys.length === 0) return [];
  const query = newestOfAllQuery(deps.latestAheadMsMax ?? 0);
  const newest = await read<{ key: string; ts: string; kind: number; order: string }>(deps, query, { device, keys });
  const isCovered = ({ key, ts, order }: { key: string; ts: string; order: string }) =>
    erasesRow(erased, { device, key, ts: Number(ts), order: BigInt(order) });
  return newest.filter((point) => point.kind === 0 && isCovered(point)).map(({ key }) => key);
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
 * Divides records with deleted keys into rows of one point, for each device of which a latest value is deleted. Returns
 * false when no record was divided. Older records are divided as well: a read would return their values of the deleted
 * keys otherwise. A device may have any number of records, so some of them are divided at a time. A call that runs out
 * of time has made progress, because the values of a device stay the same.
 */
async function divideRecords(deps: CarryOutDeps, affected: readonly Affected[]): Promise<boolean> {
  if (affected.length === 0) return false;
  const query = recordsWithKeysQuery(affected.length);
  const names = await read<RecordName & { covered: number }>(deps, query, parametersOf(affected.map(erasedOf)));
  const devices = new Set([
    ...affected.filter(({ keys }) => keys.length > 0).map(({ erased }) => erased.device),
    ...names.filter(({ covered }) => covered === 1).map(({ device }) => Number(device)),
  ]);
  const divided = names.filter(({ device }) => devices.has(Number(device)));
  for (let at = 0; at < divided.length; at += recordsMax) {
    await divideSome(deps, affected, divided.slice(at, at + recordsMax));
  }
  return divided.length > 0;
}

async function divideSome(
  deps: CarryOutDeps,
  affected: readonly Affected[],
  names: readonly RecordName[],
): Promise<void> {
  const named = {
    devices: [...new Set(names.map(({ device }) => Number(device)))],
    hashes: `[${names.map(({ hash }) => hash).join()}]`,
    ranks: `[${names.map(({ rank }) => rank).join()}]`,
  };
  const records = await read<RecordRow>(deps, recordsQuery, named);
  const pointsOf = (row: RecordRow) => {
    const { device, seq, version } = row;
    return latestPointsOf([row]).map((point) => ({ ...point, device: Number(device), seq, version }));
  };
  await insertPoints(deps, records.flatMap(pointsOf));
  const left = new Set((await read<RecordName>(deps, recordNamesQuery, named)).map(nameOfRecord));
  await mutateLatest(deps, deleteRecordsStatement(deps.cluster), named);
  const gone = records.filter((record) => !left.has(nameOfRecord(record)));
  // The points that these deletes cover themselves are deleted next.
  const suspects = gone.flatMap(pointsOf).filter((point) => {
    return !affected.some(({ erased }) => erasesRow(erased, rowOf(point)));
  });
  if (suspects.length > 0) await deleteCovered(deps, suspects);
}

/**
 * Deletes points that were inserted when their record was gone: another delete may have divided the record, and deleted
 * points of it, between the read of the record and the insert. The tombstone of that delete was stored before that.
 * Markers do not show such a delete: a point that has expired gets none, and a delete that keeps the latest value makes
 * one as well. Of a record that is there after the insert, another delete deletes the inserted points, too: it deletes
 * the record first.
 */
async function deleteCovered(deps: CarryOutDeps, points: readonly (Point & { device: number })[]): Promise<void> {
  const devices = [...new Set(points.map(({ device }) => device))];
  const deletes = (await deps.deletesOf(devices)).filter(({ latest }) => latest !== 'keep');
  for (const device of devices) {
    const own = points.filter((point) => point.device === device);
    const covered = own.filter((point) => deletes.some((erased) => erasesRow(erased, rowOf(point))));
    if (covered.length === 0) continue;
    await deletePoints(deps, device, covered);
    const rewrites = deletes.filter(({ latest }) => latest === 'rewrite');
    const isRewritten = (point: (typeof own)[number]) => rewrites.some((erased) => erasesRow(erased, rowOf(point)));
    await rewriteLatest(deps, device, [...new Set(covered.filter(isRewritten).map(({ key }) => key))]);
  }
}

/** `JSON.stringify` writes -0 as 0. */
function jsonOf<Row extends { num: number }>(row: Row): string {
  return JSON.stringify(Object.is(row.num, -0) ? { ...row, num: '-0' } : row);
}

function rowOf({ device, key, ts, version }: { device: number; key: string; ts: string; version: string }) {
  return { device, key, ts: Number(ts), order: orderOfVersion(BigInt(version), BigInt(ts)) };
}

function nameOfRecord({ hash, rank }: RecordName): string {
  return `${hash} ${rank}`;
}

function erasedOf({ erased }: Affected): Erased {
  return erased;
}

/**
 * Makes the newest remaining point of each key the latest one, also beside a delete of another process that marks this
 * point between the read and the insert. Of two such calls one sees what the other has written: a delete marks points
 * and then reads the latest values, this function inserts latest values and then looks whether their points remain.
 * Deletes what this call has inserted and nothing else: a delete may have kept a latest value whose point is gone.
 */
async function rewriteLatest(deps: CarryOutDeps, device: number, keys: string[]): Promise<void> {
  let open = keys;
  for (let round = 0; open.length > 0; round += 1) {
    if (round === rewritesMax) throw new NotYet('other deletes mark the points that become the latest ones');
    const query = newestPointsQuery(deps.latestAheadMsMax ?? 0);
    const rows = await read<Omit<Point, 'version'> & { versionText: string }>(deps, query, { device, keys: open });
    const newest = rows.map(({ versionText, ...point }): Point => ({ ...point, version: versionText }));
    if (newest.length === 0) return;
    await insertPoints(deps, newest);
    const times = `[${newest.map(({ ts }) => ts).join()}]`;
    const remaining = await read<{ name: string }>(deps, remainingPointsQuery, { ...namesOf(device, newest), times });
    const names = new Set(remaining.map(({ name }) => name));
    const gone = newest.filter((point) => !names.has(nameOfPoint(point)));
    await deletePoints(deps, device, gone);
    open = gone.map(({ key }) => key);
  }
}

interface RecordName {
  device: string;
  hash: string;
  rank: string;
}

interface RecordRow extends LatestRow, RecordName {
  seq: number;
  version: string;
}

/** A row of one point, as `insertLatestPoints` takes it. */
interface Point {
  device: number | string;
  key: string;
  ts: string;
  seq: number;
  kind: number;
  num: number;
  int: string;
  text: string;
  version: string;
}

async function insertPoints(deps: CarryOutDeps, points: readonly Point[]): Promise<void> {
  if (points.length === 0) return;
  const body = Buffer.from(points.map(jsonOf).join('\n'));
  await deps.clickhouse.insertBlocks(insertLatestPoints, body, { timeoutMs: timeLeft(deps) });
}

/** Deletes these points of the device from the latest values, and no other point of their keys. */
async function deletePoints(deps: CarryOutDeps, device: number, points: readonly Point[]): Promise<void> {
  if (points.length === 0) return;
  await mutateLatest(deps, deleteLatestPointsStatement(deps.cluster), namesOf(device, points));
}

function namesOf(device: number, points: readonly Point[]): Parameters {
  return { device, keys: [...new Set(points.map(({ key }) => key))], names: points.map(nameOfPoint) };
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
