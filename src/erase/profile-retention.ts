/**
 * Deletes the points of devices whose profile keeps telemetry for fewer days than the installation. Reads have hidden
 * these points from the moment at which they expired (`device/telemetry-days.ts`), so the delete only frees the disk.
 * Its cost follows the days that have expired points: the parts of such a day are dropped after their other points were
 * copied. No step loses a point when it is interrupted or meets rows that arrive meanwhile. Called by `retention.ts`.
 */
import type { Clock } from '../base/clock.ts';
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
  expiredDaysQuery,
  forgetExpiringDevicesStatement,
  insertExpiringDevices,
  partsOfDayQuery,
} from '../clickhouse/retention-statements.ts';
import type { Queries } from '../postgres/client.ts';
import { readExpiringDevices } from './retention-store.ts';

export interface ProfileRetentionDeps {
  postgres: Queries;
  clickhouse: ClickHouse;
  cluster: string;
  clock: Clock;
  log: Log;
  /** 0: the installation keeps all telemetry. */
  ttlDays: number;
  ttlOfLatest: boolean;
  /** Runs a statement in ClickHouse. */
  write: (statement: string, parameters: Parameters, settings?: Record<string, string>) => Promise<void>;
  /** Returns true while this host may continue; called before each day. */
  mayContinue: () => Promise<boolean>;
}

const dayMs = 86_400_000;
/** A replicated table refuses a subquery in a mutation otherwise; here each replica has the same list. */
const subqueryAllowed = { allow_nondeterministic_mutations: '1' };

interface Expiring {
  days: ExpiringDays[];
  parameters: Parameters;
}

/** Deletes what has expired when there are at least `rowsMin` points, and logs what was deleted. */
export async function deleteExpiredOfProfiles(deps: ProfileRetentionDeps, rowsMin: number): Promise<void> {
  const { clickhouse, clock, cluster, log, ttlOfLatest, write, mayContinue } = deps;
  const now = clock.now();
  await write(forgetExpiringDevicesStatement(cluster), {});
  const { devices, days } = await copyDevices(deps, now);
  if (devices === 0) return;
  const parameters: Parameters = { round: now };
  for (const each of days) parameters[`before${each.days}`] = each.before;
  const expiring = { days, parameters };
  const stored = await clickhouse.rows<{ day: number; count: string }>(expiredDaysQuery(days), parameters);
  const points = stored.reduce((sum, { count }) => sum + Number(count), 0);
  if (points >= rowsMin) {
    const deleted = { devices, days: 0, points: 0 };
    for (const { day, count } of stored) {
      if (!(await mayContinue())) break;
      if (!(await deleteOfDay(deps, expiring, Number(day)))) continue;
      deleted.days += 1;
      deleted.points += Number(count);
    }
    if (deleted.days > 0) log.info('retention_profiles', deleted);
  }
  if (!ttlOfLatest) return;
  const [row] = await clickhouse.rows<{ count: string }>(countExpiredLatestQuery(days), parameters);
  if (row!.count === '0') return;
  await write(deleteExpiredLatestOfStatement(cluster, days), parameters, subqueryAllowed);
  log.info('retention_latest', { values: Number(row!.count) });
}

/** Returns false after a failure: the other days are tried, and this day is tried again in the next round. */
async function deleteOfDay(
  { clickhouse, cluster, log, write }: ProfileRetentionDeps,
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
    await write(copyOthersStatement(days), { ...parameters, parts });
    await write(dropPartsStatement(parts), {});
    return true;
  } catch (error) {
    if (isUnanswered(error)) throw error;
    log.warn('retention', { day, reason: messageOf(error).slice(0, 500) });
    return false;
  }
}

/** Copies the present devices of such profiles to ClickHouse. Returns their number and the days of their profiles. */
async function copyDevices(
  { postgres, clickhouse, ttlDays }: ProfileRetentionDeps,
  now: number,
): Promise<{ devices: number; days: ExpiringDays[] }> {
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
