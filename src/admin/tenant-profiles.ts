/**
 * Tenant profiles as a system administrator manages them: what the tenants that have a profile may use. A change takes
 * effect on every worker and host (`auth/tenant-limits.ts`) after its commit.
 */
import { configurationFault, readLimits } from '../auth/profile-limits.ts';
import { entityNotFound } from '../auth/roles.ts';
import { raiseLimitsVersion } from '../auth/tenant-limits-store.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import { checkDocument, checkText } from '../device/model/device.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';
import {
  deleteTenantProfileRow,
  holdDefaultTenantProfile,
  insertTenantProfile,
  lockTenantProfile,
  setDefaultTenantProfile,
  type TenantProfile,
  type TenantProfileData,
  updateTenantProfile,
} from './tenant-profile-store.ts';

export interface TenantProfileDeps {
  postgres: Postgres;
  clock: Clock;
  /** Called after a commit that may have changed limits. */
  onLimits: () => Promise<void>;
}

/** A profile as a user saves it; absent members are cleared. */
export interface TenantProfileInput {
  name: string;
  description?: string | null | undefined;
  isDefault: boolean;
  isIsolated: boolean;
  profileData: unknown;
  version?: number | null | undefined;
}

export async function createTenantProfile(deps: TenantProfileDeps, input: TenantProfileInput): Promise<TenantProfile> {
  const now = deps.clock.now();
  const profile = { id: createUuid(now), createdTime: now, version: 1, isDefault: false, ...checkedProfile(input) };
  if (input.isDefault) throw badRequest('tenant_profile_default', 'Another default tenant profile is present!');
  await changing(deps, (queries) => insertTenantProfile(queries, profile, daysOf(profile)));
  return profile;
}

export async function saveTenantProfile(
  deps: TenantProfileDeps,
  id: string,
  input: TenantProfileInput,
): Promise<TenantProfile> {
  const checked = checkedProfile(input);
  return await changing(deps, async (queries) => {
    const stored = await lockTenantProfile(queries, id);
    if (!stored) throw entityNotFound('Tenant profile', id);
    checkVersion('Tenant profile', stored.version, input.version);
    if (input.isDefault && !stored.isDefault) {
      throw badRequest('tenant_profile_default', 'Another default tenant profile is present!');
    }
    const profile = { ...stored, ...checked, version: stored.version + 1 };
    await updateTenantProfile(queries, profile, daysOf(profile));
    return profile;
  });
}

/** New tenants get this profile from now on. Existing tenants keep their profile. */
export async function makeDefaultTenantProfile(deps: TenantProfileDeps, id: string): Promise<void> {
  await changing(deps, async (queries) => {
    await holdDefaultTenantProfile(queries);
    if (!(await lockTenantProfile(queries, id))) throw entityNotFound('Tenant profile', id);
    await setDefaultTenantProfile(queries, id);
  });
}

export async function deleteTenantProfile(deps: TenantProfileDeps, id: string): Promise<void> {
  await changing(deps, async (queries) => {
    const stored = await lockTenantProfile(queries, id);
    if (!stored) throw entityNotFound('Tenant profile', id);
    if (stored.isDefault) {
      throw badRequest('tenant_profile_default', 'Deletion of Default Tenant Profile is prohibited!');
    }
    try {
      await deleteTenantProfileRow(queries, id);
    } catch (error) {
      if (!isForeignKeyViolation(error)) throw error;
      const message = 'The tenant profile referenced by the tenants cannot be deleted!';
      throw badRequest('tenant_profile_used', message);
    }
  });
}

/** Runs a change in a transaction that raises the version last, because all changes share the row of the version. */
async function changing<T>(
  { postgres, onLimits }: TenantProfileDeps,
  change: (queries: Queries) => Promise<T>,
): Promise<T> {
  const changed = await postgres.transaction(async (queries) => {
    const result = await change(queries);
    await raiseLimitsVersion(queries);
    return result;
  });
  await onLimits();
  return changed;
}

function daysOf({ profileData }: TenantProfile): number {
  return readLimits(profileData.configuration).telemetryTtlDays;
}

function checkedProfile({ name, description, isIsolated, profileData }: TenantProfileInput) {
  if (name.trim() === '') throw badRequest('tenant_profile_name', 'Tenant profile name should be specified!');
  checkText('name', name);
  if (description) checkText('description', description);
  if (isIsolated) {
    throw badRequest(
      'tenant_profile_data',
      'isolatedTbRuleEngine cannot be true: there are no rule engines to isolate.',
    );
  }
  return { name, description: description || null, profileData: checkedData(profileData) };
}

function checkedData(given: unknown): TenantProfileData {
  checkDocument('profileData', given);
  const { configuration, queueConfiguration } = objectOf('profileData', given);
  const members = objectOf('profileData.configuration', configuration);
  const type = members['type'] ?? 'DEFAULT';
  if (type !== 'DEFAULT') throw badRequest('tenant_profile_data', "The only type of a configuration is 'DEFAULT'.");
  const fault = configurationFault(members);
  if (fault !== undefined) throw badRequest('tenant_profile_data', `Validation error: ${fault}.`);
  return { configuration: { ...members, type }, queueConfiguration: queueConfiguration ?? null };
}

function objectOf(name: string, value: unknown): Readonly<Record<string, unknown>> {
  if (value === null || value === undefined) return {};
  if (typeof value !== 'object' || Array.isArray(value)) {
    throw badRequest('tenant_profile_data', `${name} must be an object.`);
  }
  return { ...value };
}
