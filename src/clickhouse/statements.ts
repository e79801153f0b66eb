/**
 * The statements that take a ship body: Native blocks one after the other, each with the columns of a data point, of
 * which `seq`, `int`, `text` and `expires` may be absent. Both use `input`, which fills absent columns and is a fifth
 * cheaper for small blocks than a plain insert (measured on the embedded engine: 0.43 against 0.53 µs CPU a row).
 */

const columns = 'device, key, ts, seq, kind, num, int, text, version';
const columnsOfGivenTimes = columns.replace('seq, ', '');

const structure =
  'device UInt64, key LowCardinality(String), ts Int64, seq UInt32, kind UInt8, num Float64, int Int64, text String, version UInt64';

/** Columns of a body, and their types. */
function bodyOf({ serverTimes, expires }: { serverTimes: boolean; expires: boolean }): [names: string, types: string] {
  const names = serverTimes ? columns : columnsOfGivenTimes;
  const types = serverTimes ? structure : structure.replace('seq UInt32, ', '');
  return expires ? [`${names}, expires`, `${types}, expires UInt32`] : [names, types];
}

/** Selects some rows of a body: an insert with too many partitions is divided. */
const inRange = 'ts >= {fromTs:Int64} AND ts < {toTs:Int64}';

/**
 * The `log_comment` of the inserts contains `mark`, and other marks when the embedded engine has joined inserts. With a
 * cluster, the parts of an insert on other servers have the mark, too.
 */
export function runningInserts(cluster: string): string {
  const processes = cluster === '' ? 'system.processes' : `clusterAllReplicas('${cluster}', system.processes)`;
  return `SELECT count() AS count FROM ${processes} WHERE position(Settings['log_comment'], {mark:String}) > 0`;
}

/**
 * Returns the statement that stops the inserts on the server of this connection. `mark` has no character that needs
 * escaping.
 */
export function stopInserts(mark: string): string {
  return `KILL QUERY WHERE position(Settings['log_comment'], '${mark}') > 0 ASYNC`;
}

/** Asks the server of this connection to stop queries by the beginning of their id. */
export const stopQueries = 'KILL QUERY WHERE startsWith(query_id, {id:String}) ASYNC';

/** What is known of all rows of a body. */
interface BodyRows {
  /** False when every row brought its `ts`, so that the block has no `seq`: both inserts are cheaper. */
  serverTimes: boolean;
  /** True when points of the body may have a time to live. */
  expires: boolean;
  ranged: boolean;
}

/**
 * `origin` gives a point at server time its own key: `version` is unique for the frame. Without `optimize_on_insert`
 * the points of one key stay in the part until a merge, and each read ignores all except the last one (`FINAL`). An
 * insert that first merges its own block took a tenth of the store's time under load of gateways.
 */
export function insertTelemetryOf({ serverTimes, expires, ranged }: BodyRows): string {
  const [given, types] = bodyOf({ serverTimes, expires });
  return `
  INSERT INTO telemetry (${given}${serverTimes ? ', origin' : ''})
  SETTINGS optimize_on_insert = 0
  SELECT ${given}${serverTimes ? ', if(seq = 0, 0, version)' : ''} FROM input('${types}') ${ranged ? `WHERE ${inRange}` : ''}
  FORMAT Native`;
}

export const insertTelemetry = insertTelemetryOf({ serverTimes: true, expires: false, ranged: false });

interface LatestRows extends BodyRows {
  /** A row more than this many milliseconds ahead of its arrival becomes no latest value; 0 = every row may. */
  aheadMsMax: number;
  /** True when most rows are the only ones of their series. */
  areSingle?: boolean;
}

/**
 * The engine keeps one row for each (device, key) of a block, and of a table: that of the greatest `rank` (greatest
 * `ts`, then greatest `seq`, then the later write), and the later row among equal ones (rows of one frame share their
 * version). With `optimize_on_insert`, its default, the part holds no replaced row. By measurement, CPU of a row: 0.40
 * µs where every row has a series of its own, and 0.28 without `optimize_on_insert`, which then only looks for what is
 * not there; with the merges that follow, 0.85 and 0.70. Where each series has a hundred rows or more, 0.12 to 0.14; a
 * GROUP BY with argMax took 1.12, and 0.11 to 0.14. `latest` keeps no time to live: a latest value does not expire.
 */
export function insertLatestOf({ serverTimes, expires, ranged, aheadMsMax, areSingle = false }: LatestRows): string {
  const conditions = [...(ranged ? [inRange] : []), ...(aheadMsMax > 0 ? [notAhead(aheadMsMax)] : [])];
  const where = conditions.length === 0 ? '' : `WHERE ${conditions.join(' AND ')}`;
  const given = serverTimes ? columns : columnsOfGivenTimes;
  const [, types] = bodyOf({ serverTimes, expires });
  return `
  INSERT INTO latest (${given})
  SETTINGS optimize_on_insert = ${areSingle ? 0 : 1}
  SELECT ${given} FROM input('${types}') ${where}
  FORMAT Native`;
}

export const insertLatest = insertLatestOf({ serverTimes: true, expires: false, ranged: false, aheadMsMax: 0 });

/**
 * Returns the condition of rows that were at most `aheadMsMax` ahead when they arrived. `version` = order - ts * 2^20 +
 * 2^63 begins with arrival - ts (`telemetry/block.ts`), so a replay and a later read of a row decide as its first
 * insert did.
 */
export function notAhead(aheadMsMax: number): string {
  return `version >= ${2n ** 63n - BigInt(aheadMsMax) * 2n ** 20n}`;
}
