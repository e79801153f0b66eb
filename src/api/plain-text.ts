/**
 * The telemetry and RPC paths answer their own errors as plain text, with special sentences for a system administrator,
 * as ThingsBoard does (docs/rest.md#errors).
 */

import { entityTitle, mayReadValues, mayWrite } from '../admin/entities.ts';
import {
  type Entity,
  type EntityRef,
  entityKey,
  findEntities,
  findNumber,
  findOrGiveNumber,
  holdEntity,
  isEntityKind,
} from '../admin/entity-store.ts';
import {
  type Principal,
  permissionDenied,
  requireCustomerOf,
  requireTenant,
  type TenantPrincipal,
} from '../auth/roles.ts';
import { Fault, notFound } from '../base/errors.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import { findDeviceRow } from '../device/sql/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { Answer } from '../uws/exchange.ts';

/** Answers a fault of the caller as plain text. Rethrows every other error to the common error answer. */
export async function plainText(work: () => Promise<Answer>): Promise<Answer> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Fault) || error.status >= 500 || error.status === 429) throw error;
    return { status: error.status, contentType: 'text/plain;charset=UTF-8', body: error.message };
  }
}

/** Returns the device, if the caller may use it. An entity of another type is not found. */
export async function usableDevice(queries: Queries, principal: Principal, target: Target): Promise<DeviceRow> {
  if (principal.authority === 'SYS_ADMIN') throw noSystemAdmin();
  const { tenantId } = requireTenant(principal);
  const device = isDevice(target) ? await findDeviceRow(queries, tenantId, target.entityId) : undefined;
  if (!device) throw notRequested(target);
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

/**
 * Returns the number of a device or another entity in ClickHouse, if the caller may use it. A deleted entity has none,
 * even when rows of it remain. 0, which has no rows, means that nothing was written for the entity.
 */
export async function seriesNumber(
  queries: Queries,
  principal: Principal,
  target: Target,
  purpose: 'read' | 'write',
): Promise<number> {
  if (!isOtherKind(target)) {
    return (await usableDevice(queries, principal, target)).number;
  }
  const { tenantId } = callerOf(principal);
  const entity = (await findEntities(queries, tenantId, [refOf(target)])).get(entityKey(refOf(target)));
  checkOther(principal, target, entity, purpose);
  return (await findNumber(queries, refOf(target))) ?? 0;
}

/**
 * Like `seriesNumber`, for a write to an entity that is not a device. `work` runs inside the transaction that locks it.
 */
export async function withNumber<T>(
  postgres: Postgres,
  principal: Principal,
  target: Target,
  work: (queries: Queries, number: number, tenantId: string) => Promise<T>,
): Promise<T> {
  return await postgres.transaction(async (queries) => {
    const { tenantId } = callerOf(principal);
    checkOther(principal, target, await holdEntity(queries, tenantId, refOf(target)), 'write');
    return await work(queries, await findOrGiveNumber(queries, tenantId, refOf(target)), tenantId);
  });
}

export function isDevice({ entityType }: Target): boolean {
  return entityType === 'DEVICE';
}

/** An entity that has telemetry and is no device. */
export function isOtherKind(target: Target): boolean {
  return !isDevice(target) && isEntityKind(target.entityType);
}

function checkOther(principal: Principal, target: Target, entity: Entity | undefined, purpose: 'read' | 'write'): void {
  if (!entity) throw notRequested(target);
  if (!(purpose === 'read' ? mayReadValues : mayWrite)(callerOf(principal), entity)) throw permissionDenied();
}

function notRequested({ entityType }: Target): Fault {
  return notFound(`${entityTitle(entityType)} with requested id wasn't found!`);
}

function callerOf(principal: Principal): TenantPrincipal {
  if (principal.authority === 'SYS_ADMIN') throw noSystemAdmin();
  return requireTenant(principal);
}

function refOf({ entityType, entityId }: Target): EntityRef {
  return { type: entityType, id: entityId };
}

function noSystemAdmin(): Fault {
  const message = 'System administrator is not allowed to perform this operation!';
  return new Fault('permission_denied', message);
}
