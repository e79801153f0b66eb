/** The REST API on real stores, without the HTTP server: calls of handlers as the server makes them. */
import { randomUUID } from 'node:crypto';
import { SignJWT } from 'jose';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { silentLog as log, startTestClickHouse, type TestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { findFirstDevice, seedDemoData, seedFirstTenant } from '../admin/seed.ts';
import { TakenNames } from '../admin/taken-names.ts';
import { Attributes } from '../attributes/attributes.ts';
import { AttributeWriter } from '../attributes/writer.ts';
import { ApiKeys } from '../auth/api-keys.ts';
import { Auth, openJwt } from '../auth/auth.ts';
import { FailedSignIns } from '../auth/failed-sign-ins.ts';
import { PasswordHasher } from '../auth/password.ts';
import { Proxies } from '../auth/transport.ts';
import { systemClock as clock } from '../base/clock.ts';
import { loadConfig } from '../base/config.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics.ts';
import { nullUuid } from '../base/uuid.ts';
import type { Bus } from '../bus/bus.ts';
import { CredentialChanges } from '../device/credential-changes.ts';
import { LocalDevices } from '../device/local-devices.ts';
import { lookUpLogins, lookUpTokens } from '../device/store.ts';
import { TokenCache } from '../device/token-cache.ts';
import { Downlink } from '../downlink/downlink.ts';
import { Downloads } from '../ota/downloads.ts';
import { openPostgres, type Postgres } from '../postgres/client.ts';
import type { ServedRoute } from '../rest/route.ts';
import { RpcNumbers } from '../rpc/numbers.ts';
import { PersistentRpcs } from '../rpc/persistent.ts';
import { Rpc } from '../rpc/send.ts';
import { faultAnswer } from '../uws/exchange.ts';
import type { HttpRequest } from '../uws/server.ts';
import { strictly } from '../value/lenient.ts';
import { createApi } from './api.ts';
import { LongAnswers } from './long-answer.ts';

const admin = { email: 'admin@millrace.local', systemEmail: 'system@millrace.local', password: 'pear-tree-7' };
let movedMs = 0;
/** Of what a tenant may meet within a window. */
const movedClock = { now: () => clock.now() + movedMs, monotonic: clock.monotonic };
/** Cheap: what a hash must cost is the matter of `password.test.ts`. */
const passwords = new PasswordHasher(20, { ln: 10, r: 8, p: 1 });
const failedSignIns = new FailedSignIns(clock);
const config = loadConfig({});

let server: TestPostgres;
let postgres: Postgres;
let store: TestClickHouse;
let changes: CredentialChanges;
let tokens: TokenCache;
let routes: ServedRoute[];
let sequence = 0;

/** A bus that never delivers: what the tests see comes from the log in Postgres or from the process itself. */
const deafBus: Bus = {
  publish() {},
  subscribe: async () => () => {},
  onReconnect() {},
  connected: true,
  close: async () => {},
};

beforeAll(async () => {
  [server, store] = await Promise.all([startTestPostgres(), startTestClickHouse()]);
  postgres = server.postgres;
  expect(await seedFirstTenant({ postgres, passwords, clock }, admin)).toBe(true);
  expect(await seedDemoData({ postgres, passwords, clock })).toBe(true);
  tokens = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, new LocalDevices(), clock);
  changes = new CredentialChanges({ postgres, bus: deafBus, clock, log });
  changes.onChange((change) => (change === 'all' ? tokens.clear() : tokens.invalidate(change.credentialsId)));
  await changes.start();
  const jwt = await openJwt(postgres, config.auth, clock);
  const apiKeys = new ApiKeys({ postgres, bus: deafBus, clock, log, purges: false });
  const auth = new Auth({
    postgres,
    passwords,
    jwt,
    clock,
    failedLoginsMax: 3,
    failedSignIns,
    apiKeys,
    proxies: new Proxies(''),
    requireHttpsForApiKeys: false,
    requestLimits: undefined,
  });
  const downloads = new Downloads({ postgres, clock, metrics: new Metrics() });
  const writer = new AttributeWriter({ postgres, clock, metrics: new Metrics(), onShared: () => {} });
  const attributes = new Attributes(postgres, writer);
  const downlink = new Downlink({ bus: deafBus, shards: 1, log, metrics: new Metrics() });
  const numbers = new RpcNumbers(postgres);
  const rpc = new Rpc({ postgres, downlink, bus: deafBus, numbers, clock, log, metrics: new Metrics() });
  const persistentRpcs = new PersistentRpcs({
    postgres,
    rpc,
    numbers,
    downlink,
    clock,
    log,
    retriesMax: 5,
    keptDays: 0,
  });
  const rpcDeps = { rpc, persistentRpcs, rpcTimeouts: config.rpc };
  const takenNames = new TakenNames({ clock: movedClock, log, metrics: new Metrics() });
  const stores = { postgres, devicesMax: 0, takenNames, attributes, clickhouse: store.clickhouse, downloads };
  const notUsed = () => Promise.reject(new Error('no journal here'));
  const longAnswers = new LongAnswers(new Metrics());
  const series = { saveSeries: notUsed, deleteSeries: notUsed, longAnswers };
  const keys = { apiKeys, apiKeyPrefix: 'tb_' };
  routes = createApi({
    auth,
    ...stores,
    ...rpcDeps,
    ...series,
    ...keys,
    changes,
    clock,
    config,
    readBody: strictly,
    elsewhere: [],
    log,
    claiming: config.claiming,
  });
}, 60_000);

afterAll(async () => {
  await changes.stop();
  await passwords.close();
  await Promise.all([server.stop(), store.stop()]);
}, 60_000);

interface Answer {
  status: number;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
  body: any;
}

async function call(
  method: string,
  url: string,
  options: { jwt?: string; body?: unknown; headers?: Record<string, string>; remoteAddress?: string } = {},
): Promise<Answer> {
  const [path = '', query = ''] = url.split('?');
  const { params, route } = match(method, path);
  const headers: Record<string, string> = { 'content-type': 'application/json', ...options.headers };
  if (options.jwt) headers['x-authorization'] = `Bearer ${options.jwt}`;
  const body =
    typeof options.body === 'string' ? options.body : options.body === undefined ? '' : JSON.stringify(options.body);
  const request: HttpRequest = {
    method,
    path,
    query,
    params,
    header: (name) => headers[name] ?? '',
    headers: (name) => (headers[name] ? [headers[name]] : []),
    body: Buffer.from(body),
    identify: () => {},
    remoteAddress: options.remoteAddress ?? '127.0.0.1',
    secure: false,
    aborted: new AbortController().signal,
  };
  const answer = await route.handler(request).catch((error: unknown) => {
    if (error instanceof Fault) return faultAnswer(error);
    throw error;
  });
  const text = String(answer.body ?? '');
  return {
    status: answer.status,
    text,
    body: answer.contentType === 'application/json' ? JSON.parse(text) : undefined,
  };
}

/** As the HTTP server routes: fixed parts go before parameters. */
function match(method: string, path: string): { route: ServedRoute; params: string[] } {
  const parts = path.split('/');
  const candidates = routes
    .filter((route) => route.method === method)
    .map((route) => ({ route, pattern: route.pattern.split('/') }))
    .filter(({ pattern }) => pattern.length === parts.length)
    .filter(({ pattern }) => pattern.every((part, i) => part.startsWith(':') || part === parts[i]))
    .sort((a, b) => a.route.pattern.split(':').length - b.route.pattern.split(':').length);
  const { route, pattern } = candidates[0]!;
  return { route, params: parts.filter((_, i) => pattern[i]!.startsWith(':')).map(decodeURIComponent) };
}

async function signIn(
  username = admin.email,
  password = admin.password,
): Promise<{ token: string; refreshToken: string }> {
  const answer = await call('POST', '/api/auth/login', { body: { username, password } });
  expect(answer.status).toBe(200);
  return answer.body;
}

/** A token of an earlier sign-in, when nothing is to happen to its session. */
const kept = new Map<string, Promise<{ token: string }>>();
async function tokenOf(username = admin.email, password = admin.password): Promise<string> {
  const pair = kept.get(username) ?? signIn(username, password);
  kept.set(username, pair);
  return (await pair).token;
}

const error = (status: number, errorCode: number, message: unknown) => ({
  status,
  body: { status, errorCode, message, timestamp: expect.any(Number) },
});
const unique = (name: string) => `${name}-${(sequence += 1)}`;
const create = async (jwt: string, body: object = {}, query = '') => {
  const answer = await call('POST', `/api/device${query}`, { jwt, body: { name: unique('pump'), ...body } });
  expect(answer).toMatchObject({ status: 200 });
  return answer.body;
};

const renew = (pair: { refreshToken: string }) =>
  call('POST', '/api/auth/token', { body: { refreshToken: pair.refreshToken } });

async function expectEnded(pair: { token: string; refreshToken: string }): Promise<void> {
  expect(await call('GET', '/api/auth/user', { jwt: pair.token })).toMatchObject(error(401, 11, 'Token has expired'));
  expect(await renew(pair)).toMatchObject(error(401, 10, 'Token is outdated'));
}

const signingKeySetting = `select value from setting where name = 'jwt.signingKey'`;

