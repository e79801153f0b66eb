/**
 * Device profiles: selects the profile of a device (by id, by `type`, which is made when missing, or the default one),
 * and manages profiles for users.
 */
import { entityNotFound } from '../auth/roles.ts';
import { type Clock, systemClock } from '../base/clock.ts';
import { assert, badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createUuid, isUuid } from '../base/uuid.ts';
import { certificateCredentials } from '../device/model/credentials.ts';
import {
  checkDocument,
  checkText,
  type DeviceProfile,
  defaultProfileData,
  defaultProfileName,
  type FullProfile,
  nameCharsMax,
  type ProfileData,
  type ProvisionType,
  provisionTypes,
  type TransportType,
} from '../device/model/device.ts';
import { completeTransport } from '../device/model/profile-topics.ts';
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
import {
  checkVersion,
  findDefaultProfile,
  findProfile,
  findProfileByName,
  insertProfile,
} from '../device/sql/store.ts';
import { checkAssignable, profileAssigned } from '../ota/assignment.ts';
import { isForeignKeyViolation, type Postgres, type Queries } from '../postgres/client.ts';
import { findProfileIds, insertProfiles } from './device-batch-store.ts';
import { changeIssuer, checkIssuer, type IssuerProof } from './issuers.ts';
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

/** A profile as a user saves it; absent members are cleared. */
export interface ProfileInput {
  name: string;
  description?: string | null | undefined;
  image?: string | null | undefined;
  isDefault?: boolean | null | undefined;
  transportType: TransportType;
  provisionType: ProvisionType;
  provisionKey?: string | null | undefined;
  data?: unknown;
  defaultRuleChainId?: string | null | undefined;
  defaultDashboardId?: string | null | undefined;
  defaultQueueName?: string | null | undefined;
  defaultEdgeRuleChainId?: string | null | undefined;
  firmwareId?: string | null | undefined;
  softwareId?: string | null | undefined;
  externalId?: string | null | undefined;
  version?: number | null | undefined;
  /** Proof that the tenant holds the issuer's key, when it comes with the profile instead of in its own call. */
  issuerProof?: IssuerProof | undefined;
}

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
  if (type.trim() !== '') return await findOrCreateProfile(queries, tenantId, type, false);
  const profile = await findDefaultProfile(queries, tenantId);
  return profile ?? (await findOrCreateProfile(queries, tenantId, defaultProfileName, true));
}

/** Names are case-sensitive: `DEFAULT` and `default` differ. */
export async function findOrCreateProfile(
  queries: Queries,
  tenantId: string,
  name: string,
  isDefault: boolean,
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
  { postgres, clock }: Pick<ProfileDeps, 'postgres' | 'clock'>,
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
  const blank = new Set(types.filter((type) => type.trim() === ''));
  if (blank.size === 0) return ids;
  const { id } = await resolveProfile(postgres, tenantId, null, '');
  for (const type of blank) ids.set(type, id);
  return ids;
}

export async function createProfile(
  deps: Omit<ProfileDeps, 'onAssigned'>,
  tenantId: string,
  input: ProfileInput,
): Promise<FullProfile> {
  return await choosingKey(deps, tenantId, input, (checkAgain) => createChecked(deps, tenantId, input, checkAgain));
}

/** The key of a certificate profile is the digest of its certificate, which several tenants may have. */
async function choosingKey<T>(
  deps: Pick<ProfileDeps, 'postgres' | 'takenNames'>,
  tenantId: string,
  input: ProfileInput,
  work: (checkAgain?: CheckAgain) => Promise<T>,
): Promise<T> {
  // Checks the values that will be stored: the document of a profile has a type as well.
  const { provisionKey: key, provisionType } = checkedProfile(input);
  if (!key || provisionType === 'X509_CERTIFICATE_CHAIN') return await work();
  return await choosing(deps, tenantId, () => isOthersProvisionKey(deps.postgres, tenantId, key), work);
}

async function createChecked(
  deps: Pick<ProfileDeps, 'postgres' | 'clock'>,
  tenantId: string,
  input: ProfileInput,
  checkAgain?: CheckAgain,
): Promise<FullProfile> {
  const { postgres, clock } = deps;
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
  const save = (checkAgain?: CheckAgain) => saveChecked(deps.postgres, tenantId, id, input, checkAgain);
  const isChosen = provisionKey !== input.provisionKey;
  const { profile, assigned } = isChosen ? await choosingKey(deps, tenantId, input, save) : await save();
  if (assigned) deps.onAssigned?.();
  return profile;
}

