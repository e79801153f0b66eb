import { expect, it } from 'vitest';
import type { Operation } from '../session/operation.ts';
import type { Session } from '../session/session.ts';
import { matches } from '../session/subscriptions.ts';
import { profileOperations, profileStreamTopic } from './profile-topics.ts';

const none = { telemetry: undefined, attributes: undefined, acknowledgesInvalid: false };
const telemetry: Operation = () => {};
const attributes: Operation = () => {};

it('serves what matches the topics of the profile, and nothing else', () => {
  const f = (profileTopics: object | undefined, topic: string) => {
    const found = profileOperations(telemetry, attributes)({ profileTopics } as unknown as Session, topic);
    return found && (found === telemetry ? 'telemetry' : 'attributes');
  };
  const topics = { telemetry: 'plant/+/data/#', attributes: 'plant/+/facts', attributesSubscribe: 'plant/news' };
  expect(f(topics, 'plant/7/data/now')).toBe('telemetry');
  expect(f(topics, 'plant/7/data')).toBe('telemetry');
  expect(f(topics, 'plant/7/facts')).toBe('attributes');
  expect(f(topics, 'plant/7/8/facts')).toBeUndefined();
  expect(f(topics, 'plant/news')).toBeUndefined();
  expect(f({ ...topics, telemetry: undefined }, 'plant/7/data/now')).toBeUndefined();
  expect(f(undefined, 'plant/7/facts')).toBeUndefined();
});

it('sends shared attributes on a topic that the subscribed filter matches', () => {
  const f = (pattern: string | undefined, filter: string) => {
    const topics = { ...none, attributesSubscribe: pattern };
    const topic = profileStreamTopic(topics, filter);
    if (topic !== undefined) expect([topic, /[+#]/.test(topic), matches(filter, topic)]).toEqual([topic, false, true]);
    return topic;
  };
  expect(f('plant/news', 'plant/news')).toBe('plant/news');
  expect(f('plant/+/news', 'plant/7/news')).toBe('plant/7/news');
  expect(f('plant/+/news', 'plant/+/news')).toBe('plant/me/news');
  expect(f('plant/#', 'plant/#')).toBe('plant/me');
  expect(f('#', '#')).toBe('me');
  expect(f('plant/news', 'plant/#')).toBeUndefined();
  expect(f('x/#', `x/+/${'y'.repeat(65_530)}`)).toHaveLength(65_535);
  expect(f('x/#', `x/+/${'y'.repeat(65_531)}`)).toBeUndefined();
  expect(f('x/#', `x/+/${'ü'.repeat(32_766)}`)).toBeUndefined();
  expect(f('x/#', `x${'/+'.repeat(127)}`)).toBe(`x${'/me'.repeat(127)}`);
  expect(f('x/#', `x${'/+'.repeat(128)}`)).toBeUndefined();
  expect(f('plant/+/news', 'plant/7/8/news')).toBeUndefined();
  expect(f(undefined, 'plant/news')).toBeUndefined();
  expect(profileStreamTopic(undefined, 'plant/news')).toBeUndefined();
});
