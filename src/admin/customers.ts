/** Customers of a tenant, and the assignment of devices to customers. */

import { entityNotFound } from '../auth/roles.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { createUuid, isUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { checkDocument, type DeviceInfo } from '../device/model/device.ts';
import type { LoggedChange } from '../device/sql/credential-log-store.ts';
import { findDevice, holdCustomer, lockDevice } from '../device/sql/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { forgetClaims } from './claim-store.ts';
import { rotateToken } from './credentials.ts';
import { type ContactInput, type Customer, checkedContact, checkTitle, publicCustomerTitle } from './customer.ts';
import { lostRaceAgain, recordChange } from './devices.ts';
import { admitCustomer, type LimitsOf } from './entity-limits.ts';
import { type NameConflict, underFreeName } from './name-conflict.ts';
import {
  deleteCustomerRows,
  findCustomer,
  findOrInsertPublicCustomer,
  freeDevices,
  insertCustomer,
  nextTitleNumber,
  setDeviceCustomer,
  updateCustomer,
} from './store.ts';

/** The collaborators of a change of the customer of devices. */
export interface MoveDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
}

/** A customer as a user saves it; absent members are cleared. */
export interface CustomerInput extends ContactInput {
  title: string;
  externalId?: string | null | undefined;
  additionalInfo?: unknown;
  version?: number | null | undefined;
}

export async function createCustomer(
  { postgres, clock, limitsOf }: Pick<MoveDeps, 'postgres' | 'clock'> & { limitsOf: LimitsOf },
  tenantId: string,
  input: CustomerInput,
  conflict: NameConflict,
): Promise<Customer> {
  const names = {
    takenReason: 'customer_title_taken',
    next: (prefix: string) => nextTitleNumber(postgres, tenantId, prefix),
  };
  return await underFreeName(input.title, conflict, names, async (title) => {
    const now = clock.now();
    const created = { id: createUuid(now), createdTime: now, tenantId, isPublic: false, version: 1 };
    const customer = { ...created, ...checkedCustomer({ ...input, title }) };
    await postgres.transaction(async (queries) => {
      await admitCustomer(queries, tenantId, limitsOf(tenantId).customersMax);
      await insertCustomer(queries, customer);
    });
    return customer;
  });
}

export async function saveCustomer(
  postgres: Postgres,
  tenantId: string,
  id: string,
  input: CustomerInput,
): Promise<Customer> {
  return await postgres.transaction(async (queries) => {
    const stored = await findCustomer(queries, tenantId, id, 'lock');
    if (!stored) throw entityNotFound('Customer', id);
    checkVersion('Customer', stored.version, input.version);
    const customer = { ...stored, ...checkedCustomer(input), version: stored.version + 1 };
    await updateCustomer(queries, customer);
    return customer;
  });
}

/**
 * Deletes a customer and its users. Its devices stay, unassigned: many in each transaction, so that the delete of a
 * large customer holds no lock for long and no statement meets its deadline. An interrupted delete is completed by
 * another call.
 */
export async function deleteCustomer(deps: MoveDeps, tenantId: string, id: string): Promise<void> {
  const { postgres, changes, clock } = deps;
  for (let isDeleted = false; !isDeleted; ) {
    const freed = await postgres.transaction(async (queries) => {
      // Devices that are assigned meanwhile wait for this lock.
      if (!(await findCustomer(queries, tenantId, id, 'lock'))) throw entityNotFound('Customer', id);
      const some = await freeDevices(queries, id, devicesAtOnceMax, clock.now());
      isDeleted = some.length < devicesAtOnceMax;
      if (isDeleted) await deleteCustomerRows(queries, id);
      return some;
    }, lostRaceAgain);
    changes.publish(freed);
  }
}

const devicesAtOnceMax = 500;

/** Assigns a device to the customer `customerId`, or to the public customer. */
export async function assignDevice(
  deps: MoveDeps,
  tenantId: string,
  deviceId: string,
  customerId: string | 'public',
): Promise<DeviceInfo> {
  return await changeCustomer(deps, tenantId, deviceId, async (queries) => {
    if (customerId !== 'public') {
      if (!(await holdCustomer(queries, tenantId, customerId))) throw entityNotFound('Customer', customerId);
      return customerId;
    }
    const now = deps.clock.now();
    const customer = { id: createUuid(now), createdTime: now, tenantId, title: publicCustomerTitle };
    return await findOrInsertPublicCustomer(queries, customer);
  });
}

/** `rotates`: gives the device a new access token, because the customer's users have read the old one. */
export async function unassignDevice(
  deps: MoveDeps,
  tenantId: string,
  deviceId: string,
  rotates: boolean,
): Promise<DeviceInfo> {
  const choose = async (_queries: Queries, device: DeviceInfo) => {
    if (device.customerId === null) {
      throw badRequest('device_unassigned', "Device isn't assigned to any customer!");
    }
    return null;
  };
  return await changeCustomer(deps, tenantId, deviceId, choose, rotates);
}

async function changeCustomer(
  deps: MoveDeps,
  tenantId: string,
  deviceId: string,
  choose: (queries: Queries, device: DeviceInfo) => Promise<string | null>,
  rotates = false,
): Promise<DeviceInfo> {
  const { postgres, changes } = deps;
  const { device, change } = await postgres.transaction(async (queries) => {
    if (!(await lockDevice(queries, tenantId, deviceId))) throw entityNotFound('Device', deviceId);
    const stored = (await findDevice(queries, tenantId, deviceId))!;
    const customerId = await choose(queries, stored);
    const moved = await moveDevice(deps.clock, queries, stored, customerId);
    if (rotates) moved.change.push(...(await rotateToken(queries, stored, deps.clock.now())));
    return moved;
  }, lostRaceAgain);
  changes.publish(change);
  return device;
}

/** Runs inside a transaction that has locked the device. The caller publishes `change` after the commit. */
export async function moveDevice(
  clock: Clock,
  queries: Queries,
  device: DeviceInfo,
  customerId: string | null,
): Promise<{ device: DeviceInfo; change: LoggedChange[] }> {
  await setDeviceCustomer(queries, device.id, customerId);
  if (customerId !== device.customerId) await forgetClaims(queries, [device]);
  const change = await recordChange(queries, device.id, device.number, 'changed', clock.now());
  return { device: { ...device, customerId, version: device.version + 1 }, change };
}

function checkedCustomer(input: CustomerInput) {
  checkTitle('Customer', input.title);
  checkDocument('additionalInfo', input.additionalInfo);
  if (input.externalId && !isUuid(input.externalId)) throw badRequest('external_id', 'Invalid entity id');
  return {
    title: input.title,
    ...checkedContact(input),
    externalId: input.externalId ?? null,
    additionalInfo: input.additionalInfo ?? null,
  };
}
