import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics.ts';
import { busCounters } from './bus.ts';
import { type LinkOwner, RedisBus } from './redis.ts';

function open() {
  const link = {
    canPublish: true,
    restored: true,
    failing: false,
    publish: async () => {
      if (link.failing) throw new Error('refused');
    },
    subscribe: async () => {},
    unsubscribe: () => {},
    close: () => {},
  };
  let owner!: LinkOwner;
  const openLink = (given: LinkOwner) => {
    owner = given;
    return link;
  };
  const bus = new RedisBus(openLink, busCounters(new Metrics()), createLog('error', 'test'));
  let told = 0;
  bus.onReconnect(() => {
    told += 1;
  });
  return { bus, link, owner, told: () => told };
}

it('tells of a gap when both ways are open again: who is told must be heard', async () => {
  const { bus, link, owner, told } = open();
  link.canPublish = false;
  owner.onRestored();
  await sleep(120);
  expect(told()).toBe(0);
  link.canPublish = true;
  await sleep(120);
  expect(told()).toBe(1);
  await bus.close();
});

it('tells of a gap when only the way out was closed', async () => {
  const { bus, link, told } = open();
  link.canPublish = false;
  bus.publish('channel', 'lost');
  link.canPublish = true;
  await sleep(120);
  expect(told()).toBe(1);
  await bus.close();
});

it('is not told when a healthy server refuses a message', async () => {
  const { bus, link, told } = open();
  link.failing = true;
  bus.publish('channel', 'refused');
  await sleep(120);
  expect(told()).toBe(0);
  await bus.close();
});
