/** Tenants over the REST API: what calls get while a tenant is deleted. */
import { expect, it, vi } from 'vitest';
import { error, sharedApi, unique } from '../../test/harness/api-handlers.ts';
import { deleteTenantRows } from '../admin/store.ts';

const { call, tokenOf, postgres } = await sharedApi();

const sysadmin = () => tokenOf('sysadmin@thingsboard.org', 'sysadmin');

async function newTenant() {
  const jwt = await sysadmin();
  const { id } = (await call('POST', '/api/tenant', { jwt, body: { title: unique('mill') } })).body;
  const body = { email: `${id.id}@mill.example`, authority: 'TENANT_ADMIN', tenantId: id };
  const user = (await call('POST', '/api/user?sendActivationMail=false', { jwt, body })).body;
  const { text } = await call('GET', `/api/user/${user.id.id}/activationLink`, { jwt });
  const activateToken = text.split('activateToken=')[1];
  const pair = await call('POST', '/api/noauth/activate', { body: { activateToken, password: 'pear-tree-7' } });
  return { id, token: pair.body.token as string };
}

const untilBlocked = async (statement: string) => {
  const waiting = `select 1 from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%${statement}%'`;
  await vi.waitFor(async () => expect(await postgres.query(waiting)).toHaveLength(1), { timeout: 20_000 });
};

it('a write of a user whose tenant is deleted at this moment is refused as a call of a deleted user', async () => {
  const { id, token } = await newTenant();
  const { made } = await postgres.transaction(async (queries) => {
    await deleteTenantRows(queries, id.id);
    const asked = { made: call('POST', '/api/customer', { jwt: token, body: { title: 'Orchard' } }) };
    await untilBlocked('insert into customer');
    return asked;
  });
  expect(await made).toMatchObject(error(401, 11, 'Token has expired'));
});

it('a user of a tenant that is deleted at this moment is not made', async () => {
  const { id } = await newTenant();
  const jwt = await sysadmin();
  const body = { email: `b${id.id}@mill.example`, authority: 'TENANT_ADMIN', tenantId: id };
  const { made } = await postgres.transaction(async (queries) => {
    await deleteTenantRows(queries, id.id);
    const asked = { made: call('POST', '/api/user?sendActivationMail=false', { jwt, body }) };
    await untilBlocked('insert into user_account');
    return asked;
  });
  expect(await made).toMatchObject(error(404, 32, 'The tenant was deleted at this moment.'));
});

const devicesOfTenant = 'select id from device where tenant_id = $1';

it('the delete of a tenant withdraws the token that a device got at this moment', async () => {
  const { id, token } = await newTenant();
  const device = (await call('POST', '/api/device', { jwt: token, body: { name: unique('pump') } })).body;
  const next = unique('token');
  const jwt = await sysadmin();
  const { gone } = await postgres.transaction(async (queries) => {
    await queries.query('select 1 from device where id = $1 for update', [device.id.id]);
    await queries.query('update device_credentials set credentials_id = $2 where device_id = $1', [device.id.id, next]);
    const asked = { gone: call('DELETE', `/api/tenant/${id.id}`, { jwt }) };
    await untilBlocked(devicesOfTenant);
    return asked;
  });
  expect(await gone).toMatchObject({ status: 200 });
  const withdrawn = 'select credentials_id as token from credential_changes where device_id = $1 and deleted';
  expect(await postgres.query(withdrawn, [device.id.id])).toEqual([{ token: next }]);
});

it('the delete of a tenant runs again when it lost a race for locks', async () => {
  const { id, token } = await newTenant();
  const device = async () => (await call('POST', '/api/device', { jwt: token, body: { name: unique('pump') } })).body;
  const [first, second] = [await device(), await device()];
  const lock = 'select 1 from device where id = $1 for update';
  // The delete locks the devices in the order of their ids, this transaction in the other order.
  const { gone } = await postgres.transaction(async (queries) => {
    await queries.query("set local deadlock_timeout = '60s'");
    await queries.query(lock, [second.id.id]);
    const jwt = await sysadmin();
    const asked = { gone: call('DELETE', `/api/tenant/${id.id}`, { jwt }) };
    await untilBlocked(devicesOfTenant);
    await queries.query(lock, [first.id.id]);
    return asked;
  });
  expect(await gone).toMatchObject({ status: 200 });
});

it('a call that lost a race for locks may be sent again', async () => {
  const { id, token } = await newTenant();
  const { body: me } = await call('GET', '/api/auth/user', { jwt: token });
  // The key locks the user, then the tenant; this transaction in the other order.
  const { made } = await postgres.transaction(async (queries) => {
    await queries.query("set local deadlock_timeout = '60s'");
    await queries.query('select 1 from tenant where id = $1 for update', [id.id]);
    const body = { userId: me.id, description: 'feed', enabled: true };
    const asked = { made: call('POST', '/api/apiKey', { jwt: token, body }) };
    await untilBlocked('insert into api_key');
    await queries.query('select 1 from user_account where id = $1 for update', [me.id.id]);
    return asked;
  });
  expect(await made).toMatchObject({
    status: 503,
    body: { errorCode: 2, message: expect.stringContaining('Try again') },
  });
});
