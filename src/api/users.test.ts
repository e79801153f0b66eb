/**
 * Users over the REST API: the first and the last administrator, password links, emails, what users of customers see.
 */
import { afterAll, describe, expect, it } from 'vitest';
import { admin, error, startApi, unique } from '../../test/harness/api-handlers.ts';
import { findFirstDevice, seedDemoData, seedFirstTenant } from '../admin/seed.ts';
import { systemClock as clock } from '../base/clock.ts';

const api = await startApi();
const { call, tokenOf, postgres, kept, passwords, tokens } = api;

afterAll(api.stop, 60_000);

describe('users', () => {
  const system = () => tokenOf(admin.systemEmail);
  const enable = (jwt: string, id: string, enabled: boolean) =>
    call('POST', `/api/user/${id}/userCredentialsEnabled?userCredentialsEnabled=${enabled}`, { jwt });
  const idOf = async (jwt: string) => (await call('GET', '/api/auth/user', { jwt })).body.id.id;
  const newUser = async (jwt: string, user: object) => {
    const email = `${unique('user')}@millrace.local`;
    const { body } = await call('POST', '/api/user?sendActivationMail=false', { jwt, body: { email, ...user } });
    return body;
  };
  const lastAdmin = (whose: string) => error(400, 31, `At least one ${whose} administrator must remain!`);

  it('keep one administrator that can sign in', async () => {
    const tenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    expect(await enable(tenant, await idOf(tenant), false)).toMatchObject(lastAdmin('tenant'));
    // An administrator who cannot sign in yet does not count as another administrator.
    await newUser(tenant, { authority: 'TENANT_ADMIN' });
    expect(await enable(tenant, await idOf(tenant), false)).toMatchObject(lastAdmin('tenant'));
    const demo = await idOf(await tokenOf('sysadmin@thingsboard.org', 'sysadmin'));
    expect(await enable(await system(), demo, false)).toMatchObject({ status: 200 });
    expect(await enable(await system(), await idOf(await system()), false)).toMatchObject(lastAdmin('system'));
    kept.delete('sysadmin@thingsboard.org');
  });

  it('lock the last system administrator out for no number of wrong passwords', async () => {
    const attempt = (password: string) =>
      call('POST', '/api/auth/login', { body: { username: admin.systemEmail, password } });
    for (let i = 0; i < 5; i += 1) expect(await attempt('x')).toMatchObject(error(401, 10, expect.anything()));
    expect(await attempt(admin.password)).toMatchObject({ status: 200 });
    const demo = await postgres.query<{ id: string }>(`select id from user_account where email like 'sysadmin@%'`);
    await enable(await system(), demo[0]!.id, true);
    for (let i = 0; i < 4; i += 1) await attempt('x');
    expect(await attempt(admin.password)).toMatchObject(error(401, 10, 'User account is not active'));
    const other = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
    expect(
      await enable(
        other,
        (await postgres.query<{ id: string }>('select id from user_account where email = $1', [admin.systemEmail]))[0]!
          .id,
        true,
      ),
    ).toMatchObject({ status: 200 });
  });

  it('get a link to choose another password from administrators above only', async () => {
    const tenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    const link = (jwt: string, id: string) => call('POST', `/api/user/${id}/resetPasswordLink`, { jwt });
    const denied = { status: 403 };
    expect(await link(tenant, await idOf(tenant))).toMatchObject(denied);
    const equal = await newUser(tenant, { authority: 'TENANT_ADMIN' });
    expect(await link(tenant, equal.id.id)).toMatchObject(denied);
    expect(await link(await system(), await idOf(await system()))).toMatchObject(denied);
    expect(await link(await system(), await idOf(tenant))).toMatchObject({ status: 200 });
  });

  it('change their own email, and that of an equal, with their password', async () => {
    const tenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    const { body: me } = await call('GET', '/api/auth/user', { jwt: tenant });
    const equal = await newUser(tenant, { authority: 'TENANT_ADMIN' });
    const save = (user: object) => call('POST', '/api/user', { jwt: tenant, body: { ...user, version: undefined } });
    const email = `${unique('moved')}@millrace.local`;
    const wantsPassword = error(400, 31, 'To change this email give your own password as "currentPassword".');
    expect(await save({ ...me, email })).toMatchObject(wantsPassword);
    expect(await save({ ...equal, email })).toMatchObject(wantsPassword);
    expect(await save({ ...me, email, currentPassword: 'x' })).toMatchObject(
      error(400, 31, "Current password doesn't match!"),
    );
    expect((await save({ ...me, email, currentPassword: 'tenant' })).body).toMatchObject({ email });
    expect((await save({ ...me, currentPassword: 'tenant' })).body).toMatchObject({ email: me.email });
    const customerId = (await call('GET', '/api/customers?pageSize=1&page=0', { jwt: tenant })).body.data[0].id;
    const below = await newUser(tenant, { authority: 'CUSTOMER_USER', customerId });
    expect((await save({ ...below, email })).body).toMatchObject({ email });
    // No answer reveals which tenant has such a user.
    for (const taken of [email, admin.email]) {
      expect(await save({ ...equal, email: taken, currentPassword: 'tenant' })).toMatchObject(
        error(400, 31, `The email '${taken}' cannot be used: choose another one.`),
      );
    }
  });

  it('of customers do not see where the tenant is reached', async () => {
    const ofA = await tokenOf('customerA@thingsboard.org', 'customer');
    const { body: me } = await call('GET', '/api/auth/user', { jwt: ofA });
    const path = `/api/tenant/${me.tenantId.id}`;
    const { body: tenant } = await call('GET', path, { jwt: await system() });
    const contact = { email: 'mill@orchard.example', phone: '1', address: 'a', address2: 'b', zip: 'z' };
    const place = { country: 'c', state: 's', city: 'y' };
    await call('POST', '/api/tenant', { jwt: await system(), body: { ...tenant, ...contact, ...place } });
    const seen = (await call('GET', path, { jwt: ofA })).body;
    expect(Object.keys(seen)).toEqual(Object.keys(tenant));
    for (const field of Object.keys({ ...contact, ...place })) expect([field, seen[field]]).toEqual([field, null]);
    expect(seen.title).toBe(tenant.title);
    const ofTenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    expect((await call('GET', path, { jwt: ofTenant })).body).toMatchObject({ ...contact, ...place });
  });
});

