import { generateKeyPairSync } from 'node:crypto';
import { SignJWT } from 'jose';
import { describe, expect, it } from 'vitest';
import { nullUuid } from '../base/uuid.ts';
import { type BadToken, Jwt, type TokenUser } from './jwt.ts';

const signingKey = Buffer.alloc(64, 7);
const time = { now: 1_760_000_000_500 };
const clock = { now: () => time.now, monotonic: () => 0 };
const options = {
  signingKey: async () => signingKey,
  issuer: 'millrace',
  accessTokenSeconds: 9000,
  refreshTokenSeconds: 604_800,
  clock,
};
const jwt = new Jwt(options);
const user: TokenUser = {
  id: '018f0000-0000-7000-8000-000000000001',
  createdTime: 1,
  tenantId: '018f0000-0000-7000-8000-000000000002',
  customerId: null,
  authority: 'TENANT_ADMIN',
  email: 'ops@orchard.example',
  firstName: null,
  lastName: 'Pear',
  phone: null,
  version: 1,
  tokensOutdatedTime: 0,
  sessionEpoch: 3,
};

const part = (token: string, index: number) =>
  JSON.parse(Buffer.from(token.split('.')[index]!, 'base64url').toString()) as Record<string, unknown>;
const kindOf = async (token: string) => {
  try {
    await jwt.verify(token);
    return 'good';
  } catch (error) {
    return (error as BadToken).kind;
  }
};

describe('Jwt', () => {
  it('issues exactly the claims of the wire', async () => {
    const { token, refreshToken } = await jwt.issue(user);
    expect(part(token, 0)).toEqual({ alg: 'HS512' });
    const access = part(token, 1);
    expect(access).toEqual({
      sub: user.email,
      userId: user.id,
      scopes: ['TENANT_ADMIN'],
      sessionId: expect.any(String),
      iss: 'millrace',
      iat: 1_760_000_000,
      exp: 1_760_009_000,
      isPublic: false,
      epoch: 3,
      lastName: 'Pear',
      enabled: true,
      tenantId: user.tenantId,
      customerId: nullUuid,
    });
    expect(part(refreshToken, 1)).toEqual({
      sub: user.email,
      userId: user.id,
      scopes: ['REFRESH_TOKEN'],
      sessionId: access['sessionId'],
      iss: 'millrace',
      iat: 1_760_000_000,
      exp: 1_760_604_800,
      isPublic: false,
      epoch: 3,
      renewal: 0,
      jti: expect.any(String),
    });
  });

  it('issues a renewed pair of the same session, of no outdated second', async () => {
    const renewed = { sessionId: user.id, renewal: 7 };
    const pair = await jwt.issue({ ...user, tokensOutdatedTime: 1_760_000_001_000 }, { renewed });
    expect(part(pair.token, 1)).toMatchObject({ sessionId: user.id, iat: 1_760_000_001 });
    expect(await jwt.verify(pair.refreshToken)).toMatchObject({ sessionId: user.id, renewal: 7, epoch: 3 });
  });

  it('distinguishes access and refresh tokens', async () => {
    const { token, refreshToken } = await jwt.issue(user);
    expect(await jwt.verify(token)).toMatchObject({ kind: 'access', userId: user.id, authority: 'TENANT_ADMIN' });
    expect(await jwt.verify(refreshToken)).toMatchObject({ kind: 'refresh', userId: user.id });
  });

  it('refuses a token when its time is over, and one from the future', async () => {
    const { token } = await jwt.issue(user);
    time.now += 9_001_000;
    expect(await kindOf(token)).toBe('expired');
    time.now -= 9_001_000 + 120_000;
    expect(await kindOf(token)).toBe('expired');
    time.now += 120_000;
    expect(await kindOf(token)).toBe('good');
  });

  it('refuses every change of the signature, also one that decodes to the same bytes', async () => {
    const { token } = await jwt.issue(user);
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const last = token.at(-1)!;
    for (const other of alphabet) {
      if (other !== last) expect(await kindOf(token.slice(0, -1) + other)).toBe('expired');
    }
  });

  it('refuses what is not a token', async () => {
    for (const text of ['', 'abc', 'a.b.c', '..', 'x'.repeat(10_000)]) expect(await kindOf(text)).toBe('malformed');
  });

  it('takes HS512 with its own key and issuer only', async () => {
    const claims = { userId: user.id, sessionId: user.id, scopes: ['TENANT_ADMIN'] };
    const sign = (alg: string, key: Parameters<SignJWT['sign']>[0], issuer = 'millrace') =>
      new SignJWT(claims)
        .setProtectedHeader({ alg })
        .setIssuer(issuer)
        .setIssuedAt(1_760_000_000)
        .setExpirationTime(1_760_009_000)
        .sign(key);
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const none = `${Buffer.from('{"alg":"none"}').toString('base64url')}.${Buffer.from(
      JSON.stringify({ ...claims, iss: 'millrace', iat: 1_760_000_000, exp: 1_760_009_000 }),
    ).toString('base64url')}.`;
    expect(await kindOf(await sign('HS512', signingKey))).toBe('good');
    expect(await kindOf(await sign('HS512', Buffer.alloc(64, 8)))).toBe('expired');
    expect(await kindOf(await sign('HS512', signingKey, 'other'))).toBe('expired');
    expect(await kindOf(await sign('HS256', signingKey))).not.toBe('good');
    expect(await kindOf(await sign('RS256', privateKey))).not.toBe('good');
    expect(await kindOf(none)).not.toBe('good');
  });
});
