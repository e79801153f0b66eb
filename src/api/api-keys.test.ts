/** API keys over the REST API: revocation, caps, and calls at the same moment. */
import { afterAll, describe, expect, it, vi } from 'vitest';
import { type Answer, admin, error, startApi, unique } from '../../test/harness/api-handlers.ts';
import { limits } from '../base/limits.ts';

const api = await startApi();
const { call, signIn, tokenOf, postgres, kept } = api;

afterAll(api.stop, 60_000);

describe('API keys', () => {
  const by = (value: string) => ({ headers: { 'x-authorization': `ApiKey ${value}` } });
  const works = async (value: string) => (await call('GET', '/api/auth/user', by(value))).status === 200;
  interface Key {
    id: { id: string };
    value: string;
  }
  const makeKey = async (userId: string, how: Parameters<typeof call>[2]): Promise<Answer & { body: Key }> =>
    await call('POST', '/api/apiKey', { ...how, body: { userId: { id: userId }, description: 'k', enabled: true } });

  it('are revoked with all keys that they made, for any user', async () => {
    const jwt = await tokenOf();
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    const customer = (await call('POST', '/api/customer', { jwt, body: { title: unique('c') } })).body;
    const user = { email: `${unique('u')}@millrace.local`, authority: 'CUSTOMER_USER', customerId: customer.id };
    const other = (await call('POST', '/api/user?sendActivationMail=false', { jwt, body: user })).body.id.id;
    await postgres.query(`update user_account set password_hash = 'x' where id = $1`, [other]);
    const [leaked, apart] = [(await makeKey(me, { jwt })).body, (await makeKey(me, { jwt })).body];
    const child = (await makeKey(me, by(leaked.value))).body;
    const middle = (await makeKey(me, by(child.value))).body;
    const grandchild = (await makeKey(other, by(middle.value))).body;
    await call('DELETE', `/api/apiKey/${middle.id.id}`, { jwt });
    expect(await works(grandchild.value)).toBe(true);
    await call('DELETE', `/api/apiKey/${leaked.id.id}?withMadeKeys=true`, { jwt });
    for (const { value } of [leaked, child, middle, grandchild]) expect(await works(value)).toBe(false);
    expect(await works(apart.value)).toBe(true);
  });

  it('make no key once they are revoked, and no endless row of keys', async () => {
    const jwt = await tokenOf();
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    const first = (await makeKey(me, { jwt })).body;
    expect(await works(first.value)).toBe(true);
    // The worker still uses the earlier answer of the store about the key.
    await postgres.query('delete from api_key where id = $1', [first.id.id]);
    expect(await makeKey(me, by(first.value))).toMatchObject({ status: 401 });
    let last = (await makeKey(me, { jwt })).body;
    for (let i = 0; i < limits.apiKeyMakersMax; i += 1) last = (await makeKey(me, by(last.value))).body;
    expect(await makeKey(me, by(last.value))).toMatchObject({ status: 400 });
    await postgres.query(
      `insert into api_key (id, created_time, tenant_id, user_id, value_sha256, description, enabled, expiration_time)
       select gen_random_uuid(), 0, null, $1, sha256(n::text::bytea), 'many', true, 0 from generate_series(1, $2) as n`,
      [me, limits.apiKeysPerUserMax],
    );
    expect(await makeKey(me, { jwt })).toMatchObject(
      error(400, 31, 'A user has at most 1000 API keys: revoke one that is not needed.'),
    );
    await postgres.query(`delete from api_key where description = 'many'`);
  });

  it('end with a changed password, if that is wanted', async () => {
    const username = 'customerA@thingsboard.org';
    const { token: jwt } = await signIn(username, 'customer');
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    const key = (await makeKey(me, { jwt })).body;
    const made = (await makeKey(me, by(key.value))).body;
    const change = async (currentPassword: string, newPassword: string, revokeApiKeys: boolean) => {
      const { token } = await signIn(username, currentPassword);
      const body = { currentPassword, newPassword, revokeApiKeys };
      expect(await call('POST', '/api/auth/changePassword', { jwt: token, body })).toMatchObject({ status: 200 });
    };
    await change('customer', 'plum-tree', false);
    expect([await works(key.value), await works(made.value)]).toEqual([true, true]);
    await change('plum-tree', 'pear-tree', true);
    expect([await works(key.value), await works(made.value)]).toEqual([false, false]);
    const last = (await makeKey(me, { jwt: (await signIn(username, 'pear-tree')).token })).body;
    const link = await call('POST', `/api/user/${me}/resetPasswordLink`, {
      jwt: await tokenOf('tenant@thingsboard.org', 'tenant'),
    });
    const resetToken = new URL(link.text).searchParams.get('resetToken');
    const reset = { resetToken, password: 'customer', revokeApiKeys: true };
    expect(await call('POST', '/api/noauth/resetPassword', { body: reset })).toMatchObject({ status: 200 });
    expect(await works(last.value)).toBe(false);
    kept.delete(username);
  });
});

describe('at the same moment', () => {
  /** Resolves when `count` statements in this database wait for a lock. */
  const lockWaiters = async (count: number) => {
    await vi.waitFor(
      async () => {
        const waiting = await postgres.query(
          `select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
        );
        expect(waiting.length).toBeGreaterThanOrEqual(count);
      },
      { timeout: 20_000 },
    );
  };

  it('a session that ends makes no API key that outlives it', async () => {
    const email = `${unique('late')}@millrace.local`;
    const user = { email, authority: 'TENANT_ADMIN' };
    const created = await call('POST', '/api/user?sendActivationMail=false', { jwt: await tokenOf(), body: user });
    const me = created.body.id.id;
    await postgres.query(
      'update user_account set password_hash = (select password_hash from user_account where email = $2) where id = $1',
      [me, admin.email],
    );
    const { token: jwt } = await signIn(email);
    const body = { userId: { id: me }, description: 'late', enabled: true };
    let made: Promise<Answer> | undefined;
    await postgres.transaction(async (queries) => {
      // Does what a change of the password does, which then revokes the keys that it finds.
      await queries.query('update user_account set session_epoch = session_epoch + 1 where id = $1', [me]);
      made = call('POST', '/api/apiKey', { jwt, body });
      await lockWaiters(1);
      await queries.query('delete from api_key where user_id = $1', [me]);
    });
    expect(await made).toMatchObject({ status: 401 });
    expect(await postgres.query('select 1 from api_key where user_id = $1', [me])).toEqual([]);
    const { token } = await signIn(email);
    expect(await call('POST', '/api/apiKey', { jwt: token, body })).toMatchObject({ status: 200 });
  });

  it('several calls make no more API keys than a user may have', async () => {
    const jwt = await tokenOf();
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    await postgres.query(
      `insert into api_key (id, created_time, tenant_id, user_id, value_sha256, description, enabled, expiration_time)
       select gen_random_uuid(), 0, null, $1, sha256(n::text::bytea), 'many', true, 0 from generate_series(1, $2) as n`,
      [
        me,
        limits.apiKeysPerUserMax - 1 - (await postgres.query('select 1 from api_key where user_id = $1', [me])).length,
      ],
    );
    const body = { userId: { id: me }, description: 'many', enabled: true };
    const answers = await Promise.all(Array.from({ length: 6 }, () => call('POST', '/api/apiKey', { jwt, body })));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 400, 400, 400, 400, 400]);
    await postgres.query(`delete from api_key where description = 'many'`);
  });
});
