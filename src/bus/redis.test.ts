import { expect, it, vi } from 'vitest';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from './bus.ts';
import { busProtocol, channelNames, type LinkOwner, RedisBus } from './redis.ts';

useSteadyClock();

function open(protocol = busProtocol) {
  const published: string[] = [];
  const link = {
    canPublish: true,
    restored: true,
    failure: undefined,
    failing: false,
    publish: async (channel: string) => {
      published.push(channel);
      if (link.failing) throw new Error('refused');
    },
    change: async () => {},
    close: () => {},
  };
  let owner!: LinkOwner;
  const openLink = (given: LinkOwner) => {
    owner = given;
    return link;
  };
  const bus = new RedisBus(
    openLink,
    busCounters(new Metrics()),
    createLog('error', 'test'),
    channelNames('id', protocol),
  );
  let reconnects = 0;
  bus.onReconnect(() => {
    reconnects += 1;
  });
  return { bus, link, owner, published, reconnects: () => reconnects };
}

it('reports a gap only when both directions are open again: notified handlers must receive messages', async () => {
  const { bus, link, owner, reconnects } = open();
  link.canPublish = false;
  owner.onRestored();
  await steadySleep(120);
  expect(reconnects()).toBe(0);
  link.canPublish = true;
  await vi.waitFor(() => expect(reconnects()).toBe(1), 20_000);
  await bus.close();
});

it('reports a gap when only the outgoing direction was closed', async () => {
  const { bus, link, reconnects } = open();
  link.canPublish = false;
  bus.publish('channel', 'lost');
  link.canPublish = true;
  await vi.waitFor(() => expect(reconnects()).toBe(1), 20_000);
  await bus.close();
});

it('reports none when a healthy server refuses a message', async () => {
  const { bus, link, reconnects } = open();
  link.failing = true;
  bus.publish('channel', 'refused');
  await steadySleep(120);
  expect(reconnects()).toBe(0);
  await bus.close();
});

it('names channels after the installation and the protocol, and reads what the version before writes', async () => {
  const { bus, owner, published } = open({ written: 2, read: [2, 1] });
  const received: string[] = [];
  const leave = await bus.subscribe('sessions', (payload, channel) => received.push(`${channel} ${payload}`));
  expect(owner.channels()).toEqual(['millrace:id:2:sessions', 'millrace:id:1:sessions']);
  owner.onMessage('millrace:id:1:sessions', Buffer.from('old'));
  owner.onMessage('millrace:id:2:sessions', Buffer.from('new'));
  owner.onMessage('sessions', Buffer.from('bare'));
  expect(received).toEqual(['sessions old', 'sessions new']);
  bus.publish('sessions', 'x');
  expect(published).toEqual(['millrace:id:2:sessions']);
  leave();
  expect(owner.channels()).toEqual([]);
  await bus.close();
});
