/**
 * SQL of rollouts: the devices that wait for a notification of their packages, and the pace of each profile. A row of
 * `ota_rollout` is one device, or a profile whose devices have no rows yet. `rollout.ts` takes and ends the work.
 */
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import type { OtaPackage } from './package.ts';
import { findPackages } from './store.ts';

const outdated = `(coalesce(d.firmware_id, p.firmware_id) is distinct from d.told_firmware_id
  or coalesce(d.software_id, p.software_id) is distinct from d.told_software_id)`;

/** The profile whose pace a device follows: a device with a package of its own is notified at once. */
const pacedBy = 'case when d.firmware_id is null and d.software_id is null then p.id end';
const place = `abs(hashtextextended(concat(d.id, p.firmware_id, p.software_id), 0) % 100)`;

/** Deletes waiting work of devices. Skips work that another transaction does or replaces. */
const withoutWaiting = (deviceIds: string) =>
  `delete from ota_rollout where id = any(array(
     select id from ota_rollout where device_id = any(${deviceIds}) for update skip locked))`;

/**
 * Records work for devices whose last notification named other packages than they have now. The work replaces earlier
 * work that waits, so a device that is saved often while its profile is paused waits once, at its present place.
 * Returns true when there is work.
 */
export async function insertDeviceRollouts(queries: Queries, deviceIds: string[]): Promise<boolean> {
  const rows = await queries.query(
    `with replaced as (${withoutWaiting('$1::uuid[]')})
     insert into ota_rollout (device_id, paced_profile_id, place)
     select d.id, ${pacedBy}, ${place} from device d join device_profile p on p.id = d.device_profile_id
      where d.id = any($1::uuid[]) and ${outdated}
     returning 1`,
    [deviceIds],
  );
  return rows.length > 0;
}

/** Called in the transaction that deletes the devices. Waits for no rollout. */
export async function deleteDeviceRollouts(queries: Queries, deviceIds: string[]): Promise<void> {
  await queries.query(withoutWaiting('$1::uuid[]'), [deviceIds]);
}

export async function insertProfileRollout(queries: Queries, profileId: string): Promise<void> {
  await queries.query('insert into ota_rollout (device_profile_id) values ($1)', [profileId]);
}

interface RolloutDevice {
  rolloutId: number;
  deviceId: string;
}

/** True while devices or profiles wait, also those of a rollout that is paused. */
export const rolloutWaits = 'exists (select from ota_rollout)';

/**
 * Takes devices for this transaction alone: those with packages of their own, and as many of the other ones as the pace
 * of their profiles allows. When more devices wait than may be taken, each profile has a share, in no order, so no
 * large profile holds up the others. Locks the row, and the device by an advisory lock, because a later change of a
 * device has a row of its own. Locked rows and devices are skipped, and so are those of `leftOut`. Saving a device does
 * not wait for these locks.
 */
export async function takeRolloutDevices(
  queries: Queries,
  countMax: number,
  leftOut: string[] = [],
): Promise<RolloutDevice[]> {
  const profiles = await pacedProfiles(queries, countMax - 1);
  const free = Math.ceil(countMax / (profiles.length + 1));
  const isFree = 'device_id is not null and paced_profile_id is null';
  const taken = await takeRows(queries, isFree, 'id', free, [leftOut]);
  for (const [i, profile] of profiles.entries()) {
    const share = Math.ceil((countMax - taken.length) / (profiles.length - i));
    const allowed = profile.perMinute === null ? share : Math.min(share, await allowedNow(queries, profile));
    if (allowed === 0) continue;
    const where = 'paced_profile_id = $3 and place < $4';
    const rows = await takeRows(queries, where, 'place, id', allowed, [leftOut, profile.id, profile.percent]);
    if (profile.perMinute !== null && rows.length > 0) await notePace(queries, profile, rows.length);
    taken.push(...rows);
  }
  return taken;
}

