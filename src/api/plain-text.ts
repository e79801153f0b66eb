/**
 * The telemetry and RPC paths of the family answer their own errors as plain text, and a sysadmin in words of their
 * own (rest.md 2.1).
 */
import { type Principal, requireCustomerOf, requireTenant } from '../auth/roles.ts';
import { ErrorCode, Fault, notFound } from '../base/errors.ts';
import type { DeviceRow } from '../device/cached-device.ts';
import { findDeviceRow } from '../device/store.ts';
import type { Queries } from '../postgres/client.ts';
import type { HttpResponse } from '../uws/server.ts';

/** What the caller did wrong is told as text; what is wrong on our side goes the way of all errors. */
export async function plainText(work: () => Promise<HttpResponse>): Promise<HttpResponse> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Fault) || error.status >= 500 || error.status === 429) throw error;
    return { status: error.status, contentType: 'text/plain;charset=UTF-8', body: error.message };
  }
}

/** The device, if the caller may use it. `id` undefined = an entity that is no device. */
export async function usableDevice(queries: Queries, principal: Principal, id: string | undefined): Promise<DeviceRow> {
  if (principal.authority === 'SYS_ADMIN') {
    const message = 'System administrator is not allowed to perform this operation!';
    throw new Fault(403, ErrorCode.permissionDenied, 'permission_denied', message);
  }
  const { tenantId } = requireTenant(principal);
  const device = id === undefined ? undefined : await findDeviceRow(queries, tenantId, id);
  if (!device) throw notFound("Device with requested id wasn't found!");
  requireCustomerOf(principal, device.customerId);
  return device;
}

/** The entity that a path names. */
export interface Target {
  entityType: string;
  entityId: string;
}

export function deviceTarget(entityId: string): Target {
  return { entityType: 'DEVICE', entityId };
}

/** The device in ClickHouse, if the caller may use it. A deleted device has none, whatever rows it left. */
export async function deviceNumber(
  queries: Queries,
  principal: Principal,
  { entityType, entityId }: Target,
): Promise<number> {
  return (await usableDevice(queries, principal, entityType === 'DEVICE' ? entityId : undefined)).number;
}
