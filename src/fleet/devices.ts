/**
 * Creating, changing and deleting devices: what touches device, credentials, profile, customer and telemetry at once.
 * Each is one transaction; the other processes are told after its commit.
 */
import { randomInt } from 'node:crypto';
import { entityNotFound } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import {
  checkAccessToken,
  checkDeviceName,
  checkText,
  createAccessToken,
  type Device,
  type DeviceProfile,
  defaultDeviceData,
} from '../device/device.ts';
import {
  type CredentialChange,
  checkVersion,
  deleteDevice as deleteRows,
  findCredentials,
  hasCustomer,
  insertCredentialChange,
  insertCredentials,
  insertDevice,
  insertDeviceTombstone,
  lockDevice,
  updateDevice,
} from '../device/store.ts';
import { createUuid, isUuid } from '../device/uuid.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { resolveProfile } from './profiles.ts';

export interface FleetParts {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
}

/** A device as a user saves it: what is absent is cleared. */
export interface DeviceInput {
  name: string;
  type?: string | null | undefined;
  label?: string | null | undefined;
  profileId?: string | null | undefined;
  customerId?: string | null | undefined;
  deviceData?: unknown;
  firmwareId?: string | null | undefined;
  softwareId?: string | null | undefined;
  externalId?: string | null | undefined;
  additionalInfo?: unknown;
  version?: number | null | undefined;
}

export interface NameConflict {
  policy: 'FAIL' | 'UNIQUIFY';
  separator: string;
  strategy: 'RANDOM' | 'INCREMENTAL';
}

const uniquifyTriesMax = 100;
const suffixAlphabet = 'abcdefghijklmnopqrstuvwxyz0123456789';

/** `accessToken` '' = a random one. */
export async function createDevice(
  parts: FleetParts,
  tenantId: string,
  input: DeviceInput,
  accessToken: string,
  conflict: NameConflict = { policy: 'FAIL', separator: '_', strategy: 'RANDOM' },
): Promise<Device> {
  const { postgres, changes, clock } = parts;
  for (let attempt = 0; ; attempt += 1) {
    const name = attempt === 0 ? input.name : input.name + conflict.separator + suffix(conflict.strategy, attempt);
    try {
      const { device, change } = await postgres.transaction((queries) =>
        insertNewDevice(queries, tenantId, { ...input, name }, accessToken || createAccessToken(), clock.now()),
      );
      changes.publish([change]);
      return device;
    } catch (error) {
      const taken = error instanceof Fault && error.reason === 'device_name_taken';
      if (!taken || conflict.policy === 'FAIL' || attempt === uniquifyTriesMax) throw error;
    }
  }
}

function suffix(strategy: NameConflict['strategy'], attempt: number): string {
  if (strategy === 'INCREMENTAL') return String(attempt);
  let text = '';
  for (let i = 0; i < 6; i += 1) text += suffixAlphabet[randomInt(suffixAlphabet.length)];
  return text;
}

/** The part of a creation that is inside the transaction. The caller publishes `change` after the commit. */
export async function insertNewDevice(
  queries: Queries,
  tenantId: string,
  input: DeviceInput,
  accessToken: string,
  now: number,
): Promise<{ device: Device; change: CredentialChange }> {
  checkAccessToken(accessToken, limits.tokenCharsMax);
  const { profile, row } = await checkedRow(queries, tenantId, input, createUuid(now), now);
  const number = await insertDevice(queries, row);
  const change = { credentialsId: accessToken, deviceId: row.id, deviceNumber: number, deleted: false };
  await insertCredentials(queries, {
    id: createUuid(now),
    createdTime: now,
    deviceId: row.id,
    type: 'ACCESS_TOKEN',
    credentialsId: accessToken,
    value: null,
  });
  await insertCredentialChange(queries, change, now);
  return { device: { ...row, number, type: profile.name, version: 1 }, change };
}

/** Replaces the device `id`. */
export async function saveDevice(parts: FleetParts, tenantId: string, id: string, input: DeviceInput): Promise<Device> {
  const { postgres, changes, clock } = parts;
  const { device, change } = await postgres.transaction(async (queries) => {
    const stored = await lockDevice(queries, tenantId, id);
    if (!stored) throw entityNotFound('Device', id);
    checkVersion('Device', stored.version, input.version);
    const { profile, row } = await checkedRow(queries, tenantId, input, id, stored.createdTime);
    await updateDevice(queries, row);
    const change = await recordChange(queries, id, stored.number, false, clock.now());
    const { number, version } = stored;
    return { device: { ...row, number, type: profile.name, version: version + 1 }, change };
  });
  changes.publish(change);
  return device;
}

/** Device, credentials and, through a tombstone, its telemetry. */
export async function deleteDevice(parts: FleetParts, tenantId: string, id: string): Promise<void> {
  const { postgres, changes, clock } = parts;
  const change = await postgres.transaction(async (queries) => {
    const stored = await lockDevice(queries, tenantId, id);
    if (!stored) throw entityNotFound('Device', id);
    const change = await recordChange(queries, id, stored.number, true, clock.now());
    await insertDeviceTombstone(queries, stored.number, clock.now());
    await deleteRows(queries, id);
    return change;
  });
  changes.publish(change);
}

async function recordChange(
  queries: Queries,
  deviceId: string,
  deviceNumber: number,
  deleted: boolean,
  now: number,
): Promise<CredentialChange[]> {
  const credentials = await findCredentials(queries, deviceId);
  if (!credentials) return [];
  const change = { credentialsId: credentials.credentialsId, deviceId, deviceNumber, deleted };
  await insertCredentialChange(queries, change, now);
  return [change];
}

type CheckedRow = Omit<Device, 'number' | 'type' | 'version'>;

async function checkedRow(
  queries: Queries,
  tenantId: string,
  input: DeviceInput,
  id: string,
  createdTime: number,
): Promise<{ profile: DeviceProfile; row: CheckedRow }> {
  checkDeviceName(input.name);
  if (input.label) checkText('label', input.label);
  // There are no packages yet.
  if (input.firmwareId) throw badRequest('firmware', "Can't assign non-existent firmware!");
  if (input.softwareId) throw badRequest('software', "Can't assign non-existent software!");
  if (input.externalId && !isUuid(input.externalId)) throw badRequest('external_id', 'Invalid entity id');
  const profile = await resolveProfile(queries, tenantId, input.profileId ?? null, input.type ?? '');
  if (input.customerId && !(await hasCustomer(queries, tenantId, input.customerId))) {
    throw badRequest('customer', "Can't assign device to non-existent customer!");
  }
  const row = {
    id,
    createdTime,
    tenantId,
    customerId: input.customerId ?? null,
    profileId: profile.id,
    name: input.name,
    label: input.label ?? null,
    deviceData: input.deviceData ?? defaultDeviceData,
    firmwareId: null,
    softwareId: null,
    externalId: input.externalId ?? null,
    additionalInfo: input.additionalInfo ?? null,
  };
  return { profile, row };
}
