/** Who may do what, in one place. Doors name the roles of a route; which entity a principal may touch is decided here. */
import { ErrorCode, Fault, notFound } from '../base/errors.ts';

export const authorities = ['SYS_ADMIN', 'TENANT_ADMIN', 'CUSTOMER_USER'] as const;
export type Authority = (typeof authorities)[number];

/** The authenticated caller of one request. */
export interface Principal {
  userId: string;
  email: string;
  authority: Authority;
  /** Null for a system administrator only. */
  tenantId: string | null;
  customerId: string | null;
  isPublic: boolean;
  /** Null for an API key. */
  sessionId: string | null;
}

/** A principal inside a tenant. */
export type TenantPrincipal = Principal & { tenantId: string };

export function permissionDenied(): Fault {
  return new Fault(
    403,
    ErrorCode.permissionDenied,
    'permission_denied',
    "You don't have permission to perform this operation!",
  );
}

export function requireAuthority(principal: Principal, allowed: readonly Authority[]): void {
  if (!allowed.includes(principal.authority)) throw permissionDenied();
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