describe('signing in', () => {
  it('gives a pair of tokens that open the API', async () => {
    const pair = await signIn();
    expect(Object.keys(pair)).toEqual(['token', 'refreshToken']);
    const user = await call('GET', '/api/auth/user', { jwt: pair.token });
    expect(user.body).toMatchObject({ email: admin.email, name: admin.email, authority: 'TENANT_ADMIN', version: 1 });
    expect(user.body.customerId).toEqual({ entityType: 'CUSTOMER', id: nullUuid });
  });

  it('tells the same about a wrong password and an unknown user', async () => {
    for (const body of [
      { username: admin.email, password: 'x' },
      { username: 'nobody@millrace.local', password: 'x' },
    ]) {
      const answer = await call('POST', '/api/auth/login', { body });
      expect(answer).toMatchObject(error(401, 10, 'Invalid username or password'));
    }
  });

  it.each([
    '{"username":"","password":"x"}',
    '{"username":"a","password":""}',
    '{"username":"a","password":"x","more":1}',
    '[]',
    'nonsense',
    '',
  ])('refuses the body %s', async (body) => {
    expect(await call('POST', '/api/auth/login', { body })).toMatchObject(error(401, 10, 'Authentication failed'));
  });

  it('takes POST only', async () => {
    const answer = await call('GET', '/api/auth/login');
    expect(answer).toMatchObject(error(401, 10, 'Authentication method not supported'));
  });

  it('locks an account after too many wrong passwords', async () => {
    const username = 'customerC@thingsboard.org';
    const attempt = (password: string) => call('POST', '/api/auth/login', { body: { username, password } });
    for (let i = 0; i < 3; i += 1) {
      expect(await attempt('x')).toMatchObject(error(401, 10, 'Invalid username or password'));
    }
    expect(await attempt('x')).toMatchObject(error(401, 10, 'User account is locked due to security policy'));
    expect(await attempt('customer')).toMatchObject(error(401, 10, 'User account is not active'));
  });

  it('refreshes with a refresh token only, within the same session', async () => {
    const pair = await signIn();
    const answer = await renew(pair);
    const session = (token: string) => JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString()).sessionId;
    expect(session(answer.body.token)).toBe(session(pair.token));
    expect(await call('POST', '/api/auth/token', { body: { refreshToken: pair.token } })).toMatchObject(
      error(401, 10, 'Invalid Refresh Token scope'),
    );
    expect(await call('POST', '/api/auth/token', { body: {} })).toMatchObject(error(401, 10, 'Authentication failed'));
    expect(await call('GET', '/api/auth/user', { jwt: pair.refreshToken })).toMatchObject({ status: 401 });
  });

  it('ends a session with all its tokens at a logout', async () => {
    const first = await signIn();
    const second = (await renew(first)).body;
    await call('POST', '/api/auth/logout', { jwt: second.token });
    for (const pair of [first, second]) await expectEnded(pair);
  });

  it('takes a refresh token once, a second time only at the same moment, and then ends the session', async () => {
    const pair = await signIn();
    // Two pages of a browser, and one whose answer was lost.
    const twins = await Promise.all([renew(pair), renew(pair), renew(pair)]);
    expect(twins.map(({ status }) => status)).toEqual([200, 200, 200]);
    const next = (await renew(twins[0]!.body)).body;
    await postgres.query(`update session_renewal set renewed_at = renewed_at - interval '61 seconds'`);
    // Two parties hold the token of the second page, and the server cannot know which one is the thief.
    expect(await renew(twins[1]!.body)).toMatchObject(error(401, 10, 'Token is outdated'));
    for (const each of [pair, next]) await expectEnded(each);
  });

  it('takes refresh tokens of a version that knew neither renewals nor epochs', async () => {
    const { token } = await signIn();
    const claims = JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString());
    const { epoch: _, ...old } = { ...claims, sessionId: randomUUID(), scopes: ['REFRESH_TOKEN'] };
    const key = Buffer.from((await postgres.query<{ value: string }>(signingKeySetting))[0]!.value, 'base64');
    const refreshToken = await new SignJWT(old).setProtectedHeader({ alg: 'HS512' }).sign(key);
    expect(await renew({ refreshToken })).toMatchObject({ status: 200 });
  });

  it('ends all sessions of a user that has more of them remembered than anybody needs', async () => {
    const pair = await signIn('sysadmin@thingsboard.org', 'sysadmin');
    await postgres.query(
      `insert into outdated_session (session_id, expires_time, owner_id)
       select gen_random_uuid(), $2, $1 from generate_series(1, $3)`,
      [(await call('GET', '/api/auth/user', { jwt: pair.token })).body.id.id, 2 ** 50, limits.sessionsPerOwnerMax],
    );
    const other = await signIn('sysadmin@thingsboard.org', 'sysadmin');
    await call('POST', '/api/auth/logout', { jwt: other.token });
    await expectEnded(pair);
    expect(await postgres.query('select 1 from outdated_session where expires_time = $1', [2 ** 50])).toEqual([]);
    await signIn('sysadmin@thingsboard.org', 'sysadmin');
  });

  it('ends one session at a logout, and only that', async () => {
    const [first, second] = [await signIn(), await signIn()];
    expect(await call('POST', '/api/auth/logout', { jwt: first.token })).toMatchObject({ status: 200, text: '' });
    expect(await call('GET', '/api/auth/user', { jwt: first.token })).toMatchObject(
      error(401, 11, 'Token has expired'),
    );
    expect(await call('POST', '/api/auth/token', { body: { refreshToken: first.refreshToken } })).toMatchObject(
      error(401, 10, 'Token is outdated'),
    );
    expect(await call('GET', '/api/auth/user', { jwt: second.token })).toMatchObject({ status: 200 });
  });

  it('changes the password, and every other token ends, of whichever second', async () => {
    const username = 'customerB@thingsboard.org';
    const [{ token }, other] = [await signIn(username, 'customer'), await signIn(username, 'customer')];
    const { body: me } = await call('GET', '/api/auth/user', { jwt: token });
    const link = `/api/user/${me.id.id}/resetPasswordLink`;
    const { text } = await call('POST', link, { jwt: await tokenOf('tenant@thingsboard.org', 'tenant') });
    const change = (currentPassword: string, newPassword: string) =>
      call('POST', '/api/auth/changePassword', { jwt: token, body: { currentPassword, newPassword } });
    expect(await change('wrong', 'plum-tree')).toMatchObject(error(400, 31, "Current password doesn't match!"));
    expect(await change('customer', 'customer')).toMatchObject(
      error(400, 31, 'New password should be different from existing!'),
    );
    // A thief who renews without a pause: whatever its requests meet, none of their answers may outlive the change.
    const stolen = [other];
    let isStopped = false;
    const thief = (async () => {
      while (!isStopped) {
        const { status, body } = await renew(stolen.at(-1)!);
        if (status !== 200) return;
        stolen.push(body);
      }
    })();
    const [changed] = await Promise.all([
      change('customer', 'plum-tree'),
      signIn(username, 'customer').catch(() => {}),
    ]);
    isStopped = true;
    await thief;
    for (const pair of stolen) await expectEnded(pair);
    expect(await call('GET', '/api/auth/user', { jwt: token })).toMatchObject({ status: 401 });
    expect(await call('GET', '/api/auth/user', { jwt: changed.body.token })).toMatchObject({ status: 200 });
    expect(await renew(changed.body)).toMatchObject({ status: 200 });
    await signIn(username, 'plum-tree');
    const resetToken = new URL(text).searchParams.get('resetToken');
    expect(
      await call('POST', '/api/noauth/resetPassword', { body: { resetToken, password: 'by-old-link' } }),
    ).toMatchObject(error(400, 31, 'Invalid reset token!'));
  });

  it('lets nobody guess the current password of a session faster than at a sign-in', async () => {
    const username = 'customer@thingsboard.org';
    const jwt = await tokenOf(username, 'customer');
    for (let i = 0; i < limits.failedSignInsFree; i += 1) failedSignIns.failed(username, '127.0.0');
    const change = { currentPassword: 'customer', newPassword: 'plum-tree' };
    expect(await call('POST', '/api/auth/changePassword', { jwt, body: change })).toMatchObject({ status: 429 });
    failedSignIns.succeeded(username, '127.0.0');
    const wrong = { ...change, currentPassword: 'x' };
    const failed = vi.spyOn(failedSignIns, 'failed');
    await call('POST', '/api/auth/changePassword', { jwt, body: wrong });
    expect(failed).toHaveBeenCalledWith(username, '127.0.0');
  });

  it('is not kept from a user by guesses from elsewhere', async () => {
    const body = { username: admin.email, password: admin.password };
    await signIn();
    for (let i = 0; i < 100 * limits.failedSignInsFree; i += 1) failedSignIns.failed(admin.email, `10.${i}.0`);
    const from = (remoteAddress: string) => call('POST', '/api/auth/login', { body, remoteAddress });
    expect(await from('127.0.0.9')).toMatchObject({ status: 200 });
    for (let i = 0; i < 10 * limits.failedSignInsFree; i += 1) failedSignIns.failed(admin.email, `10.${i}.0`);
    expect(await from('192.168.7.7')).toMatchObject({ status: 429 });
    failedSignIns.succeeded(admin.email, '127.0.0');
  });

  it('wants a credential it knows', async () => {
    const get = (headers: Record<string, string>) => call('GET', '/api/auth/user', { headers });
    const failed = error(401, 10, 'Authentication failed');
    const invalid = error(401, 10, 'Invalid username or password');
    expect(await get({})).toMatchObject(failed);
    expect(await get({ authorization: 'Basic dTpw' })).toMatchObject(failed);
    expect(await get({ 'x-authorization': 'bearer x' })).toMatchObject(failed);
    expect(await get({ 'x-authorization': 'Bearer abc' })).toMatchObject(invalid);
    expect(await get({ 'x-authorization': 'ApiKey tb_abc' })).toMatchObject(invalid);
    const { token } = await signIn();
    expect(await get({ authorization: `Bearer ${token}` })).toMatchObject({ status: 200 });
    expect(await get({ 'x-authorization': 'ApiKey x', authorization: `Bearer ${token}` })).toMatchObject({
      status: 200,
    });
  });
});

