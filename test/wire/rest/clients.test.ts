/**
 * Properties of the API, beside its operations, on which clients written for ThingsBoard rely: types of bodies, words
 * for booleans, statuses.
 */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newTenant, ok, systemAdminToken } from '../../harness/people.ts';
import { fault, faultOf } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

test('an operation that is not offered is an unknown path, even one like a known path', async () => {
  const bare = (method: string, path: string) => fetch(`${sharedEngine().http}${path}`, { method });
  for (const path of [
    '/api/tenant/dashboards',
    '/api/tenant/assets',
    '/api/tenant/agents',
    '/api/user/settings',
    '/api/user/devices',
    '/api/user/users',
    '/api/customer/users',
    '/api/dashboard/serverTime',
  ]) {
    for (const method of ['GET', 'POST', 'PUT', 'DELETE', 'PATCH']) {
      expect(await faultOf(await bare(method, path))).toBe(`404/32 No such path: ${path}`);
    }
    expect((await bare('HEAD', `${path}/`)).status).toBe(404);
  }
  expect(await fault('GET', '/api/tenant/barns')).toBe('400/31 Invalid UUID string: barns');
  expect(await fault('GET', '/api/user/tractor')).toBe('400/31 Invalid UUID string: tractor');
});

test('a method that a path does not have is 405, also where the path resembles another one', async () => {
  for (const [method, path, allow] of [
    ['GET', '/api/device/credentials', 'POST, OPTIONS'],
    ['DELETE', '/api/tenant/devices', 'GET, HEAD, OPTIONS'],
    ['HEAD', '/api/device/credentials', 'POST, OPTIONS'],
    ['PUT', '/api/device', 'POST, OPTIONS'],
  ] as const) {
    const answer = await sharedEngine().send(method, path);
    expect(answer.headers.get('allow'), `${method} ${path}`).toBe(allow);
    expect(answer.status).toBe(405);
  }
});

test('a command may have a body of any type', async () => {
  const { id } = await newDevice();
  const jwt = await sharedEngine().adminToken();
  const send = (type: string, body: string) =>
    fetch(`${sharedEngine().http}/api/rpc/oneway/${id}`, {
      method: 'POST',
      headers: { 'x-authorization': `Bearer ${jwt}`, ...(type && { 'content-type': type }) },
      body: Buffer.from(body),
    });
  for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/json', '']) {
    const answer = await send(type, '{"method":"a=b&c","persistent":true}');
    expect(await answer.json(), type).toEqual({ rpcId: expect.any(String) });
  }
  expect(await faultOf(await send('text/plain', 'method=open'))).toBe('400/31 Invalid request body');
});

test('a boolean may be any of its words, in any letter case', async () => {
  const { id } = await newDevice();
  await ok('POST', `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, { ts: 1000, values: { k: 1 } });
  const path = `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?keys=k&startTs=0&endTs=2000&useStrictDataTypes=`;
  const typed = async (word: string) => {
    for (;;) {
      const { k } = await ok('GET', path + word);
      if (k) return typeof k[0].value === 'number';
    }
  };
  for (const word of ['true', 'True', 'ON', 'yes', '1']) expect(await typed(word), word).toBe(true);
  for (const word of ['false', 'FALSE', 'Off', 'no', '0']) expect(await typed(word), word).toBe(false);
  expect(await fault('GET', `${path}perhaps`)).toMatch(/^400\/31 .*must be true or false, not 'perhaps'/);
});

test('the order of a list and of a history may be in any letter case', async () => {
  const type = randomUUID();
  const device = (name: string) => ok('POST', '/api/device', { name: `${type} ${name}`, type });
  const { id } = (await device('a')).id;
  await device('b');
  const names = async (order: string) => {
    const query = `pageSize=2&page=0&type=${type}&sortProperty=name&sortOrder=${order}`;
    const { data } = await ok('GET', `/api/tenant/devices?${query}`);
    return data.map(({ name }: { name: string }) => name.at(-1)).join('');
  };
  for (const order of ['DESC', 'desc', 'Desc']) expect(await names(order), order).toBe('ba');
  expect(await names('asc')).toBe('ab');
  await ok(
    'POST',
    `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`,
    [1, 2].map((n) => ({ ts: n, values: { k: n } })),
  );
  const path = `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?keys=k&startTs=0&endTs=9&orderBy=`;
  await eventually(async () => (await ok('GET', `${path}ASC`)).k?.length === 2);
  for (const order of ['asc', 'ASC']) expect((await ok('GET', path + order)).k[0].value, order).toBe('1');
  for (const order of ['desc', '']) expect((await ok('GET', path + order)).k[0].value, order).toBe('2');
  expect(await fault('GET', `${path}up`)).toMatch(/^400\/31 .*'orderBy' must be one of ASC, DESC, not 'up'/);
});

test('a customer whose title is taken is refused, or gets a suffix that is free', async () => {
  const title = randomUUID();
  const create = (query: string) => ok('POST', `/api/customer?nameConflictPolicy=${query}`, { title });
  expect((await create('UNIQUIFY')).title).toBe(title);
  expect((await create('UNIQUIFY')).title).toMatch(new RegExp(`^${title}_[a-z0-9]{6}$`));
  const counted = 'UNIQUIFY&uniquifyStrategy=INCREMENTAL&uniquifySeparator=-';
  expect((await create(counted)).title).toBe(`${title}-1`);
  expect((await create(counted)).title).toBe(`${title}-2`);
  const taken = '400/31 Customer with such title already exists!';
  expect(await fault('POST', '/api/customer', { title })).toBe(taken);
  expect(await fault('POST', '/api/customer?nameConflictPolicy=FAIL', { title })).toBe(taken);
});

test('a tenant names its profile', async () => {
  const { id, admin } = await newTenant();
  const tenant = await ok('GET', `/api/tenant/${id}`, undefined, admin.token);
  expect(tenant.tenantProfileId).toEqual({
    entityType: 'TENANT_PROFILE',
    id: expect.stringMatching(/^[0-9a-f-]{36}$/),
  });
  const caller = await systemAdminToken();
  expect((await ok('POST', '/api/tenant', tenant, caller)).tenantProfileId).toEqual(tenant.tenantProfileId);
  const other = { title: randomUUID(), tenantProfileId: { entityType: 'TENANT_PROFILE', id: randomUUID() } };
  expect(await fault('POST', '/api/tenant', other, caller)).toBe(
    '400/31 Tenant is referencing to non-existent tenant profile!',
  );
});

test('what a user lacks is named before a mail is thought of', async () => {
  expect(await fault('POST', '/api/user', {})).toBe('400/31 User email should be specified!');
  const email = `${randomUUID()}@orchard.example`;
  expect(await fault('POST', '/api/user', { email })).toBe("400/31 User authority isn't defined!");
  expect(await fault('POST', '/api/user', { email, authority: 'CUSTOMER_USER' })).toMatch(
    /^400\/31 Customer user should/,
  );
  expect(await fault('POST', '/api/user', { email, authority: 'TENANT_ADMIN' })).toMatch(/^500\/2 /);
});
