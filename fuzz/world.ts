/**
 * Who calls the API in `fuzz/rest.ts`, and what there is to find: a tenant of its own for each caller, so that what one
 * run deletes is no loss to the next.
 */
import type { Api } from '../test/harness/api.ts';
import { call, makeTenant, makeUser } from '../test/harness/tenants.ts';

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

// biome-ignore lint/suspicious/noExplicitAny: answers are read freely
type Json = any;

export async function makeWorld(api: Api, role: Role, signIn: SignIn): Promise<World> {
  const system = (await api.login(systemEmail)).token;
  const { id: tenantId, admin } = await makeTenant(api, system);
  const post = (path: string, body?: unknown) => call(api, 'POST', path, body, admin.token);
  const customer = await post('/api/customer', { title: 'Orchard' });
  const otherCustomer = await post('/api/customer', { title: 'Mill' });
  const newUser = (customerId: object) => makeUser(api, { authority: 'CUSTOMER_USER', customerId }, admin.token);
  const customerUser = await newUser(customer.id);
  const otherUser = await newUser(otherCustomer.id);
  const profile = await post('/api/deviceProfile', { name: 'pump' });
  const firmware = await post('/api/otaPackage', { type: 'FIRMWARE', title: 'fw', version: '1' });

  const devices = await Promise.all(
    ['pump-1', 'pump-2', 'pump-3'].map(async (name) => {
      const { id } = await post('/api/device', { name, deviceProfileId: profile.id });
      const { credentialsId } = await call(api, 'GET', `/api/device/${id.id}/credentials`, undefined, admin.token);
      return { name, id: id.id as string, token: credentialsId as string };
    }),
  );
  const [first, second] = devices as [(typeof devices)[0], (typeof devices)[0]];
  await post(`/api/customer/${customer.id.id}/device/${first.id}`);
  await post(`/api/customer/${otherCustomer.id.id}/device/${second.id}`);
  for (const { token } of devices) await api.postTelemetry(token, '{"temperature":21.5,"on":true,"who":"pump"}');
  const { rpcId } = await post(`/api/rpc/oneway/${first.id}`, { method: 'open', params: {}, persistent: true });
  const [from, to] = [
    { entityType: 'TENANT', id: tenantId },
    { entityType: 'DEVICE', id: first.id },
  ];
  await post('/api/relation', { from, to, type: 'Contains' });

  const caller = await callerOf();
  const key = await newKey(caller);
  const spareKey = await newKey(caller);
  return {
    authorization: signIn === 'JWT' ? `Bearer ${caller.token}` : `ApiKey ${key.value}`,
    ids: [
      ...devices.map(({ id }) => id),
      tenantId,
      ...[customer, otherCustomer, profile, firmware, spareKey].map(({ id }) => id.id as string),
      ...[customerUser.id, otherUser.id, admin.id, rpcId as string],
    ],
    protected: [tenantId, customer.id.id, caller.id, admin.id, key.id.id],
    deviceTokens: devices.map(({ token }) => token),
    deviceNames: devices.map(({ name }) => name),
  };

  async function callerOf(): Promise<{ id: string; token: string }> {
    if (role === 'TENANT_ADMIN') return admin;
    if (role === 'CUSTOMER_USER') return customerUser;
    const { id } = await call(api, 'GET', '/api/auth/user', undefined, system);
    return { id: id.id, token: system };
  }

  async function newKey({ id, token }: { id: string; token: string }): Promise<Json> {
    const userId = { entityType: 'USER', id };
    return await call(api, 'POST', '/api/apiKey', { userId, description: 'fuzz', enabled: true }, token);
  }
}
