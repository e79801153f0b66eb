/**
 * Signing in and out, and who a request comes from (rest.md 1). Every request with a JWT asks Postgres whether its user
 * and session still stand, so that a logout or a lock takes effect on all hosts at once; API keys go by `api-keys.ts`.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import type { Config } from '../base/config.ts';
import { badRequest, ErrorCode, Fault, StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isUuid, nullUuid } from '../device/uuid.ts';
import { isAway, type Postgres } from '../postgres/client.ts';
import { isExpired, sha256 } from './api-key.ts';
import type { ApiKeys } from './api-keys.ts';
import { chooseCredential } from './credential.ts';
import type { FailedSignIns } from './failed-sign-ins.ts';
import { type AccessClaims, BadToken, Jwt, type RefreshClaims, type TokenPair, tokenExpired } from './jwt.ts';
import type { PasswordHasher } from './password.ts';
import type { RequestLimits } from './request-limits.ts';
import type { Principal } from './roles.ts';
import {
  activateAccount,
  changePassword,
  findAccount,
  findAccountByEmail,
  findGuest,
  findOrInsertSetting,
  findSession,
  isActivationKnown,
  isResetTokenKnown,
  outdateSession,
  recordFailedSignIn,
  recordSignIn,
  resetPassword,
} from './store.ts';
import type { Caller, Proxies } from './transport.ts';
import type { Account, User } from './user.ts';

const signingKeyBytesMin = 64;

export interface AuthParts {
  postgres: Postgres;
  passwords: PasswordHasher;
  jwt: Jwt;
  clock: Clock;
  /** Wrong passwords in a row that are still forgiven; 0 = any number. */
  failedLoginsMax: number;
  failedSignIns: FailedSignIns;
  apiKeys: ApiKeys;
  proxies: Proxies;
  requireHttpsForApiKeys: boolean;
  requestLimits: RequestLimits | undefined;
}

export interface Session {
  principal: Principal;
  account: Account;
}

export class Auth {
  readonly #parts: AuthParts;

  constructor(parts: AuthParts) {
    this.#parts = parts;
  }

