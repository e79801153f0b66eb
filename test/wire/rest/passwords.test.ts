/** Guests, the pages of links, and choosing a new password (docs/rest.md#passwords). */
import { expect, test } from 'vitest';
import { activateTokenOf, newCustomer, newCustomerUser, ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const denied = "403/20 You don't have permission to perform this operation!";
const keys = (id: string) => `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?keys=k`;

test('a guest reads what belongs to the public customer and changes nothing', async () => {
  const [shown, hidden] = [await newDevice(), await newDevice()];
  const device = await ok('POST', `/api/customer/public/device/${shown.id}`);
  const publicId = device.customerId.id;
  const { token, refreshToken } = await ok('POST', '/api/auth/login/public', { publicId }, '');
  const claims = JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString());
  expect(claims).toMatchObject({ isPublic: true, customerId: publicId, scopes: ['CUSTOMER_USER'], sub: publicId });
  const me = await ok('GET', '/api/auth/user', undefined, token);
  expect(me).toMatchObject({ authority: 'CUSTOMER_USER', customerId: { id: publicId } });
  expect((await ok('GET', `/api/device/${shown.id}`, undefined, token)).id.id).toBe(shown.id);
  expect(Object.keys(await ok('GET', keys(shown.id), undefined, token))).toEqual(['k']);
  expect(await fault('GET', `/api/device/${hidden.id}`, undefined, token)).toBe(denied);
  expect(await fault('GET', `/api/device/${shown.id}/credentials`, undefined, token)).toBe(denied);
  expect(await fault('POST', `/api/plugins/telemetry/${shown.id}/SERVER_SCOPE`, { a: 1 }, token)).toBe(denied);
  expect(await fault('POST', `/api/rpc/oneway/${shown.id}`, { method: 'x' }, token)).toBe(denied);
  expect(await fault('GET', '/api/users?pageSize=1&page=0', undefined, token)).toBe(denied);
  const next = await ok('POST', '/api/auth/token', { refreshToken }, '');
  expect((await ok('GET', `/api/device/${shown.id}`, undefined, next.token)).id.id).toBe(shown.id);
});

test('a guest of an unknown customer is refused', async () => {
  const unknown = '401/10 Invalid username or password';
  expect(await fault('POST', '/api/auth/login/public', { publicId: await newCustomer() }, '')).toBe(unknown);
  expect(await fault('POST', '/api/auth/login/public', { publicId: 'no' }, '')).toBe(unknown);
  expect(await fault('POST', '/api/auth/login/public', {}, '')).toBe('401/10 Authentication failed');
});

async function send(path: string, form: Record<string, string>): Promise<{ status: number; text: string }> {
  const response = await fetch(`${sharedEngine().http}${path}`, { method: 'POST', body: new URLSearchParams(form) });
  return { status: response.status, text: await response.text() };
}

test('the page of an activation link works without a script and runs none', async () => {
  const email = `page-${Date.now()}@orchard.example`;
  const user = await ok('POST', '/api/user?sendActivationMail=false', { email, authority: 'TENANT_ADMIN' });
  const activateToken = await activateTokenOf(user.id.id);
  const response = await fetch(
    `${sharedEngine().http}/api/noauth/activate?activateToken=${activateToken}%22%3E%3Cscript%3E`,
  );
  expect(response.status).toBe(200);
  expect(response.headers.get('content-security-policy')).toContain("default-src 'none'");
  expect(response.headers.get('referrer-policy')).toBe('no-referrer');
  expect(await response.text()).not.toContain('<script');
  const f = (password: string, repeated: string) => send('/api/noauth/activate', { activateToken, password, repeated });
  expect(await f('pear-tree-7', 'pear-tree-8')).toMatchObject({
    status: 400,
    text: expect.stringContaining('not the same'),
  });
  expect(await f('abc', 'abc')).toMatchObject({ status: 400, text: expect.stringContaining('6 or more') });
  expect(await f('pear-tree-7', 'pear-tree-7')).toMatchObject({ status: 200, text: expect.stringContaining('saved') });
  await sharedEngine().login(email, 'pear-tree-7');
});

test('a user without a password gets a link from an administrator, which works once and ends the sessions', async () => {
  const user = await newCustomerUser(await newCustomer());
  await ok('POST', '/api/noauth/resetPasswordByEmail', { email: user.email }, '');
  await ok('POST', '/api/noauth/resetPasswordByEmail', { email: 'nobody@nowhere.example' }, '');
  const path = `/api/user/${user.id}/resetPasswordLink`;
  expect(await fault('POST', path, undefined, user.token)).toBe(denied);
  const link: string = await ok('POST', path);
  const resetToken = new URL(link).searchParams.get('resetToken')!;
  expect((await fetch(link)).status).toBe(200);
  const reset = (token: string, password: string) =>
    sharedEngine().send('POST', '/api/noauth/resetPassword', { resetToken: token, password }, '');
  expect(await fault('POST', '/api/noauth/resetPassword', { resetToken: 'x', password: 'plum-tree-8' }, '')).toBe(
    '400/31 Invalid reset token!',
  );
  expect((await reset(resetToken, 'abc')).status).toBe(400);
  const pair = (await (await reset(resetToken, 'plum-tree-8')).json()) as { token: string };
  expect((await ok('GET', '/api/auth/user', undefined, pair.token)).email).toBe(user.email);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe('401/11 Token has expired');
  expect((await reset(resetToken, 'plum-tree-9')).status).toBe(400);
  await sharedEngine().login(user.email, 'plum-tree-8');
});
