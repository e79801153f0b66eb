/**
 * API keys (docs/rest.md#api-keys): made, shown once, used, described, disabled, expired and revoked, on both workers.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, newTenant, ok, type Person, systemAdminToken } from '../../harness/people.ts';
import { fault, faultOf } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { withWorkers } from '../../harness/workers.ts';

const denied = "403/20 You don't have permission to perform this operation!";
const inactive = '401/10 User account is not active';
const unknown = '401/10 Invalid username or password';
const userId = (id: string) => ({ entityType: 'USER', id });

async function idOf(token?: string): Promise<string> {
  return (await ok('GET', '/api/auth/user', undefined, token)).id.id;
}

async function newKey(members: object = {}, token?: string) {
  const owner = userId(await idOf(token));
  const body = { userId: owner, description: 'orchard feed', enabled: true, expirationTime: 0, ...members };
  return await ok('POST', '/api/apiKey', body, token);
}

function withKey(value: string, path = '/api/auth/user', headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${sharedEngine().http}${path}`, { headers: { 'x-authorization': `ApiKey ${value}`, ...headers } });
}

/** Returns the status with which each worker answers the key. */
async function onEachWorker(value: string): Promise<number[]> {
  return await withWorkers(sharedEngine().address.port, async (connections) => {
    const ask = { method: 'GET', path: '/api/auth/user', headers: { 'x-authorization': `ApiKey ${value}` } };
    return await Promise.all(connections.map(async (connection) => (await connection.ask(ask)).status));
  });
}

/** Waits until the key has this status on each worker: the workers learn of a change one after the other. */
async function becomes(value: string, status: number): Promise<void> {
  await eventually(async () => (await onEachWorker(value)).every((each) => each === status));
}

/** Waits until the refusal is this one: a worker may learn of a deleted user in two steps. */
async function isRefused(value: string, refusal: string): Promise<void> {
  await eventually(async () => (await faultOf(await withKey(value))) === refusal);
}

test('a key is shown once and acts as its user, at once on every worker', async () => {
  const key = await newKey();
  expect(key.value).toMatch(/^tb_[A-Za-z0-9_-]{86}$/);
  expect(await onEachWorker(key.value)).toEqual([200, 200]);
  const user = await (await withKey(key.value)).json();
  expect(user).toEqual(await ok('GET', '/api/auth/user'));
  const list = await ok('GET', `/api/apiKeys/${key.userId.id}?pageSize=1000&page=0`);
  const { value: _, ...info } = key;
  expect(list.data.find(({ id }: { id: { id: string } }) => id.id === key.id.id)).toEqual(info);
  expect(await (await withKey(key.value, `/api/devices?deviceIds=${randomUUID()}`)).json()).toEqual([]);
});

test('a key has exactly the members of the wire', async () => {
  const key = await newKey();
  const { id, createdTime, tenantId, value } = key;
  expect(JSON.stringify(key)).toBe(
    JSON.stringify({
      id: { entityType: 'API_KEY', id: id.id },
      createdTime,
      tenantId: { entityType: 'TENANT', id: tenantId.id },
      userId: userId(await idOf()),
      expirationTime: 0,
      description: 'orchard feed',
      enabled: true,
      expired: false,
      value,
    }),
  );
});

test('a disabled key is refused until a user enables it', async () => {
  const key = await newKey({ enabled: undefined });
  expect(key.enabled).toBe(false);
  expect(await onEachWorker(key.value)).toEqual([401, 401]);
  expect(await ok('PUT', `/api/apiKey/${key.id.id}/enabled/true`)).toMatchObject({ enabled: true });
  await becomes(key.value, 200);
  await ok('PUT', `/api/apiKey/${key.id.id}/enabled/false`);
  await becomes(key.value, 401);
  await isRefused(key.value, inactive);
});

