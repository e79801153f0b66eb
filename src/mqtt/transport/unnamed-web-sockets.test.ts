import { expect, test } from 'vitest';
import { Random } from '../../../test/harness/random.ts';
import { ProcessTime, VirtualTime } from '../../../test/world/virtual-time.ts';
import { UnnamedWebSockets, unnamedSocketsMax } from './unnamed-web-sockets.ts';

const messageBytesMax = 1024 * 1024;
const memoryOf = (sockets: number) => {
  let bytes = sockets * messageBytesMax;
  while (unnamedSocketsMax(messageBytesMax, bytes) < sockets) bytes *= 2;
  return bytes;
};

function crowdOf(sockets: number) {
  const time = new VirtualTime(new Random(1));
  const clock = { monotonic: () => time.passed };
  const memoryBytes = memoryOf(sockets);
  const unnamed = new UnnamedWebSockets({ messageBytesMax, memoryBytes, clock, scheduler: new ProcessTime(time, 0) });
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
  const pass = (ms: number) => time.run(() => false, time.passed + ms);
  return { unnamed, closed, open, pass, most: unnamedSocketsMax(messageBytesMax, memoryBytes) };
}

test('above the cap the oldest sockets of the network with the most of them are closed, but no young one', async () => {
  const { unnamed, closed, open, pass, most } = crowdOf(20);
  open('10.0.0.1', 'a client');
  for (let n = 1; n <= most + 10; n += 1) open(`2001:db8::${n.toString(16)}`, `stranger ${n}`);
  open('10.0.0.1', 'another client');
  await pass(1_900);
  expect(closed).toEqual([]);
  await pass(1_000);
  expect(closed).toEqual(Array.from({ length: 12 }, (_, n) => `stranger ${n + 1}`));
  expect(unnamed.size).toBe(most);
});

test('clients that come faster than the cap and send their CONNECT within a second are never closed', async () => {
  const { unnamed, closed, open, pass, most } = crowdOf(20);
  const opened: ReturnType<typeof open>[] = [];
  for (let n = 0; n < 10; n += 1) {
    for (let k = 0; k < most; k += 1) opened.push(open('10.0.0.1', `client ${n} ${k}`));
    await pass(500);
    for (const socket of opened.splice(0, Math.max(0, opened.length - most))) unnamed.remove(socket);
  }
  for (const socket of opened) {
    unnamed.remove(socket);
    unnamed.remove(socket);
  }
  await pass(5_000);
  expect([unnamed.size, closed]).toEqual([0, []]);
});

test('a machine with little memory takes sixteen', () => {
  expect(unnamedSocketsMax(messageBytesMax, 1)).toBe(16);
});
