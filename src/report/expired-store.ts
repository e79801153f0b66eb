/**
 * Leaves expired points out of a report: points older than `TELEMETRY_TTL_DAYS`, or than the days that the present
 * profiles of their device and tenant set. ClickHouse's copy of the device data names the device's profile.
 */
import { expiredBefore, listProfileDays } from '../device/sql/telemetry-days-store.ts';
import type { Queries } from '../postgres/client.ts';
import type { QueryParameters } from './parameters.ts';

export interface Expired {
  /** Points before this time are expired, of any device; absent = none is. */
  before?: number | undefined;
  /** Profiles with shorter times of their own. */
  profiles: { before: number; names: string[] }[];
}

export async function findExpired(
  queries: Queries,
  tenantId: string,
  now: number,
  installationDays: number,
): Promise<Expired> {
  const before = expiredBefore(now, installationDays, null);
  const namesOf = new Map<number, string[]>();
  for (const { name, days } of await listProfileDays(queries, tenantId)) {
    const own = expiredBefore(now, installationDays, days)!;
    if (own !== before) namesOf.set(own, [...(namesOf.get(own) ?? []), name]);
  }
  return { before, profiles: [...namesOf].map(([own, names]) => ({ before: own, names })) };
}

/**
 * Returns the conditions on points; times up to `from` need none, because no earlier point is read. `ofProfiles`
 * returns SQL of the devices of some profiles.
 */
export function unexpired(
  { before = Number.NEGATIVE_INFINITY, profiles }: Expired,
  from: number,
  ofProfiles: (names: string) => string,
  parameters: QueryParameters,
): string[] {
  const conditions = before > from ? [`ts >= ${parameters.one('Int64', before)}`] : [];
  for (const { before: own, names } of profiles) {
    if (own <= from) continue;
    const devices = ofProfiles(parameters.many('String', names));
    conditions.push(`(ts >= ${parameters.one('Int64', own)} OR device GLOBAL NOT IN (${devices}))`);
  }
  return conditions;
}
