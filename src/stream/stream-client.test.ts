import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { StreamLink } from './stream-client.ts';

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
