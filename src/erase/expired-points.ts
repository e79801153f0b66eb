/**
 * Deletes the points of devices whose profile keeps telemetry for fewer days than the installation, and points whose
 * time to live has ended. Reads have hidden these points from the moment at which they expired
 * (`device/sql/telemetry-days-store.ts`, `shown` of `clickhouse/erase-statements.ts`), so the delete only frees the
 * disk. Its cost follows the days that have expired points: the parts of such a day are dropped after their other
 * points were copied. No step loses a point when it is interrupted or meets rows that arrive meanwhile. Called by
 * `retention.ts`.
 */
import { dayMs } from '../base/durations.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type ClickHouse, isUnanswered } from '../clickhouse/client.ts';
import type { Parameters } from '../clickhouse/read.ts';
import {
  copyOthersStatement,
  countExpiredLatestQuery,
  deleteExpiredLatestOfStatement,
  deleteExpiredOfDaysStatement,
  dropPartsStatement,
  type ExpiringDays,
  endedDaysQuery,
  endOfDay,
  expiredDaysQuery,
  forgetExpiringDevicesStatement,
  insertExpiringDevices,
  partsOfDayQuery,
} from '../clickhouse/retention-statements.ts';
import type { Queries } from '../postgres/client.ts';
import { readExpiringDevices } from './retention-store.ts';
import { ClockChanged } from './steady-clock.ts';

interface ExpiredPointsDeps {
  postgres: Queries;
  clickhouse: ClickHouse;
  cluster: string;
  /** The time by which points expire. */
  now: number;
  log: Log;
  /** 0: the installation keeps all telemetry. */
  ttlDays: number;
  ttlOfLatest: boolean;
  /** Runs a statement in ClickHouse. */
  write: (statement: string, parameters: Parameters, settings?: Record<string, string>) => Promise<void>;
  /** Runs a statement that drops parts of any size. */
  drop: (statement: string) => Promise<void>;
  /** Returns true while this host may continue; called before each day. */
  mayContinue: () => Promise<boolean>;
}

/** A replicated table refuses a subquery in a mutation otherwise; here each replica has the same list. */
const subqueryAllowed = { allow_nondeterministic_mutations: '1' };

/**
 * The copy yields to other statements, and ends with its call: a repetition must not run beside it. The copy takes all
 * rows or fails, whatever the profile of the user sets: the parts that it has read are dropped next.
 */
const copySettings = {
  priority: '1',
  max_execution_time: String(limits.retentionStatementMsMax / 1000),
  timeout_overflow_mode: 'throw',
  read_overflow_mode: 'throw',
  // A former copy of the same rows may be one of the parts that are dropped.
  insert_deduplicate: '0',
  // Otherwise an answer can begin before the copy has ended.
  send_progress_in_http_headers: '0',
};

interface Expiring {
  days: ExpiringDays[];
  parameters: Parameters;
}

/** Deletes what has expired when there are at least `rowsMin` points, and logs what was deleted. */
export async function deleteExpiredPoints(deps: ExpiredPointsDeps, rowsMin: number): Promise<void> {
  const { clickhouse, now, cluster, log, ttlOfLatest, write, mayContinue } = deps;
  await write(forgetExpiringDevicesStatement(cluster), {});
  const { devices, days } = await copyDevices(deps);
  const parameters: Parameters = { round: now, nowSeconds: Math.floor(now / 1000) };
  for (const each of days) parameters[`before${each.days}`] = each.before;
  const expiring = { days, parameters };
  const countOf = new Map<number, number>();
  for (const query of [...(devices > 0 ? [expiredDaysQuery(days)] : []), endedDaysQuery]) {
    for (const { day, count } of await clickhouse.rows<{ day: number; count: string }>(query, parameters)) {
      countOf.set(day, (countOf.get(day) ?? 0) + Number(count));
    }
  }
  const isClosed = (day: number) => day === 0 || endOfDay(day) + limits.retentionDayClosedMs <= now;
  const stored = [...countOf].filter(([day]) => isClosed(day)).sort(([a], [b]) => a - b);
  const points = stored.reduce((sum, [, count]) => sum + count, 0);
  if (points >= rowsMin) {
    const deleted = { devices, days: 0, points: 0 };
    for (const [day, count] of stored) {
      if (!(await mayContinue())) break;
      if (!(await deleteOfDay(deps, expiring, day))) continue;
      deleted.days += 1;
      deleted.points += count;
    }
    if (deleted.days > 0) log.info('retention_expired', deleted);
  }
  if (!ttlOfLatest || devices === 0) return;
  const [row] = await clickhouse.rows<{ count: string }>(countExpiredLatestQuery(days), parameters);
  if (row!.count === '0') return;
  await write(deleteExpiredLatestOfStatement(cluster, days), parameters, subqueryAllowed);
  log.info('retention_latest', { values: Number(row!.count) });
}

/** Returns false after a failure: the other days are tried, and this day is tried again in the next round. */
async function deleteOfDay(
  { clickhouse, cluster, log, write, drop }: ExpiredPointsDeps,
  { days, parameters }: Expiring,
  day: number,
): Promise<boolean> {
  try {
    if (cluster !== '') {
      await write(deleteExpiredOfDaysStatement(cluster, days, [day]), parameters, subqueryAllowed);
      return true;
    }
    const found = await clickhouse.rows<{ name: string }>(partsOfDayQuery, { day: String(day) });
    const parts = found.map(({ name }) => name);
    // A part without other points adds nothing, and costs little to read.
    await write(copyOthersStatement(days), { ...parameters, parts }, copySettings);
    await drop(dropPartsStatement(parts));
    return true;
  } catch (error) {
    if (isUnanswered(error) || error instanceof ClockChanged) throw error;
    log.warn('retention_failed', { day, reason: messageOf(error).slice(0, 500) });
    return false;
  }
}

/** Copies the present devices of such profiles to ClickHouse. Returns their number and the days of their profiles. */
async function copyDevices({
  postgres,
  clickhouse,
  now,
  ttlDays,
}: ExpiredPointsDeps): Promise<{ devices: number; days: ExpiringDays[] }> {
  const days = new Set<number>();
  let devices = 0;
  for (let after = 0; ; ) {
    const found = await readExpiringDevices(postgres, ttlDays, after, limits.retentionDevicesAtOnce);
    if (found.length === 0) break;
    const body = found.map(({ device, days: own }) => `{"round":${now},"days":${own},"device":${device}}`);
    await clickhouse.insertBlocks(insertExpiringDevices, Buffer.from(body.join('\n')));
    for (const { days: own } of found) days.add(own);
    devices += found.length;
    after = found.at(-1)!.device;
  }
  const sorted = [...days].sort((a, b) => a - b);
  return { devices, days: sorted.map((each) => ({ days: each, before: now - each * dayMs })) };
}
