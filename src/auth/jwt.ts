/** JSON web tokens (docs/rest.md#tokens): HS512 only, an access and a refresh token for each session. */
import { randomUUID } from 'node:crypto';
// Imports single parts: the whole of jose is 63 files, which every start would read.
import { JOSEError, JWSSignatureVerificationFailed, JWTClaimValidationFailed, JWTExpired } from 'jose/errors';
import { SignJWT } from 'jose/jwt/sign';
import { jwtVerify } from 'jose/jwt/verify';
import type { Clock } from '../base/clock.ts';
import type { Fault } from '../base/errors.ts';
import type { Config } from '../base/settings/config.ts';
import { nullUuid } from '../base/uuid.ts';
import type { Postgres } from '../postgres/client.ts';
import { type Authority, authorities } from './roles.ts';
import { openSigningKey } from './signing-key.ts';
import { tokenExpired } from './unauthorized.ts';
import type { Account, UserNames } from './user.ts';

/** Seconds that the clock of the host that issued a token may be ahead of this host's clock. */
export const clockSkewSecondsMax = 60;
const refreshScope = 'REFRESH_TOKEN';

interface JwtDeps {
  /** Throws a 503 fault while the key cannot be read. */
  signingKey: () => Promise<Uint8Array>;
  issuer: string;
  accessTokenSeconds: number;
  refreshTokenSeconds: number;
  clock: Clock;
}

/** The properties of a user that tokens carry. */
export type TokenUser = UserNames & Pick<Account, 'tokensOutdatedTime' | 'sessionEpoch'>;

interface IssuedSession {
  /** Absent for a new session. */
  renewed?: { sessionId: string; renewal: number };
  /** True for the session of a guest. */
  isPublic?: boolean;
}

export interface TokenPair {
  token: string;
  refreshToken: string;
}

export interface AccessClaims {
  kind: 'access';
  /** Email of the user; for a guest the id of the public customer. */
  subject: string;
  userId: string;
  sessionId: string;
  authority: Authority;
  isPublic: boolean;
  issuedSeconds: number;
  /** Undefined: issued by a version without epochs. */
  epoch: number | undefined;
}

export interface RefreshClaims {
  kind: 'refresh';
  subject: string;
  userId: string;
  sessionId: string;
  isPublic: boolean;
  issuedSeconds: number;
  epoch: number | undefined;
  /** The number of renewals of the session when the token was made. */
  renewal: number;
}

/** `malformed`: the string is not one of our tokens. `expired`: the token has expired, or its signature is wrong. */
export class BadToken extends Error {
  readonly kind: 'malformed' | 'expired';

  constructor(kind: 'malformed' | 'expired') {
    super(`the token is ${kind}`);
    this.kind = kind;
  }
}

export class Jwt {
  readonly #deps: JwtDeps;

  constructor(deps: JwtDeps) {
    this.#deps = deps;
  }