describe('devices', () => {
  let jwt: string;
  beforeAll(async () => {
    jwt = await tokenOf('tenant@thingsboard.org', 'tenant');
  });

  it('have exactly the members of the wire', async () => {
    const name = unique('pump');
    const device = await create(jwt, { name, additionalInfo: { gateway: false, n: 1.5 } });
    expect(JSON.stringify(device)).toBe(
      JSON.stringify({
        id: { entityType: 'DEVICE', id: device.id.id },
        createdTime: device.createdTime,
        tenantId: { entityType: 'TENANT', id: device.tenantId.id },
        customerId: { entityType: 'CUSTOMER', id: nullUuid },
        name,
        type: 'default',
        label: null,
        deviceProfileId: { entityType: 'DEVICE_PROFILE', id: device.deviceProfileId.id },
        deviceData: { configuration: { type: 'DEFAULT' }, transportConfiguration: { type: 'DEFAULT' } },
        firmwareId: null,
        softwareId: null,
        externalId: null,
        version: 1,
        additionalInfo: { gateway: false, n: 1.5 },
      }),
    );
    const read = await call('GET', `/api/device/${device.id.id}`, { jwt });
    expect(read.body).toEqual(device);
    const info = await call('GET', `/api/device/info/${device.id.id}`, { jwt });
    expect(info.body).toEqual({
      ...device,
      customerTitle: null,
      customerIsPublic: false,
      deviceProfileName: 'default',
      active: false,
    });
  });

  it('get a random token, or the one asked for, once', async () => {
    const device = await create(jwt);
    const { body } = await call('GET', `/api/device/${device.id.id}/credentials`, { jwt });
    expect(body).toEqual({
      id: { id: expect.any(String) },
      createdTime: expect.any(Number),
      deviceId: device.id,
      credentialsType: 'ACCESS_TOKEN',
      credentialsId: expect.stringMatching(/^[A-Za-z0-9]{20}$/),
      credentialsValue: null,
      version: 1,
    });
    const token = unique('KEY');
    await create(jwt, {}, `?accessToken=${token}`);
    const again = await call('POST', `/api/device?accessToken=${token}`, { jwt, body: { name: unique('pump') } });
    expect(again).toMatchObject(error(400, 31, 'These device credentials cannot be used: choose others.'));
  });

  it('are refused with a reason', async () => {
    const device = await create(jwt);
    const post = (body: unknown, query = '') => call('POST', `/api/device${query}`, { jwt, body });
    expect(await post({ name: device.name })).toMatchObject(error(400, 31, 'Device with such name already exists!'));
    expect(await post({})).toMatchObject(error(400, 31, 'Device name should be specified!'));
    expect(await post({ name: 'x'.repeat(256) })).toMatchObject(
      error(400, 31, 'Validation error: name length must be equal or less than 255'),
    );
    expect(await post({ name: 'a<script>' })).toMatchObject(error(400, 31, expect.stringContaining('is malformed')));
    expect(await post({ name: 'a\0b' })).toMatchObject({ status: 400, body: { errorCode: 31 } });
    expect(await post({ name: 5 })).toMatchObject(error(400, 31, expect.stringContaining('name')));
    expect(await post('{"name":')).toMatchObject({ status: 400 });
    expect(await post('')).toMatchObject({ status: 400 });
    expect(await post({ name: unique('a'), deviceProfileId: { id: nullUuid.replace('1', '2') } })).toMatchObject(
      error(400, 31, 'Device is referencing non existing device profile!'),
    );
    expect(await post({ name: unique('a'), customerId: { id: nullUuid.replace('1', '2') } })).toMatchObject(
      error(400, 31, "Can't assign device to non-existent customer!"),
    );
    expect(await post({ name: unique('a'), customerId: { id: '12' } })).toMatchObject(
      error(400, 31, 'Invalid UUID string: 12'),
    );
    const xml = await call('POST', '/api/device', { jwt, body: '<a/>', headers: { 'content-type': 'text/xml' } });
    expect(xml).toMatchObject({ status: 415 });
    const unified = await post({ name: device.name }, '?nameConflictPolicy=UNIQUIFY');
    expect(unified.body.name).toMatch(new RegExp(`^${device.name}_[a-z0-9]{6}$`));
  });

  it('with a taken name are numbered, however many there are', async () => {
    const name = unique('Насос 100%');
    const query = '?nameConflictPolicy=UNIQUIFY&uniquifyStrategy=INCREMENTAL&uniquifySeparator=-%5C';
    const number = async () => (await create(jwt, { name }, query)).name.slice(name.length);
    expect([await number(), await number(), await number()]).toEqual(['', '-\\1', '-\\2']);
    for (const taken of ['-\\150', '-\\0900', '-\\x', '-950']) await create(jwt, { name: name + taken });
    expect(await number()).toBe('-\\151');
    const racing = await Promise.all(Array.from({ length: 8 }, number));
    expect(racing.sort()).toEqual(Array.from({ length: 8 }, (_, n) => `-\\${152 + n}`));
  });

  it('find or make the profile of their type', async () => {
    const type = unique('Pump');
    const first = await create(jwt, { type });
    const [second, third] = await Promise.all([create(jwt, { type }), create(jwt, { type: type.toLowerCase() })]);
    expect(second.deviceProfileId).toEqual(first.deviceProfileId);
    expect(third.deviceProfileId).not.toEqual(first.deviceProfileId);
    const byId = await create(jwt, { type: 'ignored', deviceProfileId: first.deviceProfileId });
    expect(byId.type).toBe(type);
  });

  it('are replaced by a save, under a version', async () => {
    const { body: customer } = await call('GET', '/api/tenant/device?deviceName=Test%20Device%20A1', { jwt });
    const device = await create(jwt, { customerId: customer.customerId, label: 'North', type: 'thermostat' });
    expect(device.customerId).toEqual(customer.customerId);
    const save = (body: object) => call('POST', '/api/device', { jwt, body });
    const saved = await save({ id: device.id, name: device.name, version: 1 });
    expect(saved.body).toMatchObject({ version: 2, label: null, customerId: { id: nullUuid }, type: 'default' });
    expect(await save({ ...device, version: 1 })).toMatchObject(
      error(409, 35, 'Device was already changed by someone else'),
    );
    expect((await save({ ...device, version: null })).body).toMatchObject({ version: 3, label: 'North' });
    const other = await create(jwt);
    expect(await save({ ...device, name: other.name, version: null })).toMatchObject(
      error(400, 31, 'Device with such name already exists!'),
    );
  });

  it('are listed by page', async () => {
    const type = unique('listed');
    for (const name of ['e', 'd', 'c', 'b', 'a']) await create(jwt, { type, name: `${type}_%${name}`, label: 'x\\y' });
    const list = (query: string) => call('GET', `/api/tenant/devices?type=${type}&${query}`, { jwt });
    const names = (answer: Answer) => answer.body.data.map((device: { name: string }) => device.name.at(-1)).join('');
    const all = await list('pageSize=10&page=0');
    expect(names(all)).toBe('edcba');
    expect(names(await list('pageSize=10&page=0&sortProperty=name'))).toBe('abcde');
    expect(names(await list('pageSize=2&page=0&sortProperty=name&sortOrder=DESC'))).toBe('ed');
    const last = await list('pageSize=2&page=2');
    expect(last.body).toMatchObject({ totalPages: 3, totalElements: 5, hasNext: false });
    expect(names(last)).toBe('a');
    expect((await list('pageSize=2&page=9')).body).toEqual({
      data: [],
      totalPages: 3,
      totalElements: 5,
      hasNext: false,
    });
    expect(names(await list(`pageSize=9&page=0&textSearch=${encodeURIComponent(`${type.toUpperCase()}_%C`)}`))).toBe(
      'c',
    );
    expect(names(await list(`pageSize=9&page=0&textSearch=${encodeURIComponent('\\')}`))).toBe('edcba');
    expect(names(await list('pageSize=9&page=0&textSearch=_x'))).toBe('');
    const infos = await call('GET', `/api/tenant/deviceInfos?type=${type}&pageSize=1&page=0`, { jwt });
    expect(infos.body.data[0]).toMatchObject({ deviceProfileName: type, active: false });
  });

  it.each([
    ['page=0', "Required request parameter 'pageSize' is not present"],
    ['pageSize=5', "Required request parameter 'page' is not present"],
    ['pageSize=0&page=0', "Incorrect page link page size '0'. Page size must be greater than zero."],
    ['pageSize=1&page=-1', "Incorrect page link page '-1'. Page must be positive integer."],
    ['pageSize=1&page=0&sortProperty=password', 'Invalid sort property'],
    ['pageSize=1&page=0&sortOrder=UP', "Unsupported sort order 'UP'! Only 'ASC' or 'DESC' types are allowed."],
  ])('the list %s is refused', async (query, message) => {
    expect(await call('GET', `/api/tenant/devices?${query}`, { jwt })).toMatchObject(error(400, 31, message));
  });

  it.each([
    ['Насос', 'насос', 'НАСОС'],
    ['ümläut', 'ÜMLÄUT', 'Mläu'],
    ['Pump', 'pUMP', 'UM'],
  ])('named %s are found as %s and as %s', async (name, ...searches) => {
    const device = await create(jwt, { name: `${name}-${sequence++}` });
    for (const search of searches) {
      const found = await call(
        'GET',
        `/api/tenant/devices?pageSize=1000&page=0&textSearch=${encodeURIComponent(search)}`,
        { jwt },
      );
      expect(found.body.data).toContainEqual(device);
    }
  });

  it('are found by name and by ids', async () => {
    const [one, two] = [await create(jwt), await create(jwt)];
    expect((await call('GET', `/api/tenant/devices?deviceName=${one.name}`, { jwt })).body).toEqual(one);
    const missing = error(404, 32, "Requested item wasn't found!");
    expect(await call('GET', '/api/tenant/devices?deviceName=nope', { jwt })).toMatchObject(missing);
    const ids = await call('GET', `/api/devices?deviceIds=${one.id.id},${two.id.id}`, { jwt });
    expect(ids.body).toEqual([one, two]);
  });

  it('of another tenant are not there', async () => {
    const device = await create(await tokenOf());
    const { id } = device.id;
    const missing = error(404, 32, `Device with id [${id}] is not found`);
    expect(await call('GET', `/api/device/${id}`, { jwt })).toMatchObject(missing);
    expect(await call('DELETE', `/api/device/${id}`, { jwt })).toMatchObject(missing);
    expect(await call('GET', `/api/device/${id}/credentials`, { jwt })).toMatchObject(missing);
    expect(await call('POST', '/api/device', { jwt, body: device })).toMatchObject(missing);
    expect(await call('GET', '/api/device/123', { jwt })).toMatchObject(error(400, 31, 'Invalid UUID string: 123'));
  });

  it('are seen by a customer user when they are the own ones, and by no system administrator', async () => {
    const customer = await tokenOf('customer@thingsboard.org', 'customer');
    const { body: own } = await call('GET', '/api/tenant/device?deviceName=Test%20Device%20A1', { jwt });
    const { body: other } = await call('GET', '/api/tenant/device?deviceName=Test%20Device%20B1', { jwt });
    const denied = error(403, 20, "You don't have permission to perform this operation!");
    expect(await call('GET', `/api/device/${own.id.id}`, { jwt: customer })).toMatchObject({ status: 200 });
    expect(await call('GET', `/api/device/${own.id.id}/credentials`, { jwt: customer })).toMatchObject({ status: 200 });
    expect(await call('GET', `/api/device/${other.id.id}`, { jwt: customer })).toMatchObject(denied);
    expect(await call('DELETE', `/api/device/${own.id.id}`, { jwt: customer })).toMatchObject(denied);
    expect(await call('POST', '/api/device', { jwt: customer, body: { name: 'x' } })).toMatchObject(denied);
    const page = 'pageSize=10&page=0&sortProperty=name';
    const list = await call('GET', `/api/customer/${own.customerId.id}/devices?${page}`, { jwt: customer });
    expect(list.body.data.map((device: { name: string }) => device.name)).toEqual(
      expect.arrayContaining(['Test Device A1', 'Test Device A2', 'Test Device A3']),
    );
    expect(await call('GET', `/api/customer/${other.customerId.id}/devices?${page}`, { jwt: customer })).toMatchObject(
      denied,
    );
    const saved = await call('POST', '/api/device', {
      jwt: customer,
      body: { ...own, customerId: null, label: 'mine' },
    });
    expect(saved.body).toMatchObject({ label: 'mine', customerId: own.customerId });
    const sysadmin = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
    expect(await call('GET', '/api/tenant/devices?pageSize=1&page=0', { jwt: sysadmin })).toMatchObject(denied);
  });

  it('change their token: the old one stops, the new one works', async () => {
    const device = await create(jwt, {}, `?accessToken=${unique('OLD')}`);
    const { body: credentials } = await call('GET', `/api/device/${device.id.id}/credentials`, { jwt });
    const next = unique('NEW');
    expect((await tokens.lookup(credentials.credentialsId))?.id).toBe(device.id.id);
    expect(await tokens.lookup(next)).toBeNull();
    const save = (change: object) =>
      call('POST', '/api/device/credentials', { jwt, body: { ...credentials, ...change } });
    expect((await save({ credentialsId: next })).body).toEqual({ ...credentials, credentialsId: next, version: 2 });
    expect(await tokens.lookup(credentials.credentialsId)).toBeNull();
    expect((await tokens.lookup(next))?.id).toBe(device.id.id);
    expect(await save({ credentialsId: 'A1_TEST_TOKEN', version: 2 })).toMatchObject(
      error(400, 31, 'These device credentials cannot be used: choose others.'),
    );
    expect(await save({ credentialsId: '', version: 2 })).toMatchObject(
      error(400, 31, 'Device credentials id should be specified!'),
    );
    expect(await save({ credentialsType: null })).toMatchObject(
      error(400, 31, 'Device credentials type should be specified'),
    );
    expect(await save({ version: 1 })).toMatchObject({ status: 409 });
    expect(await save({ id: { id: device.id.id }, version: 2 })).toMatchObject(
      error(400, 31, 'Unable to update non-existent device credentials!'),
    );
  });

  it('are deleted once, with their token and, through a tombstone, their data', async () => {
    const token = unique('GONE');
    const device = await create(jwt, {}, `?accessToken=${token}`);
    const { number } = (await tokens.lookup(token))!;
    expect(await call('DELETE', `/api/device/${device.id.id}`, { jwt })).toMatchObject({ status: 200, text: '' });
    expect(await tokens.lookup(token)).toBeNull();
    expect(await call('DELETE', `/api/device/${device.id.id}`, { jwt })).toMatchObject({ status: 404 });
    const tombstones = await postgres.query('select device, keys, order_number from tombstones where device = $1', [
      number,
    ]);
    expect(tombstones).toEqual([{ device: number, keys: null, order_number: null }]);
    const reborn = await create(jwt, { name: device.name }, `?accessToken=${token}`);
    expect((await tokens.lookup(token))!.number).toBeGreaterThan(number);
    expect(reborn.id).not.toEqual(device.id);
  });
});

