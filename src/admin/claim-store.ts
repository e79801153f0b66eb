/** SQL of the claims of devices, and of the wrong keys that were tried for a device. */
import { scopeNumber } from '../attributes/attributes.ts';
import type { Queries } from '../postgres/client.ts';
import { type Claim, claimKeys } from './claim-rules.ts';

/** Returns false when the device has a valid claim. */
export async function insertClaim(queries: Queries, deviceId: string, claim: Claim, now: number): Promise<boolean> {
  const rows = await queries.query(
    `insert into device_claim (device_id, secret_sha256, expires_time)
       select id, $2, $3 from device where id = $1 and customer_id is null
     on conflict (device_id) do update set secret_sha256 = excluded.secret_sha256, expires_time = excluded.expires_time
      where device_claim.expires_time <= $4
     returning 1`,
    [deviceId, claim.secretSha256, claim.expiresTime, now],
  );
  return rows.length === 1;
}

export async function findClaim(queries: Queries, deviceId: string): Promise<Claim | undefined> {
  const [claim] = await queries.query<Claim>(
    'select secret_sha256 as "secretSha256", expires_time as "expiresTime" from device_claim where device_id = $1',
    [deviceId],
  );
  return claim;
}

/** Deletes the open claims that were made for the device under its previous owner. */
export async function forgetClaims(queries: Queries, device: { id: string; number: number }): Promise<void> {
  await queries.query('delete from device_claim where device_id = $1', [device.id]);
  await queries.query('delete from attribute where device = $1 and scope = $2 and key = $3', [
    device.number,
    scopeNumber.SERVER_SCOPE,
    claimKeys.data,
  ]);
}

export async function deleteClaim(queries: Queries, deviceId: string): Promise<void> {
  await queries.query('delete from device_claim where device_id = $1', [deviceId]);
  await queries.query('delete from device_claim_tries where device_id = $1', [deviceId]);
}

/** Returns the wrong keys of the running window, and when the window ends. */
export async function findWrongKeys(
  queries: Queries,
  deviceId: string,
  now: number,
): Promise<{ wrongKeys: number; windowEndsTime: number }> {
  const [row] = await queries.query<{ wrongKeys: number; windowEndsTime: number }>(
    `select wrong_keys as "wrongKeys", window_ends_time as "windowEndsTime"
       from device_claim_tries where device_id = $1 and window_ends_time > $2`,
    [deviceId, now],
  );
  return row ?? { wrongKeys: 0, windowEndsTime: now };
}

export async function recordWrongKey(queries: Queries, deviceId: string, now: number, windowMs: number): Promise<void> {
  await queries.query(
    `insert into device_claim_tries as tries (device_id, wrong_keys, window_ends_time) values ($1, 1, $3)
     on conflict (device_id) do update set
       wrong_keys = case when tries.window_ends_time > $2 then tries.wrong_keys + 1 else 1 end,
       window_ends_time = case when tries.window_ends_time > $2 then tries.window_ends_time else $3 end`,
    [deviceId, now, now + windowMs],
  );
}