  /** The longest lifetime of any token, in seconds. */
  get tokenSecondsMax(): number {
    return Math.max(this.#deps.accessTokenSeconds, this.#deps.refreshTokenSeconds);
  }

  /**
   * Makes a pair of tokens of a new or a renewed session. Its time of issue is one at which the user's tokens are not
   * outdated, even if that is a moment ahead.
   */
  async issue(user: TokenUser, { renewed, isPublic = false }: IssuedSession = {}): Promise<TokenPair> {
    const { accessTokenSeconds, refreshTokenSeconds } = this.#deps;
    const { sessionId, renewal } = renewed ?? { sessionId: randomUUID(), renewal: 0 };
    const session = { userId: user.id, sessionId, isPublic, epoch: user.sessionEpoch };
    const access = {
      ...session,
      scopes: [user.authority],
      ...(user.firstName !== null && { firstName: user.firstName }),
      ...(user.lastName !== null && { lastName: user.lastName }),
      enabled: true,
      tenantId: user.tenantId ?? nullUuid,
      customerId: user.customerId ?? nullUuid,
    };
    const refresh = { ...session, scopes: [refreshScope], jti: randomUUID(), renewal };
    const issued = Math.floor(Math.max(this.#deps.clock.now(), user.tokensOutdatedTime) / 1000);
    return {
      token: await this.#sign(user.email, access, issued, accessTokenSeconds),
      refreshToken: await this.#sign(user.email, refresh, issued, refreshTokenSeconds),
    };
  }

  /** Verifies signature and claims; throws BadToken. The session and its user are not checked here. */
  async verify(token: string): Promise<AccessClaims | RefreshClaims> {
    const payload = await this.#verified(token);
    const { sub, userId, sessionId, scopes, isPublic, iat } = payload;
    const [epoch, renewal] = [payload['epoch'], payload['renewal']];
    const scope = Array.isArray(scopes) && scopes.length === 1 ? scopes[0] : undefined;
    if (typeof userId !== 'string' || typeof sessionId !== 'string' || typeof iat !== 'number') {
      throw new BadToken('malformed');
    }
    const subject = typeof sub === 'string' ? sub : '';
    const session = {
      subject,
      userId,
      sessionId,
      isPublic: isPublic === true,
      issuedSeconds: iat,
      epoch: typeof epoch === 'number' ? epoch : undefined,
    };
    if (scope === refreshScope) {
      return { kind: 'refresh', ...session, renewal: typeof renewal === 'number' ? renewal : 0 };
    }
    const authority = authorities.find((known) => known === scope);
    if (!authority) throw new BadToken('malformed');
    return { kind: 'access', ...session, authority };
  }

  async #verified(token: string): Promise<Record<string, unknown>> {
    const { signingKey, issuer, clock } = this.#deps;
    const now = clock.now();
    const key = await signingKey();
    try {
      const { payload } = await jwtVerify(token, key, {
        algorithms: ['HS512'],
        issuer,
        requiredClaims: ['exp', 'iat'],
        currentDate: new Date(now),
      });
      if (payload.iat! > now / 1000 + clockSkewSecondsMax) throw new BadToken('expired');
      return isCanonical(token) ? payload : fail('expired');
    } catch (error) {
      if (error instanceof BadToken) throw error;
      if (
        error instanceof JWSSignatureVerificationFailed ||
        error instanceof JWTExpired ||
        error instanceof JWTClaimValidationFailed
      ) {
        throw new BadToken('expired');
      }
      if (error instanceof JOSEError || error instanceof TypeError) throw new BadToken('malformed');
      throw error;
    }
  }

  async #sign(subject: string, claims: Record<string, unknown>, issued: number, seconds: number): Promise<string> {
    return await new SignJWT(claims)
      .setProtectedHeader({ alg: 'HS512' })
      .setSubject(subject)
      .setIssuer(this.#deps.issuer)
      .setIssuedAt(issued)
      .setExpirationTime(issued + seconds)
      .sign(await this.#deps.signingKey());
  }
}

/** Returns the claims of a token. Throws a 401 fault: for a malformed token the one that `malformed` returns. */
export async function claimsOf(jwt: Jwt, token: string, malformed: () => Fault): Promise<AccessClaims | RefreshClaims> {
  try {
    return await jwt.verify(token);
  } catch (error) {
    if (!(error instanceof BadToken)) throw error;
    throw error.kind === 'expired' ? tokenExpired() : malformed();
  }
}

/** The last character of a signature has four unused bits: another string would decode to the same bytes. */
function isCanonical(token: string): boolean {
  const signature = token.slice(token.lastIndexOf('.') + 1);
  return Buffer.from(signature, 'base64url').toString('base64url') === signature;
}

function fail(kind: 'malformed' | 'expired'): never {
  throw new BadToken(kind);
}

/**
 * Returns the time to store as `tokensOutdatedTime` when all tokens of a user end now. Tokens carry whole seconds, so
 * tokens of the running second are outdated too.
 */
export function tokensOutdatedTimeAt(now: number): number {
  return (Math.floor(now / 1000) + 1) * 1000;
}

/** Returns at once while PostgreSQL is unavailable: devices are served, and sign-ins wait for the key. */
export async function openJwt(postgres: Postgres, config: Config['auth'], clock: Clock): Promise<Jwt> {
  const { issuer, accessTokenSeconds, refreshTokenSeconds } = config;
  const key = await openSigningKey(postgres, config.signingKey);
  return new Jwt({ signingKey: () => key.read(), issuer, accessTokenSeconds, refreshTokenSeconds, clock });
}
