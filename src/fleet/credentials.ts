/** Changing the credentials of a device: the old ones stop working everywhere, the new ones start. */
import { entityNotFound } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type CredentialsType, checkAccessToken, type DeviceCredentials } from '../device/device.ts';
import {
  checkVersion,
  findCredentials,
  insertCredentialChange,
  lockDevice,
  updateCredentials,
} from '../device/store.ts';
import type { FleetParts } from './devices.ts';

export interface CredentialsInput {
  id: string;
  deviceId: string;
  type: CredentialsType;
  credentialsId: string;
  version?: number | null | undefined;
}

export async function saveCredentials(
  parts: FleetParts,
  tenantId: string,
  input: CredentialsInput,
): Promise<DeviceCredentials> {
  const { postgres, changes, clock } = parts;
  const { deviceId, credentialsId, type } = input;
  if (type !== 'ACCESS_TOKEN') {
    throw badRequest('credentials_type', `Credentials of type ${type} are not supported.`);
  }
  checkAccessToken(credentialsId, limits.tokenCharsMax);
  const saved = await postgres.transaction(async (queries) => {
    const device = await lockDevice(queries, tenantId, deviceId);
    if (!device) throw entityNotFound('Device', deviceId);
    const stored = await findCredentials(queries, deviceId);
    if (!stored || stored.id !== input.id) {
      throw badRequest('credentials_unknown', 'Unable to update non-existent device credentials!');
    }
    checkVersion('Device credentials', stored.version, input.version);
    const credentials = await updateCredentials(queries, deviceId, { type, credentialsId, value: null });
    const change = { deviceId, deviceNumber: device.number, deleted: false };
    const changed = [...new Set([stored.credentialsId, credentialsId])].map((id) => ({ ...change, credentialsId: id }));
    for (const each of changed) await insertCredentialChange(queries, each, clock.now());
    return { credentials, changed };
  });
  changes.publish(saved.changed);
  return saved.credentials;
}
