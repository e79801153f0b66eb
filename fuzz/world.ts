/**
 * Who calls the API in `fuzz/rest.ts`, and what there is to find: a tenant of its own for each caller, so that what one
 * run deletes is no loss to the next.
 */
import { randomUUID } from 'node:crypto';
import type { Api } from '../test/harness/api.ts';

export const roles = ['SYS_ADMIN', 'TENANT_ADMIN', 'CUSTOMER_USER'] as const;
export type Role = (typeof roles)[number];
export const signIns = ['JWT', 'API key'] as const;
export type SignIn = (typeof signIns)[number];

export interface World {
  /** `X-Authorization` of the caller. */
  authorization: string;
  /** Entities that exist when the run begins. */
  ids: string[];
  /** Ids without which the caller cannot sign in any more. */
  protected: string[];
  deviceTokens: string[];
  deviceNames: string[];
}

const systemEmail = 'sysadmin@millrace.local';
const password = 'pear-tree-7';

// biome-ignore lint/suspicious/noExplicitAny: answers are read freely
type Json = any;

export async function makeWorld(api: Api, role: Role, signIn: SignIn): Promise<World> {
  const system = (await api.login(systemEmail)).token;
  const call = async (method: string, path: string, body: unknown, token: string): Promise<Json> => {
    const response = await api.send(method, path, body, token);
    const text = await response.text();
    if (response.status !== 200) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return response.headers.get('content-type')?.startsWith('application/json') ? JSON.parse(text) : text;
  };
  const newUser = async (fields: object, creator: string): Promise<{ id: string; token: string }> => {
    const email = `${randomUUID()}@orchard.example`;
    const user = await call('POST', '/api/user?sendActivationMail=false', { email, ...fields }, creator);
    const link: string = await call('GET', `/api/user/${user.id.id}/activationLink`, undefined, creator);
    const activateToken = link.slice(link.indexOf('=') + 1);
    const { token } = await call('POST', '/api/noauth/activate', { activateToken, password }, '');
    return { id: user.id.id, token };
  };

  const tenant = await call('POST', '/api/tenant', { title: `tenant ${randomUUID()}` }, system);
  const admin = await newUser({ authority: 'TENANT_ADMIN', tenantId: tenant.id }, system);
  const post = (path: string, body?: unknown) => call('POST', path, body, admin.token);
  const customer = await post('/api/customer', { title: 'Orchard' });
  const otherCustomer = await post('/api/customer', { title: 'Mill' });
  const customerUser = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, admin.token);
  const otherUser = await newUser({ authority: 'CUSTOMER_USER', customerId: otherCustomer.id }, admin.token);
  const profile = await post('/api/deviceProfile', { name: 'pump' });
  const firmware = await post('/api/otaPackage', { type: 'FIRMWARE', title: 'fw', version: '1' });

  const devices = await Promise.all(
    ['pump-1', 'pump-2', 'pump-3'].map(async (name) => {
      const { id } = await post('/api/device', { name, deviceProfileId: profile.id });
      const { credentialsId } = await call('GET', `/api/device/${id.id}/credentials`, undefined, admin.token);
      return { name, id: id.id as string, token: credentialsId as string };
    }),
  );
  const [first, second] = devices as [(typeof devices)[0], (typeof devices)[0]];
  await post(`/api/customer/${customer.id.id}/device/${first.id}`);
  await post(`/api/customer/${otherCustomer.id.id}/device/${second.id}`);
  for (const { token } of devices) await api.postTelemetry(token, '{"temperature":21.5,"on":true,"who":"pump"}');
  const { rpcId } = await post(`/api/rpc/oneway/${first.id}`, { method: 'open', params: {}, persistent: true });
  const [from, to] = [tenant.id, { entityType: 'DEVICE', id: first.id }];
  await post('/api/relation', { from, to, type: 'Contains' });

  const caller = await callerOf();
  const key = await newKey(caller);
  const spareKey = await newKey(caller);
  return {
    authorization: signIn === 'JWT' ? `Bearer ${caller.token}` : `ApiKey ${key.value}`,
    ids: [
      ...devices.map(({ id }) => id),
      ...[tenant, customer, otherCustomer, profile, firmware, spareKey].map(({ id }) => id.id as string),
      ...[customerUser.id, otherUser.id, admin.id, rpcId as string],
    ],
    protected: [tenant.id.id, customer.id.id, caller.id, admin.id, key.id.id],
    deviceTokens: devices.map(({ token }) => token),
    deviceNames: devices.map(({ name }) => name),
  };

  async function callerOf(): Promise<{ id: string; token: string }> {
    if (role === 'TENANT_ADMIN') return admin;
    if (role === 'CUSTOMER_USER') return customerUser;
    const { id } = await call('GET', '/api/auth/user', undefined, system);
    return { id: id.id, token: system };
  }

  async function newKey({ id, token }: { id: string; token: string }): Promise<Json> {
    const userId = { entityType: 'USER', id };
    return await call('POST', '/api/apiKey', { userId, description: 'fuzz', enabled: true }, token);
  }
}
