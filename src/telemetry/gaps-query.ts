/**
 * Reads what series of one device lack in a range: missing points as gaps, and runs of points that arrived late
 * (docs/rest.md#completeness). One query; of each key the largest gaps and runs come back, in order of time.
 */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { ClickHouseError, type Reads } from '../clickhouse/client.ts';
import { notErased } from '../clickhouse/erase-statements.ts';
import { serverCodes } from '../clickhouse/errors/server-codes.ts';
import { readRows } from './latest.ts';
import { holesSql, learntInterval, olderMs, olderPoints, stepsMin, windowAround } from './series-query.ts';

interface GapsRead {
  keys: string[];
  startTs: number;
  endTs: number;
  now: number;
  /** A point is late from this lateness on; undefined = two intervals of its series. */
  lateMs: number | undefined;
}

/** Points that are missing, from `startTs` to `endTs`, both included. */
interface Gap {
  startTs: number;
  endTs: number;
  points: number;
}

/** Points that are there, and whose last one arrived at `arrivedTs`. */
interface LateRun extends Gap {
  arrivedTs: number;
}

export interface SeriesGaps {
  key: string;
  /** Null: the series keeps no interval, so that nothing is known to be missing. */
  intervalMs: number | null;
  present: number;
  missing: number;
  gapCount: number;
  gaps: Gap[];
  lateMs: number | null;
  lateCount: number;
  late: LateRun[];
}

interface Row {
  key: string;
  regular: number;
  interval: string;
  present: string;
  missing: string;
  gapCount: string;
  largest: [string, string, string][];
  lateMs: string;
  lateCount: string;
  largestLate: [string, string, string, string][];
}

/** Bytes of memory of one read: about two million points. */
const memoryBytesMax = 256 * 1024 * 1024;

const range = ['{startTs:Int64}', '{endTs:Int64}'] as const;
const near = `FROM telemetry FINAL PREWHERE device = {device:UInt64} AND key IN {keys:Array(String)}
  AND ts >= {windowStartTs:Int64} AND ts < {horizon:Int64} WHERE ${notErased}`;
const older = `SELECT toString(key) AS name, -arrayJoin(groupArraySorted(${olderPoints})(-ts)) AS at, toInt64(0) AS late
  FROM telemetry FINAL PREWHERE device = {device:UInt64} AND key IN {keys:Array(String)}
  AND key GLOBAL NOT IN (SELECT key ${near} GROUP BY key HAVING uniqUpTo(${stepsMin})(ts) > ${stepsMin})
  AND ts >= {windowStartTs:Int64} - ${olderMs} AND ts < {windowStartTs:Int64} WHERE ${notErased} GROUP BY key`;
const found = `SELECT name, groupArray(at) AS found, groupArray((at, late)) AS arrivals
  FROM (SELECT toString(key) AS name, ts AS at, late_ms AS late ${near} UNION ALL ${older}) GROUP BY name`;

const isInRange = (ts: string) => `${ts} >= ${range[0]} AND ${ts} < ${range[1]}`;
const gapsSql = `
  SELECT
    name AS key, regular, interval, arrayCount((t) -> ${isInRange('t')}, times) AS present,
    arraySum((h) -> h.3 - h.2 + 1, holes) AS missing, length(holes) AS gapCount,
    ${largest('holes', 'h.3 - h.2')} AS holesShown,
    arrayMap((h) -> (h.1 + h.2 * interval, h.1 + h.3 * interval, h.3 - h.2 + 1), holesShown) AS largest,
    if({lateMs:Int64} >= 0, {lateMs:Int64}, 2 * interval) AS lateMs,
    arraySort(arrayFilter((p) -> (regular OR {lateMs:Int64} >= 0) AND ${isInRange('p.1')}, arrivals)) AS ordered,
    arrayMap((p) -> toInt8(p.2 > lateMs), ordered) AS isLate,
    arrayFilter(
      (r) -> r[1].2 > lateMs,
      arraySplit((p, change) -> change != 0, ordered, arrayDifference(isLate))
    ) AS runs,
    length(runs) AS lateCount,
    arrayMap((r) -> (r[1].1, r[-1].1, toInt64(length(r)), arrayMax((p) -> p.1 + p.2, r)), runs) AS runsFound,
    ${largest('runsFound', 'h.3')} AS largestLate
  FROM (
    SELECT name, arrivals, times, interval, regular, ${holesSql(...range, '{horizon:Int64}')}
    FROM (SELECT name, arrivals, ${learntInterval} FROM (${found}))
  )
  ORDER BY name`;

/** The longest ones, in order of time. */
function largest(gaps: string, size: string): string {
  return `arraySort(arraySlice(arraySort((h) -> (-(${size}), h.1), ${gaps}), 1, ${limits.gapsListedMax}))`;
}

const settings = {
  do_not_merge_across_partitions_select_final: 1 as const,
  max_memory_usage: String(memoryBytesMax),
};

export async function readGaps(clickhouse: Reads, device: number, read: GapsRead): Promise<SeriesGaps[]> {
  const { keys, startTs, endTs, now, lateMs = -1 } = read;
  const window = windowAround(startTs, endTs, now);
  const bound = { device, keys, startTs, endTs, windowStartTs: window.startTs, horizon: window.endTs, lateMs };
  try {
    return (await readRows<Row>(clickhouse, gapsSql, bound, settings)).map((row) => gapsOf(row, lateMs));
  } catch (error) {
    const cause = error instanceof Error ? error.cause : undefined;
    if (!(cause instanceof ClickHouseError) || cause.code !== serverCodes.memoryLimitExceeded) throw error;
    throw badRequest('history_rows', 'There are too many points in this range: ask for a shorter range or fewer keys.');
  }
}

function gapsOf(row: Row, lateMs: number): SeriesGaps {
  const isRegular = row.regular === 1;
  const gap = ([startTs, endTs, points]: [string, string, string]) => ({
    startTs: Number(startTs),
    endTs: Number(endTs),
    points: Number(points),
  });
  return {
    key: row.key,
    intervalMs: isRegular ? Number(row.interval) : null,
    present: Number(row.present),
    missing: Number(row.missing),
    gapCount: Number(row.gapCount),
    gaps: row.largest.map(gap),
    lateMs: isRegular || lateMs >= 0 ? Number(row.lateMs) : null,
    lateCount: Number(row.lateCount),
    late: row.largestLate.map(([start, end, points, arrivedTs]) => ({
      ...gap([start, end, points]),
      arrivedTs: Number(arrivedTs),
    })),
  };
}
