/**
 * A refusal whose body is still on the way: its client gets the answer, and then the connection is usable, or is closed
 * without a reset. Real sockets of HTTP and HTTPS.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { createCertificate } from '../../test/harness/certificate.ts';
import { RawConnection, requestBytes } from '../../test/harness/raw.ts';
import { useSteadyClock } from '../../test/harness/steady-clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { HttpServer } from './server.ts';

useSteadyClock();

const bytesMax = 1024 * 1024;
const size = 2 * bytesMax;

let server: HttpServer;
const connections: RawConnection[] = [];

afterEach(() => {
  for (const connection of connections.splice(0)) connection.close();
  server.close();
});

const unknownToken = new Fault('unknown_token', 'No device.');
const overLimit = new Fault('rate_limit_device', 'Too many.');
const full = unavailable('decode_queue_full', 'Wait.', 600);

/**
 * Devices by name: `stranger`, `foreign`, which is looked up, `limited`, whose refusal asks for no wait, `full`, whose
 * refusal does, and others.
 */
async function listen(tls?: { cert: string; key: string }): Promise<number> {
  server = new HttpServer({
    ...{ log: createLog('error', 'test'), metrics: new Metrics(), worker: '', connectionsMax: 100 },
    ...{ bodyBytesMax: bytesMax, bodyBytesInFlightMax: 64 * bytesMax, ...(tls && { tls: { ...tls, hstsSeconds: 0 } }) },
  });
  const admit = (name: string) => {
    if (name === 'stranger') throw unknownToken;
    if (name === 'foreign') return Promise.reject(unknownToken);
    return `device ${name}`;
  };
  const refusal = (name: string) => ({ limited: overLimit, full })[name];
  server.rawPost('/small/:name', { admit, bytesMax }, (exchange) => exchange.acknowledge());
  const large = { bytesMin: 100_000, refusal };
  server.rawPost('/large/:name', { admit, bytesMax: 64 * bytesMax, large }, (exchange) => exchange.acknowledge());
  server.route('GET', '/livez', async () => ({ status: 200 }));
  server.seal();
  return await server.listen('127.0.0.1', 0);
}

async function open(port?: number): Promise<RawConnection> {
  const connection = await RawConnection.open(port ?? (await listen()));
  connections.push(connection);
  return connection;
}

/** Sends the pieces of a body as long as the connection is open. */
async function sendBody(connection: RawConnection, bytes: number): Promise<void> {
  for (let sent = 0; sent < bytes && !connection.closed; sent += 65_536) {
    await connection.send(Buffer.alloc(Math.min(65_536, bytes - sent), 0x20));
  }
}

async function sendChunks(connection: RawConnection, bytes: number): Promise<void> {
  const chunk = Buffer.concat([Buffer.from('10000\r\n'), Buffer.alloc(65_536, 0x20), Buffer.from('\r\n')]);
  for (let sent = 0; sent < bytes && !connection.closed; sent += 65_536) await connection.send(chunk);
  await connection.send('0\r\n\r\n');
}