describe('users', () => {
  const system = () => tokenOf(admin.systemEmail);
  const enable = (jwt: string, id: string, enabled: boolean) =>
    call('POST', `/api/user/${id}/userCredentialsEnabled?userCredentialsEnabled=${enabled}`, { jwt });
  const idOf = async (jwt: string) => (await call('GET', '/api/auth/user', { jwt })).body.id.id;
  const newUser = async (jwt: string, user: object) => {
    const email = `${unique('user')}@millrace.local`;
    const { body } = await call('POST', '/api/user?sendActivationMail=false', { jwt, body: { email, ...user } });
    return body;
  };
  const lastAdmin = (whose: string) => error(400, 31, `At least one ${whose} administrator must remain!`);

  it('keep one administrator that can sign in', async () => {
    const tenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    expect(await enable(tenant, await idOf(tenant), false)).toMatchObject(lastAdmin('tenant'));
    // One who cannot sign in yet is no other administrator.
    await newUser(tenant, { authority: 'TENANT_ADMIN' });
    expect(await enable(tenant, await idOf(tenant), false)).toMatchObject(lastAdmin('tenant'));
    const demo = await idOf(await tokenOf('sysadmin@thingsboard.org', 'sysadmin'));
    expect(await enable(await system(), demo, false)).toMatchObject({ status: 200 });
    expect(await enable(await system(), await idOf(await system()), false)).toMatchObject(lastAdmin('system'));
    kept.delete('sysadmin@thingsboard.org');
  });

  it('lock the last system administrator out for no number of wrong passwords', async () => {
    const attempt = (password: string) =>
      call('POST', '/api/auth/login', { body: { username: admin.systemEmail, password } });
    for (let i = 0; i < 5; i += 1) expect(await attempt('x')).toMatchObject(error(401, 10, expect.anything()));
    expect(await attempt(admin.password)).toMatchObject({ status: 200 });
    const demo = await postgres.query<{ id: string }>(`select id from user_account where email like 'sysadmin@%'`);
    await enable(await system(), demo[0]!.id, true);
    for (let i = 0; i < 4; i += 1) await attempt('x');
    expect(await attempt(admin.password)).toMatchObject(error(401, 10, 'User account is not active'));
    const other = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
    expect(
      await enable(
        other,
        (await postgres.query<{ id: string }>('select id from user_account where email = $1', [admin.systemEmail]))[0]!
          .id,
        true,
      ),
    ).toMatchObject({ status: 200 });
  });

  it('get a link to choose another password from administrators above only', async () => {
    const tenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    const link = (jwt: string, id: string) => call('POST', `/api/user/${id}/resetPasswordLink`, { jwt });
    const denied = { status: 403 };
    expect(await link(tenant, await idOf(tenant))).toMatchObject(denied);
    const equal = await newUser(tenant, { authority: 'TENANT_ADMIN' });
    expect(await link(tenant, equal.id.id)).toMatchObject(denied);
    expect(await link(await system(), await idOf(await system()))).toMatchObject(denied);
    expect(await link(await system(), await idOf(tenant))).toMatchObject({ status: 200 });
  });

  it('change their own email, and that of an equal, with their password', async () => {
    const tenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    const { body: me } = await call('GET', '/api/auth/user', { jwt: tenant });
    const equal = await newUser(tenant, { authority: 'TENANT_ADMIN' });
    const save = (user: object) => call('POST', '/api/user', { jwt: tenant, body: { ...user, version: undefined } });
    const email = `${unique('moved')}@millrace.local`;
    const wantsPassword = error(400, 31, 'To change this email give your own password as "currentPassword".');
    expect(await save({ ...me, email })).toMatchObject(wantsPassword);
    expect(await save({ ...equal, email })).toMatchObject(wantsPassword);
    expect(await save({ ...me, email, currentPassword: 'x' })).toMatchObject(
      error(400, 31, "Current password doesn't match!"),
    );
    expect((await save({ ...me, email, currentPassword: 'tenant' })).body).toMatchObject({ email });
    expect((await save({ ...me, currentPassword: 'tenant' })).body).toMatchObject({ email: me.email });
    const customerId = (await call('GET', '/api/customers?pageSize=1&page=0', { jwt: tenant })).body.data[0].id;
    const below = await newUser(tenant, { authority: 'CUSTOMER_USER', customerId });
    expect((await save({ ...below, email })).body).toMatchObject({ email });
    // Nothing tells which tenant has such a user.
    for (const taken of [email, admin.email]) {
      expect(await save({ ...equal, email: taken, currentPassword: 'tenant' })).toMatchObject(
        error(400, 31, `The email '${taken}' cannot be used: choose another one.`),
      );
    }
  });

  it('of customers do not see where the tenant is reached', async () => {
    const ofA = await tokenOf('customerA@thingsboard.org', 'customer');
    const { body: me } = await call('GET', '/api/auth/user', { jwt: ofA });
    const path = `/api/tenant/${me.tenantId.id}`;
    const { body: tenant } = await call('GET', path, { jwt: await system() });
    const contact = { email: 'mill@orchard.example', phone: '1', address: 'a', address2: 'b', zip: 'z' };
    const place = { country: 'c', state: 's', city: 'y' };
    await call('POST', '/api/tenant', { jwt: await system(), body: { ...tenant, ...contact, ...place } });
    const seen = (await call('GET', path, { jwt: ofA })).body;
    expect(Object.keys(seen)).toEqual(Object.keys(tenant));
    for (const field of Object.keys({ ...contact, ...place })) expect([field, seen[field]]).toEqual([field, null]);
    expect(seen.title).toBe(tenant.title);
    const ofTenant = await tokenOf('tenant@thingsboard.org', 'tenant');
    expect((await call('GET', path, { jwt: ofTenant })).body).toMatchObject({ ...contact, ...place });
  });
});

