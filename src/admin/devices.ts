/**
 * Creates, changes and deletes devices, with their credentials, profile, customer and telemetry. Each change is one
 * transaction; other processes are notified after the commit.
 */

import { entityNotFound, requireCustomerOf, type TenantPrincipal } from '../auth/roles.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { isObject } from '../base/schema.ts';
import { createUuid, isUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { type NewCredentials, tokenCredentials } from '../device/model/credentials.ts';
import {
  checkDeviceName,
  checkDocument,
  checkText,
  createAccessToken,
  type Device,
  type DeviceProfile,
  defaultDeviceData,
} from '../device/model/device.ts';
import { insertCredentialChanges, type LoggedChange } from '../device/sql/credential-log-store.ts';
import { areOthersCredentials, findCredentials, insertCredentials } from '../device/sql/credentials-store.ts';
import {
  deleteDeviceRow,
  holdCustomer,
  insertDevice,
  insertDeviceTombstone,
  type LockedDevice,
  lockDevice,
  nextNameNumber,
  updateDevice,
} from '../device/sql/store.ts';
import { checkAssignable, deviceAssigned } from '../ota/assignment.ts';
import { deleteDeviceRollouts } from '../ota/rollout-store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { forgetClaims } from './claim-store.ts';
import { type CredentialsDeps, replaceCredentials } from './credentials.ts';
import { admitDevice, type LimitsOf } from './entity-limits.ts';
import type { GatewayNotices } from './gateway-notices.ts';
import { type NameConflict, refuseTakenName, underFreeName } from './name-conflict.ts';
import { resolveProfile } from './profile-choice.ts';
import { type CheckAgain, choosing, type TakenNames } from './taken-names.ts';

export interface NewDeviceDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
  /** What a tenant may have. */
  limitsOf: LimitsOf;
  /** Called after a commit that may have changed the packages assigned to devices. */
  onAssigned?: () => void;
  /** Absent where no tenant chooses credentials. */
  takenNames?: TakenNames;
}

export interface ChangedDeviceDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
  /** Called after a commit that may have changed the packages assigned to devices. */
  onAssigned?: () => void;
  /** Absent in processes without gateways. */
  gatewayNotices?: GatewayNotices;
}

/** Repeats a transaction that lost a race: attributes and activity of a device are written while a user changes it. */
export const lostRaceAgain = { again: true };

/** A device as a user saves it; absent members are cleared. */
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

/** Creates a device; without `credentials` it gets a random token. */
export async function createDevice(
  deps: NewDeviceDeps,
  tenantId: string,
  input: DeviceInput,
  credentials?: NewCredentials,
  conflict: NameConflict = refuseTakenName,
): Promise<Device> {
  const { postgres, changes, clock, limitsOf, onAssigned } = deps;
  const names = {
    takenReason: 'device_name_taken',
    next: (prefix: string) => nextNameNumber(postgres, tenantId, prefix),
  };
  const create = (checkAgain?: CheckAgain) =>
    underFreeName(input.name, conflict, names, async (name) => {
      const { device, change, assigned } = await postgres.transaction(async (queries) => {
        const named = { ...input, name };
        const token = credentials ?? randomToken();
        const { devicesMax } = limitsOf(tenantId);
        const inserted = await insertNewDevice(queries, tenantId, named, token, clock.now(), devicesMax);
        await checkAgain?.(queries);
        return inserted;
      });
      changes.publish([change]);
      if (assigned) onAssigned?.();
      return device;
    });
  if (!credentials) return await create();
  const isOthers = () => areOthersCredentials(postgres, tenantId, credentials.credentialsId);
  return await choosing(deps, tenantId, isOthers, create);
}

export function randomToken(): NewCredentials {
  return tokenCredentials(createAccessToken());
}

/**
 * Runs inside the transaction of a creation. After the commit the caller publishes `change` and, if the profile has a
 * package for the device (`assigned`), calls `onAssigned`. Throws 403 at `devicesMax` devices; 0 = no limit.
 */
