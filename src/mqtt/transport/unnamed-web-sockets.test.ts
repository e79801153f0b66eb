import { expect, test } from 'vitest';
import { UnnamedWebSockets } from './unnamed-web-sockets.ts';

const messageBytesMax = 1024 * 1024;

function crowdOf(sockets: number) {
  const unnamed = new UnnamedWebSockets(messageBytesMax, sockets * 16 * messageBytesMax);
  const closed: string[] = [];
  const open = (remoteAddress: string, name: string) => {
    const socket = {
      remoteAddress,
      crowdedOut: () => {
        closed.push(name);
        unnamed.remove(socket);
      },
    };
    unnamed.add(socket);
    return socket;
  };
  return { unnamed, closed, open };
}

test('above the cap the oldest socket of the address with the most of them is closed', () => {
  const { unnamed, closed, open } = crowdOf(20);
  open('10.0.0.1', 'a client');
  for (let n = 1; n <= 30; n += 1) open('10.0.0.2', `stranger ${n}`);
  open('10.0.0.3', 'another client');
  expect(closed).toEqual(Array.from({ length: 12 }, (_, n) => `stranger ${n + 1}`));
  expect(unnamed.size).toBe(20);
});

test('a client that has named its credentials, or has left, takes no place', () => {
  const { unnamed, closed, open } = crowdOf(20);
  for (let n = 0; n < 100; n += 1) {
    const socket = open('10.0.0.1', `client ${n}`);
    unnamed.remove(socket);
    unnamed.remove(socket);
  }
  expect([unnamed.size, closed]).toEqual([0, []]);
});

test('a machine with little memory takes sixteen', () => {
  const { unnamed, open } = crowdOf(1);
  for (let n = 0; n < 100; n += 1) open('10.0.0.1', String(n));
  expect(unnamed.size).toBe(16);
});
