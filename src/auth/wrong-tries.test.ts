import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { exchangeOf } from '../../test/harness/exchange.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from '../bus/bus.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { WrongTries } from './wrong-tries.ts';

let nowMs = 0;
let hub: BusHub;
const opened: { stop(): void }[] = [];

async function open(): Promise<WrongTries> {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  // The first of two workers is the home.
  const exchange = exchangeOf(new IpcBus(ours, busCounters(new Metrics())), 2, opened.length === 0);
  const tries = new WrongTries({
    exchange,
    topic: 'test',
    wrongMax: 2,
    reason: 'guesses',
    message: 'Too many.',
    isTrustedProxy: (address) => address === '10.0.0.7',
    clock: { now: () => nowMs, monotonic: () => nowMs },
  });
  await exchange.start();
  opened.push(tries, exchange);
  return tries;
}

/** The outcome of a try with a wrong or a right secret. */
const f = (tries: WrongTries, address: string, found?: string) =>
  tries.find(address, async () => found).catch(({ status }: { status: number }) => status);

beforeEach(() => {
  nowMs = 0;
  hub = new BusHub(new Metrics());
});
afterEach(() => {
  for (const tries of opened.splice(0)) tries.stop();
});

test('an address has so many wrong tries, then no more for a window, right or wrong', async () => {
  const tries = await open();
  for (const answer of [undefined, undefined, 429]) expect(await f(tries, '10.0.0.1')).toBe(answer);
  expect(await f(tries, '10.0.0.1', 'right')).toBe(429);
  expect(await f(tries, '10.0.0.2')).toBeUndefined();
  nowMs += limits.wrongTriesWindowMs;
  expect(await f(tries, '10.0.0.1', 'right')).toBe('right');
});

test('right tries are not counted, however many are under way', async () => {
  const tries = await open();
  const answers = await Promise.all(Array.from({ length: 50 }, () => f(tries, '10.0.0.1', 'right')));
  expect(new Set(answers)).toEqual(new Set(['right']));
});

test('parallel tries get no more answers than sequential ones', async () => {
  const tries = await open();
  const answers = await Promise.all(Array.from({ length: 50 }, () => f(tries, '10.0.0.1')));
  expect(answers.filter((answer) => answer === undefined)).toHaveLength(2);
});

test('a lookup that fails is not a wrong try', async () => {
  const tries = await open();
  for (let n = 0; n < 3; n += 1) {
    const failed = tries.find('10.0.0.1', () => Promise.reject(new Error('unavailable')));
    await expect(failed).rejects.toThrow('unavailable');
  }
  expect(await f(tries, '10.0.0.1', 'right')).toBe('right');
});

test('the addresses of one IPv6 network count as one, trusted proxies never', async () => {
  const tries = await open();
  await f(tries, '2001:0db8:0000:0001:0000:0000:0000:0001');
  await f(tries, '2001:db8:0:1::2');
  expect(await f(tries, '2001:0db8:0000:0001:ffff:0000:0000:0003')).toBe(429);
  expect(await f(tries, '2001:db8:0:2::1')).toBeUndefined();
  for (let n = 0; n < 4; n += 1) expect(await f(tries, '10.0.0.7')).toBeUndefined();
});

test('the tries at all workers count together', async () => {
  const [here, there] = [await open(), await open()];
  await Promise.all([f(here, '10.0.0.1'), f(there, '10.0.0.1')]);
  await expect.poll(() => [here, there].map((tries) => tries.isRefused('10.0.0.1'))).toEqual([true, true]);
  for (let n = 0; n < 10; n += 1) await turn();
  // The sums came back to none of their senders.
  expect(here.refusal('10.0.0.1').retryAfterSeconds).toBe(60);
});

test('the oldest of too many networks makes room', async () => {
  const tries = await open();
  const addressOf = (n: number) => `11.${n >> 16}.${(n >> 8) & 255}.${n & 255}`;
  for (let n = 0; n <= limits.wrongTriesNetworksMax; n += 1) tries.wrong(addressOf(n));
  expect(tries.networks).toBe(limits.wrongTriesNetworksMax);
  // The first network made room for the last one: its next wrong try is its first one.
  tries.wrong(addressOf(0));
  tries.wrong(addressOf(limits.wrongTriesNetworksMax));
  expect([0, limits.wrongTriesNetworksMax].map((n) => tries.isRefused(addressOf(n)))).toEqual([false, true]);
});

test('the home keeps no place in its announcements for a network that made room or whose window has ended', async () => {
  const home = await open();
  const announced = () => home.sums(Number.POSITIVE_INFINITY).map(([network]) => network);
  home.count(['oldest', 1]);
  for (let n = 0; n < limits.wrongTriesNetworksMax; n += 1) home.count([`network ${n}`, 1]);
  home.count(['oldest', 1]);
  expect(announced().at(-1)).toBe('oldest');

  home.count(['ended', 1]);
  nowMs += limits.wrongTriesWindowMs;
  home.count(['later', 1]);
  home.count(['ended', 1]);
  expect(announced()).toEqual(['later', 'ended']);
});
