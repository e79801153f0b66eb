/**
 * Signing in and out, and who a request comes from (rest.md 1). Every request asks Postgres whether its user and session
 * still stand, so that a logout or a lock takes effect on all hosts at once.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import type { Config } from '../base/config.ts';
import { badRequest, ErrorCode, Fault, StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isUuid } from '../device/uuid.ts';
import { isAway, type Postgres } from '../postgres/client.ts';
import { type Credential, chooseCredential } from './credential.ts';
import { type AccessClaims, BadToken, Jwt, type RefreshClaims, type TokenPair, tokenExpired } from './jwt.ts';
import type { PasswordHasher } from './password.ts';
import type { Principal } from './roles.ts';
import {
  activateAccount,
  changePassword,
  findAccountByEmail,
  findOrInsertSetting,
  findSession,
  isActivationKnown,
  outdateSession,
  recordFailedSignIn,
  recordSignIn,
} from './store.ts';
import type { UserAccount } from './user.ts';

const signingKeyBytesMin = 64;

export interface AuthParts {
  postgres: Postgres;
  passwords: PasswordHasher;
  jwt: Jwt;
  clock: Clock;
  /** Wrong passwords in a row that are still forgiven; 0 = any number. */
  failedLoginsMax: number;
}

export class Auth {
  readonly #parts: AuthParts;

  constructor(parts: AuthParts) {
    this.#parts = parts;
  }

  async signIn(email: string, password: string): Promise<TokenPair> {
    const { postgres, passwords, jwt, clock, failedLoginsMax } = this.#parts;
    const account = email.includes('\0') ? undefined : await findAccountByEmail(postgres, email);
    if (account && (!account.enabled || account.passwordHash === null)) throw notActive();
    if (!(await passwords.verify(password, account?.passwordHash ?? null)) || !account) {
      if (account && (await recordFailedSignIn(postgres, account.id, failedLoginsMax))) {
        throw unauthorized('account_locked', 'User account is locked due to security policy');
      }
      throw wrongPassword();
    }
    await recordSignIn(postgres, account.id, clock.now());
    return await jwt.issue(account, account.tokensOutdatedTime);
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

  /** Signs a user in on behalf of an administrator. */
  async tokensOf(account: UserAccount): Promise<TokenPair> {
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
    return await this.#parts.jwt.issue(account, account.tokensOutdatedTime);
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
    if (!(await passwords.verify(current, account?.passwordHash ?? null)) || !account) {
      throw badRequest('current_password', "Current password doesn't match!");
    }
    if (next === current) throw badRequest('same_password', 'New password should be different from existing!');
    checkPassword(next);
    await changePassword(postgres, account.id, await passwords.hash(next), clock.now());
    // The caller's own token may be of this very second, which the rule for all tokens spares.
    await this.signOut(principal);
    return await jwt.issue(account);
  }

  /** The caller, from all values of the two headers. Throws a 401 fault. */
  async authenticate(headers: (name: string) => string[]): Promise<Principal> {
    return (await this.session(headers)).principal;
  }

  /** The caller and the account behind it. */
  async session(headers: (name: string) => string[]): Promise<{ principal: Principal; account: UserAccount }> {
    const credential = chooseCredential(headers);
    if (!credential) throw authenticationFailed();
    return await this.#resolve(credential);
  }

  async #resolve(credential: Credential): Promise<{ principal: Principal; account: UserAccount }> {
    switch (credential.scheme) {
      // API keys do not exist yet: none is known.
      case 'ApiKey':
        throw wrongPassword();
      case 'Bearer':
        return await this.#resolveJwt(credential.value);
    }
  }

  async #resolveJwt(token: string): Promise<{ principal: Principal; account: UserAccount }> {
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
    const { id, email, authority, tenantId, customerId } = account;
    const { isPublic, sessionId } = claims;
    return { account, principal: { userId: id, email, authority, tenantId, customerId, isPublic, sessionId } };
  }

  /** The account of a token; undefined when it, or the session, no longer stands. */
  async #standingAccount(claims: AccessClaims | RefreshClaims): Promise<UserAccount | undefined> {
    const { userId, sessionId, issuedSeconds } = claims;
    if (!isUuid(userId) || !isUuid(sessionId)) return undefined;
    const session = await findSession(this.#parts.postgres, userId, sessionId);
    if (!session?.enabled || session.sessionOutdated) return undefined;
    if (issuedSeconds < Math.floor(session.tokensOutdatedTime / 1000)) return undefined;
    return session;
  }
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
