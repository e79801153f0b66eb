/** SQL of the claims of devices. */
import { scopeNumber } from '../attributes/scope.ts';
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

/** Deletes the open claims that were made for the devices under their previous owner. */
export async function forgetClaims(queries: Queries, devices: { id: string; number: number }[]): Promise<void> {
  await queries.query('delete from device_claim where device_id = any($1)', [devices.map(({ id }) => id)]);
  await queries.query('delete from attribute where device = any($1) and scope = $2 and key = $3', [
    devices.map(({ number }) => number),
    scopeNumber.SERVER_SCOPE,
    claimKeys.data,
  ]);
}

export async function deleteClaim(queries: Queries, deviceId: string): Promise<void> {
  await queries.query('delete from device_claim where device_id = $1', [deviceId]);
}
