/**
 * Reads for how long telemetry is shown: `telemetryTtlDays` of the device's present profile, at most
 * `TELEMETRY_TTL_DAYS` of the installation. A read of history leaves out older points from the moment at which they
 * expire; `erase/retention.ts` frees their disk later. Latest values are not concerned.
 */
import { dayMs } from '../../base/durations.ts';
import type { Queries } from '../../postgres/client.ts';

/** Returns the time before which points are expired; undefined = no point is. 0 or null days = no limit. */
export function expiredBefore(now: number, installationDays: number, profileDays: number | null): number | undefined {
  const days = Math.min(installationDays || Number.POSITIVE_INFINITY, profileDays || Number.POSITIVE_INFINITY);
  return Number.isFinite(days) ? now - days * dayMs : undefined;
}

/** Returns the days of the profile that the device has now; null = its profile sets none. */
export async function findTelemetryDays(queries: Queries, deviceId: string): Promise<number | null> {
  const [row] = await queries.query<{ days: number | null }>(
    `select p.telemetry_ttl_days as days from device d join device_profile p on p.id = d.device_profile_id
      where d.id = $1`,
    [deviceId],
    { prepared: true },
  );
  return row?.days ?? null;
}

/** Returns the profiles of a tenant that set days. */
export async function listProfileDays(queries: Queries, tenantId: string): Promise<{ name: string; days: number }[]> {
  return await queries.query(
    `select name, telemetry_ttl_days as days from device_profile
      where tenant_id = $1 and telemetry_ttl_days is not null order by telemetry_ttl_days, name`,
    [tenantId],
  );
}
