/**
 * Carries out deletes in ClickHouse. Each step may be repeated: a finished step is detected by a read and costs no
 * write. Latest values are deleted first, so that they disappear even when the points take long. Points are marked for
 * some days at a time, so a call that runs out of time has made progress. Called by `erase.ts` and `delete-series.ts`.
 */
import { limits } from '../base/limits.ts';
import type { ClickHouse, QueryOptions } from '../clickhouse/client.ts';
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
  latestPointsQuery,
  markErasedStatement,
  mutationsOfLatestQuery,
  nameOfPoint,
  newestPointsQuery,
  recordNamesQuery,
  recordOf,
  recordsQuery,
  recordsWithKeysQuery,
  remainingPointsQuery,
  type StoredRecord,
} from '../clickhouse/erase-statements.ts';
import type { Parameters } from '../clickhouse/read.ts';
import { orderOfVersion } from '../telemetry/block.ts';
import { latestPointsOf } from '../telemetry/latest-records.ts';
import type { Rewrites, StoredDelete, StoredDeletes } from './deletes-store.ts';
import { type Erased, erasesRow } from './tombstone-store.ts';

interface CarryOutDeps {
  clickhouse: ClickHouse;
  /** Name of the ClickHouse cluster, '' without a cluster. */
  cluster: string;
  /** A point more than this many milliseconds ahead of its arrival becomes no latest value; 0 = every point may. */
  latestAheadMsMax?: number;
  /** Returns the milliseconds that are left, the timeout of each statement. */
  msLeft: () => number;
  /** Ends the statement that runs: the call rejects, and a repetition does the rest. */
  abortSignal?: AbortSignal | undefined;
  deletes: StoredDeletes;
  /** True when an earlier call may have carried out a part of the deletes. */
  mayHaveBegun: boolean;
}

/** The largest limit of a query. */
const rowsMax = 2 ** 32 - 1;

/** Rewrites of one latest value by one call. Each repetition means that another delete has marked one more point. */
const rewritesMax = 10;

/** Records that one statement reads or deletes. Their points may take some MiB. */
const recordsMax = 200;

/** Bytes of the names in one statement. */
const piecesBytesMax = 8 * 1024;

/** The delete has not ended in time; the next call does the rest. */
export class NotYet extends Error {}

/** One call for some deletes of series. */
interface Call extends CarryOutDeps {
  own: readonly StoredDelete[];
  /** The deletes whose rewrites are noted in PostgreSQL. */
  noted: Set<number>;
}

/** Deletes series. Many deletes share their statements; the result of one does not depend on the others. */
export async function eraseSeries(deps: CarryOutDeps, all: readonly StoredDelete[]): Promise<void> {
  const call: Call = { ...deps, own: all, noted: new Set() };
  if (deps.mayHaveBegun) await deleteLeftovers(call);
  const affected = await deleteLatest(call);
  await markErased(call, erasedRanges(all.length), parametersOf(all));
  // Another process may have made a point the latest one that was not marked yet.
  const again = await deleteLatest(call);
  const notes = deps.mayHaveBegun ? await deps.deletes.readRewrites(idsOf(all)) : [];
  for (const { id } of notes) call.noted.add(id);
  for (const [i, { erased, keys }] of affected.entries()) {
    const { id, device, latest } = erased;
    const deleted = latest === 'rewrite' ? [...keys, ...again[i]!.keys] : [];
    const noted = notes.filter((each) => each.id === id).flatMap((each) => each.keys);
    await rewriteLatest(call, device, [...new Set([...deleted, ...(await withoutLatest(call, device, noted))])]);
  }
  if (call.noted.size > 0) await deps.deletes.forgetRewrites([...call.noted]);
}

/**
 * Deletes latest values that an earlier call of these deletes has brought back, when that call was cut off: a call that
 * divides records or rewrites inserts points, and looks afterwards which of them other deletes cover. A latest value
 * that a delete covers, except one that keeps latest values, was deleted by it, or will be.
 */
async function deleteLeftovers(call: Call): Promise<void> {
  const others = await call.deletes.beside(idsOf(call.own));
  if (others.length === 0) return;
  const devices = [...new Set(others.map(({ device }) => device))];
  const rows = await read<LatestPoint & { device: string }>(call, latestPointsQuery, { devices });
  const points = rows.map((row) => ({ ...row, device: Number(row.device) }));
  await deleteCovered(call, points, others);
}

/**
 * Notes the keys before their latest values are deleted, so that a later call makes the values that are missing when
 * this call is cut off. Without a note a key has no latest value because another delete has deleted it.
 */
async function noteRewrites(call: Call, rewrites: readonly Rewrites[]): Promise<void> {
  if (rewrites.length === 0) return;
  await call.deletes.noteRewrites(rewrites);
  for (const { id } of rewrites) call.noted.add(id);
}

