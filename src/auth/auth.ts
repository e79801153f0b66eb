/**
 * Sign-in, sign-out, and the caller of a request (docs/rest.md#sign-in). Every request with a JWT checks in PostgreSQL
 * that its user and session are still valid, so a logout or a lock takes effect on all hosts at once. API keys are
 * checked by `api-keys.ts`.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { GatheredReads } from '../base/gathered-reads.ts';
import { limits } from '../base/limits.ts';
import { networkOf, subnetOf } from '../base/network.ts';
import type { Turns } from '../base/turns.ts';
import { isUuid, nullUuid } from '../base/uuid.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { isExpired, sha256 } from './api-key.ts';
import { deleteKeysOfUser } from './api-key-store.ts';
import type { ApiKeys } from './api-keys.ts';
import { chooseCredential } from './credential.ts';
import type { FailedSignIns } from './failed-sign-ins.ts';
import {
  type AccessClaims,
  BadToken,
  clockSkewSecondsMax,
  type Jwt,
  type RefreshClaims,
  type TokenPair,
  tokensOutdatedTimeAt,
} from './jwt.ts';
import type { Asker, PasswordHasher } from './password.ts';
import { checkPassword } from './password-policy.ts';
import type { RequestLimits } from './request-limits.ts';
import type { Principal } from './roles.ts';
import {
  countSessions,
  endSessions,
  findGuests,
  findSessions,
  type GuestKey,
  type OwnedSession,
  outdateSession,
  renewSession,
  type SessionKey,
  type StoredGuest,
  type StoredSession,
} from './session-store.ts';
import {
  activateAccount,
  changePassword,
  findAccount,
  findAccountByEmail,
  findSignInNetwork,
  isActivationKnown,
  isResetTokenKnown,
  recordFailedSignIn,
  recordSignIn,
  rememberSignInNetwork,
  resetPassword,
} from './store.ts';
import type { Caller, Proxies } from './transport.ts';
import {
  authenticationFailed,
  notActive,
  tokenExpired,
  tokenOutdated,
  unauthorized,
  wrongCredentials,
} from './unauthorized.ts';
import { type Account, canSignIn, type User } from './user.ts';

export interface AuthDeps {
  postgres: Postgres;
  passwords: PasswordHasher;
  jwt: Jwt;
  clock: Clock;
  /** Consecutive wrong passwords before the account is locked; 0 = never locked. */
  failedLoginsMax: number;
  failedSignIns: FailedSignIns;
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
  /** Look-ups for callers that have not signed in, by network. Undefined where nothing is bounded. */
  lookUps?: Turns;
}

/** A call that reads more than a few rows, of which few run at once: from ClickHouse, or a page of a list. */
export type LongRead = 'telemetry' | 'page';

export interface UserSession {
  principal: Principal;
  account: Account;
}

export class Auth {
  readonly #deps: AuthDeps;
  readonly #sessions: GatheredReads<SessionKey, StoredSession>;
  readonly #guests: GatheredReads<GuestKey, StoredGuest>;

  constructor(deps: AuthDeps) {
    this.#deps = deps;
    this.#sessions = new GatheredReads((keys) => findSessions(deps.postgres, keys));
    this.#guests = new GatheredReads((keys) => findGuests(deps.postgres, keys));
  }

