/**
 * The listeners of this process by channel; every bus has one such table. A message reaches all workers of all hosts
 * within a millisecond, so no message may end a process: a message that a handler cannot read is counted and dropped,
 * even when the cause is a bug.
 */
import { limits } from '../base/limits.ts';
import type { BusCounters, Handler } from './bus.ts';
import { UnreadMessage } from './messages.ts';

export class ChannelSubscriptions {
  /** Nearly every channel has one handler. */
  readonly #handlers = new Map<string, Handler | Set<Handler>>();
  readonly #counters: BusCounters;
  /** Monotonic time of the last log line about a message that was not read. */
  #loggedAt = Number.NEGATIVE_INFINITY;

  constructor(counters: BusCounters) {
    this.#counters = counters;
  }

  add(channel: string, handler: Handler): void {
    const known = this.#handlers.get(channel);
    if (known instanceof Set) known.add(handler);
    else this.#handlers.set(channel, known ? new Set([known, handler]) : handler);
  }

  /** True when the channel has no listener any more. */
  remove(channel: string, handler: Handler): boolean {
    const known = this.#handlers.get(channel);
    if (known instanceof Set) {
      if (!known.delete(handler) || known.size > 0) return false;
    } else if (known !== handler) return false;
    this.#handlers.delete(channel);
    return true;
  }

  has(channel: string): boolean {
    return this.#handlers.has(channel);
  }

  channels(): string[] {
    return [...this.#handlers.keys()];
  }

  /** Drops a message for a channel that was just left. */
  deliver(channel: string, payload: Buffer): void {
    const known = this.#handlers.get(channel);
    if (!known) return;
    this.#counters.delivered.add(1);
    for (const handler of known instanceof Set ? [...known] : [known]) {
      try {
        const handled = handler(payload, channel);
        if (handled instanceof Promise) {
          handled.catch((error: unknown) => this.#dropped(channel, payload.length, error));
        }
      } catch (error) {
        this.#dropped(channel, payload.length, error);
      }
    }
  }

  #dropped(channel: string, bytes: number, error: unknown): void {
    const { unread, bugs, log } = this.#counters;
    const isUnread = error instanceof UnreadMessage;
    (isUnread ? unread : bugs).add(1);
    const now = performance.now();
    if (now - this.#loggedAt < limits.busUnreadLogMs) return;
    this.#loggedAt = now;
    if (isUnread) log?.warn('bus_message_unread', { channel, bytes, reason: error.message });
    else log?.error('bus_bug', { channel, bytes, error });
  }
}