async function saveChecked(
  postgres: Postgres,
  tenantId: string,
  id: string,
  input: ProfileInput,
  checkAgain?: CheckAgain,
): Promise<{ profile: FullProfile; assigned: boolean }> {
  return await postgres.transaction(async (queries) => {
    const stored = await findFullProfile(queries, tenantId, id, 'lock');
    if (!stored) throw entityNotFound('Device profile', id);
    checkVersion('Device profile', stored.version, input.version);
    if (input.isDefault && !stored.isDefault) {
      throw badRequest('profile_default', 'Another default device profile is present in scope of current tenant!');
    }
    if (input.transportType !== stored.transportType && (await isProfileUsed(queries, id))) {
      const message = "Can't change device profile transport type because devices referenced it!";
      throw badRequest('profile_transport', message);
    }
    const { createdTime, isDefault, version } = stored;
    const profile = { ...checkedProfile(input), id, tenantId, createdTime, isDefault, version: version + 1 };
    await checkPackages(queries, profile);
    await changeIssuer(queries, stored, profile, input.issuerProof);
    await updateFullProfile(queries, profile);
    if (input.issuerProof) await markProven(queries, id);
    const assigned = profile.firmwareId !== stored.firmwareId || profile.softwareId !== stored.softwareId;
    if (assigned) await profileAssigned(queries, id);
    await checkAgain?.(queries);
    return { profile, assigned };
  });
}

export async function setDefaultProfile(postgres: Postgres, tenantId: string, id: string): Promise<FullProfile> {
  return await postgres.transaction(async (queries) => {
    // Two calls take turns, because a tenant has exactly one default profile.
    await lockTenant(queries, tenantId);
    if (!(await findFullProfile(queries, tenantId, id, 'lock'))) throw entityNotFound('Device profile', id);
    await moveDefaultProfile(queries, tenantId, id);
    const profile = await findFullProfile(queries, tenantId, id);
    assert(profile, 'a locked profile is not deleted');
    return profile;
  });
}

export async function deleteProfile(postgres: Postgres, tenantId: string, id: string): Promise<void> {
  const used = badRequest('profile_used', 'The device profile referenced by the devices cannot be deleted!');
  try {
    await postgres.transaction(async (queries) => {
      const stored = await findFullProfile(queries, tenantId, id, 'lock');
      if (!stored) throw entityNotFound('Device profile', id);
      if (stored.isDefault) throw badRequest('profile_default', 'Deletion of Default Device Profile is prohibited!');
      if (await isProfileUsed(queries, id)) throw used;
      await deleteProfileRow(queries, id);
    });
  } catch (error) {
    throw isForeignKeyViolation(error) ? used : error;
  }
}

async function checkPackages(queries: Queries, profile: FullProfile): Promise<void> {
  const { id, tenantId, firmwareId, softwareId } = profile;
  await checkAssignable(queries, tenantId, id, 'FIRMWARE', firmwareId);
  await checkAssignable(queries, tenantId, id, 'SOFTWARE', softwareId);
}

type CheckedProfile = Omit<FullProfile, 'id' | 'tenantId' | 'createdTime' | 'isDefault' | 'version'>;

function checkedProfile(input: ProfileInput): CheckedProfile {
  if (input.name.trim() === '') throw badRequest('profile_name', 'Device profile name should be specified!');
  checkText('name', input.name);
  if (input.defaultQueueName) checkText('defaultQueueName', input.defaultQueueName);
  for (const text of [input.description, input.image]) {
    // PostgreSQL stores no NUL.
    if (text?.includes('\0')) throw badRequest('text_malformed', 'Validation error: description is malformed');
  }
  checkDocument('description', input.description);
  checkDocument('image', input.image, limits.imageBytesMax);
  checkDocument('profileData', input.data);
  if (input.externalId && !isUuid(input.externalId)) throw badRequest('external_id', 'Invalid entity id');
  const data = checkedData(input);
  return {
    name: input.name,
    description: input.description ?? null,
    image: input.image ?? null,
    transportType: input.transportType,
    provisionType: data.provisionConfiguration.type,
    provisionKey: checkedKey(data, input.provisionKey || null),
    data,
    defaultRuleChainId: input.defaultRuleChainId ?? null,
    defaultDashboardId: input.defaultDashboardId ?? null,
    defaultQueueName: input.defaultQueueName ?? null,
    defaultEdgeRuleChainId: input.defaultEdgeRuleChainId ?? null,
    firmwareId: input.firmwareId ?? null,
    softwareId: input.softwareId ?? null,
    externalId: input.externalId ?? null,
  };
}

