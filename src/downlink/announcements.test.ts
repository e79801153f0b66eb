import { afterEach, beforeEach, expect, it } from 'vitest';
import { deafBus } from '../../test/harness/deaf-bus.ts';
import { Random } from '../../test/harness/random.ts';
import { ProcessTime, VirtualTime } from '../../test/world/virtual-time.ts';
import { limits } from '../base/limits.ts';
import { Announcements } from './announcements.ts';

let time: VirtualTime;
let inFlight: number;
let published: number[][];
let announcements: Announcements<number>;

/** Longer than all that a test has announced takes. */
const longMs = 2 * limits.repeatStartMsMax + 10_000;

const numbers = (count: number) => Array.from({ length: count }, (_, n) => n);

beforeEach(() => {
  time = new VirtualTime(new Random(1));
  inFlight = 0;
  published = [];
  const bus = {
    ...deafBus,
    get inFlight() {
      return inFlight;
    },
  };
  const process = new ProcessTime(time, 0);
  const publish = (items: number[]) => void published.push(items);
  announcements = new Announcements<number>({ bus, publish, clock: process, scheduler: process });
});

afterEach(() => {
  announcements.stop();
});

const pass = (ms: number) => time.run(() => false, time.passed + ms);

it('publishes those of one turn of the loop together, and no more than the cap in one turn', async () => {
  for (const n of [1, 2, 3]) announcements.add(n);
  expect(published).toEqual([]);
  await pass(longMs);
  expect(published).toEqual([[1, 2, 3]]);
  for (const n of numbers(2 * limits.announcedAtOnceMax + 1)) announcements.add(n);
  await pass(longMs);
  expect(published.map(({ length }) => length)).toEqual([3, limits.announcedAtOnceMax, limits.announcedAtOnceMax, 1]);
});

it('waits while half of the room of the bus is taken, so that other messages are not dropped', async () => {
  inFlight = limits.busMessagesInFlightMax / 2;
  announcements.add(1);
  announcements.repeat(() => [2]);
  await pass(limits.repeatStartMsMax + 10_000);
  expect(published).toEqual([]);
  inFlight = 0;
  await pass(limits.repeatTickMs);
  expect(published.flat().toSorted()).toEqual([1, 2]);
});

it('repeats many at a share of them in a second, the last one first, and few at the least rate', async () => {
  announcements.repeat(() => numbers(100_000));
  await pass(limits.repeatStartMsMax + 2_000);
  const count = published.flat().length;
  expect(count).toBeGreaterThanOrEqual(10_000);
  expect(count).toBeLessThan(13_000);
  expect(published.flat().slice(0, 3)).toEqual([99_999, 99_998, 99_997]);
  await pass(19_000);
  expect(new Set(published.flat()).size).toBe(100_000);

  published = [];
  announcements.repeat(() => numbers(200));
  await pass(limits.repeatStartMsMax + 1_000);
  expect(published.flat()).toHaveLength(200);
});

it('goes on to the end when the bus has further gaps meanwhile, and then repeats the items of that time once', async () => {
  let items = numbers(1_000);
  announcements.repeat(() => items);
  await pass(limits.repeatStartMsMax + 500);
  const before = published.flat().length;
  for (let gap = 0; gap < 10; gap += 1) {
    items = numbers(1_001);
    announcements.repeat(() => items);
    await pass(50);
  }
  expect(published.flat().length).toBeGreaterThan(before);
  await pass(longMs);
  expect(published.flat()).toEqual([...numbers(1_000).reverse(), ...numbers(1_001).reverse()]);
});

it('publishes nothing after its stop', async () => {
  announcements.add(1);
  announcements.repeat(() => [2]);
  announcements.stop();
  await pass(longMs);
  expect(published).toEqual([]);
});
