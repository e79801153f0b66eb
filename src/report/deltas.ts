/**
 * DELTA: the points of a device become its steps, each at the time of its later point. The first step of a range begins
 * at the newest point before it. The query searches for that point nearby first, and farther back only for devices
 * without one nearby. A drop means that a counter restarted: the step is the new value.
 */
import { dayMs } from '../base/durations.ts';
import { notExpired } from '../clickhouse/erase-statements.ts';

const nearMs = 2 * dayMs;

interface StepsInput {
  /** SQL of the condition that selects devices; `among` narrows it to a relation of devices. */
  devices: string;
  /** SQL of a relation with all devices of the report. */
  deviceRelation: string;
  key: string;
  startTs: string;
  endTs: string;
  /** SQL of the condition on points. */
  where: string;
}

/** Kind 0 marks a deleted point. */
const numeric = `kind BETWEEN 1 AND 3 AND ${notExpired}`;
/** The order in which points were sent: points at server time may share a ts. */
const sent = '(ts, seq, origin)';
/** Both kinds of number in 64 bits. */
const bits = 'if(kind = 3, reinterpretAsInt64(num), int)';
/** The columns of points in the order of `sent`. One array of tuples would take three times the memory of these. */
const arrays = ['ts', 'seq', 'origin', 'kind', bits].map((column) => `groupArray(${column})`).join(', ');
const number = (kind: string, of: string) => `if(${kind} = 3, reinterpretAsFloat64(${of}), toFloat64(${of}))`;

/**
 * Returns a relation of points (device, ts, kind, int, num) in which each value is a step. A step between integers
 * stays an integer beside the doubles.
 */
export function stepsSql(input: StepsInput): string {
  const { devices, key, startTs, endTs, where } = input;
  return `
    SELECT device, ts, kind, int, num FROM (
      SELECT
        c.device AS device, times, kinds AS k, numbers AS n,
        arrayPushFront(arrayPopBack(k), if(p.kindBefore = 0, k[1], p.kindBefore)) AS kindsBefore,
        arrayPushFront(arrayPopBack(n), if(p.kindBefore = 0, n[1], p.numberBefore)) AS numbersBefore,
        arrayMap((a, b) -> toUInt8(if(a = 3 OR b = 3, 3, 2)), k, kindsBefore) AS stepKinds,
        arrayMap((s, a, b) -> if(s = 3, toInt128(0), if(a >= b, toInt128(a) - b, toInt128(a))), stepKinds, n, numbersBefore)
          AS wholeSteps,
        arrayMap((ka, a, kb, b) -> (${number('ka', 'a')}, ${number('kb', 'b')}), k, n, kindsBefore, numbersBefore) AS pairs,
        arrayMap((v) -> if(v.1 >= v.2, v.1 - v.2, v.1), pairs) AS doubleSteps
      FROM (
        SELECT
          device, arraySort(arrayZip(${arrays})) AS points, points.1 AS times, points.4 AS kinds, points.5 AS numbers
        FROM telemetry FINAL
        PREWHERE ${devices} AND key = ${key} AND ts >= ${startTs} AND ts < ${endTs}
        WHERE ${numeric} AND ${where}
        GROUP BY device
      ) AS c
      LEFT JOIN (${earlierSql(input)}) AS p ON p.device = c.device
    ) ARRAY JOIN times AS ts, stepKinds AS kind, wholeSteps AS int, doubleSteps AS num`;
}

function earlierSql({ devices, deviceRelation, key, startTs, where }: StepsInput): string {
  const newest = (condition: string) => `
    SELECT device, argMax(kind, ${sent}) AS kindBefore, argMax(${bits}, ${sent}) AS numberBefore FROM telemetry FINAL
    PREWHERE ${condition} AND key = ${key} WHERE ${numeric} AND ${where} GROUP BY device`;
  const near = `ts >= ${startTs} - ${nearMs} AND ts < ${startTs}`;
  const found = `SELECT device FROM telemetry FINAL PREWHERE ${devices} AND key = ${key} AND ${near} WHERE ${numeric} AND ${where}`;
  const others = `device GLOBAL IN (SELECT device FROM (${deviceRelation}) WHERE device GLOBAL NOT IN (${found}))`;
  return `${newest(`${devices} AND ${near}`)} UNION ALL ${newest(`${others} AND ts < ${startTs} - ${nearMs}`)}`;
}
