/** Tenants as a system administrator manages them. */

import { entityNotFound } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { checkDocument, checkText, defaultProfileName } from '../device/model/device.ts';
import { checkVersion } from '../device/sql/store.ts';
import type { Postgres } from '../postgres/client.ts';
import { type ContactInput, checkedContact, checkTitle, type Tenant } from './customer.ts';
import { findOrCreateProfile } from './profiles.ts';
import {
  deleteDevices,
  deleteTenantRows,
  findTenant,
  insertTenant,
  lockTenant,
  lockTenantDevices,
  updateTenant,
} from './store.ts';

/** A tenant as a user saves it; absent members are cleared. */
export interface TenantInput extends ContactInput {
  title: string;
  region?: string | null | undefined;
  /** Null: the built-in profile. */
  tenantProfileId?: string | null | undefined;
  additionalInfo?: unknown;
  version?: number | null | undefined;
}

/** The one profile of tenants, built in. Its id is the same in every installation and never stored. */
export const defaultTenantProfileId = '13814000-1dd2-11b2-8080-808080808081';

export const defaultTenantProfileName = 'Default';

export interface TenantDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
}

/** Creates a tenant with its default profile. */
export async function createTenant(
  { postgres, clock }: Pick<TenantDeps, 'postgres' | 'clock'>,
  input: TenantInput,
): Promise<Tenant> {
  const now = clock.now();
  const tenant = { id: createUuid(now), createdTime: now, version: 1, ...checkedTenant(input) };
  await postgres.transaction(async (queries) => {
    await insertTenant(queries, tenant);
    await findOrCreateProfile(queries, tenant.id, defaultProfileName, true);
  });
  return tenant;
}

export async function saveTenant(postgres: Postgres, id: string, input: TenantInput): Promise<Tenant> {
  return await postgres.transaction(async (queries) => {
    const locked = await lockTenant(queries, id);
    if (!locked) throw entityNotFound('Tenant', id);
    checkVersion('Tenant', locked.version, input.version);
    const stored = (await findTenant(queries, id))!;
    const tenant = { ...stored, ...checkedTenant(input), version: stored.version + 1 };
    await updateTenant(queries, tenant);
    return tenant;
  });
}

/**
 * Deletes a tenant with everything that it has. Its devices go first, many in each transaction, so that a large tenant
 * holds no lock for long. An interrupted delete is completed by another call.
 */
export async function deleteTenant({ postgres, changes, clock }: TenantDeps, id: string): Promise<void> {
  if (!(await findTenant(postgres, id))) throw entityNotFound('Tenant', id);
  for (;;) {
    const gone = await postgres.transaction(async (queries) => {
      const devices = await lockTenantDevices(queries, id, devicesAtOnceMax);
      if (devices.length > 0) {
        return await deleteDevices(queries, devices, clock.now());
      }
      // A transaction that starts after this lock finds no tenant.
      if (!(await lockTenant(queries, id))) throw entityNotFound('Tenant', id);
      await deleteTenantRows(queries, id);
      return [];
    });
    changes.publish(gone);
    if (gone.length === 0) return;
  }
}

const devicesAtOnceMax = 500;

function checkedTenant(input: TenantInput) {
  checkTitle('Tenant', input.title);
  checkDocument('additionalInfo', input.additionalInfo);
  if (input.tenantProfileId && input.tenantProfileId !== defaultTenantProfileId) {
    throw badRequest('tenant_profile', 'Tenant is referencing to non-existent tenant profile!');
  }
  if (input.region) checkText('region', input.region);
  return {
    title: input.title,
    region: input.region || null,
    ...checkedContact(input),
    additionalInfo: input.additionalInfo ?? null,
  };
}
