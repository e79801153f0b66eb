/** Users: created, activated, signed in, locked out (docs/rest.md#users). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import {
  activateTokenOf,
  newCustomer,
  newCustomerUser,
  newTenant,
  newUser,
  ok,
  systemAdminToken,
} from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const denied = "403/20 You don't have permission to perform this operation!";
const expired = '401/11 Token has expired';
const customerOf = (id: string) => ({ entityType: 'CUSTOMER', id });
const me = (token: string) => ok('GET', '/api/auth/user', undefined, token);
const page = 'pageSize=100&page=0';

test('a user is created, activated and signed in', async () => {
  const customerId = await newCustomer();
  const email = `Ops-${randomUUID()}@orchard.example`;
  const user = await ok('POST', '/api/user?sendActivationMail=false', {
    email,
    authority: 'CUSTOMER_USER',
    customerId: customerOf(customerId),
    firstName: 'Pia',
  });
  expect(user).toMatchObject({ email, name: email, firstName: 'Pia', lastName: null, version: 1 });
  expect(user.customerId).toEqual(customerOf(customerId));
  expect(await fault('POST', '/api/auth/login', { username: email, password: 'pear-tree-7' }, '')).toBe(
    '401/10 User account is not active',
  );
  const activateToken = await activateTokenOf(user.id.id);
  const pair = await ok('POST', '/api/noauth/activate', { activateToken, password: 'pear-tree-7' }, '');
  expect(Object.keys(pair).sort()).toEqual(['refreshToken', 'token']);
  expect(await me(pair.token)).toMatchObject({ email, authority: 'CUSTOMER_USER' });
  const signedIn = await sharedEngine().login(email.toLowerCase(), 'pear-tree-7');
  expect(await me(signedIn.token)).toMatchObject({ email });
  const read = await ok('GET', `/api/user/${user.id.id}`);
  expect(read.additionalInfo).toMatchObject({ userCredentialsEnabled: true, userActivated: true });
  expect(read.additionalInfo.lastLoginTs).toBeGreaterThan(0);
});

test('an activation token works once, and an unknown one never', async () => {
  const user = await ok('POST', '/api/user?sendActivationMail=false', {
    email: `user-${randomUUID()}@orchard.example`,
    authority: 'TENANT_ADMIN',
  });
  const activateToken = await activateTokenOf(user.id.id);
  expect(await activateTokenOf(user.id.id)).toBe(activateToken);
  const info = await ok('GET', `/api/user/${user.id.id}/activationLinkInfo`);
  expect(info.value).toContain(`/api/noauth/activate?activateToken=${activateToken}`);
  expect(info.ttlMs).toBeGreaterThan(86_000_000);
  const short = await fault('POST', '/api/noauth/activate', { activateToken, password: 'abc' }, '');
  expect(short).toBe('400/31 Password must be 6 or more characters in length.');
  await ok('POST', '/api/noauth/activate', { activateToken, password: 'pear-tree-7' }, '');
  expect(await fault('POST', '/api/noauth/activate', { activateToken, password: 'pear-tree-8' }, '')).toBe(
    `400/31 Unable to find user credentials by activateToken [${activateToken}]`,
  );
  expect(await fault('GET', `/api/user/${user.id.id}/activationLink`)).toBe('400/31 User is already activated!');
  expect(await fault('POST', '/api/noauth/activate', { activateToken: 7 }, '')).toMatch(/^400\/31 /);
});

test('without a mail server no user waits for a mail', async () => {
  const email = `user-${randomUUID()}@orchard.example`;
  const user = { email, authority: 'TENANT_ADMIN' };
  expect(await fault('POST', '/api/user', user)).toBe("500/2 Couldn't send user activation email");
  await ok('POST', '/api/user?sendActivationMail=false', user);
});

test('faults of a user are named', async () => {
  const f = (user: object) => fault('POST', '/api/user?sendActivationMail=false', user);
  const email = `user-${randomUUID()}@orchard.example`;
  expect(await f({ email })).toBe("400/31 User authority isn't defined!");
  expect(await f({ email: 'nobody', authority: 'TENANT_ADMIN' })).toBe("400/31 Invalid email address format 'nobody'!");
  expect(await f({ email, authority: 'CUSTOMER_USER' })).toBe('400/31 Customer user should be assigned to customer!');
  expect(await f({ email, authority: 'CUSTOMER_USER', customerId: customerOf(randomUUID()) })).toBe(
    '400/31 User is referencing to non-existent customer!',
  );
  expect(await f({ email, authority: 'SYS_ADMIN' })).toBe(denied);
  await ok('POST', '/api/user?sendActivationMail=false', { email, authority: 'TENANT_ADMIN' });
  expect(await f({ email: email.toUpperCase(), authority: 'TENANT_ADMIN' })).toBe(
    `400/31 The email '${email.toUpperCase()}' cannot be used: choose another one.`,
  );
});

test('saving a user replaces the names and nothing of what the user may do', async () => {
  const user = await newCustomerUser(await newCustomer());
  const stored = await ok('GET', `/api/user/${user.id}`);
  const saved = await ok('POST', '/api/user', { ...stored, lastName: 'Lind' });
  expect(saved).toMatchObject({ lastName: 'Lind', version: 2, additionalInfo: {} });
  expect(await fault('POST', '/api/user', { ...stored, lastName: 'Late' })).toBe(
    '409/35 User was already changed by someone else',
  );
  expect(await fault('POST', '/api/user', { ...saved, authority: 'TENANT_ADMIN' })).toBe(
    "400/31 Can't update user authority!",
  );
});

test('a disabled user is signed out at once, and earlier tokens stay invalid', async () => {
  const user = await newCustomerUser(await newCustomer());
  const path = `/api/user/${user.id}/userCredentialsEnabled`;
  await ok('POST', `${path}?userCredentialsEnabled=false`);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe(expired);
  expect(await fault('POST', '/api/auth/login', { username: user.email, password: user.password }, '')).toBe(
    '401/10 User account is not active',
  );
  expect(await fault('GET', `/api/user/${user.id}/token`)).toBe('401/10 User account is not active');
  await ok('POST', `${path}?userCredentialsEnabled=true`);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe(expired);
  const { token } = await sharedEngine().login(user.email, user.password);
  expect(await me(token)).toMatchObject({ email: user.email });
});

test('a deleted user is out at once', async () => {
  const user = await newCustomerUser(await newCustomer());
  await ok('DELETE', `/api/user/${user.id}`);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe(expired);
  expect(await fault('DELETE', `/api/user/${user.id}`)).toBe(`404/32 User with id [${user.id}] is not found`);
});

test('an administrator signs in as a user below, and as no other', async () => {
  const { admin } = await newTenant();
  const below = await ok('GET', `/api/user/${admin.id}/token`, undefined, await systemAdminToken());
  expect(await me(below.token)).toMatchObject({ email: admin.email });
  expect(await fault('GET', `/api/user/${admin.id}/token`, undefined, admin.token)).toBe(denied);
  const user = await newCustomerUser(await newCustomer());
  const pair = await ok('GET', `/api/user/${user.id}/token`);
  expect(await me(pair.token)).toMatchObject({ email: user.email });
  expect(await fault('GET', `/api/user/${user.id}/token`, undefined, user.token)).toBe(denied);
});

test('the last administrator of a tenant stays', async () => {
  const { id, admin } = await newTenant();
  const caller = await systemAdminToken();
  const last = '400/31 At least one tenant administrator must remain!';
  expect(await fault('DELETE', `/api/user/${admin.id}`, undefined, caller)).toBe(last);
  const other = await newUser({ authority: 'TENANT_ADMIN' }, sharedEngine(), admin.token);
  // An administrator who never signed in could not take over.
  const newcomer = { email: `${randomUUID()}@mill.example`, authority: 'TENANT_ADMIN' };
  const invited = await ok('POST', '/api/user?sendActivationMail=false', newcomer, admin.token);
  await ok('POST', `/api/user/${other.id}/userCredentialsEnabled?userCredentialsEnabled=false`, undefined, admin.token);
  expect(await fault('DELETE', `/api/user/${admin.id}`, undefined, caller)).toBe(last);
  await ok('POST', `/api/user/${other.id}/userCredentialsEnabled?userCredentialsEnabled=true`, undefined, admin.token);
  await ok('DELETE', `/api/user/${invited.id.id}`, undefined, caller);
  const list = await ok('GET', `/api/tenant/${id}/users?${page}`, undefined, caller);
  expect(list.data.map((user: { email: string }) => user.email)).toEqual([admin.email, other.email]);
  // Each administrator deletes the other at the same time: one of the two calls must be refused.
  const answers = await Promise.all([
    sharedEngine().send('DELETE', `/api/user/${other.id}`, undefined, caller),
    sharedEngine().send('DELETE', `/api/user/${admin.id}`, undefined, caller),
  ]);
  expect(answers.map(({ status }) => status).sort()).toEqual([200, 400]);
});

test('users are listed to callers that may see them', async () => {
  const [customerId, otherId] = [await newCustomer(), await newCustomer()];
  const [user, other] = [await newCustomerUser(customerId), await newCustomerUser(otherId)];
  const emails = async (path: string, token?: string) =>
    (await ok('GET', `${path}?${page}`, undefined, token)).data.map(({ email }: { email: string }) => email);
  expect(await emails(`/api/customer/${customerId}/users`)).toEqual([user.email]);
  expect(await emails('/api/users', user.token)).toEqual([user.email]);
  expect(await emails(`/api/customer/${customerId}/users`, user.token)).toEqual([user.email]);
  expect(await fault('GET', `/api/customer/${otherId}/users?${page}`, undefined, user.token)).toBe(denied);
  expect(await emails('/api/users')).toEqual(expect.arrayContaining([user.email, other.email]));
  expect(await fault('GET', `/api/users?${page}`, undefined, await systemAdminToken())).toBe(denied);
});

test('a customer user reads the users of the own customer and changes only itself', async () => {
  const customerId = await newCustomer();
  const [user, colleague] = [await newCustomerUser(customerId), await newCustomerUser(customerId)];
  const stranger = await newCustomerUser(await newCustomer());
  const read = await ok('GET', `/api/user/${colleague.id}`, undefined, user.token);
  expect(await fault('POST', '/api/user', { ...read, lastName: 'X' }, user.token)).toBe(denied);
  expect(await fault('GET', `/api/user/${stranger.id}`, undefined, user.token)).toBe(denied);
  expect(await fault('DELETE', `/api/user/${user.id}`, undefined, user.token)).toBe(denied);
  const self = await ok('GET', `/api/user/${user.id}`, undefined, user.token);
  expect(await ok('POST', '/api/user', { ...self, lastName: 'Own' }, user.token)).toMatchObject({ lastName: 'Own' });
});

test('a user of another tenant is not found', async () => {
  const { admin } = await newTenant();
  const user = await newCustomerUser(await newCustomer());
  const unknown = `404/32 User with id [${user.id}] is not found`;
  expect(await fault('GET', `/api/user/${user.id}`, undefined, admin.token)).toBe(unknown);
  expect(await fault('DELETE', `/api/user/${user.id}`, undefined, admin.token)).toBe(unknown);
});

test('the password policy is public', async () => {
  const policy = await ok('GET', '/api/noauth/userPasswordPolicy', undefined, '');
  expect(policy).toMatchObject({ minimumLength: 6, maximumLength: 72, minimumUppercaseLetters: null });
});