  async signIn(email: string, password: string, remoteAddress: string): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock, failedLoginsMax, failedSignIns } = this.#parts;
    failedSignIns.admit(email, remoteAddress);
    const account = email.includes('\0') ? undefined : await findAccountByEmail(postgres, email);
    if (account && (!account.enabled || account.passwordHash === null)) throw notActive();
    if (!(await passwords.verify(email, password, account?.passwordHash ?? null)) || !account) {
      failedSignIns.failed(email, remoteAddress);
      // Not counted where nothing is locked: a write would tell by its time that the user exists.
      if (account && failedLoginsMax > 0 && (await recordFailedSignIn(postgres, account.id, failedLoginsMax))) {
        throw unauthorized('account_locked', 'User account is locked due to security policy');
      }
      throw wrongPassword();
    }
    failedSignIns.succeeded(email, remoteAddress);
    await recordSignIn(postgres, account.id, clock.now());
    return await jwt.issue(account, account.tokensOutdatedTime);
  }

  /** A guest: whoever knows the id of a public customer. */
  async signInPublic(publicId: string): Promise<TokenPair> {
    const account = isUuid(publicId) ? await this.#guest(publicId.toLowerCase(), null) : undefined;
    if (!account) throw wrongPassword();
    return await this.#parts.jwt.issue(account, 0, true);
  }

  /** The first password of a user, and the user signed in with it. A token works once. */
  async activate(activateToken: string, password: string): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock } = this.#parts;
    const unknown = () => {
      const shown = activateToken.slice(0, 100);
      return badRequest('activate_token', `Unable to find user credentials by activateToken [${shown}]`);
    };
    // Before the costly hash: anybody may call this.
    if (activateToken.includes('\0') || !(await isActivationKnown(postgres, activateToken, clock.now())))
      throw unknown();
    checkPassword(password);
    const account = await activateAccount(postgres, activateToken, await passwords.hash(password), clock.now());
    if (!account) throw unknown();
    return await jwt.issue(account, account.tokensOutdatedTime);
  }

  /** A new password by the token of a reset link, and the user signed in with it; every other session ends. */
  async resetPassword(resetToken: string, password: string): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock } = this.#parts;
    const unknown = () => badRequest('reset_token', 'Invalid reset token!');
    const hash = sha256(resetToken);
    if (!(await isResetTokenKnown(postgres, hash, clock.now()))) throw unknown();
    checkPassword(password);
    const now = clock.now();
    const nextSecond = (Math.floor(now / 1000) + 1) * 1000;
    const account = await resetPassword(postgres, hash, await passwords.hash(password), now, nextSecond);
    if (!account) throw unknown();
    if (!account.enabled) throw notActive();
    return await jwt.issue(account, account.tokensOutdatedTime);
  }

  /** Signs a user in on behalf of an administrator. */
  async tokensOf(account: Account): Promise<TokenPair> {
    if (!account.enabled || account.passwordHash === null) throw notActive();
    return await this.#parts.jwt.issue(account, account.tokensOutdatedTime);
  }

  /** A new pair, of a new session. */
  async refresh(refreshToken: string): Promise<TokenPair> {
    let claims: AccessClaims | RefreshClaims;
    try {
      claims = await this.#parts.jwt.verify(refreshToken);
    } catch (error) {
      if (!(error instanceof BadToken)) throw error;
      throw error.kind === 'expired' ? tokenExpired() : authenticationFailed();
    }
    if (claims.kind !== 'refresh') throw unauthorized('refresh_scope', 'Invalid Refresh Token scope');
    const account = await this.#standingAccount(claims);
    if (!account) throw unauthorized('token_outdated', 'Token is outdated');
    return await this.#parts.jwt.issue(account, account.tokensOutdatedTime, claims.isPublic);
  }

  /** Ends the session of the caller, for all its tokens. An API key has none. */
  async signOut(principal: Principal): Promise<void> {
    if (principal.sessionId === null) return;
    const { postgres, jwt, clock } = this.#parts;
    const now = clock.now();
    await outdateSession(postgres, principal.sessionId, now + jwt.refreshTokenSeconds * 1000, now);
  }

  /** Ends every other session of the user; the answer belongs to a new one. */
  async changePassword(principal: Principal, current: string, next: string): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock } = this.#parts;
    const account = await findAccountByEmail(postgres, principal.email);
    if (!(await passwords.verify(principal.email, current, account?.passwordHash ?? null)) || !account) {
      throw badRequest('current_password', "Current password doesn't match!");
    }
    if (next === current) throw badRequest('same_password', 'New password should be different from existing!');
    checkPassword(next);
    await changePassword(postgres, account.id, await passwords.hash(next), clock.now());
    // The caller's own token may be of this very second, which the rule for all tokens spares.
    await this.signOut(principal);
    return await jwt.issue(account);
  }

  /** The caller and the account behind it. Throws a 401 fault. */
  async session(caller: Caller): Promise<Session> {
    const credential = chooseCredential((name) => caller.headers(name));
    if (!credential) throw authenticationFailed();
    if (credential.scheme === 'Bearer') return await this.sessionOfJwt(credential.value);
    return await this.#sessionOfApiKey(credential.value, caller);
  }

  /** The account with what requests do without. Throws a 401 fault when the user was deleted at this moment. */
  async userOf({ account, principal }: Session): Promise<User> {
    if (principal.isPublic) return { ...account, additionalInfo: null };
    const user = await findAccount(this.#parts.postgres, account.id);
    if (!user) throw tokenExpired();
    return user;
  }

  /** For doors that take a JWT by other ways than the two headers. */
  async sessionOfJwt(token: string): Promise<Session> {
    let claims: AccessClaims | RefreshClaims;
    try {
      claims = await this.#parts.jwt.verify(token);
    } catch (error) {
      if (!(error instanceof BadToken)) throw error;
      throw error.kind === 'expired' ? tokenExpired() : wrongPassword();
    }
    // A refresh token opens nothing but the way to a new pair.
    if (claims.kind !== 'access') throw wrongPassword();
    const account = await this.#standingAccount(claims);
    if (!account) throw tokenExpired();
    return { account, principal: principalOf(account, claims) };
  }

  /** One REST request of the caller. Throws 429 when the tenant or the customer has made too many. */
  admit({ tenantId, customerId }: Principal): void {
    if (tenantId !== null) this.#parts.requestLimits?.take(tenantId, customerId);
  }

  /** Whether what the caller sees of this server is HTTPS. */
  isSecure(caller: Caller): boolean {
    return this.#parts.proxies.isSecure(caller);
  }

  async #sessionOfApiKey(value: string, caller: Caller): Promise<Session> {
    const { apiKeys, clock, requireHttpsForApiKeys } = this.#parts;
    if (requireHttpsForApiKeys && !this.isSecure(caller)) {
      const message = 'API keys are accepted over HTTPS only (setting auth.requireHttpsForApiKeys)';
      throw unauthorized('api_key_plain_http', message);
    }
    const owner = await apiKeys.find(value);
    if (!owner) throw wrongPassword();
    const { account, keyEnabled } = owner;
    if (!keyEnabled || !account.enabled || account.passwordHash === null) throw notActive();
    if (isExpired(owner, clock.now())) throw unauthorized('api_key_expired', 'API key is expired');
    return { account, principal: principalOf(account, { isPublic: false, sessionId: null }) };
  }

  /** The account of a token; undefined when it, or the session, no longer stands. */
  async #standingAccount(claims: AccessClaims | RefreshClaims): Promise<Account | undefined> {
    const { subject, userId, sessionId, issuedSeconds, isPublic } = claims;
    if (isPublic) return isUuid(subject) && isUuid(sessionId) ? await this.#guest(subject, sessionId) : undefined;
    if (!isUuid(userId) || !isUuid(sessionId)) return undefined;
    const session = await findSession(this.#parts.postgres, userId, sessionId);
    if (!session?.enabled || session.sessionOutdated) return undefined;
    if (issuedSeconds < Math.floor(session.tokensOutdatedTime / 1000)) return undefined;
    return session;
  }

  /** A customer user without a row: it stands as long as its customer is public. */
  async #guest(customerId: string, sessionId: string | null): Promise<Account | undefined> {
    const guest = await findGuest(this.#parts.postgres, customerId, sessionId);
    if (!guest || guest.sessionOutdated) return undefined;
    const { tenantId, createdTime } = guest;
    const names = { email: customerId, firstName: 'Public', lastName: 'Public', phone: null };
    const user = { id: nullUuid, createdTime, tenantId, customerId, authority: 'CUSTOMER_USER' as const, version: 1 };
    return { ...user, ...names, passwordHash: null, enabled: true, lastLoginTime: null, tokensOutdatedTime: 0 };
  }
}

