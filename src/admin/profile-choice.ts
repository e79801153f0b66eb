/**
 * Chooses the profile of a device that is saved, imported or registers itself: by id, by type, which is the name of a
 * profile, or the default one of the tenant.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { assert, badRequest } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import { checkText, type DeviceProfile, defaultProfileData, defaultProfileName } from '../device/model/device.ts';
import { findDefaultProfile, findProfile, findProfileByName, insertProfile } from '../device/sql/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { findProfileIds, insertProfiles } from './device-batch-store.ts';

/**
 * Returns the profile `profileId`, or else the one that is named `type`, which is made when missing. Without both it is
 * the default one. Throws 400 when the tenant has no profile `profileId`.
 */
export async function resolveProfile(
  queries: Queries,
  tenantId: string,
  profileId: string | null,
  type: string,
): Promise<DeviceProfile> {
  if (profileId !== null) {
    const profile = await findProfile(queries, profileId);
    // A profile of another tenant is refused as a missing one is.
    if (profile?.tenantId !== tenantId) {
      throw badRequest('profile', 'Device is referencing non existing device profile!');
    }
    return profile;
  }
  if (type.trim() !== '') return await findOrCreateProfile(queries, tenantId, type, { isDefault: false });
  const profile = await findDefaultProfile(queries, tenantId);
  return profile ?? (await findOrCreateProfile(queries, tenantId, defaultProfileName, { isDefault: true }));
}

/** Returns the profile of that name, which is made when missing. Names are case-sensitive. */
export async function findOrCreateProfile(
  queries: Queries,
  tenantId: string,
  name: string,
  { isDefault }: { isDefault: boolean },
): Promise<DeviceProfile> {
  checkText('type', name);
  const known = await findProfileByName(queries, tenantId, name);
  if (known) return known;
  const now = systemClock.now();
  const profile = { id: createUuid(now), tenantId, name, isDefault };
  await insertProfile(queries, { ...profile, createdTime: now, data: defaultProfileData });
  const ofName = await findProfileByName(queries, tenantId, name);
  // A tenant has one default profile. Another call may have made one at this moment.
  const stored = ofName ?? (isDefault ? await findDefaultProfile(queries, tenantId) : undefined);
  assert(stored, 'a profile exists after its insert or a conflict of its name');
  return stored;
}

/**
 * Like `resolveProfile`, for the types of many devices at once. A profile that another caller deletes meanwhile may be
 * absent from the result.
 */
export async function resolveProfileIds(
  { postgres, clock }: { postgres: Postgres; clock: Clock },
  tenantId: string,
  types: readonly string[],
): Promise<Map<string, string>> {
  const names = [...new Set(types)].filter((type) => type.trim() !== '');
  const ids = names.length > 0 ? await findProfileIds(postgres, tenantId, names) : new Map<string, string>();
  const missing = names.filter((name) => !ids.has(name));
  if (missing.length > 0) {
    const now = clock.now();
    const profiles = missing.map((name) => ({ id: createUuid(now), name }));
    await insertProfiles(postgres, tenantId, profiles, now);
    for (const [name, id] of await findProfileIds(postgres, tenantId, missing)) ids.set(name, id);
  }
  // A device with a blank type gets the default profile.
  const blank = new Set(types.filter((type) => type.trim() === ''));
  if (blank.size === 0) return ids;
  const { id } = await resolveProfile(postgres, tenantId, null, '');
  for (const type of blank) ids.set(type, id);
  return ids;
}
