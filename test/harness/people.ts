/** Tenants, customers and users that no other test uses, all made over REST. */
import { randomUUID } from 'node:crypto';
import { sharedEngine } from './shared-engine.ts';
import * as tenants from './tenants.ts';

export type { Person } from './tenants.ts';

/** Makes a call that must succeed; returns its JSON, or its string; `undefined` when it has no body. */
export function ok(method: string, path: string, body?: unknown, token?: string, api = sharedEngine()) {
  return tenants.call(api, method, path, body, token);
}

export async function newCustomer(api = sharedEngine()): Promise<string> {
  return (await ok('POST', '/api/customer', { title: `customer-${randomUUID()}` }, undefined, api)).id.id;
}

export async function newCustomerUser(customerId: string, api = sharedEngine()): Promise<tenants.Person> {
  return await newUser({ authority: 'CUSTOMER_USER', customerId: { entityType: 'CUSTOMER', id: customerId } }, api);
}

/** Creates a user, activates it and signs it in. */
export function newUser(user: object, api = sharedEngine(), creator?: string): Promise<tenants.Person> {
  return tenants.makeUser(api, user, creator);
}

export function activateTokenOf(userId: string, api = sharedEngine(), caller?: string): Promise<string> {
  return tenants.activateTokenOf(api, userId, caller);
}

/** Returns the token of the system administrator of the demo data. */
export async function systemAdminToken(): Promise<string> {
  return (await sharedEngine().login('sysadmin@thingsboard.org', 'sysadmin')).token;
}

export async function newTenant(name?: string): Promise<tenants.NewTenant> {
  return await tenants.makeTenant(sharedEngine(), await systemAdminToken(), name);
}