export async function insertNewDevice(
  queries: Queries,
  tenantId: string,
  input: DeviceInput,
  credentials: NewCredentials,
  now: number,
  devicesMax: number,
  id = createUuid(now),
): Promise<{ device: Device; change: LoggedChange; assigned: boolean }> {
  // Runs before any row is locked: two creations could otherwise wait for each other.
  await admitDevice(queries, tenantId, devicesMax);
  const { profile, row } = await checkedRow(queries, tenantId, input, id, now);
  const number = await insertDevice(queries, row);
  const { credentialsId } = credentials;
  const unlogged = { credentialsId, deviceId: row.id, deviceNumber: number, deleted: false };
  await insertCredentials(queries, { id: createUuid(now), createdTime: now, deviceId: row.id, ...credentials });
  const [change] = await insertCredentialChanges(queries, [unlogged], now);
  const assigned = await deviceAssigned(queries, row.id);
  return { device: { ...row, number, type: profile.name, version: 1 }, change: change!, assigned };
}

/** Replaces the device `id`. */
export async function saveDevice(
  deps: ChangedDeviceDeps,
  caller: TenantPrincipal,
  id: string,
  input: DeviceInput,
): Promise<Device> {
  const { postgres, clock } = deps;
  const saved = await postgres.transaction(
    (queries) => replaceInside(queries, caller, id, input, clock.now()),
    lostRaceAgain,
  );
  return await afterSave(deps, caller, saved);
}

/** Replaces the device `id` and its credentials. */
export async function saveDeviceWithCredentials(
  deps: ChangedDeviceDeps & CredentialsDeps,
  caller: TenantPrincipal,
  id: string,
  input: DeviceInput,
  credentials: NewCredentials,
): Promise<Device> {
  const { postgres, clock } = deps;
  const { tenantId } = caller;
  const isOthers = () => areOthersCredentials(postgres, tenantId, credentials.credentialsId);
  const save = (checkAgain?: CheckAgain) =>
    postgres.transaction(async (queries) => {
      const saved = await replaceInside(queries, caller, id, input, clock.now());
      const replaced = await replaceCredentials(queries, saved.device, credentials, clock.now());
      await checkAgain?.(queries);
      return { ...saved, change: [...saved.change, ...replaced.changed], keepsAccess: false };
    }, lostRaceAgain);
  const isChosen = (await findCredentials(postgres, id))?.credentialsId !== credentials.credentialsId;
  const saved = isChosen ? await choosing(deps, tenantId, isOthers, save) : await save();
  return await afterSave(deps, caller, saved);
}

interface SavedDevice {
  device: Device;
  stored: LockedDevice;
  change: LoggedChange[];
  assigned: boolean;
  keepsAccess: boolean;
}

/**
 * Runs inside the transaction of a save. The owner is read from the locked row, because the owner decides what the
 * caller may change: a concurrent assignment comes either before or after the save.
 */
async function replaceInside(
  queries: Queries,
  caller: TenantPrincipal,
  id: string,
  input: DeviceInput,
  now: number,
): Promise<SavedDevice> {
  const { tenantId } = caller;
  const stored = await lockDevice(queries, tenantId, id);
  if (!stored) throw entityNotFound('Device', id);
  requireCustomerOf(caller, stored.customerId);
  checkVersion('Device', stored.version, input.version);
  const allowed = caller.authority === 'TENANT_ADMIN' ? input : changeOfCustomer(input, stored);
  const { profile, row } = await checkedRow(queries, tenantId, allowed, id, stored.createdTime);
  await updateDevice(queries, row);
  if (row.customerId !== stored.customerId) await forgetClaims(queries, [{ id, ...stored }]);
  const assigned = await deviceAssigned(queries, id);
  const change = await recordChange(queries, id, stored.number, 'changed', now);
  const { number, version } = stored;
  const device = { ...row, number, type: profile.name, version: version + 1 };
  return { device, stored, change, assigned, keepsAccess: hasAccessOf(row, stored) };
}

/** Called after the commit of a save. */
async function afterSave(
  { changes, onAssigned, gatewayNotices }: ChangedDeviceDeps,
  { tenantId }: TenantPrincipal,
  { device, stored, change, assigned, keepsAccess }: SavedDevice,
): Promise<Device> {
  changes.publish(keepsAccess ? change.map((logged) => ({ ...logged, keepsAccess })) : change);
  if (assigned) onAssigned?.();
  const { id } = device;
  if (stored.name !== device.name) await gatewayNotices?.renamed(tenantId, { id, ...stored }, device.name);
  return device;
}

