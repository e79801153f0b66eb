/** Signing in and out over the REST API: passwords, tokens, sessions; and the key that signs tokens. */
import { randomUUID } from 'node:crypto';
import { SignJWT } from 'jose';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { admin, config, error, startApi } from '../../test/harness/api-handlers.ts';
import { openJwt } from '../auth/jwt.ts';
import { rememberSignInNetwork } from '../auth/store.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { nullUuid } from '../base/uuid.ts';

const api = await startApi();
const { call, signIn, tokenOf, renew, expectEnded, postgres, failedSignIns } = api;

afterAll(api.stop, 60_000);

const signingKeySetting = `select value from setting where name = 'jwt.signingKey'`;

describe('signing in', () => {
  it('gives a pair of tokens that open the API', async () => {
    const pair = await signIn();
    expect(Object.keys(pair)).toEqual(['token', 'refreshToken']);
    const user = await call('GET', '/api/auth/user', { jwt: pair.token });
    expect(user.body).toMatchObject({ email: admin.email, name: admin.email, authority: 'TENANT_ADMIN', version: 1 });
    expect(user.body.customerId).toEqual({ entityType: 'CUSTOMER', id: nullUuid });
  });

  it('gives the same answer for a wrong password and an unknown user', async () => {
    for (const body of [
      { username: admin.email, password: 'x' },
      { username: 'nobody@millrace.local', password: 'x' },
    ]) {
      const answer = await call('POST', '/api/auth/login', { body });
      expect(answer).toMatchObject(error(401, 10, 'Invalid username or password'));
    }
  });

  it.each([
    '{"username":"","password":"x"}',
    '{"username":"a","password":""}',
    '{"username":"a","password":"x","more":1}',
    '[]',
    'nonsense',
    '',
  ])('refuses the body %s', async (body) => {
    expect(await call('POST', '/api/auth/login', { body })).toMatchObject(error(401, 10, 'Authentication failed'));
  });

  it('takes POST only', async () => {
    const answer = await call('GET', '/api/auth/login');
    expect(answer).toMatchObject(error(401, 10, 'Authentication method not supported'));
  });

  it('locks an account after too many wrong passwords', async () => {
    const username = 'customerC@thingsboard.org';
    const attempt = (password: string) => call('POST', '/api/auth/login', { body: { username, password } });
    for (let i = 0; i < 3; i += 1) {
      expect(await attempt('x')).toMatchObject(error(401, 10, 'Invalid username or password'));
    }
    expect(await attempt('x')).toMatchObject(error(401, 10, 'User account is locked due to security policy'));
    expect(await attempt('customer')).toMatchObject(error(401, 10, 'User account is not active'));
  });

  it('records no network of a user who is deleted at that moment', async () => {
    const { token } = await signIn('customerA@thingsboard.org', 'customer');
    const { id } = (await call('GET', '/api/auth/user', { jwt: token })).body.id;
    const waiting = `select 1 from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into sign_in_network%'`;
    const { recorded } = await postgres.transaction(async (queries) => {
      await queries.query('delete from user_account where id = $1', [id]);
      const asked = { recorded: rememberSignInNetwork(postgres, id, '192.0.2.0', clock.now(), 1) };
      await vi.waitFor(async () => expect(await postgres.query(waiting)).toHaveLength(1), { timeout: 20_000 });
      return asked;
    });
    await recorded;
  });

  it('refreshes with a refresh token only, within the same session', async () => {
    const pair = await signIn();
    const answer = await renew(pair);
    const session = (token: string) => JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString()).sessionId;
    expect(session(answer.body.token)).toBe(session(pair.token));
    expect(await call('POST', '/api/auth/token', { body: { refreshToken: pair.token } })).toMatchObject(
      error(401, 10, 'Invalid Refresh Token scope'),
    );
    expect(await call('POST', '/api/auth/token', { body: {} })).toMatchObject(error(401, 10, 'Authentication failed'));
    expect(await call('GET', '/api/auth/user', { jwt: pair.refreshToken })).toMatchObject({ status: 401 });
  });

  it('ends a session with all its tokens at a logout', async () => {
    const first = await signIn();
    const second = (await renew(first)).body;
    await call('POST', '/api/auth/logout', { jwt: second.token });
    for (const pair of [first, second]) await expectEnded(pair);
  });

  it('takes a refresh token once, a second time only at the same moment, and then ends the session', async () => {
    const pair = await signIn();
    // Two pages of a browser, and one whose answer was lost.
    const twins = await Promise.all([renew(pair), renew(pair), renew(pair)]);
    expect(twins.map(({ status }) => status)).toEqual([200, 200, 200]);
    const next = (await renew(twins[0]!.body)).body;
    await postgres.query(`update session_renewal set renewed_at = renewed_at - interval '61 seconds'`);
    // Two clients have the token of the second page, and the server cannot know which one has stolen it.
    expect(await renew(twins[1]!.body)).toMatchObject(error(401, 10, 'Token is outdated'));
    for (const each of [pair, next]) await expectEnded(each);
  });

  it('takes refresh tokens of a version that knew neither renewals nor epochs', async () => {
    const { token } = await signIn();
    const claims = JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString());
    const { epoch: _, ...old } = { ...claims, sessionId: randomUUID(), scopes: ['REFRESH_TOKEN'] };
    const key = Buffer.from((await postgres.query<{ value: string }>(signingKeySetting))[0]!.value, 'base64');
    const refreshToken = await new SignJWT(old).setProtectedHeader({ alg: 'HS512' }).sign(key);
    expect(await renew({ refreshToken })).toMatchObject({ status: 200 });
  });

  it('ends all sessions of a user with too many remembered ones', async () => {
    const pair = await signIn('sysadmin@thingsboard.org', 'sysadmin');
    await postgres.query(
      `insert into outdated_session (session_id, expires_time, owner_id)
       select gen_random_uuid(), $2, $1 from generate_series(1, $3)`,
      [(await call('GET', '/api/auth/user', { jwt: pair.token })).body.id.id, 2 ** 50, limits.sessionsPerOwnerMax],
    );
    const other = await signIn('sysadmin@thingsboard.org', 'sysadmin');
    await call('POST', '/api/auth/logout', { jwt: other.token });
    await expectEnded(pair);
    expect(await postgres.query('select 1 from outdated_session where expires_time = $1', [2 ** 50])).toEqual([]);
    await signIn('sysadmin@thingsboard.org', 'sysadmin');
  });

  it('ends one session at a logout, and only that', async () => {
    const [first, second] = [await signIn(), await signIn()];
    expect(await call('POST', '/api/auth/logout', { jwt: first.token })).toMatchObject({ status: 200, text: '' });
    expect(await call('GET', '/api/auth/user', { jwt: first.token })).toMatchObject(
      error(401, 11, 'Token has expired'),
    );
    expect(await call('POST', '/api/auth/token', { body: { refreshToken: first.refreshToken } })).toMatchObject(
      error(401, 10, 'Token is outdated'),
    );
    expect(await call('GET', '/api/auth/user', { jwt: second.token })).toMatchObject({ status: 200 });
  });

  it('changes the password, and ends every other token, of any second', async () => {
    const username = 'customerB@thingsboard.org';
    const [{ token }, other] = [await signIn(username, 'customer'), await signIn(username, 'customer')];
    const { body: me } = await call('GET', '/api/auth/user', { jwt: token });
    const link = `/api/user/${me.id.id}/resetPasswordLink`;
    const { text } = await call('POST', link, { jwt: await tokenOf('tenant@thingsboard.org', 'tenant') });
    const change = (currentPassword: string, newPassword: string) =>
      call('POST', '/api/auth/changePassword', { jwt: token, body: { currentPassword, newPassword } });
    expect(await change('wrong', 'plum-tree')).toMatchObject(error(400, 31, "Current password doesn't match!"));
    expect(await change('customer', 'customer')).toMatchObject(
      error(400, 31, 'New password should be different from existing!'),
    );
    // A thief renews without a pause: no answer to its requests may stay valid after the change.
    const stolen = [other];
    let isStopped = false;
    const thief = (async () => {
      while (!isStopped) {
        const { status, body } = await renew(stolen.at(-1)!);
        if (status !== 200) return;
        stolen.push(body);
      }
    })();
    const [changed] = await Promise.all([
      change('customer', 'plum-tree'),
      signIn(username, 'customer').catch(() => {}),
    ]);
    isStopped = true;
    await thief;
    for (const pair of stolen) await expectEnded(pair);
    expect(await call('GET', '/api/auth/user', { jwt: token })).toMatchObject({ status: 401 });
    expect(await call('GET', '/api/auth/user', { jwt: changed.body.token })).toMatchObject({ status: 200 });
    expect(await renew(changed.body)).toMatchObject({ status: 200 });
    await signIn(username, 'plum-tree');
    const resetToken = new URL(text).searchParams.get('resetToken');
    expect(
      await call('POST', '/api/noauth/resetPassword', { body: { resetToken, password: 'by-old-link' } }),
    ).toMatchObject(error(400, 31, 'Invalid reset token!'));
  });

  it('lets no caller guess the current password of a session faster than at a sign-in', async () => {
    const username = 'customer@thingsboard.org';
    const jwt = await tokenOf(username, 'customer');
    for (let i = 0; i < limits.failedSignInsFree; i += 1) failedSignIns.failed(username, '127.0.0');
    const change = { currentPassword: 'customer', newPassword: 'plum-tree' };
    expect(await call('POST', '/api/auth/changePassword', { jwt, body: change })).toMatchObject({ status: 429 });
    failedSignIns.succeeded(username, '127.0.0');
    const wrong = { ...change, currentPassword: 'x' };
    const failed = vi.spyOn(failedSignIns, 'failed');
    await call('POST', '/api/auth/changePassword', { jwt, body: wrong });
    expect(failed).toHaveBeenCalledWith(username, '127.0.0');
  });

  it('is not blocked for a user by guesses from elsewhere', async () => {
    const body = { username: admin.email, password: admin.password };
    await signIn();
    for (let i = 0; i < 100 * limits.failedSignInsFree; i += 1) failedSignIns.failed(admin.email, `10.${i}.0`);
    const from = (remoteAddress: string) => call('POST', '/api/auth/login', { body, remoteAddress });
    expect(await from('127.0.0.9')).toMatchObject({ status: 200 });
    for (let i = 0; i < 10 * limits.failedSignInsFree; i += 1) failedSignIns.failed(admin.email, `10.${i}.0`);
    expect(await from('192.168.7.7')).toMatchObject({ status: 429 });
    failedSignIns.succeeded(admin.email, '127.0.0');
  });

  it('requires a supported credential', async () => {
    const get = (headers: Record<string, string>) => call('GET', '/api/auth/user', { headers });
    const failed = error(401, 10, 'Authentication failed');
    const invalid = error(401, 10, 'Invalid username or password');
    expect(await get({})).toMatchObject(failed);
    expect(await get({ authorization: 'Basic dTpw' })).toMatchObject(failed);
    expect(await get({ 'x-authorization': 'bearer x' })).toMatchObject(failed);
    expect(await get({ 'x-authorization': 'Bearer abc' })).toMatchObject(invalid);
    expect(await get({ 'x-authorization': 'ApiKey tb_abc' })).toMatchObject(invalid);
    const { token } = await signIn();
    expect(await get({ authorization: `Bearer ${token}` })).toMatchObject({ status: 200 });
    expect(await get({ 'x-authorization': 'ApiKey x', authorization: `Bearer ${token}` })).toMatchObject({
      status: 200,
    });
  });
});

describe('the signing key', () => {
  it('is the same for all, or the one in the settings, which must be long enough', async () => {
    const { token } = await signIn();
    const again = await openJwt(postgres, config.auth, clock);
    expect(await again.verify(token)).toMatchObject({ kind: 'access' });
    const own = await openJwt(postgres, { ...config.auth, signingKey: Buffer.alloc(64, 1).toString('base64') }, clock);
    await expect(own.verify(token)).rejects.toMatchObject({ kind: 'expired' });
    const short = { ...config.auth, signingKey: Buffer.alloc(63, 1).toString('base64') };
    await expect(openJwt(postgres, short, clock)).rejects.toThrow(/JWT_TOKEN_SIGNING_KEY.*64 bytes/);
  });
});
