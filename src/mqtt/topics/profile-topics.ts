/**
 * Topics that a device profile adds for its devices: for telemetry and attributes, and for updates of shared
 * attributes. The topics may hold `+` and `#`: every topic that matches is served.
 */
import { limits } from '../../base/limits.ts';
import type { ProfileTopics } from '../../device/profile-topics.ts';
import type { Operation } from '../operation.ts';
import { matches } from '../subscriptions.ts';
import type { ProfileOperation } from './table.ts';

/** Bytes of a string in a packet [MQTT-1.5.4]. */
const topicBytesMax = 65_535;

export function profileOperations(telemetry: Operation, attributes: Operation): ProfileOperation {
  return ({ profileTopics: topics }, topic) => {
    if (topics === undefined) return undefined;
    if (topics.telemetry !== undefined && matches(topics.telemetry, topic)) return telemetry;
    if (topics.attributes !== undefined && matches(topics.attributes, topic)) return attributes;
    return undefined;
  };
}

/** Returns where shared attributes go when a device subscribes to `filter`; undefined unless its profile names that. */
export function profileStreamTopic(topics: ProfileTopics | undefined, filter: string): string | undefined {
  const pattern = topics?.attributesSubscribe;
  if (pattern === undefined || !(filter === pattern || matches(pattern, filter))) return undefined;
  const levels = filter.split('/');
  // Every message down is matched against all filters of its session, level by level.
  if (levels.length > limits.mqttFilterLevelsMax) return undefined;
  // A profile that leaves levels open lets the device choose them; one that subscribes them open gets `me`.
  const topic = levels.map((level) => (level === '+' || level === '#' ? 'me' : level)).join('/');
  // The topic may be longer than the filter, and longer than a PUBLISH can have it.
  return Buffer.byteLength(topic) <= topicBytesMax ? topic : undefined;
}
