/** Tenants as a system administrator manages them. */

import { isLimiting, readLimits } from '../auth/profile-limits.ts';
import { entityNotFound } from '../auth/roles.ts';
import { raiseLimitsVersion } from '../auth/tenant-limits-store.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { checkDocument, checkText, defaultProfileName } from '../device/model/device.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { type ContactInput, checkedContact, checkTitle, type Tenant } from './customer.ts';
import { findOrCreateProfile } from './profile-choice.ts';
import {
  deleteDevices,
  deleteTenantRows,
  findTenant,
  insertTenant,
  lockTenant,
  lockTenantDevices,
  updateTenant,
} from './store.ts';
import { findDefaultTenantProfile, holdTenantProfile } from './tenant-profile-store.ts';

/** A tenant as a user saves it; absent members are cleared. */
export interface TenantInput extends ContactInput {
  title: string;
  region?: string | null | undefined;
  /** Null: a new tenant gets the default profile, and an existing tenant keeps its profile. */
  tenantProfileId?: string | null | undefined;
  additionalInfo?: unknown;
  version?: number | null | undefined;
}

export interface TenantDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
  /** Called after a commit that may have changed limits. */
  onLimits: () => Promise<void>;
}

/** Creates a tenant with its default profile. */
export async function createTenant(
  { postgres, clock, onLimits }: Omit<TenantDeps, 'changes'>,
  input: TenantInput,
): Promise<Tenant> {
  const now = clock.now();
  const checked = checkedTenant(input);
  const { made, isLimited } = await postgres.transaction(async (queries) => {
    const { isLimited, ...profile } = await tenantProfile(queries, input);
    const made = { id: createUuid(now), createdTime: now, version: 1, ...checked, ...profile };
    await insertTenant(queries, made);
    await findOrCreateProfile(queries, made.id, defaultProfileName, { isDefault: true });
    if (isLimited) await raiseLimitsVersion(queries);
    return { made, isLimited };
  });
  if (isLimited) await onLimits();
  return made;
}

export async function saveTenant(
  { postgres, onLimits }: Pick<TenantDeps, 'postgres' | 'onLimits'>,
  id: string,
  input: TenantInput,
): Promise<Tenant> {
  const { tenant, isMoved } = await postgres.transaction(async (queries) => {
    // Locks the profile before the tenant, as the delete of a profile does.
    const chosen = input.tenantProfileId ? await tenantProfile(queries, input) : undefined;
    const locked = await lockTenant(queries, id);
    if (!locked) throw entityNotFound('Tenant', id);
    checkVersion('Tenant', locked.version, input.version);
    const stored = (await findTenant(queries, id))!;
    const { profileId, profileName } = chosen ?? stored;
    const tenant = { ...stored, ...checkedTenant(input), profileId, profileName, version: stored.version + 1 };
    await updateTenant(queries, tenant);
    const isMoved = tenant.profileId !== stored.profileId;
    if (isMoved) await raiseLimitsVersion(queries);
    return { tenant, isMoved };
  });
  if (isMoved) await onLimits();
  return tenant;
}

/** Returns the profile that the input names, or the default one, which does not change until the transaction ends. */
async function tenantProfile(
  queries: Queries,
  { tenantProfileId }: TenantInput,
): Promise<Pick<Tenant, 'profileId' | 'profileName'> & { isLimited: boolean }> {
  const profile = await holdTenantProfile(queries, tenantProfileId ?? (await findDefaultTenantProfile(queries)).id);
  if (!profile) throw badRequest('tenant_profile', 'Tenant is referencing to non-existent tenant profile!');
  const isLimited = isLimiting(readLimits(profile.profileData.configuration));
  return { profileId: profile.id, profileName: profile.name, isLimited };
}

/**
 * Deletes a tenant with everything that it has. Its devices go first, many in each transaction, so that a large tenant
 * holds no lock for long. An interrupted delete is completed by another call.
 */
export async function deleteTenant({ postgres, changes, clock }: TenantDeps, id: string): Promise<void> {
  if (!(await findTenant(postgres, id))) throw entityNotFound('Tenant', id);
  const deleteSome = async (queries: Queries) => {
    const devices = await lockTenantDevices(queries, id, devicesAtOnceMax);
    if (devices.length > 0) return await deleteDevices(queries, devices, clock.now());
    // A transaction that starts after this lock finds no tenant.
    if (!(await lockTenant(queries, id))) throw entityNotFound('Tenant', id);
    await deleteTenantRows(queries, id);
    return [];
  };
  for (;;) {
    // Users of the tenant still write, and lock the rows in their own order.
    const gone = await postgres.transaction(deleteSome, { again: true });
    changes.publish(gone);
    if (gone.length === 0) return;
  }
}

const devicesAtOnceMax = 500;

function checkedTenant(input: TenantInput) {
  checkTitle('Tenant', input.title);
  checkDocument('additionalInfo', input.additionalInfo);
  if (input.region) checkText('region', input.region);
  return {
    title: input.title,
    region: input.region || null,
    ...checkedContact(input),
    additionalInfo: input.additionalInfo ?? null,
  };
}
