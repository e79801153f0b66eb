import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { frame, opcode, RawWebSocket } from '../../../test/harness/web-socket.ts';
import { limits } from '../../base/limits.ts';
import { createLog } from '../../base/log.ts';
import { Metrics } from '../../base/metrics/metrics.ts';
import { HttpServer } from '../../uws/server.ts';
import type { Transport } from './transport.ts';
import { UnnamedWebSockets } from './unnamed-web-sockets.ts';
import { webSocketDoor, webSocketMessageBytesMax } from './websocket.ts';

/** Sends received pieces back; the first byte of a piece may be a command. */
class Echo {
  readonly transport: Transport;
  received = 0;
  drained = 0;
  closed = 0;

  constructor(transport: Transport) {
    this.transport = transport;
    last = this;
  }

  onData(bytes: Buffer): void {
    this.received += bytes.length;
    if (bytes.toString() === 'end') this.transport.end();
    else if (bytes.toString() === 'destroy') this.transport.destroy();
    else if (bytes.toString() === 'pause') this.transport.pause();
    else this.transport.write(bytes);
  }

  overflows = 0;
  resumesAtOverflow = false;

  onOverflow(): void {
    this.overflows += 1;
    if (this.resumesAtOverflow) this.transport.resume();
  }

  onDrained(): void {
    this.drained += 1;
  }

  onClosed(): void {
    this.closed += 1;
  }
}

let server: HttpServer;
let port: number;
let client: RawWebSocket;
let metrics: Metrics;
let last: Echo;
let isLeaving: boolean;

beforeEach(async () => {
  metrics = new Metrics();
  server = new HttpServer({
    log: createLog('error', 'test'),
    metrics,
    bodyBytesMax: 1024,
    bodyBytesInFlightMax: 4096,
    connectionsMax: 4,
    connectionsPerAddressMax: 100,
    worker: '',
  });
  isLeaving = false;
  const clients = {
    open: (transport: Transport) => new Echo(transport),
    get isLeaving() {
      return isLeaving;
    },
  };
  const messageBytesMax = webSocketMessageBytesMax(65_536);
  const unnamed = new UnnamedWebSockets({ messageBytesMax });
  webSocketDoor(server, { clients, messageBytesMax, room: { webSocketOpened() {}, webSocketClosed() {} }, unnamed });
  server.seal();
  port = await server.listen('127.0.0.1', 0);
});

afterEach(() => {
  client?.close();
  server.close();
});

const text = (value: string) => frame(Buffer.from(value));

