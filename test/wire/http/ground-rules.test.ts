/** The ground rules of the device API and the probes (docs/http.md#ground-rules): paths, methods, CORS, probes. */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { withConnection } from '../../harness/raw.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { expectError, withPoster } from '../../harness/stored.ts';

test('a trailing slash is accepted', () =>
  withPoster(async (poster) => {
    const answer = await poster.ask({ path: `/api/v1/${poster.device.token}/telemetry/`, body: '{"a":1}' });
    expect(answer.status).toBe(200);
    expect(await poster.value('a')).toBe('1');
  }));

test('a wrong method on a known path is 405 and names the right one', () =>
  withPoster(async (poster) => {
    for (const method of ['GET', 'PUT', 'DELETE', 'PATCH']) {
      const answer = await poster.ask({ method, path: `/api/v1/${poster.device.token}/telemetry` });
      expectError(answer, 405);
      expect(answer.headers.get('allow')).toMatch(/\bPOST\b/);
    }
  }));

test('HEAD answers a head and no body: 405 on paths with POST only, 200 on paths with GET', () =>
  withPoster(async (poster) => {
    for (const [path, status] of [
      [`/api/v1/${poster.device.token}/telemetry`, 405],
      ['/livez', 200],
      ['/nowhere', 404],
    ] as const) {
      await withConnection(sharedEngine().address.port, async (connection) => {
        expect((await connection.ask({ method: 'HEAD', path })).status).toBe(status);
        await sleep(50);
        expect(connection.leftover).toBe('');
      });
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('a HEAD is over with its answer: the next request of its connection is answered', async () => {
  for (const path of ['/livez', '/nowhere', '/api/v1/provision']) {
    await withConnection(sharedEngine().address.port, async (connection) => {
      const head = await connection.ask({ method: 'HEAD', path });
      const { body } = await connection.ask({ method: 'GET', path });
      if (head.status === 200) expect(head.headers.get('content-length')).toBe(String(body.length));
      expect((await connection.ask({ method: 'HEAD', path: '/nowhere', body: '{}' })).status).toBe(404);
      expect((await connection.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
    });
  }
});

test('an unknown path is 404', () =>
  withPoster(async (poster) => {
    expectError(await poster.ask({ method: 'GET', path: `/api/v1/${poster.device.token}/nothing` }), 404);
    expectError(await poster.ask({ method: 'GET', path: '/nowhere' }), 404);
    expectError(await poster.ask({ path: '/api/v1', body: '{}' }), 404);
  }));

test('a percent-encoded token is decoded', async () => {
  const api = sharedEngine();
  const token = `mill wheel/${Date.now()} é`;
  await api.createDevice(`encoded ${Date.now()}`, token);
  expect(await api.postTelemetry(encodeURIComponent(token), '{"a":1}')).toBe(200);
  expect(await api.postTelemetry('%zz', '{"a":1}')).toBeGreaterThanOrEqual(400);
});

test('header credentials are ignored on the device API', () =>
  withPoster((poster) => poster.accept('{"a":1}', { 'X-Authorization': 'Bearer nonsense' })));

test('a pre-flight is answered for any origin, method and header', () =>
  withPoster(async (poster) => {
    const answer = await poster.ask({
      method: 'OPTIONS',
      path: `/api/v1/${poster.device.token}/telemetry`,
      headers: {
        Origin: 'https://dashboard.example',
        'Access-Control-Request-Method': 'POST',
        'Access-Control-Request-Headers': 'content-type,x-anything',
      },
    });
    expect([200, 204]).toContain(answer.status);
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://dashboard.example');
    expect(answer.headers.has('access-control-allow-credentials')).toBe(false);
    expect(answer.headers.get('access-control-allow-methods')).toMatch(/POST|\*/);
    expect(answer.headers.get('access-control-allow-headers')?.toLowerCase()).toMatch(/x-anything|\*/);
    expect(answer.headers.get('access-control-max-age')).toBe('1800');
  }));

test('an answer to another origin allows it, a refusal too', () =>
  withPoster(async (poster) => {
    const headers = { Origin: 'https://dashboard.example' };
    const accepted = await poster.post('{"a":1}', headers);
    expect(accepted.headers.get('access-control-allow-origin')).toBe('https://dashboard.example');
    const refused = await poster.post('{"a":', headers);
    expect(accepted.headers.has('access-control-allow-credentials')).toBe(false);
    expect(refused.headers.has('access-control-allow-credentials')).toBe(false);
    expect(refused.headers.get('x-content-type-options')).toBe('nosniff');
    expect(refused.headers.has('strict-transport-security')).toBe(false);
    expect(refused.headers.get('access-control-allow-origin')).toBe('https://dashboard.example');
  }));

test('an error has exactly four members', () =>
  withPoster(async (poster) => {
    const message = expectError(await poster.post('{"a":'), 400, 31);
    expect(message.length).toBeGreaterThan(0);
  }));

test('Expect: 100-continue is answered', () =>
  withPoster(async (poster) => {
    await poster.accept('{"a":1}', { Expect: '100-continue' });
  }));

test('livez and readyz answer on the public port; metrics answer on the one for operators only', async () => {
  const api = sharedEngine();
  await withConnection(api.address.port, async (connection) => {
    expect((await connection.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
    const ready = await connection.ask({ method: 'GET', path: '/readyz' });
    expect(ready.status).toBe(200);
    expect(ready.headers.get('content-type')).toMatch(/^application\/json/);
    JSON.parse(ready.body.toString());
    expectError(await connection.ask({ method: 'GET', path: '/metrics' }), 404);
  });
  const text = await api.metrics();
  expect(text).toContain('# TYPE ingest_visible_seconds histogram');
  expect(text).toMatch(/^process_resident_memory_bytes\{process="primary"\}/m);
  expect(text).toMatch(/^process_resident_memory_bytes\{process="worker/m);
  // Two workers and the process of the reports.
  expect(text).toMatch(/^bus_connected 3$/m);
});
