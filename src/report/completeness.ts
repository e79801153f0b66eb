/**
 * COMPLETENESS: the series of each device become entries of points that are present and points that are missing, each
 * at its own time. A series with too few points near the range is learnt from older points, so that a device that is
 * silent for days still lacks its points.
 */
import { notErased } from '../clickhouse/erase-statements.ts';
import { dividedUp, holesSql, learntInterval, olderMs, olderPoints, stepsMin } from '../telemetry/series-query.ts';
import { floorDivided } from './dates.ts';

export interface CompletenessInput {
  /** SQL of the condition that selects devices; `deviceRelation` is a relation with all of them. */
  devices: string;
  deviceRelation: string;
  key: string;
  /** SQL of the range, and of the window around it. */
  startTs: string;
  endTs: string;
  windowStartTs: string;
  /** Points from this moment on do not count. */
  horizon: string;
  /** Milliseconds within which all missing points belong to one group; undefined = there is one group. */
  cellMs: number | undefined;
}

/**
 * Returns a relation (device, ts, present, missing). Points of a series that is not regular are 0 present points, so
 * that their groups have rows.
 */
export function completenessSql(input: CompletenessInput): string {
  const { startTs, endTs, horizon, cellMs } = input;
  return `
    SELECT device, e.1 AS ts, e.2 AS present, e.3 AS missing FROM (
      SELECT device, arrayConcat(
        arrayMap((t) -> (t, toUInt8(regular), toInt64(0)), arrayFilter((t) -> t >= ${startTs} AND t < ${endTs}, times)),
        ${cellMs === undefined ? missingOf('holes') : missingByCell(cellMs)}
      ) AS entries
      FROM (
        SELECT device, times, interval, regular, ${holesSql(startTs, endTs, horizon)}
        FROM (SELECT device, ${learntInterval} FROM (${foundSql(input)}))
      )
    ) ARRAY JOIN entries AS e`;
}

/** SQL of an entry for each (time before, first, last) of `holes`. */
function missingOf(holes: string): string {
  return `arrayMap((h) -> (h.1 + h.2 * interval, toUInt8(0), h.3 - h.2 + 1), ${holes})`;
}

/** Cuts holes at the bounds of cells; where the interval is longer than a cell, into single points. */
function missingByCell(cellMs: number): string {
  const cell = (n: string) => floorDivided(`h.1 + ${n} * interval`, cellMs);
  const parts = `if(interval >= ${cellMs}, h.3 - h.2, ${cell('h.3')} - ${cell('h.2')}) + 1`;
  /** The number of the first point of part `n`, which ends the part before it. */
  const firstOf = (n: string) => `if(
    interval >= ${cellMs},
    h.2 + ${n},
    least(h.3 + 1, greatest(h.2, ${dividedUp(`(${cell('h.2')} + ${n}) * ${cellMs} - h.1`, 'interval')})))`;
  const cut = `arrayMap((n) -> (h.1, ${firstOf('n')}, ${firstOf('n + 1')} - 1), range(toUInt64(${parts})))`;
  return missingOf(`arrayFlatten(arrayMap((h) -> ${cut}, holes))`);
}

/** SQL of the times of each series: those of the window, and older ones of a series that has few. */
function foundSql({ devices, deviceRelation, key, windowStartTs, horizon }: CompletenessInput): string {
  const near = `FROM telemetry FINAL
    PREWHERE ${devices} AND key = ${key} AND ts >= ${windowStartTs} AND ts < ${horizon} WHERE ${notErased}`;
  const learnt = `SELECT device ${near} GROUP BY device HAVING uniqUpTo(${stepsMin})(ts) > ${stepsMin}`;
  const others = `device GLOBAL IN (SELECT device FROM (${deviceRelation}) WHERE device GLOBAL NOT IN (${learnt}))`;
  const older = `SELECT device, -arrayJoin(groupArraySorted(${olderPoints})(-ts)) AS at FROM telemetry FINAL
    PREWHERE ${others} AND key = ${key} AND ts >= ${windowStartTs} - ${olderMs} AND ts < ${windowStartTs}
    WHERE ${notErased} GROUP BY device`;
  return `SELECT device, groupArray(ts) AS found FROM (SELECT device, ts ${near} UNION ALL ${older}) GROUP BY device`;
}
