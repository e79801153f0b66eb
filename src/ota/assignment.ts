/**
 * Checks which package a device or a profile may get, and records the work of the rollout. Called inside the
 * transaction that saves the device or the profile, so that the work is recorded if and only if the change is.
 */
import { badRequest } from '../base/errors.ts';
import type { Queries } from '../postgres/client.ts';
import { hasData, nounOf, type PackageType } from './package.ts';
import { insertDeviceRollouts, insertProfileRollout } from './rollout-store.ts';
import { holdPackage } from './store.ts';

/** Throws the refusal when the package may not be assigned. Locks the package until the transaction ends. */
export async function checkAssignable(
  queries: Queries,
  tenantId: string,
  profileId: string,
  type: PackageType,
  packageId: string | null | undefined,
): Promise<void> {
  if (!packageId) return;
  const noun = nounOf[type];
  const refuse = (why: string) => badRequest(`assign_${noun}`, `Can't assign ${why}`);
  // A package of another tenant is refused as a missing one is.
  const found = await holdPackage(queries, tenantId, packageId);
  if (!found) throw refuse(`non-existent ${noun}!`);
  if (found.type !== type) throw refuse(`${noun} with type: ${found.type}`);
  if (!hasData(found)) throw refuse(`${noun} with empty data!`);
  if (found.profileId !== null && found.profileId !== profileId) {
    throw refuse(`${noun} with different deviceProfile!`);
  }
}

/**
 * Called after a device was made or saved. Returns true when the device needs a notification: the caller wakes the
 * rollout after the commit.
 */
export async function deviceAssigned(queries: Queries, deviceId: string): Promise<boolean> {
  return await devicesAssigned(queries, [deviceId]);
}

/** Does the same for many devices at once. */
export async function devicesAssigned(queries: Queries, deviceIds: string[]): Promise<boolean> {
  return await insertDeviceRollouts(queries, deviceIds);
}

/** Called after a profile got a different package. The caller wakes the rollout after the commit. */
export async function profileAssigned(queries: Queries, profileId: string): Promise<void> {
  await insertProfileRollout(queries, profileId);
}
