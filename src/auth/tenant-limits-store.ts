/** SQL of the limits of tenants, as each worker reads them. */
import type { Queries } from '../postgres/client.ts';

interface StoredLimits {
  id: string;
  name: string;
  /** The `configuration` of the profile's data. */
  configuration: unknown;
}

/** Selects a number that rises with each change of a profile or of a tenant's profile. */
export const limitsVersion = 'select version from tenant_limits_version';

/** Returns the version and the timeline of its server, because another server may give the same version again. */
export async function readLimitsVersion(queries: Queries): Promise<{ version: number; timeline: string | null }> {
  const [row] = await queries.query<{ version: number; timeline: string | null }>(
    'select version, server_timeline() as timeline from tenant_limits_version',
  );
  return row!;
}

/** Called in the transaction of a change of limits. Changes of limits wait for each other. */
export async function raiseLimitsVersion(queries: Queries): Promise<void> {
  await queries.query('update tenant_limits_version set version = version + 1');
}

export async function readProfileLimits(queries: Queries): Promise<StoredLimits[]> {
  return await queries.query<StoredLimits>(
    `select id, name, profile_data -> 'configuration' as configuration from tenant_profile`,
  );
}

/** Returns the tenants that have one of these profiles. */
export async function readTenantsOf(
  queries: Queries,
  profileIds: string[],
): Promise<{ id: string; profileId: string }[]> {
  return await queries.query('select id, profile_id as "profileId" from tenant where profile_id = any($1)', [
    profileIds,
  ]);
}
