import { afterEach, expect, test } from 'vitest';
import type { Bus, Handler } from './bus.ts';
import { UnreadMessage } from './messages.ts';
import { Tallies } from './tallies.ts';

/** Delivers at once, also to the sender. */
class TestBus implements Bus {
  readonly connected = true;
  readonly handlers: Handler[] = [];
  readonly published: string[] = [];

  publish(channel: string, payload: Buffer | string): void {
    this.published.push(payload.toString());
    for (const handler of this.handlers) handler(Buffer.from(payload), channel);
  }

  async subscribe(_channel: string, handler: Handler): Promise<() => void> {
    this.handlers.push(handler);
    return () => {};
  }

  onReconnect(): void {}
  async close(): Promise<void> {}
}

const opened: Tallies<'a' | 'b'>[] = [];

async function open(bus: Bus, received: unknown[] = [], workers = 1) {
  const tallies = new Tallies<'a' | 'b'>({
    bus,
    channel: 'test',
    groups: ['a', 'b'],
    countsOfOwner: 2,
    fleetWorkers: () => workers,
    ownersPerMessage: 2,
    onCounts: (...counts) => received.push(counts),
  });
  await tallies.start();
  opened.push(tallies);
  return tallies;
}

afterEach(() => {
  for (const tallies of opened.splice(0)) tallies.stop();
});

test('the sums of each owner reach every other process, in messages of a few owners', async () => {
  const bus = new TestBus();
  const [own, received]: [unknown[], unknown[]] = [[], []];
  const here = await open(bus, own);
  await open(bus, received);
  const [a, b] = [here.tally('a'), here.tally('b')];
  a.add(7, [1, 0]);
  a.add(7, [2, 5]);
  b.add('x', [1, 1]);
  b.add('y', [0, 3]);
  here.publish();
  expect(received).toEqual([
    ['a', 7, [3, 5], ''],
    ['b', 'x', [1, 1], ''],
    ['b', 'y', [0, 3], ''],
  ]);
  expect([own, bus.published.length]).toEqual([[], 2]);
});

test('the owners of each part of a group have their own counts', async () => {
  const bus = new TestBus();
  const received: unknown[] = [];
  const here = await open(bus);
  await open(bus, received);
  here.tally('a').add(7, [1, 0]);
  here.tally('a', 'gold').add(7, [2, 0]);
  here.publish();
  expect(received).toEqual([
    ['a', 7, [1, 0], ''],
    ['a', 7, [2, 0], 'gold'],
  ]);
});

test('the counts of a group that only a newer version knows are left out', async () => {
  const bus = new TestBus();
  const received: unknown[] = [];
  await open(bus, received);
  const taken = [
    ['c', 1, [9, 9]],
    ['a', 1, [1, 2]],
  ];
  bus.handlers[0]!(Buffer.from(JSON.stringify({ from: 'other', taken })), 'test');
  expect(received).toEqual([['a', 1, [1, 2], '']]);
});

test('the first counts after a quiet time go at once, further counts together, the later the more workers there are', async () => {
  const bus = new TestBus();
  const here = await open(bus, [], 7);
  const tally = here.tally('a');
  for (let n = 0; n < 9; n += 1) {
    tally.add(1, [1, 0]);
    here.publish();
  }
  expect(bus.published).toHaveLength(1);
  await expect
    .poll(() => bus.published.map((message) => JSON.parse(message).taken))
    .toEqual([[['a', 1, [1, 0]]], [['a', 1, [8, 0]]]]);
});

test('a message of another shape is not read, and none of its counts is used', async () => {
  const bus = new TestBus();
  const received: unknown[] = [];
  await open(bus, received);
  const good = ['a', 1, [1, 2]];
  for (const bad of [
    [7, 1, [1, 2]],
    ['a', 1, [1, 2], null],
    ['a', null, [1, 2]],
    ['a', 1, [1]],
    ['a', 1, [1, 2, 3]],
    ['a', 1, [1, 0.5]],
    ['a', 1],
    7,
  ]) {
    const payload = Buffer.from(JSON.stringify({ from: 'other', taken: [good, bad] }));
    expect(() => bus.handlers[0]!(payload, 'test'), JSON.stringify(bad)).toThrow(UnreadMessage);
  }
  expect(received).toEqual([]);
});
