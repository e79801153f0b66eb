/**
 * Makes tenants and users over REST at any engine. `people.ts` does so at the shared engine of the tests; fuzzers and
 * benchmarks start engines of their own and run without vitest.
 */
import { randomUUID } from 'node:crypto';
import type { Api } from './api.ts';

export interface Person {
  id: string;
  email: string;
  password: string;
  token: string;
}

export interface NewTenant {
  id: string;
  admin: Person;
}

/** The password of every user made here. */
export const password = 'pear-tree-7';

// biome-ignore lint/suspicious/noExplicitAny: callers look at members freely
type Json = any;

/** Returns the JSON of an answer, or its text; undefined without a body. Throws unless the status is 200. */
export async function call(api: Api, method: string, path: string, body?: unknown, token?: string): Promise<Json> {
  const response = await api.send(method, path, body, token);
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  if (text === '') return undefined;
  return response.headers.get('content-type')?.startsWith('application/json') ? JSON.parse(text) : text;
}

/** Creates a user, activates it and signs it in. */
export async function makeUser(api: Api, members: object, creator?: string): Promise<Person> {
  const user = { email: `user-${randomUUID()}@orchard.example`, ...members };
  const created = await call(api, 'POST', '/api/user?sendActivationMail=false', user, creator);
  const activateToken = await activateTokenOf(api, created.id.id, creator);
  const { token } = await call(api, 'POST', '/api/noauth/activate', { activateToken, password }, '');
  return { id: created.id.id, email: user.email, password, token };
}

export async function activateTokenOf(api: Api, userId: string, caller?: string): Promise<string> {
  const link: string = await call(api, 'GET', `/api/user/${userId}/activationLink`, undefined, caller);
  return link.slice(link.indexOf('activateToken=') + 'activateToken='.length);
}

/** Makes a tenant with an administrator; `system` is the token of a system administrator. */
export async function makeTenant(api: Api, system: string, name = 'tenant'): Promise<NewTenant> {
  const { id } = await call(api, 'POST', '/api/tenant', { title: `${name}-${randomUUID()}` }, system);
  return { id: id.id, admin: await makeUser(api, { authority: 'TENANT_ADMIN', tenantId: id }, system) };
}