test('a revoked key opens nothing on any worker a second later', async () => {
  const key = await newKey();
  expect(await onEachWorker(key.value)).toEqual([200, 200]);
  await ok('DELETE', `/api/apiKey/${key.id.id}`);
  await becomes(key.value, 401);
  await isRefused(key.value, unknown);
  expect(await fault('DELETE', `/api/apiKey/${key.id.id}`)).toBe(`404/32 Api key with id [${key.id.id}] is not found`);
});

test('a key ends at its time', async () => {
  const expirationTime = Date.now() + 5_000;
  const key = await newKey({ expirationTime });
  expect((await withKey(key.value)).status).toBe(200);
  await sleep(expirationTime - Date.now() + 200);
  expect(await faultOf(await withKey(key.value))).toBe('401/10 API key is expired');
});

test('a key does not end beyond all numbers', async () => {
  const key = await newKey({ expirationTime: Number.MAX_SAFE_INTEGER });
  expect((await withKey(key.value)).status).toBe(200);
  const body = { userId: key.userId, description: 'for ever', enabled: true, expirationTime: 2 ** 53 };
  expect(await fault('POST', '/api/apiKey', body)).toMatch(
    /^400\/31 .*expirationTime must not be beyond 9007199254740991/,
  );
});

test('a key is deleted with its user, and refused while its user is disabled', async () => {
  const user = await newCustomerUser(await newCustomer());
  const key = await newKey({}, user.token);
  expect(await onEachWorker(key.value)).toEqual([200, 200]);
  await ok('POST', `/api/user/${user.id}/userCredentialsEnabled?userCredentialsEnabled=false`);
  await becomes(key.value, 401);
  await isRefused(key.value, inactive);
  await ok('POST', `/api/user/${user.id}/userCredentialsEnabled?userCredentialsEnabled=true`);
  await becomes(key.value, 200);
  await ok('DELETE', `/api/user/${user.id}`);
  await becomes(key.value, 401);
  await isRefused(key.value, unknown);
});

test('what is no key is refused', async () => {
  for (const value of ['', 'tb_abc', 'x'.repeat(5_000), "' or 1=1 --"]) {
    expect(await faultOf(await withKey(value))).toBe(unknown);
  }
});

test('a JWT in any header has precedence over a key, and a broken one is refused despite a key', async () => {
  const key = await newKey();
  const user = await newCustomerUser(await newCustomer());
  const both = await withKey(key.value, '/api/auth/user', { authorization: `Bearer ${user.token}` });
  expect(await both.json()).toMatchObject({ email: user.email });
  const broken = await withKey(key.value, '/api/auth/user', { authorization: 'Bearer abc' });
  expect(broken.status).toBe(401);
  const joined = await fetch(`${sharedEngine().http}/api/auth/user`, {
    headers: { 'x-authorization': `ApiKey ${key.value}, Bearer ${user.token}` },
  });
  expect(await joined.json()).toMatchObject({ email: user.email });
});

test('a logout with a key ends nothing', async () => {
  const key = await newKey();
  const response = await fetch(`${sharedEngine().http}/api/auth/logout`, {
    method: 'POST',
    headers: { 'x-authorization': `ApiKey ${key.value}` },
  });
  expect(response.status).toBe(200);
  expect((await withKey(key.value)).status).toBe(200);
});

test('a description is raw text or a JSON string, and changes nothing else', async () => {
  const key = await newKey();
  const put = async (body: string, type: string) => {
    const response = await fetch(`${sharedEngine().http}/api/apiKey/${key.id.id}/description`, {
      method: 'PUT',
      headers: { 'content-type': type, 'x-authorization': `Bearer ${await sharedEngine().adminToken()}` },
      body,
    });
    expect(response.status).toBe(200);
    return await response.json();
  };
  const { value: _, ...info } = key;
  expect(await put('night shift', 'text/plain')).toEqual({ ...info, description: 'night shift' });
  expect(await put('night shift 2', 'application/json')).toEqual({ ...info, description: 'night shift 2' });
  expect(await put('"night \\u0073hift"', 'application/json')).toEqual({ ...info, description: 'night shift' });
  const f = (body: string) => fault('PUT', `/api/apiKey/${key.id.id}/description`, body);
  expect(await f(' ')).toBe('400/31 API key description should be specified!');
  expect(await f('<script>')).toBe('400/31 Validation error: description is malformed');
  expect(await f('x'.repeat(256))).toBe('400/31 Validation error: description length must be equal or less than 255');
});

