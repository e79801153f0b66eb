/**
 * Limits the number of devices of a tenant (`limits.devices`), exactly over all workers, hosts and doors. A transaction
 * that makes devices first locks the tenant until its commit, so each transaction counts the devices of the previous
 * one. Without a limit no transaction waits or counts.
 */
import { Fault } from '../base/errors.ts';
import { countDevices } from '../device/list/list-store.ts';
import type { Queries } from '../postgres/client.ts';
import { holdDeviceCount } from './store.ts';

/** Returns how many of `wanted` new devices may be made. `devicesMax` 0 = no limit. */
export async function admitDevices(
  queries: Queries,
  tenantId: string,
  wanted: number,
  devicesMax: number,
): Promise<number> {
  if (devicesMax === 0 || wanted === 0) return wanted;
  await holdDeviceCount(queries, tenantId);
  const made = await countDevices(queries, tenantId);
  return Math.min(wanted, Math.max(0, devicesMax - made));
}

export async function admitDevice(queries: Queries, tenantId: string, devicesMax: number): Promise<void> {
  if ((await admitDevices(queries, tenantId, 1, devicesMax)) === 0) throw deviceLimitReached(devicesMax);
}

export function deviceLimitReached(devicesMax: number): Fault {
  const message = `Devices limit reached: a tenant may have ${devicesMax} (setting limits.devices).`;
  const fault = new Fault(deviceLimitReason, message);
  fault.members = { entityType: 'DEVICE', limit: devicesMax };
  return fault;
}

export const deviceLimitReason = 'device_limit';
