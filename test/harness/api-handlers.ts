/**
 * The REST API on a database of its own, without the HTTP server: calls of handlers as the server makes them. It has
 * the first tenant and the demo data. A test file takes the one of `sharedApi`, or starts one and stops it after its
 * last test.
 */

import { expect } from 'vitest';
import { noLimits } from '../../src/admin/entity-limits.ts';
import { seedDemoData, seedFirstTenant } from '../../src/admin/seed.ts';
import { TakenNames } from '../../src/admin/taken-names.ts';
import { createApi } from '../../src/api/api.ts';
import { LongAnswers } from '../../src/api/long-answer.ts';
import { Attributes } from '../../src/attributes/attributes.ts';
import { AttributeDecoder } from '../../src/attributes/decode-thread.ts';
import { AttributeWriter } from '../../src/attributes/writer.ts';
import { ApiKeys } from '../../src/auth/api-keys.ts';
import { openAuth } from '../../src/auth/auth.ts';
import { FailedSignIns } from '../../src/auth/failed-sign-ins.ts';
import { openJwt } from '../../src/auth/jwt.ts';
import { PasswordHasher } from '../../src/auth/password.ts';
import { SigningKey } from '../../src/auth/signing-key.ts';
import { Proxies } from '../../src/auth/transport.ts';
import { systemClock as clock } from '../../src/base/clock.ts';
import { Fault } from '../../src/base/errors.ts';
import { limits } from '../../src/base/limits.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { type ClickHouse, openClickHouse } from '../../src/clickhouse/client.ts';
import { Shards } from '../../src/clickhouse/shards.ts';
import { CredentialChanges } from '../../src/device/credential-changes.ts';
import { LocalDevices } from '../../src/device/local-devices.ts';
import { lookUpTokens } from '../../src/device/sql/look-up-store.ts';
import { TokenCache } from '../../src/device/token-cache.ts';
import { Diagnostics } from '../../src/diagnostics/diagnostics.ts';
import { FirstRecords } from '../../src/diagnostics/first-records.ts';
import { OddTimesOfDevices } from '../../src/diagnostics/odd-times.ts';
import { Strangers } from '../../src/diagnostics/strangers.ts';
import { Troubles } from '../../src/diagnostics/troubles.ts';
import { openChannels } from '../../src/downlink/device-channels.ts';
import { Downlink } from '../../src/downlink/downlink.ts';
import { RefusedPoints } from '../../src/ingest/refused-points.ts';
import { Downloads } from '../../src/ota/downloads.ts';
import type { ServedRoute } from '../../src/rest/route.ts';
import { RpcNumbers } from '../../src/rpc/numbers.ts';
import { PersistentRpcs } from '../../src/rpc/persistent.ts';
import { Rpc } from '../../src/rpc/send.ts';
import { faultAnswer } from '../../src/uws/exchange.ts';
import type { HttpRequest } from '../../src/uws/request.ts';
import { deafBus } from './deaf-bus.ts';
import { startTestPostgres, type Template } from './postgres-server.ts';
import { silentLog as log } from './silent-log.ts';
import { unlimitedRates } from './unlimited.ts';

export const admin = { email: 'admin@millrace.local', systemEmail: 'system@millrace.local', password: 'pear-tree-7' };
export const config = loadConfig({});

export interface Answer {
  status: number;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
  body: any;
}

interface CallOptions {
  jwt?: string;
  body?: unknown;
  headers?: Record<string, string>;
  remoteAddress?: string;
}

export const error = (status: number, errorCode: number, message: unknown) => ({
  status,
  body: { status, errorCode, message, timestamp: expect.any(Number) },
});

let sequence = 0;
export const unique = (name: string) => `${name}-${(sequence += 1)}`;

/** Returns a hasher that costs little: `password.test.ts` tests what a hash must cost. */
const cheapPasswords = () => new PasswordHasher(20, { ln: 10, r: 8, p: 1 });

const seeded: Template = {
  name: 'first_tenant_and_demo_data',
  async fill(postgres) {
    const passwords = cheapPasswords();
    expect(await seedFirstTenant({ postgres, passwords, clock }, admin)).toBe(true);
    expect(await seedDemoData({ postgres, passwords, clock })).toBe(true);
    await passwords.close();
  },
};

type TestApi = Awaited<ReturnType<typeof startApi>>;

/**
 * One API for the test files of this process that leave users, passwords and sessions as they were. It lives as long as
 * the process does.
 */
export function sharedApi(): Promise<TestApi> {
  shared ??= startApi();
  return shared;
}
let shared: Promise<TestApi> | undefined;

