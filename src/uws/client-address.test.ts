/** The client's address behind proxies: `X-Forwarded-For`, and PROXY headers on real sockets. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { proxyV2 } from '../../test/harness/proxy-header.ts';
import { RawConnection, requestBytes } from '../../test/harness/raw.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { clientAddress } from './client-address.ts';
import { HttpServer } from './server.ts';
import { inSlices } from './slices.ts';

describe('X-Forwarded-For', () => {
  const isTrusted = (address: string) => address.startsWith('10.') || address === 'fd00::7';
  test.each([
    ['an untrusted sender', '192.0.2.9', '192.0.2.1', '192.0.2.9'],
    ['no header', '10.0.0.1', '', '10.0.0.1'],
    ['one hop', '10.0.0.1', '192.0.2.1', '192.0.2.1'],
    ['a forged hop before the real one', '10.0.0.1', '198.51.100.1, 192.0.2.1', '192.0.2.1'],
    ['two trusted proxies', '10.0.0.1', '198.51.100.1, 192.0.2.1,10.0.0.2', '192.0.2.1'],
    ['trusted proxies only', '10.0.0.1', '10.0.0.3, 10.0.0.2', '10.0.0.3'],
    ['an unreadable hop', '10.0.0.1', '192.0.2.1, unknown, 10.0.0.2', '10.0.0.2'],
    ['nothing readable', '10.0.0.1', ', ,', '10.0.0.1'],
    ['a port', '10.0.0.1', '192.0.2.1:50000', '192.0.2.1'],
    ['IPv6', '10.0.0.1', '2001:db8::1, fd00::7', '2001:db8::1'],
    ['IPv6 with a port', '10.0.0.1', '[2001:db8::1]:50000', '2001:db8::1'],
  ])('%s', (_name, sender, header, address) => {
    expect(clientAddress(sender, header, isTrusted)).toBe(address);
  });
});

let server: HttpServer | undefined;
let connection: RawConnection;
let calls: string[] = [];

afterEach(() => {
  connection?.close();
  server?.close();
});

async function open(trusted: string): Promise<void> {
  calls = [];
  const sizes = { bodyBytesMax: 1024, bodyBytesInFlightMax: 4096, connectionsMax: 100 };
  const isTrustedProxy = (address: string) => address === trusted;
  server = new HttpServer({
    log: createLog('error', 'test'),
    metrics: new Metrics(),
    ...sizes,
    isTrustedProxy,
    worker: '',
  });
  server.route('GET', '/who', async ({ remoteAddress, fromProxy }) => {
    calls.push(remoteAddress);
    return { status: 200, body: `${remoteAddress} ${fromProxy}` };
  });
  server.rawPost('/raw/:name', { admit: () => '' }, (exchange) => {
    calls.push(exchange.remoteAddress());
    exchange.acknowledge();
  });
  server.route('POST', '/keep', async ({ remoteAddress }) => {
    calls.push(remoteAddress);
    return { status: 200, body: Buffer.alloc(8_000_000) };
  });
  server.route('GET', '/long', async ({ remoteAddress }) => {
    calls.push(remoteAddress);
    return { status: 200, body: inSlices(Buffer.alloc(8_000_000)) };
  });
  server.seal();
  connection = await RawConnection.open(await server.listen('127.0.0.1', 0));
}

const who = { method: 'GET', path: '/who' };

test('a PROXY header of a trusted proxy names the client', async () => {
  await open('127.0.0.1');
  await connection.send(Buffer.concat([proxyV2({ source: '192.0.2.1' }), requestBytes(who)]));
  const answer = await connection.response();
  expect(answer.body.toString()).toBe('192.0.2.1 false');
  expect(answer.headers.get('connection')).toBe('close');
});

test('a header of a trusted proxy in front of a trusted proxy gives way to X-Forwarded-For', async () => {
  await open('127.0.0.1');
  const request = requestBytes({ ...who, headers: { 'X-Forwarded-For': '192.0.2.7' } });
  await connection.send(Buffer.concat([proxyV2({ source: '127.0.0.1' }), request]));
  expect((await connection.response()).body.toString()).toBe('192.0.2.7 true');
});

test('X-Forwarded-For of a client behind a PROXY header is not read', async () => {
  await open('127.0.0.1');
  const request = requestBytes({ ...who, headers: { 'X-Forwarded-For': '192.0.2.7' } });
  await connection.send(Buffer.concat([proxyV2({ source: '192.0.2.1' }), request]));
  expect((await connection.response()).body.toString()).toBe('192.0.2.1 false');
});

test('a PROXY header without an address is that of the proxy itself, and its connection stays open', async () => {
  await open('127.0.0.1');
  await connection.send(Buffer.concat([proxyV2({ command: 0 }), requestBytes(who)]));
  expect((await connection.response()).body.toString()).toBe('127.0.0.1 true');
  expect((await connection.ask(who)).body.toString()).toBe('127.0.0.1 true');
});

test('an IPv6 client', async () => {
  await open('127.0.0.1');
  await connection.send(Buffer.concat([proxyV2({ source: '2001:db8::1' }), requestBytes(who)]));
  expect((await connection.response()).body.toString()).toContain('2001:0db8:');
});

test('a header in many pieces', async () => {
  await open('127.0.0.1');
  connection.socket.setNoDelay(true);
  for (const byte of proxyV2({ source: '192.0.2.1' })) await connection.send(Buffer.from([byte]));
  await connection.send(requestBytes(who));
  expect((await connection.response()).body.toString()).toBe('192.0.2.1 false');
});

test.each([
  ['a call', who],
  ['telemetry', { path: '/raw/a', body: '{}' }],
  ['an unknown path', { method: 'GET', path: '/nowhere' }],
])('a PROXY header of an untrusted address is refused: %s', async (_name, request) => {
  await open('10.0.0.1');
  await connection.send(Buffer.concat([proxyV2({ source: '192.0.2.1' }), requestBytes(request)]));
  const answer = await connection.response();
  expect([answer.status, answer.body.toString()]).toEqual([400, expect.stringContaining('TRUSTED_PROXIES')]);
  await connection.untilClosed();
  expect(calls).toEqual([]);
});

test.each([
  ['a call', who],
  ['telemetry', { path: '/raw/a', body: '{}' }],
  ['HEAD', { method: 'HEAD', path: '/who' }],
  ['an answer in slices', { method: 'GET', path: '/long' }],
])('a client behind a proxy cannot send another PROXY header: %s', async (_name, request) => {
  for (const isPipelined of [true, false]) {
    await open('127.0.0.1');
    const first = Buffer.concat([proxyV2({ source: '192.0.2.1' }), requestBytes(request)]);
    const second = Buffer.concat([proxyV2({ source: '192.0.2.66' }), requestBytes(request)]);
    if (isPipelined) {
      await connection.send(Buffer.concat([first, second]));
    } else {
      await connection.send(first);
      const response = await connection.response(10_000, 'method' in request && request.method === 'HEAD');
      expect([response.status, response.headers.get('connection')]).toEqual([200, 'close']);
      await connection.send(second);
    }
    await connection.untilClosed();
    expect(calls).toEqual(['192.0.2.1']);
    if (isPipelined) server?.close();
  }
});

test.each([
  ['with a length', 'Content-Length: 10', 'abc', 'defghij'],
  ['chunked', 'Transfer-Encoding: chunked', '3\r\nabc\r\n', '7\r\ndefghij\r\n0\r\n\r\n'],
  ['too large', 'Content-Length: 2000', 'a'.repeat(1000), 'a'.repeat(1000)],
  [
    'too large and chunked',
    'Transfer-Encoding: chunked',
    `400\r\n${'a'.repeat(0x400)}\r\n`,
    '7\r\ndefghij\r\n0\r\n\r\n',
  ],
])('nor after a body in pieces: %s', async (_name, header, begin, rest) => {
  for (const path of ['/keep', '/raw/a']) {
    await open('127.0.0.1');
    connection.socket.setNoDelay(true);
    const head = `POST ${path} HTTP/1.1\r\nHost: a\r\n${header}\r\n\r\n`;
    await connection.send(Buffer.concat([proxyV2({ source: '192.0.2.1' }), Buffer.from(head + begin)]));
    await sleep(50);
    const second = [proxyV2({ source: '192.0.2.66' }), requestBytes(who)];
    await connection.send(Buffer.concat([Buffer.from(rest), ...second]));
    await connection.send(Buffer.concat(second));
    await connection.untilClosed();
    expect(calls.filter((address) => address !== '192.0.2.1')).toEqual([]);
    server?.close();
  }
});

test('nor before it has read the answer', async () => {
  await open('127.0.0.1');
  connection.socket.pause();
  const post = requestBytes({ path: '/keep', body: '{}' });
  await connection.send(Buffer.concat([proxyV2({ source: '192.0.2.1' }), post]));
  await eventually(async () => calls.length > 0);
  const second = Buffer.concat([proxyV2({ source: '192.0.2.66' }), requestBytes(who)]);
  for (let times = 0; times < 3; times += 1) {
    await sleep(50);
    await connection.send(second);
  }
  connection.socket.resume();
  await connection.untilClosed();
  expect(calls).toEqual(['192.0.2.1']);
});
