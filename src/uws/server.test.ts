import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, expect, test, vi } from 'vitest';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { unavailable } from '../base/errors.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { HttpRequest } from './request.ts';
import { HttpServer } from './server.ts';

useSteadyClock();

test('a route appears in the metrics with its first call', async () => {
  const metrics = new Metrics();
  const sizes = { bodyBytesMax: 1024, bodyBytesInFlightMax: 4096, connectionsMax: 100 };
  const server = new HttpServer({ log: createLog('error', 'test'), metrics, ...sizes, worker: '' });
  server.route('GET', '/called', async () => ({ status: 200 }));
  server.route('GET', '/never', async () => ({ status: 200 }));
  server.seal();
  try {
    const port = await server.listen('127.0.0.1', 0);
    await fetch(`http://127.0.0.1:${port}/called`);
    const labels = metrics.snapshot().map((sample) => sample.labels);
    expect(labels).toContain('{route="GET /called",code="200"}');
    expect(labels.filter((label) => label.includes('/never'))).toEqual([]);
  } finally {
    server.close();
  }
});

let server: HttpServer | undefined;
const sockets: Socket[] = [];

afterEach(() => {
  for (const socket of sockets.splice(0)) socket.destroy();
  server?.close();
  server = undefined;
});

let metrics: Metrics;
const heldBytes = () => metrics.snapshot().find(({ name }) => name === 'http_body_bytes')!.value;

function open(bodyBytesInFlightMax: number, connectionsMax = 100): HttpServer {
  const sizes = { bodyBytesMax: 1024, bodyBytesInFlightMax, connectionsMax };
  metrics = new Metrics();
  server = new HttpServer({ log: createLog('error', 'test'), metrics, ...sizes, worker: '' });
  return server;
}

/** A body that comes in two pieces. */
async function post(port: number, path: string, bytes: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  sockets.push(socket);
  socket.on('error', () => {});
  const head = `POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: ${bytes}\r\n\r\n`;
  socket.write(`${head}${'x'.repeat(bytes - 1)}`);
  await steadySleep(50);
  socket.write('x');
  return socket;
}

test('room for a body is held until its handler is done, also when the client has gone', async () => {
  const server = open(1024 * 1024);
  let began: (body: Buffer) => void;
  let gone: () => void;
  let end: () => void;
  const begun = new Promise<Buffer>((resolve) => (began = resolve));
  const aborted = new Promise<void>((resolve) => (gone = resolve));
  const ended = new Promise<void>((resolve) => (end = resolve));
  const handler = async ({ body, aborted }: HttpRequest) => {
    aborted.addEventListener('abort', () => gone());
    began(body);
    await ended;
    return { status: 200 };
  };
  server.route('POST', '/slow', handler, 100_000, () => 'user 1');
  server.seal();
  const socket = await post(await server.listen('127.0.0.1', 0), '/slow', 50_000);
  expect((await begun).length).toBe(50_000);
  socket.destroy();
  await aborted;
  expect(heldBytes()).toBeGreaterThanOrEqual(50_000);
  end!();
  await new Promise((resolve) => setImmediate(resolve));
  expect(heldBytes()).toBe(0);
});

test('bodies that arrive in one piece take room until their handlers are done', async () => {
  const server = open(64 * 1024);
  const begun: string[] = [];
  let end: () => void;
  const ended = new Promise<void>((resolve) => (end = resolve));
  server.route(
    'POST',
    '/slow',
    async () => {
      begun.push('slow');
      await ended;
      return { status: 200 };
    },
    24_000,
  );
  server.seal();
  const port = await server.listen('127.0.0.1', 0);
  const postWhole = () => {
    const socket = connect(port, '127.0.0.1');
    sockets.push(socket);
    socket.write(`POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n${'x'.repeat(20_000)}`);
    return new Promise<string>((resolve) => socket.once('data', (bytes) => resolve(String(bytes).slice(9, 12))));
  };
  const first = postWhole();
  while (begun.length === 0) await new Promise((resolve) => setImmediate(resolve));
  expect(await postWhole()).toBe('503');
  end!();
  expect(await first).toBe('200');
  expect(heldBytes()).toBe(0);
  expect(await postWhole()).toBe('200');
});

test('a sender has room for the largest body of any route, with any default of the server', async () => {
  const server = open(1024 * 1024);
  server.route(
    'POST',
    '/large',
    async ({ body }) => ({ status: 200, body: `${body.length}` }),
    900_000,
    () => 'user 1',
  );
  server.seal();
  const socket = await post(await server.listen('127.0.0.1', 0), '/large', 600_000);
  const answer = await new Promise<string>((resolve) => socket.once('data', (bytes) => resolve(String(bytes))));
  expect(answer).toContain('200 OK');
});