/** `clickhouse`: where time series are read; without it no such store is reached. */
export async function startApi(clickhouse: ClickHouse | Promise<ClickHouse> = noClickHouse()) {
  let movedMs = 0;
  /** The clock of what a tenant may meet within a window; `moveClock` moves this clock. */
  const movedClock = { now: () => clock.now() + movedMs, monotonic: clock.monotonic };
  const passwords = cheapPasswords();
  const failedSignIns = new FailedSignIns(clock);
  const server = await startTestPostgres(8, seeded);
  const { postgres } = server;
  const tokens = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, new LocalDevices(), clock);
  const changes = new CredentialChanges({ postgres, bus: deafBus, clock, log });
  changes.onChange((change) => (change === 'all' ? tokens.clear() : tokens.invalidate(change.credentialsId)));
  await changes.start();
  const jwt = await openJwt(postgres, config.auth, clock);
  const apiKeys = new ApiKeys({ postgres, bus: deafBus, clock, log });
  const auth = openAuth({
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
  const downlink = new Downlink({ bus: deafBus, channels: openChannels(deafBus), log, metrics: new Metrics() });
  await downlink.start();
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
    expiryTime: async () => undefined,
  });
  const rpcDeps = { rpc, persistentRpcs, rpcTimeouts: config.rpc };
  const takenNames = new TakenNames({ clock: movedClock, log, metrics: new Metrics() });
  const deps = {
    postgres,
    limitsOf: () => noLimits,
    onLimits: async () => {},
    takenNames,
    attributes,
    shards: new Shards([await clickhouse]),
    downloads,
  };
  const notUsed = () => Promise.reject(new Error('no journal here'));
  const longAnswers = new LongAnswers(new Metrics());
  const series = { saveSeries: notUsed, deleteSeries: notUsed, longAnswers };
  const keys = { apiKeys, apiKeyPrefix: 'tb_', signingKey: new SigningKey(postgres, config.auth.signingKey) };
  const first = new FirstRecords({ clock, metrics: new Metrics() });
  const oddTimes = new OddTimesOfDevices({ clock, metrics: new Metrics(), first });
  const troubles = new Troubles({ clock, metrics: new Metrics(), first, oddTimes });
  const strangers = new Strangers(clock);
  const diagnostics = new Diagnostics({ bus: deafBus, troubles, oddTimes, strangers, sessionOf: () => undefined });
  const routes = createApi({
    auth,
    ...deps,
    ...rpcDeps,
    ...series,
    ...keys,
    maximaOf: () => ({ ...noLimits, messagesPerMonthMax: 0, pointsPerMonthMax: 0, keysPerDeviceMax: 0 }),
    diagnostics,
    refusedPoints: new RefusedPoints({ bus: deafBus, log, journals: () => [] }),
    rateLimits: unlimitedRates(),
    changes,
    clock,
    config,
    attributeDecoder: new AttributeDecoder({ castNumericStrings: true, lenientJson: false }),
    elsewhere: [],
    log,
    claiming: config.claiming,
  });

  async function call(method: string, url: string, options: CallOptions = {}): Promise<Answer> {
    return await answerOf(routes, method, url, options);
  }

  async function signIn(
    username = admin.email,
    password = admin.password,
  ): Promise<{ token: string; refreshToken: string }> {
    const answer = await call('POST', '/api/auth/login', { body: { username, password } });
    expect(answer.status).toBe(200);
    return answer.body;
  }

  /** Tokens of earlier sign-ins, for calls that do nothing to the session. */
  const kept = new Map<string, Promise<{ token: string }>>();
  async function tokenOf(username = admin.email, password = admin.password): Promise<string> {
    const pair = kept.get(username) ?? signIn(username, password);
    kept.set(username, pair);
    return (await pair).token;
  }

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

  function moveClock(ms: number): void {
    movedMs += ms;
  }

  async function stop(): Promise<void> {
    await changes.stop();
    await passwords.close();
    await server.stop();
  }

  const stores = { postgres, tokens };
  const asUser = { call, signIn, tokenOf, create, renew, expectEnded, kept };
  return { ...stores, ...asUser, passwords, failedSignIns, moveClock, stop };
}

async function answerOf(routes: ServedRoute[], method: string, url: string, options: CallOptions): Promise<Answer> {
  const [path = '', query = ''] = url.split('?');
  const { params, route } = match(routes, method, path);
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
    fromProxy: false,
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

/** Finds the route of a call as the HTTP server does: fixed parts go before parameters. */
function match(routes: ServedRoute[], method: string, path: string): { route: ServedRoute; params: string[] } {
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

function noClickHouse(): ClickHouse {
  return openClickHouse({ url: 'http://127.0.0.1:1', user: 'none', password: '', database: 'millrace', log });
}