describe('API keys', () => {
  const by = (value: string) => ({ headers: { 'x-authorization': `ApiKey ${value}` } });
  const works = async (value: string) => (await call('GET', '/api/auth/user', by(value))).status === 200;
  interface Key {
    id: { id: string };
    value: string;
  }
  const makeKey = async (userId: string, how: Parameters<typeof call>[2]): Promise<Answer & { body: Key }> =>
    await call('POST', '/api/apiKey', { ...how, body: { userId: { id: userId }, description: 'k', enabled: true } });

  it('are revoked with all keys that they made, for whomever', async () => {
    const jwt = await tokenOf();
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    const customer = (await call('POST', '/api/customer', { jwt, body: { title: unique('c') } })).body;
    const user = { email: `${unique('u')}@millrace.local`, authority: 'CUSTOMER_USER', customerId: customer.id };
    const other = (await call('POST', '/api/user?sendActivationMail=false', { jwt, body: user })).body.id.id;
    await postgres.query(`update user_account set password_hash = 'x' where id = $1`, [other]);
    const [leaked, apart] = [(await makeKey(me, { jwt })).body, (await makeKey(me, { jwt })).body];
    const child = (await makeKey(me, by(leaked.value))).body;
    const middle = (await makeKey(me, by(child.value))).body;
    const grandchild = (await makeKey(other, by(middle.value))).body;
    await call('DELETE', `/api/apiKey/${middle.id.id}`, { jwt });
    expect(await works(grandchild.value)).toBe(true);
    await call('DELETE', `/api/apiKey/${leaked.id.id}?withMadeKeys=true`, { jwt });
    for (const { value } of [leaked, child, middle, grandchild]) expect(await works(value)).toBe(false);
    expect(await works(apart.value)).toBe(true);
  });

  it('make no key once they are revoked, and no endless row of keys', async () => {
    const jwt = await tokenOf();
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    const first = (await makeKey(me, { jwt })).body;
    expect(await works(first.value)).toBe(true);
    // The worker still believes what the store said of the key.
    await postgres.query('delete from api_key where id = $1', [first.id.id]);
    expect(await makeKey(me, by(first.value))).toMatchObject({ status: 401 });
    let last = (await makeKey(me, { jwt })).body;
    for (let i = 0; i < limits.apiKeyMakersMax; i += 1) last = (await makeKey(me, by(last.value))).body;
    expect(await makeKey(me, by(last.value))).toMatchObject({ status: 400 });
    await postgres.query(
      `insert into api_key (id, created_time, tenant_id, user_id, value_sha256, description, enabled, expiration_time)
       select gen_random_uuid(), 0, null, $1, sha256(n::text::bytea), 'many', true, 0 from generate_series(1, $2) as n`,
      [me, limits.apiKeysPerUserMax],
    );
    expect(await makeKey(me, { jwt })).toMatchObject(
      error(400, 31, 'A user has at most 1000 API keys: revoke one that is not needed.'),
    );
    await postgres.query(`delete from api_key where description = 'many'`);
  });

  it('end with a changed password, if that is wanted', async () => {
    const username = 'customerA@thingsboard.org';
    const { token: jwt } = await signIn(username, 'customer');
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    const key = (await makeKey(me, { jwt })).body;
    const made = (await makeKey(me, by(key.value))).body;
    const change = async (currentPassword: string, newPassword: string, revokeApiKeys: boolean) => {
      const { token } = await signIn(username, currentPassword);
      const body = { currentPassword, newPassword, revokeApiKeys };
      expect(await call('POST', '/api/auth/changePassword', { jwt: token, body })).toMatchObject({ status: 200 });
    };
    await change('customer', 'plum-tree', false);
    expect([await works(key.value), await works(made.value)]).toEqual([true, true]);
    await change('plum-tree', 'pear-tree', true);
    expect([await works(key.value), await works(made.value)]).toEqual([false, false]);
    const last = (await makeKey(me, { jwt: (await signIn(username, 'pear-tree')).token })).body;
    const link = await call('POST', `/api/user/${me}/resetPasswordLink`, {
      jwt: await tokenOf('tenant@thingsboard.org', 'tenant'),
    });
    const resetToken = new URL(link.text).searchParams.get('resetToken');
    const reset = { resetToken, password: 'customer', revokeApiKeys: true };
    expect(await call('POST', '/api/noauth/resetPassword', { body: reset })).toMatchObject({ status: 200 });
    expect(await works(last.value)).toBe(false);
    kept.delete(username);
  });
});

describe('stored commands without an owner', () => {
  it('are claimed although those of a tenant without room are older, and more than one claim takes', async () => {
    const device = async (jwt: string) => {
      const { id, tenantId } = await create(jwt);
      const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [id.id]);
      return { id: id.id, tenantId: tenantId.id, number: row!.number };
    };
    const [full, other] = [
      await device(await tokenOf()),
      await device(await tokenOf('tenant@thingsboard.org', 'tenant')),
    ];
    const insert = ({ id, tenantId, number }: typeof full, prefix: string, count: number) =>
      postgres.query(
        `insert into rpc (id, created_time, tenant_id, device_id, device, number, method, params, oneway, expiration_time)
         select ($1 || lpad(n::text, 12, '0'))::uuid, 0, $2, $3, $4, n, 'm', '{}', true, 9000000000000
           from generate_series(1, $5) as n`,
        [prefix, tenantId, id, number, count],
      );
    // So many that their leases run out before all of them were claimed once.
    await insert(full, '00000000-0000-0000-0000-', 7 * limits.rpcClaimMax);
    await insert(other, '00000000-0000-0000-0001-', 1);
    const held: number[] = [];
    const noRoom = new Fault('rpc_tenant_full', 'no room');
    const rpc = {
      room: 10_000,
      hold(command: { tenantId: string; device: number }) {
        if (command.tenantId === full.tenantId) throw noRoom;
        held.push(command.device);
      },
      drop() {},
    } as unknown as Rpc;
    const downlink = new Downlink({ bus: deafBus, shards: 1, log, metrics: new Metrics() });
    const numbers = new RpcNumbers(postgres);
    const persistent = new PersistentRpcs({ postgres, rpc, numbers, downlink, clock, log, retriesMax: 5, keptDays: 0 });
    persistent.start();
    await vi.waitFor(() => expect(held).toEqual([other.number]), { timeout: 20_000 });
    await persistent.stop();
    await postgres.query('delete from rpc where device = any($1)', [[full.number, other.number]]);
  });
});

describe('names that another tenant has', () => {
  const refused = async (answers: Promise<Answer>[]) => (await Promise.all(answers)).map(({ status }) => status);

  it('are refused a few times, then nothing more is told of chosen names until the window ends', async () => {
    const other = await tokenOf('tenant@thingsboard.org', 'tenant');
    const jwt = await tokenOf();
    const token = unique('taken');
    await create(other, {}, `?accessToken=${token}`);
    const email = `${unique('taken')}@millrace.local`;
    const user = { email, authority: 'TENANT_ADMIN' };
    expect(await call('POST', '/api/user?sendActivationMail=false', { jwt: other, body: user })).toMatchObject({
      status: 200,
    });
    const profile = (jwtOf: string, provisionDeviceKey: string) => ({
      jwt: jwtOf,
      body: {
        name: unique('profile'),
        provisionDeviceKey,
        profileData: {
          provisionConfiguration: { type: 'ALLOW_CREATE_NEW_DEVICES', provisionDeviceSecret: 'pear' },
        },
      },
    });
    expect(await call('POST', '/api/deviceProfile', profile(other, token))).toMatchObject({ status: 200 });

    const make = (accessToken: string) =>
      call('POST', `/api/device?accessToken=${accessToken}`, { jwt, body: { name: unique('pump') } });
    const invite = (address: string) =>
      call('POST', '/api/user?sendActivationMail=false', { jwt, body: { ...user, email: address } });
    // What the tenant has itself tells it nothing new, and is not counted.
    const own = unique('own');
    expect(await make(own)).toMatchObject({ status: 200 });
    for (let n = 0; n < limits.takenNamesMax; n += 1) expect(await make(own)).toMatchObject({ status: 400 });

    const device = await create(jwt);
    const credentials = (await call('GET', `/api/device/${device.id.id}/credentials`, { jwt })).body;
    const change = (credentialsId: string) =>
      call('POST', '/api/device/credentials', { jwt, body: { ...credentials, credentialsId, version: null } });
    expect(await refused([make(token), invite(email), change(token)])).toEqual([400, 400, 400]);
    expect(await call('POST', '/api/deviceProfile', profile(jwt, token))).toMatchObject({ status: 400 });
    const saved = (await call('GET', '/api/auth/user', { jwt })).body;
    const renamed = await call('POST', '/api/user', {
      jwt,
      body: { ...saved, email, currentPassword: admin.password },
    });
    expect(renamed).toMatchObject({ status: 400 });
    const rows = Array.from({ length: limits.takenNamesMax }, () => unique('row'));
    const bulk = await call('POST', '/api/devices/bulk', {
      jwt,
      body: { devices: rows.map((name) => ({ name, accessToken: name === rows[1] ? unique('free') : token })) },
    });
    // A token that many rows of one call name is looked up once.
    expect(bulk.body).toMatchObject({ created: 1, failed: rows.length - 1 });
    for (let n = 6; n < limits.takenNamesMax; n += 1) expect(await make(token)).toMatchObject({ status: 400 });

    const full = { status: 429, body: { errorCode: 33 } };
    const more = [make(token), make(unique('free')), invite(email), invite(`${unique('free')}@millrace.local`)];
    for (const answer of await Promise.all(more)) expect(answer).toMatchObject(full);
    for (const name of [token, unique('free')]) {
      expect(await change(name)).toMatchObject(full);
      expect(await call('POST', '/api/deviceProfile', profile(jwt, name))).toMatchObject(full);
      const disguised = { ...profile(jwt, name).body, provisionType: 'X509_CERTIFICATE_CHAIN' };
      expect(await call('POST', '/api/deviceProfile', { jwt, body: disguised })).toMatchObject(full);
      const body = { devices: [{ name: unique('row'), accessToken: name }, { name: unique('row') }] };
      const outcome = await call('POST', '/api/devices/bulk', { jwt, body });
      expect(outcome.body).toMatchObject({ created: 1, failed: 1 });
      expect(outcome.body.results[0].error).toContain('leave them out');
    }
    // Random names, unchanged ones and other tenants go on.
    await create(jwt);
    expect(await call('POST', '/api/user', { jwt, body: { ...saved, firstName: 'Ada', version: null } })).toMatchObject(
      {
        status: 200,
      },
    );
    await create(other, {}, `?accessToken=${unique('free')}`);
    movedMs += limits.takenNamesMs;
    expect(await make(unique('free'))).toMatchObject({ status: 200 });
  });
});

