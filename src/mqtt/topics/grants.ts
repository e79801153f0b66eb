/**
 * Decides which filters a session may subscribe. A filter is granted, at QoS 1 at most, when it can match a topic on
 * which this session may receive messages. A filter that covers all topics of a stream switches the stream on.
 */
import { limits } from '../../base/limits.ts';
import type { Subscribe, Unsubscribe } from '../packets/subscribe.ts';
import type { Session } from '../session/session.ts';
import type { StreamName } from '../session/subscriptions.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { isFilter } from '../wire/strings.ts';
import { profileStreamTopic } from './profile-topics.ts';
import { canMatch, filterCovers, streamTopics } from './stream-topics.ts';

const filterInvalid = 0x8f;
const quotaExceeded = 0x97;
const noSubscription = 0x11;
/** The only code of MQTT 3 for a refused filter. */
const failureMqtt3 = 0x80;

interface Subscribed {
  /** A reason code for each filter, in order. */
  codes: number[];
  /** The streams that these filters switched on, including streams that were on earlier. */
  started: StreamName[];
  /** The streams of `started` that were on earlier. */
  restarted: StreamName[];
}

/** `answers`: patterns of the topics on which the session is answered. */
export function subscribe(session: Session, { filters }: Subscribe, answers: readonly string[]): Subscribed {
  const { subscriptions, kind, level } = session;
  const codes: number[] = [];
  const started = new Set<StreamName>();
  const before = subscriptions.streams();
  for (const { filter, qos } of filters) {
    if (!isGrantable(filter, session, answers)) {
      codes.push(level === 5 ? filterInvalid : failureMqtt3);
      continue;
    }
    if (!subscriptions.has(filter) && subscriptions.size >= limits.mqttFiltersMax) {
      codes.push(level === 5 ? quotaExceeded : failureMqtt3);
      continue;
    }
    subscriptions.add(filter, qos);
    codes.push(qos);
    if (kind === 'provision') continue;
    for (const { stream, topic } of streamsOf(filter, session)) {
      subscriptions.switchOn(stream, topic);
      started.add(stream);
    }
  }
  return { codes, started: [...started], restarted: before.filter((stream) => started.has(stream)) };
}

interface Unsubscribed {
  codes: number[];
  /** The streams that no remaining filter covers. */
  stopped: StreamName[];
}

export function unsubscribe(session: Session, { filters }: Unsubscribe, answers: readonly string[]): Unsubscribed {
  const { subscriptions } = session;
  const codes = filters.map((filter) => {
    if (subscriptions.remove(filter)) return 0;
    return isGrantable(filter, session, answers) ? noSubscription : filterInvalid;
  });
  const left = new Map<StreamName, string>();
  for (const filter of subscriptions.filters()) {
    for (const { stream, topic } of streamsOf(filter, session)) left.set(stream, topic);
  }
  const stopped: StreamName[] = [];
  for (const stream of subscriptions.streams()) {
    const topic = left.get(stream);
    if (topic !== undefined) {
      subscriptions.switchOn(stream, topic);
    } else {
      subscriptions.switchOff(stream);
      stopped.push(stream);
    }
  }
  return { codes, stopped };
}

function isGrantable(filter: string, { kind, profileTopics }: Session, answers: readonly string[]): boolean {
  if (!isFilter(filter) || filter.startsWith('$')) return false;
  if (answers.some((topic) => canMatch(filter, topic))) return true;
  if (kind === 'provision') return false;
  const streams = Object.values(streamTopics).flat();
  return streams.some((topic) => canMatch(filter, topic)) || profileStreamTopic(profileTopics, filter) !== undefined;
}

/** Returns the first topic of each stream that the filter covers. */
function streamsOf(filter: string, { profileTopics }: Session): { stream: StreamName; topic: string }[] {
  const found: { stream: StreamName; topic: string }[] = [];
  for (const [stream, topics] of Object.entries(streamTopics) as [StreamName, string[]][]) {
    const pattern = topics.find((topic) => filterCovers(filter, topic));
    const ofProfile = stream === 'attributes' ? profileStreamTopic(profileTopics, filter) : undefined;
    const topic = pattern?.replace(/\+$/, '') ?? ofProfile;
    if (topic !== undefined) found.push({ stream, topic });
  }
  return found;
}

/** Refuses all filters, because the device has sent too many messages. */
export function subscribeRefused(level: ProtocolLevel, filters: number): number[] {
  return new Array<number>(filters).fill(level === 5 ? quotaExceeded : failureMqtt3);
}