test('an address that opens all the connections it can leaves room for another address', async () => {
  const server = open(1024 * 1024, 20);
  server.route('GET', '/', async () => ({ status: 200 }));
  server.seal();
  const port = await server.listen('127.0.0.1', 0);
  const openOne = async () => {
    const socket = connect({ port, host: '127.0.0.1', localAddress: '127.0.0.2' });
    sockets.push(socket);
    const closed = new Promise<string>((resolve) => socket.once('close', () => resolve('closed')));
    socket.on('error', () => {});
    await new Promise((resolve) => socket.once('connect', resolve));
    socket.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
    const answered = new Promise<string>((resolve) =>
      socket.once('data', (bytes) => resolve(String(bytes).slice(9, 12))),
    );
    return await Promise.race([closed, answered]);
  };
  const outcomes: string[] = [];
  for (let n = 0; n < 22; n += 1) outcomes.push(await openOne());
  expect(outcomes.filter((outcome) => outcome === '200')).toHaveLength(18);
  expect(outcomes.slice(18)).toEqual(['closed', 'closed', 'closed', 'closed']);
  expect((await fetch(`http://127.0.0.1:${port}/`)).status).toBe(200);
  // A connection that is refused makes the server read the kernel's table again, which no longer has those that end.
  for (const socket of sockets.splice(0, 8)) socket.destroy();
  await vi.waitFor(async () => expect(await openOne()).toBe('200'), { timeout: 10_000, interval: 100 });
});

test('a body without room is refused when its sender may try again', async () => {
  const server = open(200_000);
  const bodies = { admit: (name: string) => `device ${name}`, bytesMax: 100_000 };
  server.rawPost('/raw/:name', bodies, (exchange) => exchange.acknowledge());
  server.seal();
  const port = await server.listen('127.0.0.1', 0);
  const begin = (name: string) => {
    const socket = connect(port, '127.0.0.1');
    sockets.push(socket);
    socket.write(`POST /raw/${name} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n${'x'.repeat(60_000)}`);
    return socket;
  };
  const answerOf = async (socket: Socket) => String((await once(socket, 'data'))[0]);
  const first = begin('a');
  // The address may hold one body of the largest size.
  await vi.waitFor(() => expect(heldBytes()).toBe(100_000), 20_000);
  const started = performance.now();
  const refusal = await answerOf(begin('b'));
  expect(performance.now() - started).toBeGreaterThan(990);
  expect(refusal).toMatch(/^HTTP\/1.1 503 /);
  expect(refusal).toContain('\r\nRetry-After: 1\r\n');
  expect(refusal).toContain('Too many large requests');
  first.write('x'.repeat(40_000));
  expect(await answerOf(first)).toMatch(/^HTTP\/1.1 200 /);
  expect(heldBytes()).toBe(0);
});

test('a refusal that is held back leaves when the server begins to stop', async () => {
  const server = open(200_000);
  const isLarge = (name: string) => (name === 'full' ? unavailable('decode_queue_full', 'Wait.', 600) : undefined);
  const bodies = { admit: (name: string) => `device ${name}`, large: { bytesMin: 10_000, refusal: isLarge } };
  server.rawPost('/raw/:name', { ...bodies, bytesMax: 100_000 }, (exchange) => exchange.acknowledge());
  server.seal();
  const port = await server.listen('127.0.0.1', 0);
  const begin = async (name: string, head: string) => {
    const socket = connect(port, '127.0.0.1');
    sockets.push(socket);
    socket.write(`POST /raw/${name} HTTP/1.1\r\nHost: a\r\n${head}\r\n\r\n`);
    await once(socket, 'connect');
    return { socket, answer: once(socket, 'data').then(([bytes]) => String(bytes)) };
  };
  const first = await begin('a', 'Content-Length: 100000');
  first.socket.write('x'.repeat(60_000));
  // The address may hold one body of the largest size.
  await vi.waitFor(() => expect(heldBytes()).toBe(100_000), 20_000);
  const waiting = [await begin('full', 'Content-Length: 50000'), await begin('b', 'Content-Length: 100000')];
  waiting[1]!.socket.write('x'.repeat(60_000));
  const isAnswered = Promise.race(waiting.map(({ answer }) => answer));
  expect(await Promise.race([isAnswered, steadySleep(300).then(() => 'none')])).toBe('none');
  const started = performance.now();
  server.drain();
  for (const { answer } of waiting) expect(await answer).toMatch(/^HTTP\/1.1 503 /);
  expect(performance.now() - started).toBeLessThan(500);
  first.socket.write('x'.repeat(40_000));
  expect(await first.answer).toMatch(/^HTTP\/1.1 200 /);
});