/** Returns those of the keys that have no latest value. */
async function withoutLatest(call: Call, device: number, keys: readonly string[]): Promise<string[]> {
  const missing = new Set(keys);
  for (const some of pieces(missing, Buffer.byteLength)) {
    const rows = await read<{ name: string }>(call, keysWithLatestQuery, { device, keys: some, rows: rowsMax });
    for (const { name } of rows) missing.delete(name);
  }
  return [...missing];
}

/** Divides items among statements, whose parameters are sent in the URL of a request. */
function pieces<Item>(items: Iterable<Item>, bytesOf: (item: Item) => number): Item[][] {
  const found: Item[][] = [];
  let bytes = 0;
  for (const item of items) {
    bytes += bytesOf(item);
    if (found.length === 0 || bytes > piecesBytesMax) {
      found.push([]);
      bytes = bytesOf(item);
    }
    found.at(-1)!.push(item);
  }
  return found;
}

function idsOf(deletes: readonly StoredDelete[]): number[] {
  return deletes.map(({ id }) => id);
}

/** A delete that concerns latest values, with the keys of the rows in `latest` that are deleted. */
interface Affected {
  erased: StoredDelete;
  keys: string[];
}

/** Deletes the latest values that lie in a range. Returns each delete that concerns latest values, with their keys. */
async function deleteLatest(call: Call): Promise<Affected[]> {
  let affected = await affectedLatest(call);
  if (await divideRecords(call, affected)) affected = await affectedLatest(call);
  const found = affected.filter(({ keys }) => keys.length > 0);
  if (found.length > 0) {
    const rewritten = found.filter(({ erased }) => erased.latest === 'rewrite');
    await noteRewrites(
      call,
      rewritten.map(({ erased: { id }, keys }) => ({ id, keys })),
    );
    const statement = deleteLatestStatement(call.cluster, found.length);
    await mutateLatest(call, statement, parametersOf(found.map(({ erased, keys }) => ({ ...erased, keys }))));
  }
  return affected;
}

/**
 * Divides records with deleted keys into rows of one point, for each device of which a latest value is deleted. Returns
 * false when no record was divided. Older records are divided as well: a read would return their values of the deleted
 * keys otherwise. A device may have any number of records, so some of them are divided at a time. A call that runs out
 * of time has made progress, because the values of a device stay the same.
 */
async function divideRecords(call: Call, affected: readonly Affected[]): Promise<boolean> {
  if (affected.length === 0) return false;
  const query = recordsWithKeysQuery(affected.length);
  const names = await read<RecordName & { covered: number }>(call, query, parametersOf(affected.map(erasedOf)));
  const devices = new Set([
    ...affected.filter(({ keys }) => keys.length > 0).map(({ erased }) => erased.device),
    ...names.filter(({ covered }) => covered === 1).map(({ device }) => Number(device)),
  ]);
  const divided = names.filter(({ device }) => devices.has(Number(device)));
  for (let at = 0; at < divided.length; at += recordsMax) {
    await divideSome(call, divided.slice(at, at + recordsMax));
  }
  return divided.length > 0;
}

async function divideSome(call: Call, names: readonly RecordName[]): Promise<void> {
  const named = {
    devices: [...new Set(names.map(({ device }) => Number(device)))],
    hashes: `[${names.map(({ hash }) => hash).join()}]`,
    ranks: `[${names.map(({ rank }) => rank).join()}]`,
  };
  const records = await call.clickhouse.binaryRows(recordsQuery, named, bounds(call), recordOf);
  const pointsOf = (row: StoredRecord) => {
    const { device, seq, version } = row;
    return latestPointsOf([row]).map((point) => ({ ...point, device, seq, version }));
  };
  await insertPoints(call, records.flatMap(pointsOf));
  const left = new Set((await read<RecordName>(call, recordNamesQuery, named)).map(nameOfRecord));
  await mutateLatest(call, deleteRecordsStatement(call.cluster), named);
  const gone = records.filter((record) => !left.has(nameOfRecord(record)));
  if (gone.length === 0) return;
  const suspects = gone.flatMap(pointsOf);
  await deleteCovered(call, suspects, await call.deletes.of([...new Set(suspects.map(({ device }) => device))]));
}

/**
 * Deletes those of the points that other deletes cover. The points were inserted when their record was gone: another
 * delete may have divided the record, and deleted points of it, between the read of the record and the insert. The
 * tombstone of that delete was stored before that. Markers do not show such a delete: a point that has expired gets
 * none, and a delete that keeps the latest value makes one as well. Of a record that is there after the insert, another
 * delete deletes the inserted points, too: it deletes the record first.
 */
async function deleteCovered(
  call: Call,
  points: readonly (LatestPoint & { device: number })[],
  deletes: readonly Erased[],
): Promise<void> {
  for (const device of new Set(points.map((point) => point.device))) {
    const own = call.own.filter((erased) => erased.device === device && erased.latest !== 'keep');
    const others = deletes.filter((erased) => erased.device === device && erased.latest !== 'keep');
    // `deleteLatest` deletes the points that the own deletes cover.
    const covered = points.filter((point) => {
      return point.device === device && isErased(others, point) && !isErased(own, point);
    });
    if (covered.length === 0) continue;
    const rewrites = others.filter(({ latest }) => latest === 'rewrite');
    const rewritten = covered.filter((point) => isErased(rewrites, point)).map(({ key }) => key);
    if (rewritten.length > 0) await noteRewrites(call, [{ id: own[0]!.id, keys: rewritten }]);
    await deletePoints(call, device, covered);
    await rewriteLatest(call, device, rewritten);
  }
}

