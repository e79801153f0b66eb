import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from './bus.ts';
import { UnreadMessage } from './messages.ts';
import { ChannelSubscriptions } from './subscriptions.ts';

test('an error of a handler is counted, thrown or as a promise that rejects, and the other handlers are called', async () => {
  const counters = busCounters(new Metrics());
  const subscriptions = new ChannelSubscriptions(counters);
  let calls = 0;
  const handlers = [
    () => {
      throw new UnreadMessage('no JSON');
    },
    () => Promise.reject(new UnreadMessage('another shape')),
    () => {
      throw new Error('a bug');
    },
    () => Promise.reject(new Error('a bug')),
    () => {
      calls += 1;
    },
  ];
  for (const handler of handlers) subscriptions.add('channel', handler);
  subscriptions.deliver('channel', Buffer.from('{}'));
  await turn();
  expect(calls).toBe(1);
  expect([counters.unread.value, counters.bugs.value]).toEqual([2, 2]);
});
