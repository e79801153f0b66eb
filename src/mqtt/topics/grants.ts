/**
 * Decides which filters a session may subscribe. A filter is granted, at QoS 1 at most, when it can match a topic on
 * which this session may receive messages. A filter that covers all topics of a stream switches the stream on.
 */
import { limits } from '../../base/limits.ts';
import type { Subscribe, Unsubscribe } from '../packets/subscribe.ts';
import type { Session } from '../session/session.ts';
import type { CoveredStream, StreamName } from '../session/subscriptions.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { isFilter } from '../wire/strings.ts';
import { profileStreamTopic } from './profile-topics.ts';
import { allStreamTopics, canMatch, filterCovers, streamTopics } from './stream-topics.ts';

const filterInvalid = 0x8f;
const quotaExceeded = 0x97;
const noSubscription = 0x11;
/** The only code of MQTT 3 for a refused filter. */
const failureMqtt3 = 0x80;
/** Characters of a refused filter that its sentence repeats. */
const namedFilterCharsMax = 100;

const streamEntries = Object.entries(streamTopics) as [StreamName, string[]][];

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
    const covered = kind === 'provision' ? [] : streamsOf(filter, session);
    subscriptions.add(filter, qos, covered);
    codes.push(qos);
    for (const { stream, topic } of covered) {
      subscriptions.switchOn(stream, topic);
      started.add(stream);
    }
  }
  return { codes, started: [...started], restarted: before.filter((stream) => started.has(stream)) };
}

/** Returns the sentence for the first filter that is refused; '' when none is. */
export function reasonOf(codes: number[], { filters }: Subscribe): string {
  const at = codes.findIndex((code) => code >= failureMqtt3);
  if (at < 0) return '';
  const filter = filters[at]!.filter.slice(0, namedFilterCharsMax);
  return codes[at] === quotaExceeded
    ? `The filter "${filter}" is one too many: a session has at most ${limits.mqttFiltersMax}.`
    : `The filter "${filter}" matches no topic on which this session is sent anything; check its spelling.`;
}

interface Unsubscribed {
  codes: number[];
  /** The streams that no remaining filter covers. */
  stopped: StreamName[];
}

export function unsubscribe(session: Session, { filters }: Unsubscribe, answers: readonly string[]): Unsubscribed {
  const { subscriptions } = session;
  let mayStop = false;
  const codes = filters.map((filter) => {
    const removed = subscriptions.remove(filter);
    if (removed) {
      mayStop ||= removed.length > 0;
      return 0;
    }
    return isGrantable(filter, session, answers) ? noSubscription : filterInvalid;
  });
  // A packet of a few bytes must not cost a look at all filters of the session.
  if (!mayStop) return { codes, stopped: [] };
  const left = new Map<StreamName, string>();
  for (const covered of subscriptions.covered()) for (const { stream, topic } of covered) left.set(stream, topic);
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
  const levels = filter.split('/');
  if (answers.some((topic) => canMatch(levels, topic))) return true;
  if (kind === 'provision') return false;
  return (
    allStreamTopics.some((topic) => canMatch(levels, topic)) || profileStreamTopic(profileTopics, filter) !== undefined
  );
}

/** Returns the first topic of each stream that the filter covers. */
function streamsOf(filter: string, { profileTopics }: Session): CoveredStream[] {
  const levels = filter.split('/');
  const found: CoveredStream[] = [];
  for (const [stream, topics] of streamEntries) {
    const pattern = topics.find((topic) => filterCovers(levels, topic));
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