describe('at the same moment', () => {
  /** Until so many statements of this database wait for a lock. */
  const lockWaiters = async (count: number) => {
    await vi.waitFor(
      async () => {
        const waiting = await postgres.query(
          `select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
        );
        expect(waiting.length).toBeGreaterThanOrEqual(count);
      },
      { timeout: 20_000 },
    );
  };

  it('a session that ends makes no API key that outlives it', async () => {
    const email = `${unique('late')}@millrace.local`;
    const user = { email, authority: 'TENANT_ADMIN' };
    const created = await call('POST', '/api/user?sendActivationMail=false', { jwt: await tokenOf(), body: user });
    const me = created.body.id.id;
    await postgres.query(
      'update user_account set password_hash = (select password_hash from user_account where email = $2) where id = $1',
      [me, admin.email],
    );
    const { token: jwt } = await signIn(email);
    const body = { userId: { id: me }, description: 'late', enabled: true };
    let made: Promise<Answer> | undefined;
    await postgres.transaction(async (queries) => {
      // As a change of the password does, which then revokes the keys that it finds.
      await queries.query('update user_account set session_epoch = session_epoch + 1 where id = $1', [me]);
      made = call('POST', '/api/apiKey', { jwt, body });
      await lockWaiters(1);
      await queries.query('delete from api_key where user_id = $1', [me]);
    });
    expect(await made).toMatchObject({ status: 401 });
    expect(await postgres.query('select 1 from api_key where user_id = $1', [me])).toEqual([]);
    const { token } = await signIn(email);
    expect(await call('POST', '/api/apiKey', { jwt: token, body })).toMatchObject({ status: 200 });
  });

  it('several calls make no more API keys than a user may have', async () => {
    const jwt = await tokenOf();
    const me = (await call('GET', '/api/auth/user', { jwt })).body.id.id;
    await postgres.query(
      `insert into api_key (id, created_time, tenant_id, user_id, value_sha256, description, enabled, expiration_time)
       select gen_random_uuid(), 0, null, $1, sha256(n::text::bytea), 'many', true, 0 from generate_series(1, $2) as n`,
      [
        me,
        limits.apiKeysPerUserMax - 1 - (await postgres.query('select 1 from api_key where user_id = $1', [me])).length,
      ],
    );
    const body = { userId: { id: me }, description: 'many', enabled: true };
    const answers = await Promise.all(Array.from({ length: 6 }, () => call('POST', '/api/apiKey', { jwt, body })));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 400, 400, 400, 400, 400]);
    await postgres.query(`delete from api_key where description = 'many'`);
  });

  it('several calls make no more relations than an entity may have', async () => {
    const jwt = await tokenOf();
    const [from, ...others] = await Promise.all(Array.from({ length: 7 }, () => create(jwt)));
    await postgres.query(
      `insert into relation (from_id, from_type, to_id, to_type, type, type_group)
       select $1, 'DEVICE', gen_random_uuid(), 'DEVICE', 'Contains', 'COMMON' from generate_series(1, $2)`,
      [from.id.id, limits.relationsOfEntityMax - 1],
    );
    const relate = (to: { id: object }) =>
      call('POST', '/api/relation', { jwt, body: { from: from.id, to: to.id, type: 'Contains' } });
    const statuses = (await Promise.all(others.map(relate))).map(({ status }) => status);
    expect(statuses.sort()).toEqual([200, 400, 400, 400, 400, 400]);
    await postgres.query('delete from relation where from_id = $1', [from.id.id]);
  });
});

describe('a device that changes its customer', () => {
  let jwt: string;
  let ofA: string;
  let customerId: string;
  beforeAll(async () => {
    jwt = await tokenOf('tenant@thingsboard.org', 'tenant');
    ofA = await tokenOf('customerA@thingsboard.org', 'customer');
    customerId = (await call('GET', '/api/auth/user', { jwt: ofA })).body.customerId.id;
  });

  const ownerOf = async (id: string) => (await call('GET', `/api/device/${id}`, { jwt })).body.customerId.id;
  const unassign = (id: string, query = '') => call('DELETE', `/api/customer/device/${id}${query}`, { jwt });
  const tokenOfDevice = async (id: string) =>
    (await call('GET', `/api/device/${id}/credentials`, { jwt })).body.credentialsId;
  const toA = () => create(jwt, { customerId: { entityType: 'CUSTOMER', id: customerId } });

  it('is not kept by a save that its former customer began before', async () => {
    const device = await toA();
    const id = device.id.id;
    let save: Promise<Answer> | undefined;
    await postgres.transaction(async (queries) => {
      await queries.query('update device set customer_id = null where id = $1', [id]);
      save = call('POST', '/api/device', { jwt: ofA, body: { ...device, version: undefined, label: 'mine' } });
      const waits = `select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%for update%'`;
      while ((await postgres.query(waits)).length === 0);
    });
    expect(await save).toMatchObject({ status: 403 });
    expect(await ownerOf(id)).toBe(nullUuid);
  });

  it('keeps its token, or gets another one that the former customer never sees', async () => {
    const id = (await toA()).id.id;
    const first = await tokenOfDevice(id);
    expect(await unassign(id)).toMatchObject({ status: 200 });
    expect(await tokenOfDevice(id)).toBe(first);
    expect(await unassign(id, '?rotateToken=true')).toMatchObject({ status: 400 });
    await call('POST', `/api/customer/${customerId}/device/${id}`, { jwt });
    expect(await tokens.lookup(first)).toMatchObject({ id });
    expect(await unassign(id, '?rotateToken=true')).toMatchObject({ status: 200 });
    expect(await tokens.lookup(first)).toBeNull();
    expect(await tokens.lookup(await tokenOfDevice(id))).toMatchObject({ id });
    expect(await call('GET', `/api/device/${id}/credentials`, { jwt: ofA })).toMatchObject({ status: 403 });
  });

  it('with other credentials than a token does not rotate, and stays where it is', async () => {
    const id = (await toA()).id.id;
    const stored = (await call('GET', `/api/device/${id}/credentials`, { jwt })).body;
    const basic = { credentialsType: 'MQTT_BASIC', credentialsValue: JSON.stringify({ userName: unique('u') }) };
    const body = { ...stored, ...basic, credentialsId: null };
    expect(await call('POST', '/api/device/credentials', { jwt, body })).toMatchObject({ status: 200 });
    expect(await unassign(id, '?rotateToken=true')).toMatchObject(
      error(400, 31, expect.stringContaining('rotateToken is for devices with an access token')),
    );
    expect(await ownerOf(id)).toBe(customerId);
  });

  it('is not opened again by what the former customer said about claiming', async () => {
    const device = await toA();
    const id = device.id.id;
    const offer = { claimingData: { secretKey: 's', expirationTime: clock.now() + 60_000 } };
    const write = (by: string, body: object) =>
      call('POST', `/api/plugins/telemetry/${id}/SERVER_SCOPE`, { jwt: by, body });
    const claim = () =>
      call('POST', `/api/customer/device/${device.name}/claim`, { jwt: ofA, body: { secretKey: 's' } });
    expect(await write(ofA, offer)).toMatchObject({ status: 403 });
    expect(await write(ofA, { claimingAllowed: true })).toMatchObject({ status: 403 });
    expect(await write(ofA, { note: 1 })).toMatchObject({ status: 200 });
    expect(await write(jwt, offer)).toMatchObject({ status: 200 });
    await postgres.query('insert into device_claim values ($1, sha256($2), $3)', [id, Buffer.from('s'), 2 ** 50]);
    await unassign(id);
    expect(await claim()).toMatchObject({ status: 400, body: 'FAILURE' });
    expect(await write(jwt, offer)).toMatchObject({ status: 200 });
    expect(await claim()).toMatchObject({ status: 200 });
    const giveBack = (by: string) =>
      call('DELETE', `/api/customer/device/${device.name}/claim?rotateToken=true`, { jwt: by });
    const token = await tokenOfDevice(id);
    expect(await giveBack(ofA)).toMatchObject({ status: 403 });
    expect(await giveBack(jwt)).toMatchObject({ status: 200 });
    expect(await tokenOfDevice(id)).not.toBe(token);
  });
});