async function until(isReached: () => boolean): Promise<void> {
  const deadline = performance.now() + 5_000;
  while (!isReached()) {
    if (performance.now() > deadline) throw new Error('not reached in 5 s');
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

test('the sub-protocol is one of ours, the first that the client offers', async () => {
  client = await RawWebSocket.open(port, 'chat, mqttv3.1, mqtt');
  expect(client.upgrade.status).toBe(101);
  expect(client.upgrade.headers.get('sec-websocket-protocol')).toBe('mqttv3.1');
  expect(client.upgrade.headers.has('sec-websocket-extensions')).toBe(false);
});

test.each(['', 'chat', 'MQTTX'])('a client that offers %j is refused', async (protocol) => {
  client = await RawWebSocket.open(port, protocol);
  expect(client.upgrade.status).toBe(400);
});

test('while no new connections are taken, an upgrade is refused, and open connections are served', async () => {
  client = await RawWebSocket.open(port);
  isLeaving = true;
  const second = await RawWebSocket.open(port);
  expect(second.upgrade.status).toBe(503);
  second.close();
  client.send(text('on'));
  expect((await client.read(2)).toString()).toBe('on');
});

test('bytes pass in both directions as a stream, with any frames', async () => {
  client = await RawWebSocket.open(port);
  expect(last.transport.remoteAddress).toBe('127.0.0.1');
  client.send(
    frame(Buffer.from('ab'), opcode.binary, false),
    frame(Buffer.from('cd'), opcode.continuation),
    text('ef'),
  );
  expect((await client.read(6)).toString()).toBe('abcdef');
});

test('a text message ends the connection with 1003', async () => {
  client = await RawWebSocket.open(port);
  client.send(frame(Buffer.from('hello'), opcode.text));
  expect((await client.closed()).code).toBe(1003);
  await until(() => last.closed === 1);
  expect(last.received).toBe(0);
});

test('a message above the cap ends the connection', async () => {
  client = await RawWebSocket.open(port);
  client.send(frame(Buffer.alloc(limits.webSocketMessageBytesMax + 1)));
  await client.closed();
  await until(() => last.closed === 1);
  expect(last.received).toBe(0);
});

test('the connection ends it: after all written bytes, or at once; and is notified once', async () => {
  client = await RawWebSocket.open(port);
  client.send(text('ab'), text('end'), text('cd'));
  expect((await client.read(2)).toString()).toBe('ab');
  expect((await client.closed()).code).toBe(1000);
  await until(() => last.closed === 1);

  client.close();
  client = await RawWebSocket.open(port);
  client.send(text('destroy'));
  expect((await client.closed()).code).toBe(1006);
  await until(() => last.closed === 1);
  last.transport.write(Buffer.from('x'));
  last.transport.end();
  last.transport.destroy();
  expect(last.transport.bufferedBytes).toBe(0);
});

test('what comes in during a pause is kept, in order', async () => {
  client = await RawWebSocket.open(port);
  client.send(text('pause'), text('ab'), text('cd'));
  await until(() => last.received === 5);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(last.received).toBe(5);
  last.transport.resume();
  expect((await client.read(4)).toString()).toBe('abcd');
});

test('a pause keeps bytes, not messages: 200 000 small or empty ones delay nothing', async () => {
  client = await RawWebSocket.open(port);
  client.send(text('pause'));
  await until(() => last.received === 5);
  const messages = [text('a'), frame(Buffer.alloc(0)), text('b'), frame(Buffer.alloc(0))];
  const burst = Buffer.concat(Array.from({ length: 5_000 }, () => messages).flat());
  for (let n = 0; n < 10; n += 1) client.send(burst);
  // The answer to a ping proves that all of the burst came in.
  client.send(frame(Buffer.from('all'), opcode.ping));
  await client.pong();
  expect(last.received).toBe(5);
  const before = performance.now();
  last.transport.resume();
  expect(last.received).toBe(5 + 100_000);
  expect(performance.now() - before).toBeLessThan(20_000);
  expect((await client.read(100_000)).toString()).toBe('ab'.repeat(50_000));
  last.transport.pause();
  client.send(text('later'));
  last.transport.resume();
  expect((await client.read(5)).toString()).toBe('later');
});

test('more than is kept during a pause ends the connection with 1009', async () => {
  client = await RawWebSocket.open(port);
  client.send(text('pause'));
  const piece = frame(Buffer.alloc(limits.webSocketMessageBytesMax));
  client.send(piece, piece, piece);
  expect((await client.closed()).code).toBe(1009);
  await until(() => last.closed === 1);
});

test('a connection that keeps reading at the cap loses nothing', async () => {
  client = await RawWebSocket.open(port);
  client.send(text('pause'));
  await until(() => last.received === 5);
  last.resumesAtOverflow = true;
  const piece = frame(Buffer.alloc(limits.webSocketMessageBytesMax));
  client.send(piece, piece, piece);
  await until(() => last.received === 5 + 3 * limits.webSocketMessageBytesMax);
  expect(last.overflows).toBe(1);
  expect(last.closed).toBe(0);
});

test('a reader that does not read is cut when too much waits for it', async () => {
  client = await RawWebSocket.open(port);
  client.socket.pause();
  const piece = Buffer.alloc(1024 * 1024);
  for (let sent = 0; sent < 64 && last.closed === 0; sent += 1) {
    last.transport.write(piece);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await until(() => last.closed === 1);
});

test('a close waits for what is still to leave', async () => {
  client = await RawWebSocket.open(port);
  client.socket.pause();
  const bytes = 8 * 1024 * 1024;
  last.transport.write(Buffer.alloc(bytes, 'x'));
  last.transport.end();
  expect(last.transport.bufferedBytes).toBeGreaterThan(0);
  client.socket.resume();
  expect((await client.read(bytes)).length).toBe(bytes);
  expect((await client.closed()).code).toBe(1000);
  await until(() => last.closed === 1);
});

test('other requests to the path get a refusal that names the protocol', async () => {
  const plain = await fetch(`http://127.0.0.1:${port}/mqtt`);
  expect(plain.status).toBe(426);
  expect(plain.headers.get('sec-websocket-version')).toBe('13');
  const post = await fetch(`http://127.0.0.1:${port}/mqtt`, { method: 'POST', body: '{}' });
  expect(post.status).toBe(405);
});

test('WebSockets count as connections while they are open, and a full server refuses', async () => {
  const clients: RawWebSocket[] = [];
  for (let n = 0; n < 4; n += 1) clients.push(await RawWebSocket.open(port));
  expect(clients.map((each) => each.upgrade.status)).toEqual([101, 101, 101, 101]);
  client = await RawWebSocket.open(port);
  expect(client.upgrade.status).toBe(503);
  for (const each of clients) each.close();
  client.close();
  await vi.waitFor(async () => {
    client = await RawWebSocket.open(port);
    if (client.upgrade.status !== 101) client.close();
    expect(client.upgrade.status).toBe(101);
  }, 20_000);
});
