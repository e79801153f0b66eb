/**
 * Tenants, as the system administrator manages them (docs/rest.md#tenants), and that all data of a deleted tenant is
 * removed.
 */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { newTenant, newUser, ok, systemAdminToken } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

test('tenants are listed by page, search and order', async () => {
  const caller = await systemAdminToken();
  const run = randomUUID();
  for (const name of ['b', 'a', 'c']) await ok('POST', '/api/tenant', { title: `${run} ${name}` }, caller);
  const list = async (query: string) => {
    const page = await ok('GET', `/api/tenants?textSearch=${run.toUpperCase()}&${query}`, undefined, caller);
    return [page.totalElements, ...page.data.map(({ title }: { title: string }) => title.at(-1))].join('');
  };
  expect(await list('pageSize=9&page=0')).toBe('3bac');
  expect(await list('pageSize=2&page=0&sortProperty=title&sortOrder=DESC')).toBe('3cb');
  expect(await list('pageSize=2&page=7')).toBe('3');
});

test('a deleted tenant is gone with its users, keys, customers, profiles, packages and devices', async () => {
  const caller = await systemAdminToken();
  const { id, admin } = await newTenant();
  const customer = await ok('POST', '/api/customer', { title: 'Orchard' }, admin.token);
  const user = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, sharedEngine(), admin.token);
  const key = await ok(
    'POST',
    '/api/apiKey',
    { userId: { entityType: 'USER', id: user.id }, description: 'x', enabled: true },
    admin.token,
  );
  const devices = Array.from({ length: 1_200 }, (_, i) => ({ name: `pump-${i}`, customerId: customer.id }));
  const { results } = await ok('POST', '/api/devices/bulk', { devices }, admin.token);
  await ok('POST', '/api/otaPackage', { type: 'FIRMWARE', title: 'pumpfw', version: '1' }, admin.token);
  const { accessToken } = results[1_199];
  expect(await sharedEngine().postTelemetry(accessToken, '{"k":1}')).toBe(200);
  await ok('DELETE', `/api/tenant/${id}`, undefined, caller);
  await sharedEngine().telemetryBecomes(accessToken, 401);
  const expired = '401/11 Token has expired';
  expect(await fault('GET', '/api/auth/user', undefined, admin.token)).toBe(expired);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe(expired);
  const withKey = await fetch(`${sharedEngine().http}/api/auth/user`, {
    headers: { 'x-authorization': `ApiKey ${key.value}` },
  });
  expect(withKey.status).toBe(401);
  const gone = `404/32 Tenant with id [${id}] is not found`;
  expect(await fault('GET', `/api/tenant/${id}`, undefined, caller)).toBe(gone);
  expect(await fault('DELETE', `/api/tenant/${id}`, undefined, caller)).toBe(gone);
});

test('a tenant is seen by its own users and changed by no one of them', async () => {
  const { id, admin } = await newTenant();
  const other = await newTenant();
  expect((await ok('GET', `/api/tenant/${id}`, undefined, admin.token)).id.id).toBe(id);
  expect(await fault('GET', `/api/tenant/${id}`, undefined, other.admin.token)).toMatch(/^404\/32 /);
  const denied = "403/20 You don't have permission to perform this operation!";
  expect(await fault('DELETE', `/api/tenant/${id}`, undefined, admin.token)).toBe(denied);
  expect(await fault('GET', '/api/tenants?pageSize=1&page=0', undefined, admin.token)).toBe(denied);
});
