/**
 * The callers of requests: finds the caller by a JWT or an API key (docs/rest.md#sign-in), counts the call for the
 * limits of the tenant and the customer, and runs it when it is their turn. `rest/route.ts` calls the three in this
 * order.
 */
import type { Clock } from '../base/clock.ts';
import { type Fault, unavailable } from '../base/errors.ts';
import { networkOf } from '../base/network.ts';
import type { Turns } from '../base/turns.ts';
import type { Postgres } from '../postgres/client.ts';
import { isExpired } from './api-key.ts';
import type { ApiKeys } from './api-keys.ts';
import { chooseCredential } from './credential.ts';
import { claimsOf, type Jwt } from './jwt.ts';
import type { RequestLimits } from './request-limits.ts';
import type { Principal } from './roles.ts';
import { findAccount } from './store.ts';
import type { Caller, Proxies } from './transport.ts';
import { authenticationFailed, notActive, tokenExpired, unauthorized, wrongCredentials } from './unauthorized.ts';
import { type Account, canSignIn, type User } from './user.ts';
import type { UserSessions } from './user-sessions.ts';

export interface RequestCallerDeps {
  postgres: Postgres;
  jwt: Jwt;
  clock: Clock;
  apiKeys: ApiKeys;
  proxies: Proxies;
  requireHttpsForApiKeys: boolean;
  requestLimits: RequestLimits | undefined;
  /** Calls of the REST API that run at once. Undefined where other caps hold. */
  calls?: Turns;
  /** Calls that read ClickHouse. Undefined where nothing is bounded. */
  telemetryReads?: Turns;
  /** Calls that read a page of a list. Undefined where nothing is bounded. */
  pageReads?: Turns;
}

/** A call that reads more than a few rows, of which few run at once: from ClickHouse, or a page of a list. */
export type LongRead = 'telemetry' | 'page';

export function callsFull(): Fault {
  return unavailable('rest_calls', 'Too many calls of the API wait for their turn; call again later.');
}

/** The caller of a request, and the account of the caller. */
export interface KnownCaller {
  principal: Principal;
  account: Account;
}

export class RequestCallers {
  readonly #deps: RequestCallerDeps;
  readonly #sessions: UserSessions;

  constructor(deps: RequestCallerDeps, sessions: UserSessions) {
    this.#deps = deps;
    this.#sessions = sessions;
  }

  /** Returns the caller by the headers of the request. Throws a 401 fault. */
  async find(caller: Caller): Promise<KnownCaller> {
    const credential = chooseCredential((name) => caller.headers(name));
    if (!credential) throw authenticationFailed();
    if (credential.scheme === 'Bearer') return await this.findByJwt(credential.value);
    return await this.#findByApiKey(credential.value, caller);
  }

  /** Called by doors that receive a JWT outside the two headers. */
  async findByJwt(token: string): Promise<KnownCaller> {
    const claims = await claimsOf(this.#deps.jwt, token, wrongCredentials);
    // A refresh token is accepted only for a new pair.
    if (claims.kind !== 'access') throw wrongCredentials();
    const account = await this.#sessions.accountOf(claims);
    if (!account) throw tokenExpired();
    const { isPublic, sessionId } = claims;
    return { account, principal: principalOf(account, { isPublic, sessionId, apiKeyId: null }) };
  }

  async #findByApiKey(value: string, caller: Caller): Promise<KnownCaller> {
    const { apiKeys, clock, requireHttpsForApiKeys } = this.#deps;
    if (requireHttpsForApiKeys && !this.isSecure(caller)) {
      const message = 'API keys are accepted over HTTPS only (SECURITY_REQUIRE_HTTPS_FOR_API_KEYS)';
      throw unauthorized('api_key_plain_http', message);
    }
    const owner = await apiKeys.find(value, networkOf(caller.remoteAddress));
    if (!owner) throw wrongCredentials();
    const { account, keyId: apiKeyId, keyEnabled } = owner;
    if (!keyEnabled || !canSignIn(account)) throw notActive();
    if (isExpired(owner, clock.now())) throw unauthorized('api_key_expired', 'API key is expired');
    return { account, principal: principalOf(account, { isPublic: false, sessionId: null, apiKeyId }) };
  }

  /**
   * Returns the account with the members that requests do not read. Throws a 401 fault when the user was deleted at
   * this moment.
   */
  async userOf({ account, principal }: KnownCaller): Promise<User> {
    if (principal.isPublic) return { ...account, additionalInfo: null };
    const user = await findAccount(this.#deps.postgres, account.id);
    if (!user) throw tokenExpired();
    return user;
  }

  /** True when the caller reaches this server over HTTPS. */
  isSecure(caller: Caller): boolean {
    return this.#deps.proxies.isSecure(caller);
  }

  /** Counts a REST request of the caller. Throws 429 when the tenant or the customer has made too many. */
  admit({ tenantId, customerId }: Principal): void {
    if (tenantId !== null) this.#deps.requestLimits?.take(tenantId, customerId);
  }

  /** Counts a command to a device of the tenant. Throws 429 when the tenant's devices get too many. */
  admitCommand(tenantId: string): void {
    this.#deps.requestLimits?.takeCommand(tenantId);
  }

  /**
   * Runs a call of the REST API now, or when it is the turn of the caller's tenant and customer. A long read takes its
   * place among the long reads first: while it waits there, it holds no place of other calls.
   */
  inTurn<T>({ tenantId, customerId }: Principal, call: () => Promise<T>, kinds: readonly LongRead[] = []): Promise<T> {
    const { calls, telemetryReads, pageReads } = this.#deps;
    const inTurnOf = (turns: Turns | undefined, work: () => Promise<T>) => () =>
      turns?.run(tenantId, customerId, work) ?? work();
    const inCalls = inTurnOf(calls, call);
    const inPages = inTurnOf(kinds.includes('page') ? pageReads : undefined, inCalls);
    return inTurnOf(kinds.includes('telemetry') ? telemetryReads : undefined, inPages)();
  }
}

function principalOf(
  { id: userId, email, authority, tenantId, customerId }: Account,
  credential: Pick<Principal, 'isPublic' | 'sessionId' | 'apiKeyId'>,
): Principal {
  return { userId, email, authority, tenantId, customerId, ...credential };
}
