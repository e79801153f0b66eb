/** Who may read and change entities of any type, where relations and series name them (docs/rest.md#roles). */
import { entityNotFound, permissionDenied, type TenantPrincipal } from '../auth/roles.ts';
import { notFound } from '../base/errors.ts';
import type { Queries } from '../postgres/client.ts';
import { type Entity, type EntityKind, type EntityRef, findEntities, isEntityKind, keyOf } from './entity-store.ts';

const titles: Record<EntityKind, string> = {
  DEVICE: 'Device',
  CUSTOMER: 'Customer',
  TENANT: 'Tenant',
  USER: 'User',
  DEVICE_PROFILE: 'Device profile',
};

/** A customer user reads what is of the own customer, and what all of the tenant share. */
export function mayRead(
  principal: TenantPrincipal,
  { type, customerId }: Pick<Entity, 'type' | 'customerId'>,
): boolean {
  if (principal.authority === 'TENANT_ADMIN') return true;
  if (type === 'TENANT' || type === 'DEVICE_PROFILE') return !principal.isPublic;
  return customerId !== null && customerId === principal.customerId && (type === 'DEVICE' || !principal.isPublic);
}

/** A customer user changes devices of the own customer, and itself. */
export function mayWrite(principal: TenantPrincipal, entity: Entity): boolean {
  if (principal.authority === 'TENANT_ADMIN') return true;
  if (entity.type === 'USER') return entity.id === principal.userId && !principal.isPublic;
  return entity.type === 'DEVICE' && mayRead(principal, entity) && !principal.isPublic;
}

/** Whose telemetry and attributes: a customer user reads those of the own customer and its devices, and its own. */
export function mayReadValues(principal: TenantPrincipal, entity: Entity): boolean {
  if (principal.authority === 'TENANT_ADMIN') return true;
  if (entity.type === 'CUSTOMER') return entity.id === principal.customerId && !principal.isPublic;
  return mayWrite(principal, entity);
}

/** As messages call an entity of the type. */
export function entityTitle(type: string): string {
  return isEntityKind(type) ? titles[type] : type;
}

export function unknownEntity({ type, id }: EntityRef) {
  return isEntityKind(type) ? entityNotFound(titles[type], id) : notFound("Requested item wasn't found!");
}

/** 404 for one that the tenant does not have, 403 for one that is not the caller's. */
export async function usableEntity(
  queries: Queries,
  principal: TenantPrincipal,
  ref: EntityRef,
  purpose: 'read' | 'write',
): Promise<Entity> {
  const entity = (await findEntities(queries, principal.tenantId, [ref])).get(keyOf(ref));
  if (!entity) throw unknownEntity(ref);
  if (!(purpose === 'read' ? mayRead : mayWrite)(principal, entity)) throw permissionDenied();
  return entity;
}
