/**
 * Identifies the caller of the analytics component: by a JWT in the query or the header `jwt`, else by
 * `X-Authorization`. An unknown caller gets the status that the route names: 403, as the report API documents, not the
 * 401 of the REST API.
 */
import type { Auth, UserSession } from '../auth/auth.ts';
import type { Principal } from '../auth/roles.ts';
import { authenticationFailed } from '../auth/unauthorized.ts';
import { Fault } from '../base/errors.ts';
import type { Callers, RouteDescription } from '../rest/route.ts';
import type { HttpRequest } from '../uws/server.ts';

export class ReportCallers implements Callers {
  readonly #auth: Auth;

  constructor(auth: Auth) {
    this.#auth = auth;
  }

  async session(request: HttpRequest, { apiKeys, unknownCaller }: RouteDescription): Promise<UserSession> {
    const jwt = new URLSearchParams(request.query).get('jwt') || request.header('jwt');
    try {
      const session = await (jwt ? this.#auth.sessionOfJwt(jwt) : this.#auth.session(request));
      const { isPublic, apiKeyId } = session.principal;
      if (isPublic || (apiKeys === false && apiKeyId !== null)) throw authenticationFailed();
      return session;
    } catch (error) {
      if (!(error instanceof Fault) || error.status !== 401) throw error;
      throw new Fault(error.reason, error.message, 0, unknownCaller);
    }
  }

  admit(principal: Principal): void {
    this.#auth.admit(principal);
  }

  /** `report/pool.ts` has turns for reports. */
  inTurn<T>(_principal: Principal, call: () => Promise<T>): Promise<T> {
    return call();
  }
}