/** `values`: the devices that are left out, then the values of `where`. */
async function takeRows(
  queries: Queries,
  where: string,
  order: string,
  countMax: number,
  values: [leftOut: string[], ...unknown[]],
): Promise<RolloutDevice[]> {
  return await queries.query<RolloutDevice>(
    `select id as "rolloutId", device_id as "deviceId" from ota_rollout
      where ${where} and device_id <> all($2::uuid[])
        and pg_try_advisory_xact_lock(hashtextextended(device_id::text, 7155720361))
      order by ${order} limit $1 for update skip locked`,
    [countMax, ...values],
  );
}

interface PacedProfile {
  id: string;
  /** Null = without a limit. */
  perMinute: number | null;
  percent: number;
}

/**
 * Returns profiles with devices that may be notified now, at most `countMax` of them in random order. Reads two rows
 * of each profile. `allowedNow` decides exactly, and also when the pace of a profile has no time yet or a future one.
 */
async function pacedProfiles(queries: Queries, countMax: number): Promise<PacedProfile[]> {
  const next = (after: string) =>
    `select paced_profile_id from ota_rollout where ${after} order by paced_profile_id limit 1`;
  const seconds = 'extract(epoch from clock_timestamp() - pace.taken_until)';
  return await queries.query<PacedProfile>(
    `with recursive waiting as (
       (${next('paced_profile_id is not null')})
       union all
       select (${next('paced_profile_id > waiting.paced_profile_id')}) from waiting where paced_profile_id is not null)
     select p.id, p.ota_per_minute as "perMinute", p.ota_percent as percent
       from waiting join device_profile p on p.id = waiting.paced_profile_id
       left join ota_pace pace on pace.device_profile_id = p.id
      where not p.ota_paused
        and exists (select from ota_rollout r where r.paced_profile_id = p.id and r.place < p.ota_percent)
        and (p.ota_per_minute is null or pace.taken_until is null
             or ${seconds} * p.ota_per_minute not between 0 and 59.99)
      order by random() limit $1`,
    [countMax],
  );
}

/** Seconds and rates are not exact in binary: 60 / 11 seconds at 11 a minute are 0.9999999999999999 devices. */
const rounding = 1e-6;

/** Returns how many devices may be notified now; 0 while another host takes devices of the profile. */
async function allowedNow(queries: Queries, { id, perMinute }: PacedProfile): Promise<number> {
  await queries.query(
    'insert into ota_pace (device_profile_id, taken_until) values ($1, clock_timestamp()) on conflict do nothing',
    [id],
  );
  const [pace] = await queries.query<{ seconds: number }>(
    `select extract(epoch from clock_timestamp() - taken_until)::float8 as seconds from ota_pace
      where device_profile_id = $1 for update skip locked`,
    [id],
  );
  if (!pace) return 0;
  if (pace.seconds < -rounding) {
    // The clock of the database was set back.
    await queries.query('update ota_pace set taken_until = clock_timestamp() where device_profile_id = $1', [id]);
  }
  const seconds = Math.max(0, Math.min(pace.seconds, burstSeconds(perMinute!)));
  return Math.floor(seconds * (perMinute! / 60) + rounding);
}

/** Called in the transaction of `allowedNow`, whose row is locked. */
async function notePace(queries: Queries, { id, perMinute }: PacedProfile, count: number): Promise<void> {
  await queries.query(
    `update ota_pace set taken_until = greatest(taken_until, clock_timestamp() - $2 * interval '1 second')
                                     + $3 * interval '1 second'
      where device_profile_id = $1`,
    [id, burstSeconds(perMinute!), (count * 60) / perMinute!],
  );
}

/** Time whose notifications may be made up for: a few polls, and at least one notification. */
function burstSeconds(perMinute: number): number {
  return Math.max((3 * limits.hostPollMs) / 1000, 60 / perMinute);
}

/** Returns how many devices of a profile wait for a notification of its packages. */
export async function countRolloutDevices(queries: Queries, profileId: string): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    'select count(*) as count from ota_rollout where paced_profile_id = $1',
    [profileId],
  );
  return row!.count;
}