function isErased(deletes: readonly Erased[], point: LatestPoint & { device: number }): boolean {
  return deletes.some((erased) => erasesRow(erased, rowOf(point)));
}

/** `JSON.stringify` writes -0 as 0. */
function jsonOf<Row extends { num: number }>(row: Row): string {
  return JSON.stringify(Object.is(row.num, -0) ? { ...row, num: '-0' } : row);
}

function rowOf({ device, key, ts, version }: Omit<LatestPoint, 'seq'> & { device: number }) {
  return { device, key, ts: Number(ts), order: orderOfVersion(BigInt(version), BigInt(ts)) };
}

function nameOfRecord({ hash, rank }: Pick<StoredRecord | RecordName, 'hash' | 'rank'>): string {
  return `${hash} ${rank}`;
}

function erasedOf({ erased }: Affected): StoredDelete {
  return erased;
}

/**
 * Makes the newest remaining point of each key the latest one, also beside a delete of another process that marks this
 * point between the read and the insert. Of two such calls one sees what the other has written: a delete marks points
 * and then reads the latest values, this function inserts latest values and then looks whether their points remain.
 * Deletes what this call has inserted and nothing else: a delete may have kept a latest value whose point is gone.
 */
async function rewriteLatest(deps: CarryOutDeps, device: number, keys: string[]): Promise<void> {
  for (const some of pieces(keys, nameBytes)) await rewriteSome(deps, device, some);
}

async function rewriteSome(deps: CarryOutDeps, device: number, keys: string[]): Promise<void> {
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

/** What names a point of a device in `latest`. */
interface LatestPoint {
  key: string;
  ts: string;
  seq: number;
  version: string;
}

/** A row of one point, as `insertLatestPoints` takes it. */
interface Point extends LatestPoint {
  device: number | string;
  kind: number;
  num: number;
  int: string;
  text: string;
}

async function insertPoints(deps: CarryOutDeps, points: readonly Point[]): Promise<void> {
  if (points.length === 0) return;
  const body = Buffer.from(points.map(jsonOf).join('\n'));
  await deps.clickhouse.insertBlocks(insertLatestPoints, body, { timeoutMs: timeLeft(deps) });
}

/** Deletes these points of the device from the latest values, and no other point of their keys. */
async function deletePoints(deps: CarryOutDeps, device: number, points: readonly LatestPoint[]): Promise<void> {
  for (const some of pieces(points, ({ key }) => nameBytes(key))) {
    await mutateLatest(deps, deleteLatestPointsStatement(deps.cluster), namesOf(device, some));
  }
}

/** Bytes of a point in `namesOf`: its key, and its name, which has numbers and the key. */
function nameBytes(key: string): number {
  return 2 * Buffer.byteLength(key) + 60;
}

function namesOf(device: number, points: readonly LatestPoint[]): Parameters {
  return { device, keys: [...new Set(points.map(({ key }) => key))], names: points.map(nameOfPoint) };
}

/** Returns each delete that concerns latest values, with the keys of the covered latest values, except in records. */
async function affectedLatest(call: Call): Promise<Affected[]> {
  const asked = call.own.filter(({ latest }) => latest !== 'keep');
  if (asked.length === 0) return [];
  const text = await read<{ device: string; key: string; ts: string; order: string }>(
    call,
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
    ...bounds(deps),
    // In a cluster, a replica that is down must not delay the others; it does its part when it is up again.
    settings: deps.cluster === '' ? {} : { distributed_ddl_task_timeout: seconds, ...ddlOutput },
  });
}

const ddlOutput = { distributed_ddl_output_mode: 'null_status_on_timeout' } as const;

async function write(deps: CarryOutDeps, statement: string, parameters: Parameters): Promise<void> {
  const seconds = Math.ceil(timeLeft(deps) / 1000);
  const settings = { max_partitions_per_insert_block: '0', max_execution_time: seconds };
  await deps.clickhouse.exec(statement, parameters, { ...bounds(deps), settings });
}

async function read<Row>(deps: CarryOutDeps, query: string, parameters: Parameters): Promise<Row[]> {
  return await deps.clickhouse.rows<Row>(query, parameters, bounds(deps));
}

function bounds(deps: CarryOutDeps): QueryOptions {
  const { abortSignal } = deps;
  return { timeoutMs: timeLeft(deps), ...(abortSignal && { abortSignal }) };
}

function timeLeft({ msLeft }: CarryOutDeps): number {
  const left = Math.floor(Math.min(msLeft(), limits.eraseStatementMsMax));
  if (left <= 0) throw new NotYet('the delete has taken too long: it is carried out in the background');
  return left;
}
