/**
 * Reads for how long telemetry is shown: the fewest days that the device's present profile (`telemetryTtlDays`), the
 * profile of its tenant (`defaultStorageTtlDays`) and the installation (`TELEMETRY_TTL_DAYS`) set. A read of history
 * leaves out older points from the moment at which they expire; `erase/retention.ts` frees their disk later. Latest
 * values are not concerned.
 */
import { dayMs } from '../../base/durations.ts';
import type { Queries } from '../../postgres/client.ts';

/** Returns the time before which points are expired; undefined = no point is. 0 or null days = no limit. */
export function expiredBefore(now: number, installationDays: number, profileDays: number | null): number | undefined {
  const days = Math.min(installationDays || Number.POSITIVE_INFINITY, profileDays || Number.POSITIVE_INFINITY);
  return Number.isFinite(days) ? now - days * dayMs : undefined;
}

/** Returns the days that the present profiles of the device and its tenant set; null = none. */
export async function findTelemetryDays(queries: Queries, deviceId: string): Promise<number | null> {
  const [row] = await queries.query<{ days: number | null }>(
    `select t.days from device d join telemetry_days t using (device_profile_id) where d.id = $1`,
    [deviceId],
    { prepared: true },
  );
  return row?.days ?? null;
}

/** Returns the device profiles of a tenant whose devices have such days. */
export async function listProfileDays(queries: Queries, tenantId: string): Promise<{ name: string; days: number }[]> {
  return await queries.query(
    'select name, days from telemetry_days where tenant_id = $1 and days is not null order by days, name',
    [tenantId],
  );
}
