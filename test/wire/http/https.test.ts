/** HTTPS beside HTTP on its own port: the same routes on every worker, long polls held over TLS. */
import { Agent, type RequestOptions, request as secureRequest } from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, expect, inject, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const api = sharedEngine();
const { httpsPort: port, certificate: ca } = inject('engine');
let device: Device;

beforeAll(async () => {
  device = await newDevice();
});

interface Answer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
}

/** Sends over TLS and checks the certificate; uses a new connection unless an agent keeps one. */
function ask(method: string, path: string, body = '', options: RequestOptions = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = { ...options.headers, ...(body && { 'content-length': Buffer.byteLength(body) }) };
    const target = { agent: false, ...options, host: '127.0.0.1', port, method, path, headers, ca };
    const request = secureRequest(target, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString('utf8');
        resolve({ status: response.statusCode!, headers: response.headers, text });
      });
    });
    request.setTimeout(30_000, () => request.destroy(new Error('no answer in 30 s')));
    request.on('error', reject);
    request.end(body);
  });
}

test('telemetry posted over HTTPS is stored, by every worker', async () => {
  const workers = new Set<unknown>();
  let sent = 0;
  while (workers.size < 2 && sent < 100) {
    sent += 1;
    const answer = await ask(
      'POST',
      `/api/v1/${device.token}/telemetry`,
      `{"ts":${sent},"values":{"over_tls":${sent}}}`,
    );
    expect(answer.status).toBe(200);
    workers.add(answer.headers['x-millrace-worker']);
  }
  expect(workers.size).toBe(2);
  await eventually(async () => {
    const { over_tls: points = [] } = await api.readSeries(device.id, ['over_tls'], {
      startTs: 0,
      endTs: 1_000,
    });
    return points.length === sent;
  }, 45_000);
});

test('REST, health and refusals answer over HTTPS as over HTTP', async () => {
  const bearer = { 'x-authorization': `Bearer ${await api.adminToken()}` };
  const known = await ask('GET', `/api/device/${device.id}`, '', { headers: bearer });
  expect(JSON.parse(known.text)).toMatchObject({ id: { id: device.id } });
  const ready = await ask('GET', '/readyz');
  expect([ready.status, ready.headers['strict-transport-security']]).toEqual([200, 'max-age=31536000']);
  expect((await ask('POST', '/api/v1/unknown/telemetry', '{"a":1}')).status).toBe(401);
  expect((await ask('GET', `/api/v1/${device.token}/telemetry`)).status).toBe(405);
  expect((await ask('GET', '/nothing')).status).toBe(404);
});

test('a browser of another origin may call over HTTPS', async () => {
  const headers = { origin: 'https://console.example', 'access-control-request-method': 'POST' };
  const preflight = await ask('OPTIONS', `/api/v1/${device.token}/telemetry`, '', { headers });
  expect(preflight.status).toBe(200);
  expect(preflight.headers['access-control-allow-origin']).toBe('https://console.example');
  const answer = await ask('POST', `/api/v1/${device.token}/telemetry`, '{"a":1}', { headers });
  expect(answer.headers['access-control-allow-origin']).toBe('https://console.example');
});

test('a body of several megabytes comes whole', async () => {
  const text = 'x'.repeat(3_000_000);
  expect((await ask('POST', `/api/v1/${device.token}/telemetry`, `{"ts":1,"values":{"large":"${text}"}}`)).status).toBe(
    200,
  );
});

test('a long poll held over HTTPS is answered by a change made over HTTP', async () => {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const poll = (timeoutMs: number) =>
    ask('GET', `/api/v1/${device.token}/attributes/updates?timeout=${timeoutMs}`, '', { agent });
  try {
    const startedAt = performance.now();
    expect(await poll(1_000)).toMatchObject({ status: 408, text: '' });
    expect(performance.now() - startedAt).toBeGreaterThan(900);
    const answer = poll(20_000);
    await sleep(500);
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SHARED_SCOPE`;
    expect((await api.send('POST', path, { interval: 5 })).status).toBe(200);
    expect(await answer).toMatchObject({ status: 200, text: '{"interval":5}' });
  } finally {
    agent.destroy();
  }
});

test('plain HTTP on the HTTPS port gets no answer', async () => {
  await expect(fetch(`http://127.0.0.1:${port}/livez`, { signal: AbortSignal.timeout(5_000) })).rejects.toThrow();
});
