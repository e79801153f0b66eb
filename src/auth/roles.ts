/**
 * The rules on who may do what (docs/rest.md#roles). Each route of the API names one of the lists of roles below. The
 * rules on which entity a principal may touch are here too.
 */
import { Fault, notFound } from '../base/errors.ts';

export const authorities = ['SYS_ADMIN', 'TENANT_ADMIN', 'CUSTOMER_USER'] as const;
export type Authority = (typeof authorities)[number];

/**
 * The roles that routes name. A guest signs in with only the id of a public customer and may only read what that
 * customer shows.
 */
export type Role = Authority | 'GUEST';

export const everyone: readonly Role[] = [...authorities, 'GUEST'];
export const users: readonly Role[] = authorities;
export const systemAdmins: readonly Role[] = ['SYS_ADMIN'];
export const tenantAdmins: readonly Role[] = ['TENANT_ADMIN'];
export const administrators: readonly Role[] = ['SYS_ADMIN', 'TENANT_ADMIN'];
export const customerUsers: readonly Role[] = ['CUSTOMER_USER'];
export const tenantUsers: readonly Role[] = ['TENANT_ADMIN', 'CUSTOMER_USER'];
export const tenantReaders: readonly Role[] = ['TENANT_ADMIN', 'CUSTOMER_USER', 'GUEST'];

/** The authenticated caller of one request. */
export interface Principal {
  userId: string;
  email: string;
  authority: Authority;
  /** Null only for a system administrator. */
  tenantId: string | null;
  customerId: string | null;
  /** True for a guest. */
  isPublic: boolean;
  /** Null for an API key. */
  sessionId: string | null;
  /** Null for a JWT. */
  apiKeyId: string | null;
}

/** A principal inside a tenant. */
export type TenantPrincipal = Principal & { tenantId: string };

export function permissionDenied(): Fault {
  return new Fault('permission_denied', "You don't have permission to perform this operation!");
}

export function requireRole({ isPublic, authority }: Principal, allowed: readonly Role[]): void {
  if (!allowed.includes(isPublic ? 'GUEST' : authority)) throw permissionDenied();
}

export function requireTenant(principal: Principal): TenantPrincipal {
  if (principal.tenantId === null) throw permissionDenied();
  return principal as TenantPrincipal;
}

/** Checks an entity of the principal's own tenant: a customer user sees only the entities of the own customer. */
export function requireCustomerOf(principal: Principal, customerId: string | null): void {
  if (principal.authority === 'CUSTOMER_USER' && principal.customerId !== customerId) throw permissionDenied();
}

export function entityNotFound(type: string, id: string): Fault {
  return notFound(`${type} with id [${id}] is not found`);
}