test('saving a key changes description and enabled, and nothing of what it is', async () => {
  const key = await newKey();
  const { value: _, ...info } = key;
  const saved = await ok('POST', '/api/apiKey', { ...info, description: 'other', enabled: false });
  expect(saved).toEqual({ ...info, description: 'other', enabled: false, value: null });
  const other = await newCustomerUser(await newCustomer());
  expect(await fault('POST', '/api/apiKey', { ...info, userId: userId(other.id) })).toBe(
    '400/31 Cannot update API key user id!',
  );
  expect(await fault('POST', '/api/apiKey', { ...info, expirationTime: 5 })).toBe(
    '400/31 Cannot update API key expiration time!',
  );
  expect(await fault('POST', '/api/apiKey', { description: 'x' })).toMatch(/^400\/31 /);
});

test('keys are managed only by their users and by administrators of the tenant', async () => {
  const [user, colleague] = await twoUsers();
  const made = await newKey({ userId: userId(user.id) });
  expect(await (await withKey(made.value)).json()).toMatchObject({ email: user.email });
  const path = (person: Person) => `/api/apiKeys/${person.id}?pageSize=10&page=0`;
  expect((await ok('GET', path(user), undefined, user.token)).totalElements).toBe(1);
  expect(await fault('GET', path(user), undefined, colleague.token)).toBe(denied);
  expect(await fault('DELETE', `/api/apiKey/${made.id.id}`, undefined, colleague.token)).toBe(denied);
  const stranger = (await newTenant()).admin;
  expect(await fault('GET', path(user), undefined, stranger.token)).toBe(
    `404/32 User with id [${user.id}] is not found`,
  );
  expect(await fault('DELETE', `/api/apiKey/${made.id.id}`, undefined, stranger.token)).toMatch(/^404\/32 /);
  const body = { userId: userId(stranger.id), description: 'x', enabled: true };
  expect(await fault('POST', '/api/apiKey', body)).toMatch(/^404\/32 /);
  expect(await fault('POST', '/api/apiKey', body, await systemAdminToken())).toBe(denied);
  const own = await newKey({}, await systemAdminToken());
  expect((await withKey(own.value, '/api/tenants?pageSize=1&page=0')).status).toBe(200);
  expect(await faultOf(await withKey(own.value, '/api/tenant/devices?pageSize=1&page=0'))).toBe(denied);
});

async function twoUsers(): Promise<[Person, Person]> {
  const customerId = await newCustomer();
  return [await newCustomerUser(customerId), await newCustomerUser(customerId)];
}

test('keys are listed by page, search and order', async () => {
  const { token } = (await newTenant()).admin;
  for (const description of ['plum', 'pear', 'apple']) await newKey({ description }, token);
  const list = async (query: string) => {
    const page = await ok('GET', `/api/apiKeys/${await idOf(token)}?${query}`, undefined, token);
    return page.data.map(({ description }: { description: string }) => description).join(' ');
  };
  expect(await list('pageSize=9&page=0')).toBe('plum pear apple');
  expect(await list('pageSize=9&page=0&sortProperty=description&sortOrder=DESC')).toBe('plum pear apple');
  expect(await list('pageSize=9&page=0&sortProperty=description')).toBe('apple pear plum');
  expect(await list('pageSize=9&page=0&textSearch=P')).toBe('plum pear apple');
  expect(await list('pageSize=9&page=0&textSearch=EA')).toBe('pear');
  const user = await idOf(token);
  expect(await fault('GET', `/api/apiKeys/${user}?pageSize=9&page=0&sortProperty=value`, undefined, token)).toBe(
    "400/31 Invalid sort property 'value': this list can be sorted by id, createdTime, expirationTime, description, enabled.",
  );
});
