/** Rules for reading and changing entities of any type that relations and series name (docs/rest.md#roles). */
import { entityNotFound, permissionDenied, type TenantPrincipal } from '../auth/roles.ts';
import { notFound } from '../base/errors.ts';
import type { Queries } from '../postgres/client.ts';
import { type Entity, type EntityKind, type EntityRef, entityKey, findEntities, isEntityKind } from './entity-store.ts';

const titles: Record<EntityKind, string> = {
  DEVICE: 'Device',
  CUSTOMER: 'Customer',
  TENANT: 'Tenant',
  USER: 'User',
  DEVICE_PROFILE: 'Device profile',
};

/** A customer user may read the entities of the own customer and those that belong to the whole tenant. */
export function mayRead(
  principal: TenantPrincipal,
  { type, customerId }: Pick<Entity, 'type' | 'customerId'>,
): boolean {
  if (principal.authority === 'TENANT_ADMIN') return true;
  if (type === 'TENANT' || type === 'DEVICE_PROFILE') return !principal.isPublic;
  return customerId !== null && customerId === principal.customerId && (type === 'DEVICE' || !principal.isPublic);
}

/** A customer user may change the devices of the own customer, and the own account. */
export function mayWrite(principal: TenantPrincipal, entity: Entity): boolean {
  if (principal.authority === 'TENANT_ADMIN') return true;
  if (entity.type === 'USER') return entity.id === principal.userId && !principal.isPublic;
  return entity.type === 'DEVICE' && mayRead(principal, entity) && !principal.isPublic;
}

/** A customer user may read telemetry and attributes of the own customer, its devices and the own account. */
export function mayReadValues(principal: TenantPrincipal, entity: Entity): boolean {
  if (principal.authority === 'TENANT_ADMIN') return true;
  if (entity.type === 'CUSTOMER') return entity.id === principal.customerId && !principal.isPublic;
  return mayWrite(principal, entity);
}

/** Returns the title of an entity type in messages. */
export function entityTitle(type: string): string {
  return isEntityKind(type) ? titles[type] : type;
}

export function unknownEntity({ type, id }: EntityRef) {
  return isEntityKind(type) ? entityNotFound(titles[type], id) : notFound("Requested item wasn't found!");
}

/** Throws 404 for an entity that the tenant does not have, 403 for one that the caller may not use. */
export async function usableEntity(
  queries: Queries,
  principal: TenantPrincipal,
  ref: EntityRef,
  purpose: 'read' | 'write',
): Promise<Entity> {
  const entity = (await findEntities(queries, principal.tenantId, [ref])).get(entityKey(ref));
  if (!entity) throw unknownEntity(ref);
  if (!(purpose === 'read' ? mayRead : mayWrite)(principal, entity)) throw permissionDenied();
  return entity;
}