/** `provisionConfiguration`, if present, decides how devices provision themselves. */
function checkedData(input: ProfileInput): ProfileData {
  const given = input.data ?? {};
  if (!isObject(given)) throw badRequest('profile_data', 'Validation error: profileData must be object');
  const provision = given['provisionConfiguration'] ?? { type: input.provisionType, provisionDeviceSecret: null };
  if (!isObject(provision)) {
    throw badRequest('profile_data', 'Validation error: provisionConfiguration must be object');
  }
  const type = provisionTypes.find((known) => known === (provision['type'] ?? input.provisionType));
  const secret = provision['provisionDeviceSecret'] ?? null;
  if (!type || (secret !== null && typeof secret !== 'string')) {
    const types = provisionTypes.join(', ');
    throw badRequest('profile_data', `Validation error: provisionConfiguration needs a type of ${types} and a secret`);
  }
  const days = given['telemetryTtlDays'] ?? 0;
  if (!Number.isInteger(days) || (days as number) < 0 || (days as number) > limits.telemetryTtlDaysMax) {
    const range = `a whole number of days from 0 to ${limits.telemetryTtlDaysMax}; 0 keeps what the installation keeps`;
    throw badRequest('profile_data', `Validation error: telemetryTtlDays must be ${range}`);
  }
  checkPace(given['otaRollout'] ?? {});
  return {
    configuration: { type: 'DEFAULT' },
    alarms: null,
    ...given,
    transportConfiguration: completeTransport(given['transportConfiguration'] ?? { type: input.transportType }),
    provisionConfiguration: { ...provision, type, provisionDeviceSecret: secret },
  };
}

function checkPace(pace: unknown): void {
  const isCount = (value: unknown, max: number) =>
    Number.isInteger(value) && (value as number) >= 0 && (value as number) <= max;
  if (isObject(pace)) {
    const { perMinute, percent, paused } = pace;
    const isRate = isCount(perMinute ?? 0, limits.otaPerMinuteMax);
    if (isRate && isCount(percent ?? 100, 100) && typeof (paused ?? false) === 'boolean') return;
  }
  const range = `perMinute from 0 to ${limits.otaPerMinuteMax} (0 = no limit), percent from 0 to 100, and paused`;
  throw badRequest('profile_data', `Validation error: otaRollout must be an object with ${range}`);
}

/**
 * The key of a certificate profile is the digest of its certificate: a device is matched by the certificate that it
 * shows.
 */
function checkedKey(data: ProfileData, key: string | null): string | null {
  const { type, provisionDeviceSecret } = data.provisionConfiguration;
  const secret = provisionDeviceSecret ?? '';
  if (key !== null) checkText('provisionDeviceKey', key);
  if (secret.includes('\0')) throw badRequest('provision_secret', 'Provision device secret is malformed!');
  if (type === 'DISABLED') return key;
  if (secret.trim() === '') throw badRequest('provision_secret', 'Provision device secret should be specified!');
  if (type === 'X509_CERTIFICATE_CHAIN') {
    checkPattern(data.provisionConfiguration['certificateRegExPattern']);
    const { credentialsId } = certificateCredentials(secret);
    checkIssuer(secret);
    return credentialsId;
  }
  if (key === null || key.trim() === '') {
    throw badRequest('provision_key', 'Provision device key should be specified!');
  }
  return key;
}

/** Checks the pattern that finds the name of a device in its certificate. */
function checkPattern(pattern: unknown): void {
  if (pattern === undefined || pattern === null) return;
  const isText = typeof pattern === 'string' && pattern.length <= nameCharsMax && !pattern.includes('\0');
  if (isText && isRegExp(pattern)) return;
  throw badRequest('provision_pattern', 'certificateRegExPattern must be a regular expression of JavaScript!');
}

function isRegExp(pattern: string): boolean {
  try {
    new RegExp(pattern);
    return true;
  } catch {
    return false;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
