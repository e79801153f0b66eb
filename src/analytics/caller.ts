/**
 * Identifies the caller of the analytics component: by a JWT in the query or the header `jwt`, else by
 * `X-Authorization`. An unknown caller gets 403, as the report API documents, not the 401 of the REST API.
 */
import { type Auth, authenticationFailed } from '../auth/auth.ts';
import { requireRole, requireTenant, type TenantPrincipal, tenantAdmins } from '../auth/roles.ts';
import { Fault } from '../base/errors.ts';
import type { HttpRequest } from '../uws/server.ts';

/** `keys`: API keys are good too. A report is made for signed-in users only. */
export async function callerOf(request: HttpRequest, auth: Auth, keys: 'keys' | 'noKeys'): Promise<TenantPrincipal> {
  const jwt = new URLSearchParams(request.query).get('jwt') || request.header('jwt');
  try {
    const { principal } = await (jwt ? auth.sessionOfJwt(jwt) : auth.session(request));
    const isKey = principal.sessionId === null;
    if (principal.isPublic || (isKey && keys === 'noKeys')) throw authenticationFailed();
    return requireTenant(principal);
  } catch (error) {
    if (!(error instanceof Fault) || error.status !== 401) throw error;
    throw new Fault(error.reason, error.message, 0, 403);
  }
}

export function requireAdministrator(principal: TenantPrincipal): void {
  requireRole(principal, tenantAdmins);
}
