/** Which profile a device gets: the one named by id, the one named by `type` (made when missing), or the default one. */
import { assert, badRequest } from '../base/errors.ts';
import { checkText, type DeviceProfile, defaultProfileData, defaultProfileName } from '../device/device.ts';
import { findDefaultProfile, findProfile, findProfileByName, insertProfile } from '../device/store.ts';
import { createUuid } from '../device/uuid.ts';
import type { Queries } from '../postgres/client.ts';

export async function resolveProfile(
  queries: Queries,
  tenantId: string,
  profileId: string | null,
  type: string,
): Promise<DeviceProfile> {
  if (profileId !== null) {
    const profile = await findProfile(queries, profileId);
    if (!profile) throw badRequest('profile', 'Device is referencing non existing device profile!');
    if (profile.tenantId !== tenantId) {
      throw badRequest('profile_tenant', 'Device can`t be referencing to device profile from different tenant!');
    }
    return profile;
  }
  if (type.trim() !== '') return await findOrCreateProfile(queries, tenantId, type, false);
  const profile = await findDefaultProfile(queries, tenantId);
  return profile ?? (await findOrCreateProfile(queries, tenantId, defaultProfileName, true));
}

/** Names are case-sensitive: `DEFAULT` is not `default`. */
export async function findOrCreateProfile(
  queries: Queries,
  tenantId: string,
  name: string,
  isDefault: boolean,
): Promise<DeviceProfile> {
  checkText('type', name);
  const known = await findProfileByName(queries, tenantId, name);
  if (known) return known;
  const now = Date.now();
  const profile = { id: createUuid(now), tenantId, name, isDefault };
  await insertProfile(queries, { ...profile, createdTime: now, data: defaultProfileData });
  const stored = await findProfileByName(queries, tenantId, name);
  assert(stored, 'a profile is there after it was inserted or found to be there');
  return stored;
}