/** One device of a rollout: the packages of its last notification, and its packages now. */
export interface Outdated {
  id: string;
  tenantId: string;
  number: number;
  notifiedFirmwareId: string | null;
  notifiedSoftwareId: string | null;
  firmware: OtaPackage | null;
  software: OtaPackage | null;
}

/**
 * Reads the outdated devices. A separate statement after the locks sees everything that was committed before the locks.
 */
export async function readOutdated(queries: Queries, deviceIds: string[]): Promise<Outdated[]> {
  const devices = await queries.query<
    Omit<Outdated, 'firmware' | 'software'> & { firmwareId: string | null; softwareId: string | null }
  >(
    `select d.id, d.tenant_id as "tenantId", d.number, d.told_firmware_id as "notifiedFirmwareId", d.told_software_id as "notifiedSoftwareId",
            coalesce(d.firmware_id, p.firmware_id) as "firmwareId", coalesce(d.software_id, p.software_id) as "softwareId"
       from device d join device_profile p on p.id = d.device_profile_id
      where d.id = any($1) and ${outdated}`,
    [deviceIds],
  );
  const ids = new Set(
    devices.flatMap(({ firmwareId, softwareId }) => [firmwareId, softwareId]).filter((id) => id !== null),
  );
  const packages = await findPackages(queries, [...ids]);
  const byId = new Map(packages.map((each) => [each.id, each]));
  // A deleted package was unassigned from the device first, and that change recorded its own work.
  return devices.map(({ firmwareId, softwareId, ...device }) => ({
    ...device,
    firmware: byId.get(firmwareId ?? '') ?? null,
    software: byId.get(softwareId ?? '') ?? null,
  }));
}

/**
 * A device that was saved after this transaction read it was compared with its earlier notification and may have
 * recorded no work. So the devices are compared again under the lock. Later saves wait and see the new notification.
 */
export async function finishRolloutDevices(
  queries: Queries,
  rolloutIds: number[],
  notified: { id: string; firmwareId: string | null; softwareId: string | null }[],
): Promise<void> {
  const ids = notified.map(({ id }) => id);
  await queries.query(
    `update device d set told_firmware_id = t.firmware_id, told_software_id = t.software_id
       from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as t (id, firmware_id, software_id) where d.id = t.id`,
    [ids, notified.map(({ firmwareId }) => firmwareId), notified.map(({ softwareId }) => softwareId)],
  );
  await queries.query(
    `select 1 from device_profile where id in (select device_profile_id from device where id = any($1))
      order by id for share`,
    [ids],
  );
  await insertDeviceRollouts(queries, ids);
  await queries.query('delete from ota_rollout where id = any($1)', [rolloutIds]);
}

/** Records work for the next devices of a profile. Returns false when no profile waits. */
export async function expandRolloutProfile(queries: Queries, countMax: number): Promise<boolean> {
  const [rollout] = await queries.query<{ id: number; profileId: string; doneDeviceId: string }>(
    `select id, device_profile_id as "profileId", done_device_id as "doneDeviceId" from ota_rollout
      where device_id is null order by id limit 1 for update skip locked`,
  );
  if (!rollout) return false;
  const { id, profileId, doneDeviceId } = rollout;
  const devices = await queries.query<{ deviceId: string }>(
    `with added as materialized (
       select d.id, ${pacedBy} as paced, ${place} as place
         from device d join device_profile p on p.id = d.device_profile_id
        where d.device_profile_id = $1 and d.id > $2 and ${outdated} order by d.id limit $3),
     replaced as (${withoutWaiting('array(select id from added)')})
     insert into ota_rollout (device_id, paced_profile_id, place) select id, paced, place from added
     returning device_id as "deviceId"`,
    [profileId, doneDeviceId, countMax],
  );
  if (devices.length < countMax) await queries.query('delete from ota_rollout where id = $1', [id]);
  else {
    const last = devices
      .map(({ deviceId }) => deviceId)
      .sort()
      .at(-1);
    await queries.query('update ota_rollout set done_device_id = $2 where id = $1', [id, last]);
  }
  return true;
}