/** A customer user may change the name and label of a device, but not its customer, profile or gateway role. */
function changeOfCustomer(input: DeviceInput, stored: LockedDevice): DeviceInput {
  const { customerId, profileId, firmwareId, softwareId } = stored;
  const { gateway, gatewayScope } = membersOf(stored.additionalInfo);
  const { gateway: wanted, gatewayScope: wantedScope, ...info } = membersOf(input.additionalInfo);
  const allowed = { ...input, customerId, profileId, firmwareId, softwareId };
  if (wanted === gateway && wantedScope === gatewayScope) return allowed;
  return { ...allowed, additionalInfo: { ...info, gateway, gatewayScope } };
}

/** True when a save changed nothing by which the device is found or admitted. */
function hasAccessOf(saved: CheckedRow, stored: LockedDevice): boolean {
  const { gateway, gatewayScope } = membersOf(stored.additionalInfo);
  const { gateway: savedGateway, gatewayScope: savedScope } = membersOf(saved.additionalInfo);
  return (
    saved.name === stored.name &&
    saved.profileId === stored.profileId &&
    saved.customerId === stored.customerId &&
    savedGateway === gateway &&
    savedScope === gatewayScope
  );
}

function membersOf(json: unknown): Record<string, unknown> {
  return isObject(json) ? json : {};
}

/** Deletes a device, its credentials and, through a tombstone, its telemetry. */
export async function deleteDevice(
  deps: Omit<ChangedDeviceDeps, 'onAssigned'>,
  tenantId: string,
  id: string,
): Promise<void> {
  const { postgres, changes, clock, gatewayNotices } = deps;
  const { stored, change } = await postgres.transaction(async (queries) => {
    const stored = await lockDevice(queries, tenantId, id);
    if (!stored) throw entityNotFound('Device', id);
    const change = await recordChange(queries, id, stored.number, 'deleted', clock.now());
    await insertDeviceTombstone(queries, stored.number, clock.now());
    await deleteDeviceRollouts(queries, [id]);
    await deleteDeviceRow(queries, id);
    return { stored, change };
  }, lostRaceAgain);
  changes.publish(change);
  await gatewayNotices?.deleted(tenantId, { id, ...stored });
}

/** Logs that cached copies of this device are stale. The caller publishes the result after the commit. */
export async function recordChange(
  queries: Queries,
  deviceId: string,
  deviceNumber: number,
  of: 'changed' | 'deleted',
  now: number,
): Promise<LoggedChange[]> {
  const credentials = await findCredentials(queries, deviceId);
  if (!credentials) return [];
  const change = { credentialsId: credentials.credentialsId, deviceId, deviceNumber, deleted: of === 'deleted' };
  return await insertCredentialChanges(queries, [change], now);
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
  checkDocument('deviceData', input.deviceData);
  checkDocument('additionalInfo', input.additionalInfo);
  if (input.externalId && !isUuid(input.externalId)) throw badRequest('external_id', 'Invalid entity id');
  const profile = await resolveProfile(queries, tenantId, input.profileId ?? null, input.type ?? '');
  if (input.customerId && !(await holdCustomer(queries, tenantId, input.customerId))) {
    throw badRequest('customer', "Can't assign device to non-existent customer!");
  }
  await checkAssignable(queries, tenantId, profile.id, 'FIRMWARE', input.firmwareId);
  await checkAssignable(queries, tenantId, profile.id, 'SOFTWARE', input.softwareId);
  const row = {
    id,
    createdTime,
    tenantId,
    customerId: input.customerId ?? null,
    profileId: profile.id,
    name: input.name,
    label: input.label ?? null,
    deviceData: input.deviceData ?? defaultDeviceData,
    firmwareId: input.firmwareId ?? null,
    softwareId: input.softwareId ?? null,
    externalId: input.externalId ?? null,
    additionalInfo: input.additionalInfo ?? null,
  };
  return { profile, row };
}
