/** Benchmarks whose server refuses connections or ends: that is a result, and nothing waits for the server for ever. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { judged, makeCalls, right } from '../../bench/load/rest/calls.ts';
import { ReportClient } from '../../bench/load/rest/reports.ts';
import { Api } from '../harness/api.ts';
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
