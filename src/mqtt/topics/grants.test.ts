import { expect, test } from 'vitest';
import { cpuMs } from '../../../test/harness/cpu-time.ts';
import { limits } from '../../base/limits.ts';
import type { Session } from '../session/session.ts';
import { Subscriptions } from '../session/subscriptions.ts';
import { subscribe, unsubscribe } from './grants.ts';

const answers = [
  ...['v1/devices/me/attributes/response/+', 'v1/devices/me/rpc/response/+', 'v2/a/res/+', 'v2/r/res/+'],
  ...['v2/fw/response/+/chunk/+', 'v2/sw/response/+/chunk/+', 'v1/gateway/attributes/response', '/provision/response'],
];
const newSession = () =>
  ({ subscriptions: new Subscriptions(), kind: 'device', level: 5, profileTopics: undefined }) as unknown as Session;
const add = (session: Session, ...filters: string[]) =>
  subscribe(session, { packetId: 1, filters: filters.map((filter) => ({ filter, qos: 1 })) }, answers);
const remove = (session: Session, ...filters: string[]) => unsubscribe(session, { packetId: 1, filters }, answers);

/** The number of these packets that fit into the bytes that a worker reads at once. */
const packets = 9_000;

test('packets of a few bytes cost little, also with as many filters as a session may have', () => {
  const session = newSession();
  for (let i = 0; i < limits.mqttFiltersMax; i += 1) add(session, `v1/devices/me/attributes/response/${i}`);
  const startedAt = cpuMs();
  for (let i = 0; i < packets; i += 1) expect(remove(session, 'a').codes[0]).toBe(0x8f);
  for (let i = 0; i < packets; i += 1) {
    add(session, 'v1/devices/me/attributes/response/0');
    expect(remove(session, 'v1/devices/me/attributes/response/0').codes[0]).toBe(0);
  }
  for (let i = 0; i < packets; i += 1) {
    add(session, 'v1/devices/me/attributes');
    expect(remove(session, 'v1/devices/me/attributes')).toEqual({ codes: [0], stopped: ['attributes'] });
  }
  // A search through all filters for each packet would take ten seconds.
  expect(cpuMs() - startedAt).toBeLessThan(5000);
});

test('a stream stops with the last filter that covers it', () => {
  const session = newSession();
  expect(add(session, 'v1/devices/me/attributes', 'v1/devices/me/+', 'v2/a', 'x').codes).toEqual([1, 1, 1, 0x8f]);
  expect(session.subscriptions.topicOf('attributes')).toBe('v2/a');
  expect(remove(session, 'v2/a').stopped).toEqual([]);
  expect(session.subscriptions.topicOf('attributes')).toBe('v1/devices/me/attributes');
  expect(remove(session, 'v2/r/req/+', 'v1/devices/me/attributes')).toEqual({ codes: [0x11, 0], stopped: [] });
  expect(remove(session, 'v1/devices/me/+')).toEqual({ codes: [0], stopped: ['attributes'] });
});
