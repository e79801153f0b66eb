import { expect, test } from 'vitest';
import { exchangeOf } from '../../test/harness/exchange.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { type SharedGroup, SharedLimits } from './shared-limits.ts';

const bus: Bus = {
  connected: true,
  publish() {},
  subscribe: async () => () => {},
  onReconnect() {},
  close: async () => {},
};

const ownersMax = 10_000;
const groupNames = ['device', 'tenant'] as const;

function open() {
  const exchange = exchangeOf(bus, 2, true);
  const groups = new Map<string, SharedGroup>();
  const shared = new SharedLimits({
    exchange,
    topic: 'limits',
    groups: groupNames,
    kinds: 1,
    find: (group) => groups.get(group),
    all: () => groups.values(),
    clock,
  });
  const buckets = [{ kind: 0, capacity: 100, seconds: 1 }];
  for (const name of groupNames) groups.set(name, shared.makeGroup(name, '', buckets, ownersMax));
  return { exchange, shared, groups };
}

function take({ buckets }: SharedGroup, owner: number | string): void {
  buckets.take(buckets.use(owner, clock.monotonic()), [1]);
}

test('each report has the tenants, however many devices are due, and all of its room is used', () => {
  const { exchange, shared, groups } = open();
  const devices = 2 * limits.rateLimitOwnersPerMessage;
  for (let device = 0; device < devices; device += 1) take(groups.get('device')!, device);
  take(groups.get('tenant')!, 'mill');
  const report = shared.collect();
  expect(report.filter(([group]) => group === 'tenant')).toEqual([['tenant', '', 'mill', 'taken', [1]]]);
  expect(report).toHaveLength(limits.rateLimitOwnersPerMessage);
  const rest = [shared.collect().length, shared.collect().length, shared.collect().length];
  expect(rest).toEqual([limits.rateLimitOwnersPerMessage, 1, 0]);
  exchange.stop();
});

test('each announcement has the tenants, however many devices have changed', () => {
  const { exchange, shared } = open();
  const count = (group: string, owner: number | string) => {
    for (const worker of ['a', 'b']) shared.count([group, '', owner, 'taken', [1]], worker);
  };
  for (let device = 0; device < 2 * limits.homeSumsMax; device += 1) count('device', device);
  count('tenant', 'mill');
  const sums = shared.sums(limits.homeSumsMax);
  expect(sums.filter(([group]) => group === 'tenant').map(([, , owner]) => owner)).toEqual(['mill']);
  expect(sums).toHaveLength(limits.homeSumsMax);
  exchange.stop();
});

test('no more owners wait for a report than a worker remembers, and one that waited in vain reports later', () => {
  const { exchange, shared, groups } = open();
  const group = groups.get('device')!;
  for (let device = 0; device <= ownersMax; device += 1) take(group, device);
  expect(group.buckets.reportsDue).toBe(ownersMax);
  while (shared.collect().length > 0);
  take(group, ownersMax);
  expect(shared.collect()).toEqual([['device', '', ownersMax, 'taken', [2]]]);
  exchange.stop();
});
