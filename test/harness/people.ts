/** Tenants, customers and users that no other test knows, all made over REST. */
import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { Api } from './api.ts';
import { sharedEngine } from './shared-engine.ts';

export interface Person {
  id: string;
  email: string;
  password: string;
  token: string;
}

const password = 'pear-tree-7';

// biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
type Json = any;

/** A call that must succeed, and its JSON, or its text; `undefined` when it has no body. */
export async function ok(
  method: string,
  path: string,
  body?: unknown,
  token?: string,
  api = sharedEngine(),
): Promise<Json> {
  const response = await api.send(method, path, body, token);
  const text = await response.text();
  expect(response.status, `${method} ${path}: ${text}`).toBe(200);
  if (text === '') return undefined;
  return response.headers.get('content-type')?.startsWith('application/json') ? JSON.parse(text) : text;
}

export async function newCustomer(api = sharedEngine()): Promise<string> {
  return (await ok('POST', '/api/customer', { title: `customer-${randomUUID()}` }, undefined, api)).id.id;
}

export async function newCustomerUser(customerId: string, api = sharedEngine()): Promise<Person> {
  return await newUser({ authority: 'CUSTOMER_USER', customerId: { entityType: 'CUSTOMER', id: customerId } }, api);
}

/** Created, activated and signed in. */
export async function newUser(user: object, api = sharedEngine(), creator?: string): Promise<Person> {
  const email = `user-${randomUUID()}@orchard.example`;
  const created = await ok('POST', '/api/user?sendActivationMail=false', { email, ...user }, creator, api);
  const pair = await ok(
    'POST',
    '/api/noauth/activate',
    { activateToken: await activateTokenOf(created.id.id, api, creator), password },
    '',
    api,
  );
  return { id: created.id.id, email, password, token: pair.token };
}

export async function activateTokenOf(userId: string, api: Api = sharedEngine(), caller?: string): Promise<string> {
  const link: string = await ok('GET', `/api/user/${userId}/activationLink`, undefined, caller, api);
  return link.slice(link.indexOf('activateToken=') + 'activateToken='.length);
}

/** The administrator of all tenants that demo data has. */
export async function systemAdminToken(): Promise<string> {
  return (await sharedEngine().login('sysadmin@thingsboard.org', 'sysadmin')).token;
}

export async function newTenant(): Promise<{ id: string; admin: Person }> {
  const caller = await systemAdminToken();
  const { id } = await ok('POST', '/api/tenant', { title: `tenant-${randomUUID()}` }, caller);
  const admin = await newUser({ authority: 'TENANT_ADMIN', tenantId: id }, sharedEngine(), caller);
  return { id: id.id, admin };
}
