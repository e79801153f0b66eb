/** SQL that makes the profiles and tokens of many devices at once: one statement for each table. */
import { defaultProfileData } from '../device/model/device.ts';
import { insertCredentialChanges, type LoggedChange } from '../device/sql/credential-log-store.ts';
import type { Queries } from '../postgres/client.ts';

/** Returns the ids of profiles by name. */
export async function findProfileIds(
  queries: Queries,
  tenantId: string,
  names: string[],
): Promise<Map<string, string>> {
  const rows = await queries.query<{ id: string; name: string }>(
    'select id, name from device_profile where tenant_id = $1 and name = any($2)',
    [tenantId, names],
  );
  return new Map(rows.map(({ id, name }) => [name, id]));
}

/** Inserts profiles, except those that another transaction inserts at this moment. */
export async function insertProfiles(
  queries: Queries,
  tenantId: string,
  profiles: { id: string; name: string }[],
  now: number,
): Promise<void> {
  await queries.query(
    `insert into device_profile (id, created_time, tenant_id, name, is_default, profile_data)
     select id, $1, $2, name, false, $3::json from unnest($4::uuid[], $5::text[]) as p (id, name)
      order by name collate "C"
     on conflict on constraint device_profile_name_unique do nothing`,
    [now, tenantId, JSON.stringify(defaultProfileData), profiles.map(({ id }) => id), profiles.map(({ name }) => name)],
  );
}

/** Inserts tokens, with the logged changes that notify the other processes. */
export async function insertTokens(
  queries: Queries,
  tokens: { id: string; deviceId: string; deviceNumber: number; token: string }[],
  now: number,
): Promise<LoggedChange[]> {
  const ids = tokens.map(({ id }) => id);
  const deviceIds = tokens.map(({ deviceId }) => deviceId);
  const texts = tokens.map(({ token }) => token);
  await queries.query(
    `insert into device_credentials (id, created_time, device_id, credentials_type, credentials_id)
     select id, $1, device_id, 'ACCESS_TOKEN', token from unnest($2::uuid[], $3::uuid[], $4::text[]) as k (id, device_id, token)`,
    [now, ids, deviceIds, texts],
  );
  const changes = tokens.map(({ deviceId, deviceNumber, token }) => {
    return { credentialsId: token, deviceId, deviceNumber, deleted: false };
  });
  return await insertCredentialChanges(queries, changes, now);
}