describe('seeding', () => {
  it('happens once', async () => {
    expect(await seedFirstTenant({ postgres, passwords, clock }, { ...admin, email: 'other@x' })).toBe(false);
    expect(await seedDemoData({ postgres, passwords, clock })).toBe(false);
    const first = (await findFirstDevice(postgres))!;
    expect((await tokens.lookup(first.token))?.id).toBe(first.id);
    for (const token of ['A1_TEST_TOKEN', 'DHT11_DEMO_TOKEN', 'T2_TEST_TOKEN']) {
      expect(await tokens.lookup(token)).not.toBeNull();
    }
  });
});

it('the system has an administrator from the first start, and the last one stays', async () => {
  const first = await tokenOf(admin.systemEmail, admin.password);
  expect((await call('GET', '/api/tenants?pageSize=9&page=0', { jwt: first })).body.totalElements).toBeGreaterThan(0);
  const idOf = async (jwt: string) => (await call('GET', '/api/auth/user', { jwt })).body.id.id;
  const sysadmin = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
  expect(await call('DELETE', `/api/user/${await idOf(first)}`, { jwt: sysadmin })).toMatchObject({ status: 200 });
  expect(await call('DELETE', `/api/user/${await idOf(sysadmin)}`, { jwt: sysadmin })).toMatchObject(
    error(400, 31, 'At least one system administrator must remain!'),
  );
});