describe('documents of users', () => {
  const chars = (count: number) => ({ text: 'x'.repeat(count) });
  const tooLong = (field: string, bytes: number, most = 65_536) =>
    error(400, 31, `Validation error: ${field} has ${bytes} bytes; at most ${most} are kept`);

  it('have a cap, whatever they belong to', async () => {
    const [jwt, system] = [await tokenOf(), await tokenOf(admin.systemEmail)];
    const save = (path: string, body: object, by = jwt) => call('POST', path, { jwt: by, body });
    const full = chars(65_536 - 11);
    const over = chars(65_536 - 10);
    const device = await create(jwt, { deviceData: full, additionalInfo: full });
    expect(await save('/api/device', { ...device, deviceData: over })).toMatchObject(tooLong('deviceData', 65_537));
    const late = tooLong('additionalInfo', 65_537);
    expect(await save('/api/device', { ...device, additionalInfo: over })).toMatchObject(late);
    expect(await save('/api/customer', { title: unique('c'), additionalInfo: over })).toMatchObject(late);
    expect(await save('/api/tenant', { title: unique('t'), additionalInfo: over }, system)).toMatchObject(late);
    const { body: me } = await call('GET', '/api/auth/user', { jwt });
    expect(await save('/api/user', { ...me, additionalInfo: over })).toMatchObject(late);
    const file = { title: unique('f'), version: '1', type: 'FIRMWARE', url: 'http://x/y' };
    expect(await save('/api/otaPackage', { ...file, additionalInfo: over })).toMatchObject(late);
    const bulk = await save('/api/devices/bulk', { devices: [{ name: unique('b'), additionalInfo: over }] });
    expect(bulk.body.results[0].error).toBe(late.body.message);
    const profile = { name: unique('p'), image: 'i'.repeat(524_288), description: 'd'.repeat(65_536) };
    const saved = (await save('/api/deviceProfile', profile)).body;
    const change = (members: object) => save('/api/deviceProfile', { ...saved, ...members });
    expect(await change({ image: 'i'.repeat(524_289) })).toMatchObject(tooLong('image', 524_289, 524_288));
    expect(await change({ description: '…'.repeat(21_846) })).toMatchObject(tooLong('description', 65_538));
    expect(await change({ profileData: over })).toMatchObject(tooLong('profileData', 65_537));
  });

  it('are not read by a call that does not show them', async () => {
    const { token } = await signIn();
    const { body: me } = await call('GET', '/api/auth/user', { jwt: token });
    const additionalInfo = chars(60_000);
    expect(await call('POST', '/api/user', { jwt: token, body: { ...me, additionalInfo } })).toMatchObject({
      status: 200,
    });
    const key = { userId: me.id, description: 'k', enabled: true };
    const { value } = (await call('POST', '/api/apiKey', { jwt: token, body: key })).body;
    const query = vi.spyOn(postgres, 'query');
    try {
      await call('POST', '/api/auth/logout', { headers: { 'x-authorization': `ApiKey ${value}` } });
      await call('POST', '/api/auth/logout', { jwt: token });
      await signIn();
      const answers = await Promise.all(query.mock.results.map(({ value: rows }) => rows));
      expect(answers.length).toBeGreaterThan(3);
      expect(JSON.stringify(answers).length).toBeLessThan(10_000);
    } finally {
      query.mockRestore();
    }
    const read = await call('GET', '/api/auth/user', { jwt: await tokenOf() });
    expect(read.body.additionalInfo).toEqual(additionalInfo);
  });

  it('are refused together when a page of them is too long', async () => {
    const jwt = await tokenOf();
    await postgres.query(
      `insert into customer (id, created_time, tenant_id, title, additional_info)
       select gen_random_uuid(), 0, $1, 'long ' || n, to_json(repeat('x', 60000)) from generate_series(1, 300) as n`,
      [(await call('GET', '/api/auth/user', { jwt })).body.tenantId.id],
    );
    const page = (size: number) => call('GET', `/api/customers?pageSize=${size}&page=0&textSearch=long`, { jwt });
    expect(await page(10_000)).toMatchObject(
      error(400, 31, 'The entities asked for hold 18 MiB; at most 16 MiB are read at once: ask for fewer.'),
    );
    expect((await page(250)).body).toMatchObject({ totalElements: 300, totalPages: 2, hasNext: true });
    await postgres.query(`delete from customer where title like 'long %'`);
  });
});

describe('an entity that is no device', () => {
  it('has a number that no device has, and leaves a tombstone and no attributes when it is deleted', async () => {
    const jwt = await tokenOf();
    const asAdmin = (method: string, url: string, body?: unknown) => call(method, url, { jwt, body });
    const title = unique('Orchard');
    const { id } = (await asAdmin('POST', '/api/customer', { title })).body.id;
    const path = `/api/plugins/telemetry/CUSTOMER/${id}/SERVER_SCOPE`;
    expect((await asAdmin('POST', path, { a: 1 })).status).toBe(200);
    const read = (what: string, where: string) =>
      postgres.query<{ number: number }>(`select ${what} as number ${where}`);
    const [row] = await read('number', `from entity_number where entity_id = '${id}'`);
    const number = row!.number;
    expect(await read('number', `from device where number = ${number}`)).toEqual([]);
    expect(await read('count(*)', `from entity_attribute where entity = ${number}`)).toEqual([{ number: 1 }]);
    expect((await asAdmin('DELETE', `/api/customer/${id}`)).status).toBe(200);
    expect(await read('count(*)', `from entity_attribute where entity = ${number}`)).toEqual([{ number: 0 }]);
    const tombstones = await postgres.query(
      'select keys, order_number, handed_over from tombstones where device = $1',
      [number],
    );
    expect(tombstones).toEqual([{ keys: null, order_number: null, handed_over: true }]);
  });
});

describe('a gateway', () => {
  it('is a device whose additional info says so, at its top and as a boolean', async () => {
    const jwt = await tokenOf();
    const device = await create(jwt);
    const { body } = await call('GET', `/api/device/${device.id.id}/credentials`, { jwt });
    const isGateway = async (additionalInfo: unknown) => {
      await call('POST', '/api/device', { jwt, body: { ...device, version: undefined, additionalInfo } });
      const [login] = await lookUpLogins(postgres, [body.credentialsId]);
      const token = (await lookUpTokens(postgres, [body.credentialsId])).get(body.credentialsId);
      expect(token!.isGateway).toBe(login!.isGateway);
      return login!.isGateway;
    };
    expect(await isGateway({ gateway: true, a: '\u0001 😀' })).toBe(true);
    expect(await isGateway({ x: { gateway: true } })).toBe(false);
    expect(await isGateway({ a: 1, gateway: true })).toBe(true);
    expect(await isGateway({ gateway: 'true' })).toBe(false);
    expect(await isGateway(['gateway'])).toBe(false);
    expect(await isGateway({ gateway: true })).toBe(true);
    expect(await isGateway(null)).toBe(false);
  });
});

describe('credential changes', () => {
  it('reach another process through the log, also when a transaction becomes visible late', async () => {
    const cache = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, new LocalDevices(), clock);
    const other = new CredentialChanges({ postgres, bus: deafBus, clock, log });
    const seen: string[] = [];
    other.onChange((change) => {
      if (change === 'all') return;
      seen.push(change.credentialsId);
      cache.invalidate(change.credentialsId);
    });
    const insert = `insert into credential_changes (credentials_id, device_id, device_number, created_time)
      values ($1, $2, 1, 0)`;
    try {
      await other.start();
      const late = postgres.transaction(async (queries) => {
        await queries.query(insert, ['late', nullUuid]);
        await new Promise((resolve) => setTimeout(resolve, limits.credentialPollMs * 1.5));
      });
      await new Promise((resolve) => setTimeout(resolve, 100));
      const token = await tokenOf('tenant@thingsboard.org', 'tenant');
      const key = unique('SEEN');
      expect(await cache.lookup(key)).toBeNull();
      const device = await create(token, {}, `?accessToken=${key}`);
      await late;
      await expect.poll(() => seen, { timeout: 5_000 }).toEqual(expect.arrayContaining([key, 'late']));
      // Read again while the other transaction was open, and told once: who was looked up since need not be again.
      expect(seen.filter((each) => each === key)).toHaveLength(1);
      expect((await cache.lookup(key))?.id).toBe(device.id.id);
    } finally {
      await other.stop();
    }
  });
});

describe('the signing key', () => {
  it('is the same for all, or the one in the settings, which must be long enough', async () => {
    const { token } = await signIn();
    const again = await openJwt(postgres, config.auth, clock);
    expect(await again.verify(token)).toMatchObject({ kind: 'access' });
    const own = await openJwt(postgres, { ...config.auth, signingKey: Buffer.alloc(64, 1).toString('base64') }, clock);
    await expect(own.verify(token)).rejects.toMatchObject({ kind: 'expired' });
    const short = { ...config.auth, signingKey: Buffer.alloc(63, 1).toString('base64') };
    await expect(openJwt(postgres, short, clock)).rejects.toThrow(/JWT_TOKEN_SIGNING_KEY.*64 bytes/);
  });
});

describe('without Postgres', () => {
  it('a worker starts, and says 503 to what needs it', async () => {
    const away = openPostgres({ url: 'postgres://nobody@127.0.0.1:1/nothing', poolMax: 1, log });
    const parts = new CredentialChanges({ postgres: away, bus: deafBus, clock, log });
    await parts.start();
    const jwt = await openJwt(away, config.auth, clock);
    await expect(jwt.verify('a.b.c')).rejects.toMatchObject({ status: 503 });
    await parts.stop();
    await away.close();
  });
});

describe('seeding', () => {
  it('happens once', async () => {
    expect(await seedFirstTenant({ postgres, passwords, clock }, { ...admin, email: 'other@x' })).toBe(false);
    expect(await seedDemoData({ postgres, passwords, clock })).toBe(false);
    const first = (await findFirstDevice(postgres))!;
    expect((await tokens.lookup(first.token))?.id).toBe(first.id);
    for (const token of ['A1_TEST_TOKEN', 'DHT11_DEMO_TOKEN', 'T2_TEST_TOKEN']) {
      expect(await tokens.lookup(token)).not.toBeNull();
    }
  });
});

