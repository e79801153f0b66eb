/**
 * Settings of signing in: short lives of tokens, lock-out, keys over HTTPS only, limits, the API document, MQTT over
 * WebSocket.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import { codeOf, MqttClient } from '../harness/mqtt-client.ts';
import { faultOf } from '../harness/rest.ts';
import { RawWebSocket } from '../harness/web-socket.ts';

async function call(engine: Engine, method: string, path: string, headers: object, body?: unknown): Promise<Response> {
  return fetch(`${engine.api.http}${path}`, {
    method,
    headers: { 'content-type': 'application/json', ...headers },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
}

const bearer = (token: string) => ({ 'x-authorization': `Bearer ${token}` });

/** A key of the first administrator. */
async function newKey(engine: Engine): Promise<string> {
  const { token } = await engine.api.login();
  const user = (await (await call(engine, 'GET', '/api/auth/user', bearer(token))).json()) as { id: object };
  const body = { userId: user.id, description: 'key', enabled: true };
  const key = (await (await call(engine, 'POST', '/api/apiKey', bearer(token), body)).json()) as { value: string };
  return key.value;
}

describe('short lives', () => {
  let engine: Engine;

  beforeAll(async () => {
    engine = await startEngine({
      workers: 2,
      env: {
        JWT_TOKEN_EXPIRATION_TIME: '2',
        JWT_REFRESH_TOKEN_EXPIRATION_TIME: '2',
        SECURITY_MAX_FAILED_LOGINS: '3',
        SECURITY_REQUIRE_HTTPS_FOR_API_KEYS: 'true',
        SECURITY_API_KEY_VALUE_PREFIX: 'mill_',
        HTTP_TRUSTED_PROXIES: '10.0.0.0/8,127.0.0.1',
        SWAGGER_GROUP_NAME: 'millrace',
        SWAGGER_TITLE: 'Orchard API',
        JSON_LENIENT: 'false',
      },
    });
  });
  afterAll(() => engine?.destroy());

  test('tokens end at their time, the one for refreshing too', async () => {
    const pair = await engine.api.login();
    expect((await call(engine, 'GET', '/api/auth/user', bearer(pair.token))).status).toBe(200);
    await sleep(3_000);
    const expired = '401/11 Token has expired';
    expect(await faultOf(await call(engine, 'GET', '/api/auth/user', bearer(pair.token)))).toBe(expired);
    const refresh = await call(engine, 'POST', '/api/auth/token', {}, { refreshToken: pair.refreshToken });
    expect(await faultOf(refresh)).toBe(expired);
  });

  test('JSON that is not strict is refused when the setting is on', async () => {
    const { token } = await engine.api.createDevice('strict');
    const post = (path: string, body: string) =>
      fetch(`${engine.api.http}/api/v1/${token}${path}`, { method: 'POST', body });
    for (const path of ['/telemetry', '/attributes', '/claim', '/rpc']) {
      expect(await faultOf(await post(path, '{a:1}'))).toMatch(/^400\/31 The body is not valid JSON/);
    }
    expect((await post('/telemetry', '{"a":1}')).status).toBe(200);
  });

  test('a key over plain HTTP is refused with the reason; a trusted proxy may vouch for HTTPS', async () => {
    const value = await newKey(engine);
    expect(value).toMatch(/^mill_[A-Za-z0-9_-]{86}$/);
    const key = { 'x-authorization': `ApiKey ${value}` };
    const refused = '401/10 API keys are accepted over HTTPS only (SECURITY_REQUIRE_HTTPS_FOR_API_KEYS)';
    expect(await faultOf(await call(engine, 'GET', '/api/auth/user', key))).toBe(refused);
    const proxied = await call(engine, 'GET', '/api/auth/user', { ...key, 'x-forwarded-proto': 'https' });
    expect(proxied.status).toBe(200);
    const plain = await call(engine, 'GET', '/api/auth/user', { ...key, 'x-forwarded-proto': 'https, http' });
    expect(plain.status).toBe(401);
  });

  test('the document has the name and title of the settings', async () => {
    const response = await call(engine, 'GET', '/v3/api-docs/millrace', {});
    expect(((await response.json()) as { info: { title: string } }).info.title).toBe('Orchard API');
    expect((await call(engine, 'GET', '/v3/api-docs/thingsboard', {})).status).toBe(404);
  });

  test('the fourth wrong password locks the account', async () => {
    const { adminEmail: username, adminPassword } = engine.api.address;
    const signIn = async (password: string) =>
      await faultOf(await call(engine, 'POST', '/api/auth/login', {}, { username, password }));
    for (let i = 0; i < 3; i += 1) expect(await signIn('wrong')).toBe('401/10 Invalid username or password');
    expect(await signIn('wrong')).toBe('401/10 User account is locked due to security policy');
    expect(await signIn(adminPassword)).toBe('401/10 User account is not active');
  });
});

describe('limits, and parts that are switched off', () => {
  let engine: Engine;

  beforeAll(async () => {
    engine = await startEngine({
      // With one worker the guesses wait for each other, and each takes a quarter of a second.
      workers: 1,
      env: { RATE_LIMITS_REST_TENANT: '30:60', SWAGGER_ENABLED: 'false', MQTT_WS_ENABLED: 'false' },
    });
  });
  afterAll(() => engine?.destroy());

  test('guessing a password becomes slow, also for an unknown user, and the right one waits as well', async () => {
    for (const username of ['nobody@nowhere.example', engine.api.address.adminEmail]) {
      const statuses: number[] = [];
      for (let i = 0; i < 40 && statuses.at(-1) !== 429; i += 1) {
        statuses.push((await call(engine, 'POST', '/api/auth/login', {}, { username, password: `x${i}` })).status);
      }
      expect(statuses.at(-1)).toBe(429);
      // Ten tries are free.
      expect(statuses.length).toBeGreaterThan(10);
      expect(new Set(statuses.slice(0, -1))).toEqual(new Set([401]));
    }
  });

  test('without a document there is none', async () => {
    expect((await call(engine, 'GET', '/v3/api-docs/thingsboard', {})).status).toBe(404);
    expect((await call(engine, 'GET', '/v3/api-docs/swagger-config', {})).status).toBe(404);
  });

  test('without the setting /mqtt is an unknown path, and MQTT over TCP still works', async () => {
    const socket = await RawWebSocket.open(engine.port);
    expect(socket.upgrade.status).toBe(404);
    socket.close();
    const client = await MqttClient.open({ port: engine.mqttPort });
    expect(codeOf(await client.connect({ token: 'unknown' }))).toBe(0x86);
    client.cut();
  });

  test('a tenant that calls too often gets a reason', async () => {
    // Earlier guesses may cause a wait.
    await sleep(3_000);
    const { token } = await engine.api.login();
    const statuses: number[] = [];
    let refused: Response | undefined;
    for (let i = 0; i < 40; i += 1) {
      const response = await call(engine, 'GET', '/api/auth/user', bearer(token));
      statuses.push(response.status);
      if (response.status === 429) refused = response;
    }
    expect(statuses.filter((status) => status === 200).length).toBeLessThan(34);
    expect(statuses.filter((status) => status === 200).length).toBeGreaterThan(28);
    expect(refused!.headers.get('retry-after')).toMatch(/^\d+$/);
    expect(await faultOf(refused!)).toBe('429/33 Too many requests for current tenant!');
  });
});
