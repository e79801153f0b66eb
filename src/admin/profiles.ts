/**
 * Device profiles as administrators manage them (docs/rest.md#device-profiles): the rules that depend on other rows,
 * and the transactions. `profile-input.ts` checks the values, `profile-choice.ts` chooses the profile of a device.
 */
import { entityNotFound } from '../auth/roles.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { assert, badRequest, type Fault } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import type { FullProfile } from '../device/model/device.ts';
import { markProven } from '../device/sql/issuer-store.ts';
import {
  deleteProfileRow,
  findFullProfile,
  insertFullProfile,
  isOthersProvisionKey,
  isProfileUsed,
  moveDefaultProfile,
  updateFullProfile,
} from '../device/sql/profile-store.ts';
import { checkAssignable, profileAssigned } from '../ota/assignment.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';
import { changeIssuer } from './issuers.ts';
import { checkedProfile, type ProfileInput } from './profile-input.ts';
import { lockTenant } from './store.ts';
import { type CheckAgain, choosing, type TakenNames } from './taken-names.ts';

export interface ProfileDeps {
  postgres: Postgres;
  clock: Clock;
  /** Called after a commit that may have changed the packages assigned to devices. */
  onAssigned?: () => void;
  /** Absent where no tenant chooses provisioning keys. */
  takenNames?: TakenNames;
}

export async function createProfile(
  deps: Omit<ProfileDeps, 'onAssigned'>,
  tenantId: string,
  input: ProfileInput,
): Promise<FullProfile> {
  return await choosingKey(deps, tenantId, input, (checkAgain) => insertChecked(deps, tenantId, input, checkAgain));
}

/**
 * Replaces the profile `id`. The name shows as the type of its devices. Another call changes which profile is the
 * default.
 */
export async function saveProfile(
  deps: Omit<ProfileDeps, 'clock'>,
  tenantId: string,
  id: string,
  input: ProfileInput,
): Promise<FullProfile> {
  const { provisionKey } = (await findFullProfile(deps.postgres, tenantId, id)) ?? {};
  const replace = (checkAgain?: CheckAgain) => replaceChecked(deps.postgres, tenantId, id, input, checkAgain);
  const choosesKey = provisionKey !== input.provisionKey;
  const { profile, isAssigned } = choosesKey ? await choosingKey(deps, tenantId, input, replace) : await replace();
  if (isAssigned) deps.onAssigned?.();
  return profile;
}

/**
 * Runs `store`, which stores the profile of `input`. When its provisioning key turns out to be that of another tenant,
 * that is counted (`taken-names.ts`).
 */
async function choosingKey<T>(
  deps: Pick<ProfileDeps, 'postgres' | 'takenNames'>,
  tenantId: string,
  input: ProfileInput,
  store: (checkAgain?: CheckAgain) => Promise<T>,
): Promise<T> {
  // Checks the values that will be stored, because the document of a profile has a type as well.
  const { provisionKey: key, provisionType } = checkedProfile(input);
  // The key of a certificate profile is the digest of its certificate, which several tenants may have.
  if (!key || provisionType === 'X509_CERTIFICATE_CHAIN') return await store();
  return await choosing(deps, tenantId, () => isOthersProvisionKey(deps.postgres, tenantId, key), store);
}

async function insertChecked(
  { postgres, clock }: Pick<ProfileDeps, 'postgres' | 'clock'>,
  tenantId: string,
  input: ProfileInput,
  checkAgain?: CheckAgain,
): Promise<FullProfile> {
  const now = clock.now();
  return await postgres.transaction(async (queries) => {
    const created = { id: createUuid(now), tenantId, createdTime: now, isDefault: input.isDefault === true };
    const profile = { ...checkedProfile(input), ...created, version: 1 };
    await checkPackages(queries, profile);
    await insertFullProfile(queries, profile);
    await changeIssuer(queries, undefined, profile, input.issuerProof);
    if (input.issuerProof) await markProven(queries, profile.id);
    await checkAgain?.(queries);
    return profile;
  });
}

/** Returns the saved profile, and whether the packages assigned to its devices changed. */
async function replaceChecked(
  postgres: Postgres,
  tenantId: string,
  id: string,
  input: ProfileInput,
  checkAgain?: CheckAgain,
): Promise<{ profile: FullProfile; isAssigned: boolean }> {
  return await postgres.transaction(async (queries) => {
    const stored = await lockProfile(queries, tenantId, id);
    await checkChange(queries, stored, input);
    const { createdTime, isDefault, version } = stored;
    const profile = { ...checkedProfile(input), id, tenantId, createdTime, isDefault, version: version + 1 };
    await checkPackages(queries, profile);
    await changeIssuer(queries, stored, profile, input.issuerProof);
    await updateFullProfile(queries, profile);
    if (input.issuerProof) await markProven(queries, id);
    const isAssigned = profile.firmwareId !== stored.firmwareId || profile.softwareId !== stored.softwareId;
    if (isAssigned) await profileAssigned(queries, id);
    await checkAgain?.(queries);
    return { profile, isAssigned };
  });
}

/** Checks what the stored profile does not allow to change: its version, its default and its transport. */
async function checkChange(queries: Queries, stored: FullProfile, input: ProfileInput): Promise<void> {
  checkVersion('Device profile', stored.version, input.version);
  if (input.isDefault && !stored.isDefault) {
    throw badRequest('profile_default', 'Another default device profile is present in scope of current tenant!');
  }
  if (input.transportType !== stored.transportType && (await isProfileUsed(queries, stored.id))) {
    const message = "Can't change device profile transport type because devices referenced it!";
    throw badRequest('profile_transport', message);
  }
}

export async function setDefaultProfile(postgres: Postgres, tenantId: string, id: string): Promise<FullProfile> {
  return await postgres.transaction(async (queries) => {
    // Two calls take turns, because a tenant has exactly one default profile.
    await lockTenant(queries, tenantId);
    await lockProfile(queries, tenantId, id);
    await moveDefaultProfile(queries, tenantId, id);
    const profile = await findFullProfile(queries, tenantId, id);
    assert(profile, 'a locked profile is not deleted');
    return profile;
  });
}

export async function deleteProfile(postgres: Postgres, tenantId: string, id: string): Promise<void> {
  try {
    await postgres.transaction(async (queries) => {
      const { isDefault } = await lockProfile(queries, tenantId, id);
      if (isDefault) throw badRequest('profile_default', 'Deletion of Default Device Profile is prohibited!');
      if (await isProfileUsed(queries, id)) throw profileUsed();
      await deleteProfileRow(queries, id);
    });
  } catch (error) {
    // A device got the profile at this moment.
    throw isForeignKeyViolation(error) ? profileUsed() : error;
  }
}

/** Throws 400 when the profile may not have its packages. */
async function checkPackages(queries: Queries, profile: FullProfile): Promise<void> {
  const { id, tenantId, firmwareId, softwareId } = profile;
  await checkAssignable(queries, tenantId, id, 'FIRMWARE', firmwareId);
  await checkAssignable(queries, tenantId, id, 'SOFTWARE', softwareId);
}

/** Locks the profile until the transaction ends. Throws 404 when the tenant has no such profile. */
async function lockProfile(queries: Queries, tenantId: string, id: string): Promise<FullProfile> {
  const profile = await findFullProfile(queries, tenantId, id, 'lock');
  if (!profile) throw entityNotFound('Device profile', id);
  return profile;
}

function profileUsed(): Fault {
  return badRequest('profile_used', 'The device profile referenced by the devices cannot be deleted!');
}
