/**
 * Limits the numbers of devices, users and customers of a tenant, exactly over all workers, hosts and doors. A
 * transaction that makes one of them first locks the tenant until its commit, so each transaction counts what the
 * previous one made. Without a limit no transaction waits or counts.
 */
import type { EntityLimits } from '../auth/tenant-limits.ts';
import { Fault } from '../base/errors.ts';
import { countDevices } from '../device/list/list-store.ts';
import type { Queries } from '../postgres/client.ts';
import { countCustomers, countUsers, holdCount } from './store.ts';

/** Returns what a tenant may have now. */
export type LimitsOf = (tenantId: string) => EntityLimits;

export const noLimits: EntityLimits = { devicesMax: 0, usersMax: 0, customersMax: 0 };

/** Returns how many of `wanted` new devices may be made. `devicesMax` 0 = no limit. */
export async function admitDevices(
  queries: Queries,
  tenantId: string,
  wanted: number,
  devicesMax: number,
): Promise<number> {
  if (devicesMax === 0 || wanted === 0) return wanted;
  await holdCount(queries, tenantId, 'device');
  const made = await countDevices(queries, tenantId);
  return Math.min(wanted, Math.max(0, devicesMax - made));
}

export async function admitDevice(queries: Queries, tenantId: string, devicesMax: number): Promise<void> {
  if ((await admitDevices(queries, tenantId, 1, devicesMax)) === 0) throw deviceLimitReached(devicesMax);
}

export function deviceLimitReached(devicesMax: number): Fault {
  return limitReached(deviceLimitReason, 'DEVICE', 'Devices', devicesMax);
}

export const deviceLimitReason = 'device_limit';

/** Throws 403 when the tenant has `usersMax` users, its administrators among them; 0 = no limit. */
export async function admitUser(queries: Queries, tenantId: string, usersMax: number): Promise<void> {
  if (usersMax === 0) return;
  await holdCount(queries, tenantId, 'user');
  if ((await countUsers(queries, tenantId)) >= usersMax) throw limitReached('user_limit', 'USER', 'Users', usersMax);
}

/** Throws 403 when the tenant has `customersMax` customers; the public customer does not count. 0 = no limit. */
export async function admitCustomer(queries: Queries, tenantId: string, customersMax: number): Promise<void> {
  if (customersMax === 0) return;
  await holdCount(queries, tenantId, 'customer');
  const made = await countCustomers(queries, tenantId);
  if (made >= customersMax) throw limitReached('customer_limit', 'CUSTOMER', 'Customers', customersMax);
}

function limitReached(
  reason: 'device_limit' | 'user_limit' | 'customer_limit',
  entityType: string,
  noun: string,
  limit: number,
) {
  const setting = entityType === 'DEVICE' ? 'LIMITS_DEVICES, or ' : '';
  const source = `${setting}max${noun} of the tenant profile`;
  const fault = new Fault(reason, `${noun} limit reached: a tenant may have ${limit} (${source}).`);
  fault.members = { entityType, limit };
  return fault;
}
