/** Benchmarks whose server refuses connections or ends: that is a result, and nothing waits for the server for ever. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcpServer, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { within } from '../../bench/deadline.ts';
import { judged, makeCalls, right } from '../../bench/load/rest/calls.ts';
import { ReportClient } from '../../bench/load/rest/reports.ts';
import { Api } from '../harness/api.ts';
import { buildBench } from '../harness/bench-run.ts';
import { freePort } from '../harness/ports.ts';
import { requestBytes } from '../harness/raw.ts';

/** Answers the sign-in, and the n-th other request with the n-th status; 0 = the connection breaks. */
async function answering(statuses: number[]): Promise<{ server: Server; port: number }> {
  let n = 0;
  const server = createServer((request, response) => {
    request.resume();
    if (request.url === '/api/auth/login') {
      response.end('{"token":"a","refreshToken":"b"}');
      return;
    }
    const status = statuses[n++];
    if (status) response.writeHead(status).end('{}');
    else request.socket.destroy();
    // The requests after the last one are refused.
    if (n === statuses.length) server.close();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { server, port: (server.address() as AddressInfo).port };
}

test('clients of reports count what is refused and what breaks, and ask again', async () => {
  const { port } = await answering([200, 429, 0, 503, 200, 0]);
  const signIn = { adminEmail: 'me@x.org', adminPassword: 'secret' };
  const api = new Api({ host: '127.0.0.1', port, monitorPort: 0, ...signIn });
  const asker = new ReportClient({ analyticsPort: port, api });
  try {
    const { perSecond, refusedShare, failed } = await asker.crowd('view', 1, 2);
    expect(perSecond).toBeGreaterThan(0);
    expect(refusedShare).toBeCloseTo(1 / 3);
    expect(failed).toMatchObject({ ECONNRESET: 2, 'status 503': 1 });
    expect(failed['ECONNREFUSED']).toBeGreaterThan(0);
  } finally {
    asker.close();
  }
});

/** Takes connections and never answers. */
async function silentServer(): Promise<{ port: number; close(): void }> {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.resume();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const close = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { port: (server.address() as AddressInfo).port, close };
}

test.each([
  ['a closed loop', 0],
  ['a fixed rate', 50],
])('calls that have no end by themselves end when nothing is answered any more: %s', async (_, rate) => {
  const call = { request: requestBytes({ method: 'GET', path: '/' }), outcomeOf: () => right };
  const server = await silentServer();
  const order = { connections: 2, rate, warmupSeconds: 0, seconds: Number.POSITIVE_INFINITY, callOf: () => call };
  try {
    const result = await makeCalls({ port: server.port, ...order }, 300);
    expect(result.refused).toEqual({});
    expect(result.unanswered).toBeGreaterThanOrEqual(2);
  } finally {
    server.close();
  }
});

test('the gateway of a large site that gets no CONNACK ends with a sentence', async () => {
  buildBench();
  const server = await silentServer();
  const child = fork('dist-bench/bench/load/mqtt/site-process.js');
  const ended = once(child, 'exit');
  const order = { host: '127.0.0.1', token: 't', children: ['a'], firstTs: 0, connackMs: 100, port: server.port };
  try {
    child.send({ kind: 'connect', order });
    const [note] = (await once(child, 'message')) as [object];
    expect(note).toEqual({ kind: 'failed', sentence: 'it cannot connect: no CONNACK (3)' });
    expect(await ended).toEqual([1, null]);
  } finally {
    child.kill('SIGKILL');
    server.close();
  }
});

test('a wait that has a deadline ends with what it has waited for', async () => {
  expect(await within(Promise.resolve(5), 10, 'nothing came')).toBe(5);
  await expect(within(new Promise(() => {}), 10, 'nothing came')).rejects.toThrow('nothing came within 0.01 s');
});

test.each([
  ['a closed loop', 0],
  ['a fixed rate', 50],
])('calls that have no end by themselves end when nothing listens any more: %s', async (_, rate) => {
  const call = {
    request: requestBytes({ method: 'GET', path: '/' }),
    outcomeOf: (status: number) => (status === 200 ? right : `status ${status}`),
  };
  const order = { connections: 2, rate, warmupSeconds: 0, seconds: Number.POSITIVE_INFINITY, callOf: () => call };
  const result = await makeCalls({ port: await freePort(), ...order });
  expect(result.refused).toEqual({ 'ECONNREFUSED at the connect': 40 });
  expect(judged(result).failed).toBeGreaterThanOrEqual(40);
});
