/** The default tenant profile, on an engine of its own: every new tenant gets it. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import { faultOf } from '../harness/rest.ts';
import { call } from '../harness/tenants.ts';

let engine: Engine;
let system: string;

beforeAll(async () => {
  engine = await startEngine({ workers: 1 });
  ({ token: system } = await engine.api.login('sysadmin@millrace.local', engine.api.address.adminPassword));
});

afterAll(() => engine?.destroy());

const ok = (method: string, path: string, body?: unknown) => call(engine.api, method, path, body, system);
const fault = async (method: string, path: string, body?: unknown) =>
  faultOf(await engine.api.send(method, path, body, system));

test('the default profile is that of new tenants, and cannot be deleted', async () => {
  const before = await ok('GET', '/api/tenantProfileInfo/default');
  expect(before.name).toBe('Default');
  const old = await ok('POST', '/api/tenant', { title: randomUUID() });
  const profile = await ok('POST', '/api/tenantProfile', { name: 'Gold' });
  const path = `/api/tenantProfile/${profile.id.id}`;
  expect(await ok('POST', `${path}/default`)).toMatchObject({ default: true, id: profile.id });
  expect((await ok('GET', '/api/tenantProfileInfo/default')).id).toEqual(profile.id);
  expect((await ok('GET', `/api/tenantProfile/${before.id.id}`)).default).toBe(false);
  const tenant = await ok('POST', '/api/tenant', { title: randomUUID() });
  expect(tenant.tenantProfileId).toEqual(profile.id);
  expect((await ok('GET', `/api/tenant/${old.id.id}`)).tenantProfileId).toEqual(before.id);
  expect(await fault('DELETE', path)).toBe('400/31 Deletion of Default Tenant Profile is prohibited!');
  const other = { name: 'Silver', default: true };
  expect(await fault('POST', '/api/tenantProfile', other)).toBe('400/31 Another default tenant profile is present!');
});
