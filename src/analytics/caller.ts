/**
 * Identifies the caller of the analytics component: by a JWT in the query or the header `jwt`, else by
 * `X-Authorization`. An unknown caller gets the status that the route names: 403, as the report API documents, not the
 * 401 of the REST API.
 */
import type { KnownCaller, RequestCallers } from '../auth/request-callers.ts';
import type { Principal } from '../auth/roles.ts';
import { authenticationFailed } from '../auth/unauthorized.ts';
import { Fault } from '../base/errors.ts';
import type { Callers, RouteDescription } from '../rest/route.ts';
import type { HttpRequest } from '../uws/request.ts';

export class ReportCallers implements Callers {
  readonly #callers: RequestCallers;

  constructor(callers: RequestCallers) {
    this.#callers = callers;
  }

  async find(request: HttpRequest, { apiKeys, unknownCaller }: RouteDescription): Promise<KnownCaller> {
    const jwt = new URLSearchParams(request.query).get('jwt') || request.header('jwt');
    try {
      const caller = await (jwt ? this.#callers.findByJwt(jwt) : this.#callers.find(request));
      const { isPublic, apiKeyId } = caller.principal;
      if (isPublic || (apiKeys === false && apiKeyId !== null)) throw authenticationFailed();
      return caller;
    } catch (error) {
      if (!(error instanceof Fault) || error.status !== 401) throw error;
      throw new Fault(error.reason, error.message, 0, unknownCaller);
    }
  }

  admit(principal: Principal): void {
    this.#callers.admit(principal);
  }

  /** `report/pool.ts` has turns for reports. */
  inTurn<T>(_principal: Principal, call: () => Promise<T>): Promise<T> {
    return call();
  }
}
