/** Signing in, the user, refresh and logout (docs/rest.md#sign-in). */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { newCustomer, newCustomerUser, ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

type Claims = Record<string, unknown> & { exp: number; iat: number };

function claimsOf(jwt: string): Claims {
  return JSON.parse(Buffer.from(jwt.split('.')[1]!, 'base64url').toString()) as Claims;
}

test('a sign-in answers exactly token and refreshToken, signed with HS512', async () => {
  const pair = await sharedEngine().login();
  expect(Object.keys(pair).sort()).toEqual(['refreshToken', 'token']);
  expect(JSON.parse(Buffer.from(pair.token.split('.')[0]!, 'base64url').toString())).toEqual({ alg: 'HS512' });
});

test('the claims of both tokens are those clients decode', async () => {
  const pair = await sharedEngine().login('tenant@thingsboard.org', 'tenant');
  const access = claimsOf(pair.token);
  const refresh = claimsOf(pair.refreshToken);
  expect(access.exp - access.iat).toBe(9_000);
  expect(refresh.exp - refresh.iat).toBe(604_800);
  expect(access['scopes']).toEqual(['TENANT_ADMIN']);
  expect(refresh['scopes']).toEqual(['REFRESH_TOKEN']);
  expect(access['sessionId']).toBe(refresh['sessionId']);
  expect(access['iss']).toBe('millrace');
  expect(access['sub']).toBe('tenant@thingsboard.org');
  expect(access['customerId']).toBe('13814000-1dd2-11b2-8080-808080808080');
  expect(refresh['jti']).toMatch(/^[0-9a-f-]{36}$/);
});

test('a wrong password and an unknown user get the same answer', async () => {
  const { adminEmail } = sharedEngine().address;
  const wrong = await fault('POST', '/api/auth/login', { username: adminEmail, password: 'no' }, '');
  const unknown = await fault('POST', '/api/auth/login', { username: 'nobody@nowhere.example', password: 'no' }, '');
  expect(wrong).toEqual('401/10 Invalid username or password');
  expect(unknown).toEqual(wrong);
});

test('a sign-in that is no sign-in is refused as such', async () => {
  for (const body of [
    '{"username":"","password":"x"}',
    '{"username":',
    '{"username":"a","password":"b","x":1}',
    '{}',
  ]) {
    expect(await fault('POST', '/api/auth/login', body, '')).toBe('401/10 Authentication failed');
  }
  expect(await fault('GET', '/api/auth/login', undefined, '')).toBe('401/10 Authentication method not supported');
});

test('the content type of a sign-in is not checked', async () => {
  const { address, http } = sharedEngine();
  const response = await fetch(`${http}/api/auth/login`, {
    method: 'POST',
    headers: { 'content-type': 'text/plain' },
    body: JSON.stringify({ username: address.adminEmail, password: address.adminPassword }),
  });
  expect(response.status).toBe(200);
});

test('the user of the token is returned, in either header', async () => {
  const api = sharedEngine();
  const { token } = await api.login();
  for (const name of ['authorization', 'x-authorization']) {
    const response = await fetch(`${api.http}/api/auth/user`, { headers: { [name]: `Bearer ${token}` } });
    expect(response.status).toBe(200);
    const user = (await response.json()) as { email: string; id: { entityType: string } };
    expect(user.email).toBe(api.address.adminEmail);
    expect(user.id.entityType).toBe('USER');
  }
});

test('a request without a valid token is 401 with the reason', async () => {
  const api = sharedEngine();
  const { token } = await api.login();
  const last = token.at(-1) === 'A' ? 'B' : 'A';
  // The middle of the signature: the last character's low bits may not count.
  const broken = `${token.slice(0, -20)}${token.at(-20) === 'A' ? 'B' : 'A'}${token.slice(-19, -1)}${last}`;
  expect(await fault('GET', '/api/auth/user', undefined, '')).toBe('401/10 Authentication failed');
  for (const [header, answer] of [
    [`bearer ${token}`, '401/10 Authentication failed'],
    ['Basic YTpi', '401/10 Authentication failed'],
    [`Bearer ${broken}`, '401/11 Token has expired'],
    ['Bearer abc', '401/10 Invalid username or password'],
  ]) {
    const response = await fetch(`${api.http}/api/auth/user`, { headers: { 'x-authorization': header! } });
    const body = (await response.json()) as { errorCode: number; message: string };
    expect(`${response.status}/${body.errorCode} ${body.message}`, header!.slice(0, 12)).toBe(answer);
  }
});

test('a refresh gives a new pair of the same session; an access token does not refresh', async () => {
  const api = sharedEngine();
  const pair = await api.login();
  const response = await api.send('POST', '/api/auth/token', { refreshToken: pair.refreshToken }, '');
  expect(response.status).toBe(200);
  const next = (await response.json()) as typeof pair;
  expect(Object.keys(next).sort()).toEqual(['refreshToken', 'token']);
  expect(claimsOf(next.token)['sessionId']).toBe(claimsOf(pair.token)['sessionId']);
  const asAccess = await fault('POST', '/api/auth/token', { refreshToken: pair.token }, '');
  expect(asAccess).toBe('401/10 Invalid Refresh Token scope');
  const garbage = await fault('POST', '/api/auth/token', { refreshToken: 'x' }, '');
  expect(garbage).toBe('401/10 Authentication failed');
  const asBearer = await api.send('GET', '/api/auth/user', undefined, pair.refreshToken);
  expect(asBearer.status).toBe(401);
});

test('a logout ends its session and no other one', async () => {
  const api = sharedEngine();
  const [left, stays] = [await api.login(), await api.login()];
  await sleep(1_100);
  expect((await api.send('POST', '/api/auth/logout', undefined, left.token)).status).toBe(200);
  await sleep(1_100);
  expect(await fault('GET', '/api/auth/user', undefined, left.token)).toBe('401/11 Token has expired');
  expect((await api.send('GET', '/api/auth/user', undefined, stays.token)).status).toBe(200);
});

test('a changed password ends earlier tokens, and the answer has new ones', async () => {
  const user = await newCustomerUser(await newCustomer());
  const change = { currentPassword: user.password, newPassword: 'plum-tree-8' };
  const wrong = (body: object) => fault('POST', '/api/auth/changePassword', { ...change, ...body }, user.token);
  expect(await wrong({ currentPassword: 'no' })).toBe("400/31 Current password doesn't match!");
  expect(await wrong({ newPassword: user.password })).toBe('400/31 New password should be different from existing!');
  expect(await wrong({ newPassword: 'x'.repeat(73) })).toBe(
    '400/31 Password must be no more than 72 characters in length.',
  );
  const pair = await ok('POST', '/api/auth/changePassword', change, user.token);
  expect(Object.keys(pair)).toEqual(['token', 'refreshToken']);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe('401/11 Token has expired');
  expect((await ok('GET', '/api/auth/user', undefined, pair.token)).email).toBe(user.email);
});
