/** Changing the credentials of a device: the old ones stop working everywhere, the new ones start. */
import { entityNotFound } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import type { NewCredentials } from '../device/credentials.ts';
import type { DeviceCredentials } from '../device/device.ts';
import {
  checkVersion,
  findCredentials,
  insertCredentialChanges,
  lockDevice,
  updateCredentials,
} from '../device/store.ts';
import type { FleetParts } from './parts.ts';

export interface CredentialsInput {
  id: string;
  deviceId: string;
  credentials: NewCredentials;
  version?: number | null | undefined;
}

export async function saveCredentials(
  parts: FleetParts,
  tenantId: string,
  input: CredentialsInput,
): Promise<DeviceCredentials> {
  const { postgres, changes, clock } = parts;
  const { deviceId } = input;
  const saved = await postgres.transaction(async (queries) => {
    const device = await lockDevice(queries, tenantId, deviceId);
    if (!device) throw entityNotFound('Device', deviceId);
    const stored = await findCredentials(queries, deviceId);
    if (!stored || stored.id !== input.id) {
      throw badRequest('credentials_unknown', 'Unable to update non-existent device credentials!');
    }
    checkVersion('Device credentials', stored.version, input.version);
    const credentials = await updateCredentials(queries, deviceId, input.credentials);
    const change = { deviceId, deviceNumber: device.number, deleted: false };
    const changes = [...new Set([stored.credentialsId, credentials.credentialsId])].map((id) => ({
      ...change,
      credentialsId: id,
    }));
    return { credentials, changed: await insertCredentialChanges(queries, changes, clock.now()) };
  });
  changes.publish(saved.changed);
  return saved.credentials;
}
