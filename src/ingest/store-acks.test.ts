import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { StoreAcks, type Waiter } from './store-acks.ts';

class Sender implements Waiter {
  answers: string[] = [];
  acknowledge(): void {
    this.answers.push('acknowledged');
  }
  refuse({ reason }: { reason: string }): void {
    this.answers.push(reason);
  }
}

function open() {
  const clock = { now: () => 0, monotonic: () => 0 };
  return new StoreAcks({ clock, metrics: new Metrics(), timeoutMs: 5_000, onAcknowledged: () => {} });
}

test('at the cap of messages that wait, the next one is 503 store_waiters, until one is answered', () => {
  const acks = open();
  const others = Array.from({ length: limits.storeWaitersMax - 1 }, () => new Sender());
  acks.add(others, [{ lane: 0, order: 1n }], 0);
  expect(acks.refusal()).toBeUndefined();
  const last = new Sender();
  acks.add([last], [{ lane: 1, order: 2n }], 0);
  expect(acks.refusal()).toMatchObject({ status: 503, reason: 'store_waiters', retryAfterSeconds: expect.any(Number) });
  acks.stored(1, new Set([2n]));
  expect(last.answers).toEqual(['acknowledged']);
  expect(acks.refusal()).toBeUndefined();
});

test('a message of several frames waits for each of them, in any order, and is answered once', () => {
  const acks = open();
  const sender = new Sender();
  const frames = [5n, 7n, 9n].map((order) => ({ lane: 1 as const, order }));
  acks.add([sender], [{ lane: 0, order: 4n }, ...frames], 0);
  acks.stored(1, new Set([9n, 5n]));
  acks.stored(0, new Set([4n]));
  acks.shipped(0, 4n);
  expect(sender.answers).toEqual([]);
  acks.stored(1, new Set([7n, 8n]));
  acks.shipped(1, 9n);
  expect(sender.answers).toEqual(['acknowledged']);
});

test('of a frame with rows that wait for their shard, messages of other devices are acknowledged', () => {
  const acks = open();
  const [own, other, both, unknown] = [new Sender(), new Sender(), new Sender(), new Sender()];
  acks.add([own, other, both, unknown], [{ lane: 0, order: 1n }], 0, [[7], [8], [8, 7], undefined]);
  acks.delayed(0, new Set([1n]), (device) => device === 7);
  expect(acks.waiting).toBe(1);
  acks.stored(0, new Set([1n]));
  expect([own, other, both, unknown].map(({ answers }) => answers)).toEqual([
    ['store_away'],
    ['acknowledged'],
    ['store_away'],
    ['store_away'],
  ]);
  expect(acks.waiting).toBe(0);
});

test('a message with a row that is refused is not acknowledged when the rest of its frames is stored', () => {
  const acks = open();
  const sender = new Sender();
  acks.add(
    [sender],
    [5n, 7n].map((order) => ({ lane: 1 as const, order })),
    0,
  );
  acks.refused(1, new Set([5n]));
  acks.stored(1, new Set([5n, 7n]));
  acks.shipped(1, 7n);
  expect(sender.answers).toEqual(['store_refused']);
});
