import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { loadConfig } from '../base/settings/config.ts';
import { connectReason } from './connect-reason.ts';
import { StreamLink } from './stream-link.ts';

let reconnects = 0;
let isClosed = false;

/** Opens a link whose servers answer nothing. */
function openLink(): StreamLink {
  reconnects = 0;
  isClosed = false;
  const connection = {
    async *status() {},
    isClosed: () => isClosed,
    async reconnect() {
      reconnects += 1;
    },
  };
  return Reflect.construct(StreamLink, [connection, { jetstream: () => undefined }]) as StreamLink;
}

beforeEach(() => void vi.useFakeTimers({ toFake: ['performance'] }));
afterEach(() => void vi.useRealTimers());

test('a connection whose messages find no majority moves on, also when its server answers readers', () => {
  const link = openLink();
  const silent = new Error('timeout');
  link.failed('publish', silent);
  vi.advanceTimersByTime(3_000);
  link.answered('read');
  link.failed('publish', silent);
  expect(reconnects).toBe(0);
  vi.advanceTimersByTime(1_000);
  link.failed('publish', silent);
  expect(reconnects).toBe(1);
  link.failed('publish', silent);
  expect(reconnects).toBe(1);
});

test('a connection whose messages are answered stays, and so does one that is closed', () => {
  const link = openLink();
  link.failed('publish', new Error('timeout'));
  vi.advanceTimersByTime(3_000);
  link.answered('publish');
  vi.advanceTimersByTime(3_000);
  link.failed('publish', new Error('timeout'));
  expect(reconnects).toBe(0);
  vi.advanceTimersByTime(5_000);
  isClosed = true;
  link.failed('publish', new Error('closed'));
  expect(reconnects).toBe(0);
});

test('a connection whose messages are answered stays while its readers fail', () => {
  const link = openLink();
  for (let second = 0; second < 10; second += 1) {
    link.failed('read', new Error('timeout'));
    link.answered('publish');
    vi.advanceTimersByTime(1_000);
  }
  expect(reconnects).toBe(0);
  for (let second = 0; second < 5; second += 1) {
    link.failed('read', new Error('timeout'));
    vi.advanceTimersByTime(1_000);
  }
  expect(reconnects).toBe(1);
});

test('a server that accepts connections and says nothing, as a frozen one, keeps no socket open', async () => {
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `nats://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const closed = once(server, 'connection').then(([socket]) => once((socket as Socket).resume(), 'close'));
  await expect(StreamLink.open({ ...loadConfig({}).stream, url }, 'test')).rejects.toThrow('timeout');
  await closed;
  expect(sockets.every((socket) => socket.destroyed)).toBe(true);
  server.close();
});

test('an address without a server is said with the setting that has it', async () => {
  const settings = { ...loadConfig({}).stream, url: 'nats://127.0.0.1:1' };
  const error = await StreamLink.open(settings, 'test').catch((reason: unknown) => reason);
  expect(connectReason(error)).toBe('no server was found there (connection refused): check STREAM_URL and the servers');
});
