/**
 * Who may do what, in one place (docs/rest.md#roles). Each route of the API names one of the lists of roles below;
 * which entity a principal may touch is decided here too.
 */
import { Fault, notFound } from '../base/errors.ts';

export const authorities = ['SYS_ADMIN', 'TENANT_ADMIN', 'CUSTOMER_USER'] as const;
export type Authority = (typeof authorities)[number];

/**
 * What a route is open to. A guest signed in with the id of a public customer only and no password: reads what is
 * shown.
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
  /** Null for a system administrator only. */
  tenantId: string | null;
  customerId: string | null;
  /** A guest. */
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

/** An entity that was found in the principal's own tenant: a customer user sees those of the own customer only. */
export function requireCustomerOf(principal: Principal, customerId: string | null): void {
  if (principal.authority === 'CUSTOMER_USER' && principal.customerId !== customerId) throw permissionDenied();
}

export function entityNotFound(type: string, id: string): Fault {
  return notFound(`${type} with id [${id}] is not found`);
}
