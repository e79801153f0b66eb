/**
 * The sessions of users and guests (docs/rest.md#tokens): checks that the session of a token is still valid, renews it
 * with a refresh token, and ends it. Each check reads PostgreSQL, for many callers at once, so a sign-out or a lock
 * takes effect on all hosts at once.
 */
import type { Clock } from '../base/clock.ts';
import { GatheredStatements } from '../base/gathered-statements.ts';
import { limits } from '../base/limits.ts';
import { isUuid, nullUuid } from '../base/uuid.ts';
import type { Postgres } from '../postgres/client.ts';
import {
  type AccessClaims,
  claimsOf,
  clockSkewSecondsMax,
  type Jwt,
  type RefreshClaims,
  type TokenPair,
  tokensOutdatedTimeAt,
} from './jwt.ts';
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
import { authenticationFailed, tokenOutdated, unauthorized } from './unauthorized.ts';
import type { Account } from './user.ts';

export interface UserSessionDeps {
  postgres: Postgres;
  jwt: Jwt;
  clock: Clock;
}

export class UserSessions {
  readonly #deps: UserSessionDeps;
  readonly #sessions: GatheredStatements<SessionKey, StoredSession>;
  readonly #guests: GatheredStatements<GuestKey, StoredGuest>;

  constructor(deps: UserSessionDeps) {
    this.#deps = deps;
    this.#sessions = new GatheredStatements((keys) => findSessions(deps.postgres, keys));
    this.#guests = new GatheredStatements((keys) => findGuests(deps.postgres, keys));
  }

  /** Returns the account of a token; undefined when the account or the session has ended. */
  async accountOf(claims: AccessClaims | RefreshClaims): Promise<Account | undefined> {
    const { subject, userId, sessionId, issuedSeconds, isPublic, epoch } = claims;
    if (isPublic) return isUuid(sessionId) ? await this.guest(subject, sessionId) : undefined;
    if (!isUuid(userId) || !isUuid(sessionId)) return undefined;
    const session = await this.#sessions.ask(`${userId} ${sessionId}`, { userId, sessionId }, userId);
    if (!session?.enabled || session.sessionOutdated) return undefined;
    if (epoch !== undefined && epoch !== session.sessionEpoch) return undefined;
    // Checks tokens without an epoch, and sessions that a host of an earlier version ended.
    if (issuedSeconds < Math.floor(session.tokensOutdatedTime / 1000)) return undefined;
    return session;
  }

  /**
   * Returns the account of a guest; undefined when the customer is not public or the session has ended. `sessionId`:
   * null at the sign-in.
   */
  async guest(customerId: string, sessionId: string | null): Promise<Account | undefined> {
    if (!isUuid(customerId)) return undefined;
    const guest = await this.#guests.ask(`${customerId} ${sessionId}`, { customerId, sessionId }, customerId);
    return guest && !guest.sessionOutdated ? guestAccount(customerId, guest) : undefined;
  }

  /**
   * Returns a new pair of tokens of the same session. A refresh token is accepted once. A second use shows that two
   * parties have the token, and ends the session. A guest has no password to protect, so a guest's refresh token is
   * accepted repeatedly.
   */
  async renew(refreshToken: string): Promise<TokenPair> {
    const claims = await claimsOf(this.#deps.jwt, refreshToken, authenticationFailed);
    if (claims.kind !== 'refresh') throw unauthorized('refresh_scope', 'Invalid Refresh Token scope');
    const account = await this.accountOf(claims);
    if (!account) throw tokenOutdated();
    const { sessionId, renewal, isPublic } = claims;
    if (!isPublic && !(await this.#accept({ sessionId, ownerId: account.id }, renewal))) throw tokenOutdated();
    return await this.#deps.jwt.issue(account, { renewed: { sessionId, renewal: renewal + 1 }, isPublic });
  }

  /** Ends the session of the caller, for all its tokens. An API key has none. */
  async end({ sessionId, isPublic, userId, customerId }: Principal): Promise<void> {
    if (sessionId === null) return;
    await this.#end({ sessionId, ownerId: isPublic ? customerId! : userId });
  }

  /** Returns false when the refresh token was used earlier; the session is then ended. */
  async #accept(session: OwnedSession, renewal: number): Promise<boolean> {
    const { postgres, clock } = this.#deps;
    const now = clock.now();
    const times = { now, expiresTime: this.#lastExpiry(now), graceMs: limits.sessionRenewalGraceMs };
    if (!(await renewSession(postgres, session, renewal, times))) {
      await this.#end(session);
      return false;
    }
    await this.#limitSessions(session.ownerId, now);
    return true;
  }

  async #end(session: OwnedSession): Promise<void> {
    const { postgres, clock } = this.#deps;
    const now = clock.now();
    await outdateSession(postgres, session, this.#lastExpiry(now), now);
    await this.#limitSessions(session.ownerId, now);
  }

  /** Ends all sessions of an owner with more than `sessionsPerOwnerMax` stored ones: their number is bounded. */
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
}

/** A guest is a customer user without a row, and is valid as long as the customer is public. */
function guestAccount(customerId: string, { tenantId, createdTime }: StoredGuest): Account {
  return {
    id: nullUuid,
    createdTime,
    tenantId,
    customerId,
    authority: 'CUSTOMER_USER',
    version: 1,
    email: customerId,
    firstName: 'Public',
    lastName: 'Public',
    phone: null,
    passwordHash: null,
    enabled: true,
    lastLoginTime: null,
    tokensOutdatedTime: 0,
    sessionEpoch: 0,
  };
}
