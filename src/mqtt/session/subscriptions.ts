/**
 * The subscriptions of one session: filters with their granted QoS, and the streams that they switch on. A stream is on
 * when a filter covers every topic of the stream. Of several topic families only the one subscribed last is used.
 */
import type { QoS } from '../wire/protocol.ts';

export type StreamName = 'attributes' | 'rpc' | 'gateway-attributes' | 'gateway-rpc';

/** A stream that a filter covers, with its topic (`topicOf`). */
export interface CoveredStream {
  stream: StreamName;
  topic: string;
}

interface Subscription {
  qos: QoS;
  covered: readonly CoveredStream[];
}

export class Subscriptions {
  readonly #filters = new Map<string, Subscription>();
  readonly #streams = new Map<StreamName, string>();

  get size(): number {
    return this.#filters.size;
  }

  has(filter: string): boolean {
    return this.#filters.has(filter);
  }

  add(filter: string, qos: QoS, covered: readonly CoveredStream[]): void {
    this.#filters.delete(filter);
    this.#filters.set(filter, { qos, covered });
  }

  /** Returns the streams that the filter covered; undefined when there was no such subscription. */
  remove(filter: string): readonly CoveredStream[] | undefined {
    const covered = this.#filters.get(filter)?.covered;
    this.#filters.delete(filter);
    return covered;
  }

  /** Returns the QoS for messages on `topic`: that of the matching filter subscribed last, or 1 when none matches. */
  qosOf(topic: string): QoS {
    let granted: QoS = 1;
    for (const [filter, { qos }] of this.#filters) if (matches(filter, topic)) granted = qos;
    return granted;
  }

  /** True when a filter matches `topic`. */
  covers(topic: string): boolean {
    for (const filter of this.#filters.keys()) if (matches(filter, topic)) return true;
    return false;
  }

  isOn(stream: StreamName): boolean {
    return this.#streams.has(stream);
  }

  /**
   * Returns the topic of a stream that is on: the whole topic, or for `rpc` the part before the id
   * (`v1/devices/me/rpc/request/`, `v2/r/req/`, `v2/r/req/j/`).
   */
  topicOf(stream: StreamName): string {
    return this.#streams.get(stream)!;
  }

  switchOn(stream: StreamName, topic: string): void {
    this.#streams.set(stream, topic);
  }

  switchOff(stream: StreamName): void {
    this.#streams.delete(stream);
  }

  streams(): StreamName[] {
    return [...this.#streams.keys()];
  }

  /** Returns the streams that each filter covers, the filters in the order of their subscription. */
  covered(): (readonly CoveredStream[])[] {
    return Array.from(this.#filters.values(), ({ covered }) => covered);
  }
}

/** True when `filter` matches the concrete `topic`. Both are well-formed. */
export function matches(filter: string, topic: string): boolean {
  if (filter === topic) return true;
  const filterLevels = filter.split('/');
  const topicLevels = topic.split('/');
  for (let i = 0; i < filterLevels.length; i += 1) {
    const level = filterLevels[i];
    if (level === '#') return true;
    if (i >= topicLevels.length) return false;
    if (level !== '+' && level !== topicLevels[i]) return false;
  }
  return filterLevels.length === topicLevels.length;
}
