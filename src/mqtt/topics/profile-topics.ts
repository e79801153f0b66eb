/**
 * Topics that a device profile adds for its devices: for telemetry, attributes, and updates of shared attributes. A
 * topic may contain `+` and `#`: every matching topic is served.
 */
import { limits } from '../../base/limits.ts';
import type { ProfileTopics } from '../../device/model/profile-topics.ts';
import type { Operation } from '../session/operation.ts';
import { matches } from '../session/subscriptions.ts';
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

/**
 * Returns the topic on which shared attributes are sent after a subscription to `filter`; undefined unless the profile
 * names `filter`.
 */
export function profileStreamTopic(topics: ProfileTopics | undefined, filter: string): string | undefined {
  const pattern = topics?.attributesSubscribe;
  if (pattern === undefined || !(filter === pattern || matches(pattern, filter))) return undefined;
  const levels = filter.split('/');
  // Every message to the client is matched against all filters of its session, level by level.
  if (levels.length > limits.mqttFilterLevelsMax) return undefined;
  // Wildcards of a profile's filter let the device choose these levels; a subscription with wildcards gets `me` there.
  const topic = levels.map((level) => (level === '+' || level === '#' ? 'me' : level)).join('/');
  // The topic may be longer than the filter, and too long for a PUBLISH.
  return Buffer.byteLength(topic) <= topicBytesMax ? topic : undefined;
}