describe('time series', () => {
  let jwt: string;
  let path: string;
  let number: number;

  interface Row {
    key: string;
    ts: number;
    kind: number;
    num?: number;
    int?: string;
    text?: string;
  }
  const writes = { count: 0n };
  /** Rows as the channel would write them: each call is a later write than the one before. */
  async function write(rows: Row[]): Promise<void> {
    writes.count += 1n;
    const order = (BigInt(Date.now()) << 20n) + writes.count;
    const lines = rows.map(({ key, ts, kind, num = 0, int = '0', text = '' }) => {
      const version = order - (BigInt(ts) << 20n) + (1n << 63n);
      return JSON.stringify({ device: number, key, ts, kind, num, int, text, version: String(version) });
    });
    const body = Buffer.from(lines.join('\n'));
    for (const table of ['telemetry', 'latest']) {
      await store.clickhouse.insertBlocks(`INSERT INTO ${table} FORMAT JSONEachRow`, body);
    }
  }
  const long = (key: string, ts: number, value: number | string): Row => ({ key, ts, kind: 2, int: String(value) });
  const double = (key: string, ts: number, num: number): Row => ({ key, ts, kind: 3, num });
  const text = (key: string, ts: number, value: string): Row => ({ key, ts, kind: 4, text: value });
  const read = (query: string) => call('GET', `${path}/values/timeseries?${query}`, { jwt });

  beforeAll(async () => {
    jwt = await tokenOf();
    const device = await create(jwt, {}, `?accessToken=${unique('TS')}`);
    path = `/api/plugins/telemetry/DEVICE/${device.id.id}`;
    const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [device.id.id]);
    number = row!.number;
  });

  it('answer the latest values, by greatest ts', async () => {
    await write([long('late', 200, 2), double('d', 5, 42), { key: 'b', ts: 6, kind: 1, int: '1' }]);
    await write([long('late', 100, 1), text('s', 7, 'a"b'), { key: 'j', ts: 8, kind: 5, text: '{"a":[1.0]}' }]);
    const before = Date.now();
    const latest = await read('keys=late,never');
    expect(latest.body.late).toEqual([{ ts: 200, value: '2' }]);
    expect(latest.body.never).toEqual([{ ts: expect.any(Number), value: null }]);
    expect(latest.body.never[0].ts).toBeGreaterThanOrEqual(before);
    expect((await read('')).text).toBe(
      '{"b":[{"ts":6,"value":"true"}],"d":[{"ts":5,"value":"42.0"}],"j":[{"ts":8,"value":"{\\"a\\":[1.0]}"}],' +
        '"late":[{"ts":200,"value":"2"}],"s":[{"ts":7,"value":"a\\"b"}]}',
    );
    expect((await read('useStrictDataTypes=true')).text).toBe(
      '{"b":[{"ts":6,"value":true}],"d":[{"ts":5,"value":42.0}],"j":[{"ts":8,"value":{"a":[1.0]}}],' +
        '"late":[{"ts":200,"value":2}],"s":[{"ts":7,"value":"a\\"b"}]}',
    );
    expect((await call('GET', `${path}/keys/timeseries`, { jwt })).body).toEqual(['b', 'd', 'j', 'late', 's']);
  });

  it('answer history in the half-open range, newest first, the later write of one ts', async () => {
    await write([100, 150, 200].map((ts) => long('h', ts, ts)));
    await write([long('h', 150, 151)]);
    const history = async (query: string) => (await read(`keys=h,none&startTs=100&endTs=200&${query}`)).text;
    expect(await history('')).toBe('{"h":[{"ts":150,"value":"151"},{"ts":100,"value":"100"}]}');
    expect(await history('orderBy=ASC&useStrictDataTypes=true')).toBe(
      '{"h":[{"ts":100,"value":100},{"ts":150,"value":151}]}',
    );
    expect(await history('limit=1')).toBe('{"h":[{"ts":150,"value":"151"}]}');
    expect((await read('keys=none&startTs=0&endTs=9')).text).toBe('{}');
    expect((await read('keys=h&startTs=9&endTs=0')).text).toBe('{}');
    expect((await call('GET', `${path}/values/timeseries/history?keys=h&startTs=200&endTs=201`, { jwt })).text).toBe(
      '{"h":[{"ts":200,"value":"200"}]}',
    );
  });

  it('keep every digit of a long, and times far from now', async () => {
    const future = Date.UTC(2200, 0, 1);
    await write([-5, 0, 1, future].map((ts) => long('far', ts, '-9223372036854775808')));
    const { text } = await read(`keys=far&startTs=-6&endTs=${future + 1}&orderBy=ASC&useStrictDataTypes=true`);
    const point = (ts: number) => `{"ts":${ts},"value":-9223372036854775808}`;
    expect(text).toBe(`{"far":[${[-5, 0, 1, future].map(point).join(',')}]}`);
  });

  it('aggregate in buckets from the start of the range', async () => {
    await write([long('a', 100, 1), long('a', 110, 2), long('a', 120, 3), long('a', 125, 99)]);
    const { body } = await read('keys=a&startTs=100&endTs=125&interval=10&agg=SUM');
    expect(body).toEqual({ a: [105, 115, 122].map((ts, i) => ({ ts, value: String(i + 1) })) });
    expect((await read('keys=a&startTs=100&endTs=125&agg=SUM')).body.a).toHaveLength(3);
  });

  it.each([
    ['AVG', 'longs', '1.5'],
    ['SUM', 'longs', '3'],
    ['MIN', 'longs', '1'],
    ['MAX', 'longs', '2'],
    ['COUNT', 'longs', '2'],
    ['SUM', 'mixed', '3.0'],
    ['AVG', 'mixed', '1.5'],
    ['MAX', 'mixed', '2.0'],
    ['MIN', 'mixed', '1.0'],
    ['MAX', 'doubles', '0.25'],
    ['COUNT', 'strings', '2'],
    ['MIN', 'strings', '"10"'],
    ['MAX', 'strings', '"9"'],
    ['SUM', 'strings', undefined],
    ['AVG', 'strings', undefined],
    ['MIN', 'booleans', 'false'],
    ['MAX', 'booleans', 'true'],
    ['SUM', 'huge', '18446744073709552000.0'],
    ['AVG', 'huge', '9223372036854776000.0'],
    ['MAX', 'huge', '9223372036854775807'],
  ])('%s of %s is %s', async (agg, key, expected) => {
    const big = '9223372036854775807';
    await write([
      ...[long('longs', 1000, 1), long('longs', 1001, 2), long('mixed', 1000, 1), double('mixed', 1001, 2)],
      ...[double('doubles', 1000, -0.5), double('doubles', 1001, 0.25), text('strings', 1000, '9')],
      ...[text('strings', 1001, '10'), long('huge', 1000, big), long('huge', 1001, big)],
      ...[0, 1].map((n): Row => ({ key: 'booleans', ts: 1000 + n, kind: 1, int: String(n) })),
    ]);
    const answer = await read(`keys=${key}&startTs=1000&endTs=1002&interval=100&agg=${agg}&useStrictDataTypes=true`);
    expect(answer.text).toBe(expected === undefined ? '{}' : `{"${key}":[{"ts":1001,"value":${expected}}]}`);
  });

  it('aggregate by calendar', async () => {
    const day = (date: string) => Date.parse(`${date}T12:00:00Z`);
    await write([
      long('cal', day('2026-01-10'), 1),
      long('cal', day('2026-01-31'), 2),
      long('cal', day('2026-02-01'), 4),
    ]);
    const range = `startTs=${Date.parse('2026-01-01T00:00Z')}&endTs=${Date.parse('2026-03-01T00:00Z')}`;
    const { body } = await read(`keys=cal&${range}&intervalType=MONTH&timeZone=UTC&agg=SUM`);
    expect(body.cal.map((point: { value: string }) => point.value)).toEqual(['3', '4']);
  });

  it('refuse in plain text, or in JSON before they begin', async () => {
    const tooMany = await read('keys=a&startTs=0&endTs=7001&interval=10&agg=SUM');
    expect(tooMany).toMatchObject({ status: 400, body: undefined });
    expect(tooMany.text).toMatch(/^Incorrect TsKvQuery\. Number of intervals is to high - /);
    expect(await read('keys=a&startTs=x&endTs=1')).toMatchObject({ status: 400, body: { errorCode: 31 } });
    expect(await read('keys=a&startTs=0&endTs=1&agg=MEDIAN')).toMatchObject({ status: 400, body: { errorCode: 31 } });
    const get = (type: string, id: string, token = jwt) =>
      call('GET', `/api/plugins/telemetry/${type}/${id}/values/timeseries`, { jwt: token });
    expect(await get('DEVICE', '5')).toMatchObject(error(400, 31, 'Invalid UUID string: 5'));
    expect(await get('PUMP', nullUuid)).toMatchObject({ status: 400, body: { errorCode: 31 } });
    const missing = { status: 404, text: "Device with requested id wasn't found!", body: undefined };
    expect(await get('DEVICE', nullUuid)).toMatchObject(missing);
    const sysadmin = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
    expect(await get('DEVICE', nullUuid, sysadmin)).toMatchObject({
      status: 403,
      text: 'System administrator is not allowed to perform this operation!',
    });
    const foreign = await tokenOf('customer@thingsboard.org', 'customer');
    expect(await call('GET', `${path}/values/timeseries`, { jwt: foreign })).toMatchObject(missing);
  });
});

it('the system has an administrator from the first start, and the last one stays', async () => {
  const first = await tokenOf(admin.systemEmail, admin.password);
  expect((await call('GET', '/api/tenants?pageSize=9&page=0', { jwt: first })).body.totalElements).toBeGreaterThan(0);
  const idOf = async (jwt: string) => (await call('GET', '/api/auth/user', { jwt })).body.id.id;
  const sysadmin = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
  expect(await call('DELETE', `/api/user/${await idOf(first)}`, { jwt: sysadmin })).toMatchObject({ status: 200 });
  expect(await call('DELETE', `/api/user/${await idOf(sysadmin)}`, { jwt: sysadmin })).toMatchObject(
    error(400, 31, 'At least one system administrator must remain!'),
  );
});