function principalOf(account: Account, session: Pick<Principal, 'isPublic' | 'sessionId'>): Principal {
  const { id: userId, email, authority, tenantId, customerId } = account;
  const { isPublic, sessionId } = session;
  return { userId, email, authority, tenantId, customerId, isPublic, sessionId };
}

/** A worker may start while Postgres is away, and devices go on; signing in then waits for the key. */
export async function openJwt(postgres: Postgres, config: Config['auth'], clock: Clock): Promise<Jwt> {
  const { issuer, accessTokenSeconds, refreshTokenSeconds } = config;
  let known: Uint8Array | undefined;
  const signingKey = async () => (known ??= await loadSigningKey(postgres, config.signingKey));
  try {
    await signingKey();
  } catch (error) {
    if (!isAway(error)) throw error;
  }
  return new Jwt({ signingKey, issuer, accessTokenSeconds, refreshTokenSeconds, clock });
}

/** The key of this installation: from the settings, else made by the first host and kept in Postgres for all. */
async function loadSigningKey(postgres: Postgres, configured: string): Promise<Uint8Array> {
  const fresh = randomBytes(signingKeyBytesMin).toString('base64');
  const text = configured || (await findOrInsertSetting(postgres, 'jwt.signingKey', fresh));
  const key = Buffer.from(text, 'base64');
  if (!/^[A-Za-z0-9+/_-]+={0,2}$/.test(text) || key.length < signingKeyBytesMin) {
    throw new StartError(
      `Setting auth.signingKey (JWT_TOKEN_SIGNING_KEY) must be the base64 of at least ${signingKeyBytesMin} bytes.`,
    );
  }
  return key;
}

/** What a new password must be, as consoles show it (rest.md 1.1). */
export const passwordPolicy = {
  minimumLength: limits.passwordCharsMin,
  maximumLength: limits.passwordCharsMax,
  minimumUppercaseLetters: null,
  minimumLowercaseLetters: null,
  minimumDigits: null,
  minimumSpecialCharacters: null,
  allowWhitespaces: true,
  forceUserToResetPasswordIfNotValid: false,
  passwordExpirationPeriodDays: null,
  passwordReuseFrequencyDays: null,
};

export function checkPassword(password: string): void {
  if (password.length > limits.passwordCharsMax) {
    throw badRequest(
      'password_length',
      `Password must be no more than ${limits.passwordCharsMax} characters in length.`,
    );
  }
  if (password.length < limits.passwordCharsMin) {
    throw badRequest('password_length', `Password must be ${limits.passwordCharsMin} or more characters in length.`);
  }
}

export function authenticationFailed(message = 'Authentication failed'): Fault {
  return unauthorized('authentication', message);
}

function wrongPassword(): Fault {
  return unauthorized('credentials', 'Invalid username or password');
}

function notActive(): Fault {
  return unauthorized('account_inactive', 'User account is not active');
}

function unauthorized(reason: string, message: string): Fault {
  return new Fault(401, ErrorCode.authentication, reason, message);
}