async function expectUsable(connection: RawConnection): Promise<void> {
  expect((await connection.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
}

const length = (bytes: number) => ({ 'Content-Length': String(bytes) });

const refused: [string, number, { path: string; method?: string; headers?: Record<string, string> }][] = [
  ['a body that is too large', 413, { path: '/small/a' }],
  ['a body of an unknown sender', 401, { path: '/large/stranger' }],
  ['a body of a sender that a look-up refuses', 401, { path: '/large/foreign' }],
  ['a large body of a sender beyond its limit', 429, { path: '/large/limited' }],
  ['a large body without a place', 503, { path: '/large/full' }],
  ['an unknown path', 404, { path: '/nothing' }],
  ['another method', 405, { path: '/livez', method: 'PUT' }],
  ['an unknown encoding', 415, { path: '/large/a', headers: { 'Content-Encoding': 'lzma' } }],
];

describe.each(refused)('%s', (_, status, request) => {
  test('is answered after the body, and the connection is usable', async () => {
    const connection = await open();
    for (let n = 0; n < 2; n += 1) {
      await connection.send(requestBytes({ ...request, headers: { ...request.headers, ...length(size) } }));
      await sendBody(connection, size);
      expect((await connection.response()).status).toBe(status);
      await expectUsable(connection);
    }
  });

  test('is answered after a body in chunks, and the connection is usable', async () => {
    const connection = await open();
    await connection.send(
      requestBytes({ ...request, headers: { ...request.headers, 'Transfer-Encoding': 'chunked' } }),
    );
    await sendChunks(connection, size);
    expect((await connection.response()).status).toBe(status);
    await expectUsable(connection);
  });

  test('in one piece with the next request: both are answered', async () => {
    const connection = await open();
    const bytes = requestBytes({ ...request, body: Buffer.alloc(size, 0x20) });
    await connection.send(Buffer.concat([bytes, requestBytes({ method: 'GET', path: '/livez' })]));
    expect((await connection.response()).status).toBe(status);
    expect((await connection.response()).status).toBe(200);
  });

  test('is answered before the end of a body that stops, and the rest ends the connection without a reset', async () => {
    const connection = await open();
    const errors: Error[] = [];
    connection.socket.on('error', (error) => errors.push(error));
    const { headers } = request;
    // A client that asks for the close of its connection gets the answer, too.
    await connection.send(requestBytes({ ...request, headers: { ...headers, ...length(size), Connection: 'close' } }));
    await sendBody(connection, 100_000);
    const answer = await connection.response(5_000);
    expect([answer.status, answer.headers.get('connection')]).toEqual([status, 'close']);
    expect(JSON.parse(answer.body.toString())).toMatchObject({ status });
    await sendBody(connection, size - 100_000);
    expect(await connection.untilClosed(5_000)).toBe('');
    expect(errors).toEqual([]);
  });
});

test('a body of any declared length is refused at once, and its client may send the rest', async () => {
  const connection = await open();
  const bytes = limits.skippedBodyBytesMax + 1;
  await connection.send(requestBytes({ path: '/small/a', headers: length(bytes) }));
  const answer = await connection.response(limits.skippedBodyWaitMs - 200);
  expect([answer.status, answer.headers.get('connection')]).toEqual([413, 'close']);
  await sendBody(connection, bytes);
  expect(await connection.untilClosed(5_000)).toBe('');
});

test.each(['100-continue', '100-Continue'])('a client that waits for %s gets the refusal', async (Expect) => {
  const connection = await open();
  await connection.send(requestBytes({ path: '/small/a', headers: { ...length(size), Expect } }));
  expect((await connection.response(5_000)).status).toBe(413);
});

test('the answer to a body that comes slowly leaves within a second', async () => {
  const connection = await open();
  await connection.send(requestBytes({ path: '/small/a', headers: length(size) }));
  const answer = connection.response(5_000);
  let isAnswered = false;
  void answer.finally(() => (isAnswered = true));
  while (!isAnswered) {
    await connection.send(' ');
    await sleep(100);
  }
  expect((await answer).status).toBe(413);
});

test('a connection whose refused body has ended is closed when it is idle', async () => {
  const port = await listen();
  const idle = await Promise.all(['/small/a', '/large/stranger', '/large/full'].map(() => open(port)));
  await Promise.all(
    ['/small/a', '/large/stranger', '/large/full'].map(async (path, n) => {
      const connection = idle[n]!;
      await connection.send(requestBytes({ path, headers: length(size) }));
      await sendBody(connection, 100_000);
      await sleep(200);
      await sendBody(connection, size - 100_000);
      await connection.response(5_000);
    }),
  );
  expect(server.connections).toBe(3);
  await vi.waitFor(() => expect(server.connections).toBe(0), { timeout: 20_000, interval: 200 });
});

test('a client that never stops sending is cut in the end', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const connection = await open();
    await connection.send(requestBytes({ path: '/small/a', headers: length(limits.skippedBodyBytesMax + 1) }));
    await vi.waitFor(() => expect(vi.getTimerCount()).toBe(1));
    vi.advanceTimersByTime(limits.skippedBodyMsMax);
    await vi.waitFor(() => expect(connection.closed).toBe(true));
  } finally {
    vi.useRealTimers();
  }
});

test('answers that wait for the end of a body leave when the server begins to stop', async () => {
  const connection = await open();
  await connection.send(requestBytes({ path: '/small/a', headers: length(size) }));
  await sleep(100);
  server.drain();
  expect((await connection.response(limits.skippedBodyWaitMs - 300)).status).toBe(413);
});

test('over TLS a client that is still sending reads the answer', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'skipped-'));
  try {
    const { cert, key, pem } = createCertificate(directory, 'server');
    const port = await listen({ cert, key });
    const socket = connectTls({ port, host: '127.0.0.1', ca: pem });
    const errors: Error[] = [];
    let received = '';
    socket.on('error', (error) => errors.push(error));
    socket.on('data', (bytes) => (received += bytes));
    const closed = new Promise<void>((resolve) => socket.once('close', () => resolve()));
    const bytes = limits.skippedBodyBytesMax + 1;
    socket.write(requestBytes({ path: '/small/a', headers: { ...length(bytes), Connection: 'close' } }));
    for (let sent = 0; sent < bytes; sent += 65_536) {
      await new Promise((resolve) => socket.write(Buffer.alloc(Math.min(65_536, bytes - sent), 0x20), resolve));
    }
    await closed;
    expect(received).toMatch(/^HTTP\/1.1 413 /);
    expect(errors).toEqual([]);
  } finally {
    rmSync(directory, { recursive: true });
  }
});
