/** Changes the credentials of a device: the old ones stop working on every worker and host, the new ones start. */

import { entityNotFound, type Principal, requireCustomerOf, requireTenant } from '../auth/roles.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { assert, badRequest } from '../base/errors.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { type NewCredentials, tokenCredentials } from '../device/model/credentials.ts';
import { createAccessToken, type Device, type DeviceCredentials } from '../device/model/device.ts';
import { insertCredentialChanges, type LoggedChange } from '../device/sql/credential-log-store.ts';
import {
  areOthersCredentials,
  findCredentials,
  findOwnedCredentials,
  updateCredentials,
} from '../device/sql/credentials-store.ts';
import { lockDevice } from '../device/sql/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { type CheckAgain, choosing, type TakenNames } from './taken-names.ts';

interface CredentialsInput {
  id: string;
  deviceId: string;
  credentials: NewCredentials;
  version?: number | null | undefined;
}

export interface CredentialsDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
  /** Absent where no tenant chooses credentials. */
  takenNames?: TakenNames;
}

/** Returns the credentials of a device that the caller may see: 404 outside the tenant, 403 for another customer's. */
export async function visibleCredentials(
  queries: Queries,
  principal: Principal,
  deviceId: string,
): Promise<DeviceCredentials> {
  const found = await findOwnedCredentials(queries, requireTenant(principal).tenantId, deviceId);
  if (!found) throw entityNotFound('Device', deviceId);
  requireCustomerOf(principal, found.customerId);
  return found.credentials;
}

export async function saveCredentials(
  deps: CredentialsDeps,
  tenantId: string,
  input: CredentialsInput,
): Promise<DeviceCredentials> {
  const { postgres, changes, clock } = deps;
  const { deviceId } = input;
  const { credentialsId } = input.credentials;
  const isOthers = () => areOthersCredentials(postgres, tenantId, credentialsId);
  const save = (checkAgain?: CheckAgain) =>
    postgres.transaction(async (queries) => {
      const device = await lockDevice(queries, tenantId, deviceId);
      if (!device) throw entityNotFound('Device', deviceId);
      const stored = await findCredentials(queries, deviceId);
      if (!stored || stored.id !== input.id) {
        throw badRequest('credentials_unknown', 'Unable to update non-existent device credentials!');
      }
      checkVersion('Device credentials', stored.version, input.version);
      const replaced = await replaceCredentials(queries, { id: deviceId, ...device }, input.credentials, clock.now());
      await checkAgain?.(queries);
      return replaced;
    });
  const isChosen = (await findCredentials(postgres, deviceId))?.credentialsId !== credentialsId;
  const saved = isChosen ? await choosing(deps, tenantId, isOthers, save) : await save();
  changes.publish(saved.changed);
  return saved.credentials;
}

/** Runs inside a transaction that has locked the device. The caller publishes `changed` after the commit. */
export async function replaceCredentials(
  queries: Queries,
  { id: deviceId, number: deviceNumber }: Pick<Device, 'id' | 'number'>,
  next: NewCredentials,
  now: number,
): Promise<{ credentials: DeviceCredentials; changed: LoggedChange[] }> {
  const stored = await findCredentials(queries, deviceId);
  assert(stored, 'a locked device has credentials');
  const credentials = await updateCredentials(queries, deviceId, next);
  const changes = [...new Set([stored.credentialsId, credentials.credentialsId])].map((credentialsId) => {
    return { deviceId, deviceNumber, deleted: false, credentialsId };
  });
  return { credentials, changed: await insertCredentialChanges(queries, changes, now) };
}

/** Gives a locked device a new random token. The caller publishes the result after the commit. */
export async function rotateToken(
  queries: Queries,
  device: Pick<Device, 'id' | 'number'>,
  now: number,
): Promise<LoggedChange[]> {
  const stored = await findCredentials(queries, device.id);
  if (stored?.type !== 'ACCESS_TOKEN') {
    const message = 'rotateToken is for devices with an access token: change the credentials of this device instead.';
    throw badRequest('rotate_token', message);
  }
  const next = tokenCredentials(createAccessToken());
  return (await replaceCredentials(queries, device, next, now)).changed;
}