  async signIn(email: string, password: string, remoteAddress: string): Promise<TokenPair> {
    const { postgres, jwt, clock, failedLoginsMax } = this.#deps;
    const network = subnetOf(remoteAddress);
    // Refuses without a read of the store, where possible.
    this.#deps.failedSignIns.admit(email, network, true);
    const { account, before } = await this.#lookUp(remoteAddress, async () => {
      const account = email.includes('\0') ? undefined : await findAccountByEmail(postgres, email);
      // Runs for an unknown user as well, so that the time of a refusal does not reveal whether the user exists.
      return { account, before: await findSignInNetwork(postgres, account?.id ?? nullUuid, network) };
    });
    this.#deps.failedSignIns.admit(email, network, before !== undefined);
    if (account && !canSignIn(account)) throw notActive();
    const asker = { network, isKnown: before !== undefined };
    if (!(await this.#isRight(email, password, account?.passwordHash ?? null, asker)) || !account) {
      // Skipped when lockout is off: the extra write would reveal by its timing that the user exists.
      const isLocked =
        account &&
        failedLoginsMax > 0 &&
        (await postgres.transaction((queries) => recordFailedSignIn(queries, account, failedLoginsMax)));
      if (isLocked) throw unauthorized('account_locked', 'User account is locked due to security policy');
      throw wrongCredentials();
    }
    const now = clock.now();
    await recordSignIn(postgres, account.id, now);
    if (!before || now - before.lastTime > limits.signInNetworkMs) {
      await rememberSignInNetwork(postgres, account.id, network, now, limits.signInNetworksMax);
    }
    return await jwt.issue(account);
  }

  /** Runs a look-up for a caller that has not signed in, now or when it is the turn of the caller's network. */
  #lookUp<T>(remoteAddress: string, look: () => Promise<T>): Promise<T> {
    return this.#deps.lookUps?.run(networkOf(remoteAddress), null, look) ?? look();
  }

  /** True when the password matches the hash. Wrong ones are counted, for the account and for the caller's network. */
  async #isRight(email: string, password: string, hash: string | null, asker: Asker): Promise<boolean> {
    const { passwords, failedSignIns } = this.#deps;
    const isRight = await passwords.verify(email, password, hash, asker);
    if (isRight) failedSignIns.succeeded(email, asker.network);
    else failedSignIns.failed(email, asker.network);
    return isRight;
  }

  /**
   * Throws 400 unless the password is the caller's own, and 429 after too many wrong ones. Returns the account and its
   * hash.
   */
  async proveCaller(
    principal: Principal,
    password: string,
    remoteAddress: string,
  ): Promise<{ account: Account; passwordHash: string; asker: Asker }> {
    const { postgres, failedSignIns } = this.#deps;
    const network = subnetOf(remoteAddress);
    // A caller with a session is known, but may guess only as often as at a sign-in.
    const asker = { network, isKnown: true };
    failedSignIns.admit(principal.email, network, true);
    const account = await findAccount(postgres, principal.userId);
    const hash = account?.passwordHash ?? null;
    if (!(await this.#isRight(principal.email, password, hash, asker)) || !account || hash === null) {
      throw badRequest('current_password', "Current password doesn't match!");
    }
    return { account, passwordHash: hash, asker };
  }

  /** Signs in a guest, who sends the id of a public customer. */
  async signInPublic(publicId: string): Promise<TokenPair> {
    const account = isUuid(publicId) ? await this.#guest(publicId.toLowerCase(), null) : undefined;
    if (!account) throw wrongCredentials();
    return await this.#deps.jwt.issue(account, undefined, true);
  }

  /** Sets the first password of a user and signs the user in. A token is valid once. */
  async activate(activateToken: string, password: string, remoteAddress: string): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock } = this.#deps;
    const unknown = () => {
      const shown = activateToken.slice(0, 100);
      return badRequest('activate_token', `Unable to find user credentials by activateToken [${shown}]`);
    };
    if (activateToken.includes('\0')) throw unknown();
    // Runs before the costly hash, because callers without credentials may call this.
    const look = () => isActivationKnown(postgres, activateToken, clock.now());
    if (!(await this.#lookUp(remoteAddress, look))) throw unknown();
    checkPassword(password);
    const hash = await passwords.hash(password, { network: subnetOf(remoteAddress), isKnown: true });
    const account = await activateAccount(postgres, activateToken, hash, clock.now());
    if (!account) throw unknown();
    return await jwt.issue(account);
  }

  /** Sets a new password by the token of a reset link and signs the user in; every other session ends. */
  async resetPassword(
    resetToken: string,
    password: string,
    remoteAddress: string,
    revokesKeys: boolean,
  ): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock } = this.#deps;
    const unknown = () => badRequest('reset_token', 'Invalid reset token!');
    const hash = sha256(resetToken);
    const look = () => isResetTokenKnown(postgres, hash, clock.now());
    if (!(await this.#lookUp(remoteAddress, look))) throw unknown();
    checkPassword(password);
    const next = await passwords.hash(password, { network: subnetOf(remoteAddress), isKnown: true });
    const now = clock.now();
    const account = await this.#revoking(revokesKeys, (queries) =>
      resetPassword(queries, hash, next, now, tokensOutdatedTimeAt(now)),
    );
    if (!account) throw unknown();
    if (!account.enabled) throw notActive();
    return await jwt.issue(account);
  }

  /** Signs a user in on behalf of an administrator. */
  async tokensOf(account: Account): Promise<TokenPair> {
    if (!canSignIn(account)) throw notActive();
    return await this.#deps.jwt.issue(account);
  }

  /**
   * Returns a new pair of tokens of the same session. A refresh token is accepted once. A second use shows that two
   * parties have the token, and ends the session. A guest has no password to protect, so a guest's refresh token is
   * accepted repeatedly.
   */
  async refresh(refreshToken: string): Promise<TokenPair> {
    let claims: AccessClaims | RefreshClaims;
    try {
      claims = await this.#deps.jwt.verify(refreshToken);
    } catch (error) {
      if (!(error instanceof BadToken)) throw error;
      throw error.kind === 'expired' ? tokenExpired() : authenticationFailed();
    }
    if (claims.kind !== 'refresh') throw unauthorized('refresh_scope', 'Invalid Refresh Token scope');
    const account = await this.#validAccount(claims);
    if (!account) throw tokenOutdated();
    const { sessionId, renewal, isPublic } = claims;
    if (!isPublic && !(await this.#renew({ sessionId, ownerId: account.id }, renewal))) throw tokenOutdated();
    return await this.#deps.jwt.issue(account, { sessionId, renewal: renewal + 1 }, isPublic);
  }

  /** Returns false when the refresh token was used earlier; the session is then ended. */
  async #renew(session: OwnedSession, renewal: number): Promise<boolean> {
    const { postgres, clock } = this.#deps;
    const now = clock.now();
    const times = { now, expiresTime: this.#lastExpiry(now), graceMs: limits.sessionRenewalGraceMs };
    if (await renewSession(postgres, session, renewal, times)) {
      await this.#limitSessions(session.ownerId, now);
      return true;
    }
    await this.#endSession(session);
    return false;
  }

  async #endSession(session: OwnedSession): Promise<void> {
    const { postgres, clock } = this.#deps;
    const now = clock.now();
    await outdateSession(postgres, session, this.#lastExpiry(now), now);
    await this.#limitSessions(session.ownerId, now);
  }

  /**
   * Ends all sessions of an owner with more than `sessionsPerOwnerMax` stored ones, so that their number is bounded.
   */
  async #limitSessions(ownerId: string, now: number): Promise<void> {
    const { postgres } = this.#deps;
    const countMax = limits.sessionsPerOwnerMax;
    if ((await countSessions(postgres, ownerId, countMax + 1)) <= countMax) return;
    await postgres.transaction((queries) => endSessions(queries, ownerId, tokensOutdatedTimeAt(now)));
  }

  /** Returns the expiry of the last token that any host has issued by now. */
  #lastExpiry(now: number): number {
    return now + (this.#deps.jwt.tokenSecondsMax + clockSkewSecondsMax) * 1000;
  }

  /** Ends the session of the caller, for all its tokens. An API key has none. */
  async signOut(principal: Principal): Promise<void> {
    const { sessionId, isPublic, userId, customerId } = principal;
    if (sessionId === null) return;
    await this.#endSession({ sessionId, ownerId: isPublic ? customerId! : userId });
  }

  /** Changes the password and ends every other session of the user; the answer has tokens of a new session. */
  async changePassword(
    principal: Principal,
    change: { current: string; next: string; revokesKeys: boolean },
    remoteAddress: string,
  ): Promise<TokenPair> {
    const { passwords, jwt, clock } = this.#deps;
    const { account, passwordHash, asker } = await this.proveCaller(principal, change.current, remoteAddress);
    if (change.next === change.current) {
      throw badRequest('same_password', 'New password should be different from existing!');
    }
    checkPassword(change.next);
    const next = await passwords.hash(change.next, asker);
    const time = tokensOutdatedTimeAt(clock.now());
    const changed = await this.#revoking(change.revokesKeys, (queries) =>
      changePassword(queries, account.id, passwordHash, next, time),
    );
    // Another call changed the password at this moment.
    if (!changed) throw badRequest('current_password', "Current password doesn't match!");
    return await jwt.issue(changed);
  }

  /** Runs `change` of an account and, if wanted, revokes the API keys of the account in the same transaction. */
  async #revoking(
    revokesKeys: boolean,
    change: (queries: Queries) => Promise<Account | undefined>,
  ): Promise<Account | undefined> {
    const { postgres, apiKeys } = this.#deps;
    const { account, revoked } = await postgres.transaction(async (queries) => {
      const account = await change(queries);
      return { account, revoked: account && revokesKeys ? await deleteKeysOfUser(queries, account.id) : [] };
    });
    for (const hash of revoked) apiKeys.changed(hash);
    return account;
  }

  /** Returns the caller and the caller's account. Throws a 401 fault. */
  async session(caller: Caller): Promise<UserSession> {
    const credential = chooseCredential((name) => caller.headers(name));
    if (!credential) throw authenticationFailed();
    if (credential.scheme === 'Bearer') return await this.sessionOfJwt(credential.value);
    return await this.#sessionOfApiKey(credential.value, caller);
  }

  /**
   * Returns the account with the members that requests do not read. Throws a 401 fault when the user was deleted at
   * this moment.
   */
  async userOf({ account, principal }: UserSession): Promise<User> {
    if (principal.isPublic) return { ...account, additionalInfo: null };
    const user = await findAccount(this.#deps.postgres, account.id);
    if (!user) throw tokenExpired();
    return user;
  }

  /** Called by doors that receive a JWT outside the two headers. */
  async sessionOfJwt(token: string): Promise<UserSession> {
    let claims: AccessClaims | RefreshClaims;
    try {
      claims = await this.#deps.jwt.verify(token);
    } catch (error) {
      if (!(error instanceof BadToken)) throw error;
      throw error.kind === 'expired' ? tokenExpired() : wrongCredentials();
    }
    // A refresh token is accepted only for a new pair.
    if (claims.kind !== 'access') throw wrongCredentials();
    const account = await this.#validAccount(claims);
    if (!account) throw tokenExpired();
    return { account, principal: principalOf(account, { ...claims, apiKeyId: null }) };
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
  inTurn<T>({ tenantId, customerId }: Principal, call: () => Promise<T>, kind?: LongRead): Promise<T> {
    const { calls, telemetryReads, pageReads } = this.#deps;
    const reads = kind === 'telemetry' ? telemetryReads : kind === 'page' ? pageReads : undefined;
    const inCalls = () => calls?.run(tenantId, customerId, call) ?? call();
    return reads?.run(tenantId, customerId, inCalls) ?? inCalls();
  }

  /** True when the caller reaches this server over HTTPS. */
  isSecure(caller: Caller): boolean {
    return this.#deps.proxies.isSecure(caller);
  }

  async #sessionOfApiKey(value: string, caller: Caller): Promise<UserSession> {
    const { apiKeys, clock, requireHttpsForApiKeys } = this.#deps;
    if (requireHttpsForApiKeys && !this.isSecure(caller)) {
      const message = 'API keys are accepted over HTTPS only (setting auth.requireHttpsForApiKeys)';
      throw unauthorized('api_key_plain_http', message);
    }
    const owner = await apiKeys.find(value);
    if (!owner) throw wrongCredentials();
    const { account, keyId: apiKeyId, keyEnabled } = owner;
    if (!keyEnabled || !canSignIn(account)) throw notActive();
    if (isExpired(owner, clock.now())) throw unauthorized('api_key_expired', 'API key is expired');
    return { account, principal: principalOf(account, { isPublic: false, sessionId: null, apiKeyId }) };
  }

  /** Returns the account of a token; undefined when the account or the session has ended. */
  async #validAccount(claims: AccessClaims | RefreshClaims): Promise<Account | undefined> {
    const { subject, userId, sessionId, issuedSeconds, isPublic, epoch } = claims;
    if (isPublic) return isUuid(subject) && isUuid(sessionId) ? await this.#guest(subject, sessionId) : undefined;
    if (!isUuid(userId) || !isUuid(sessionId)) return undefined;
    const session = await this.#sessions.find(`${userId} ${sessionId}`, { userId, sessionId });
    if (!session?.enabled || session.sessionOutdated) return undefined;
    if (epoch !== undefined && epoch !== session.sessionEpoch) return undefined;
    // Checks tokens without an epoch, and sessions that a host of an earlier version ended.
    if (issuedSeconds < Math.floor(session.tokensOutdatedTime / 1000)) return undefined;
    return session;
  }

  /** A guest is a customer user without a row, and is valid as long as the customer is public. */
  async #guest(customerId: string, sessionId: string | null): Promise<Account | undefined> {
    const guest = await this.#guests.find(`${customerId} ${sessionId}`, { customerId, sessionId });
    if (!guest || guest.sessionOutdated) return undefined;
    const { tenantId, createdTime } = guest;
    const names = { email: customerId, firstName: 'Public', lastName: 'Public', phone: null };
    const user = { id: nullUuid, createdTime, tenantId, customerId, authority: 'CUSTOMER_USER' as const, version: 1 };
    return {
      ...user,
      ...names,
      passwordHash: null,
      enabled: true,
      lastLoginTime: null,
      tokensOutdatedTime: 0,
      sessionEpoch: 0,
    };
  }
}

function principalOf(
  account: Account,
  { isPublic, sessionId, apiKeyId }: Pick<Principal, 'isPublic' | 'sessionId' | 'apiKeyId'>,
): Principal {
  const { id: userId, email, authority, tenantId, customerId } = account;
  return { userId, email, authority, tenantId, customerId, isPublic, sessionId, apiKeyId };
}
