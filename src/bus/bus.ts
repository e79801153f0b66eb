/**
 * Messages between processes: at most once, in order for each channel and sender, also to the sender's own subscribers.
 * Two implementations: redis.ts (several hosts), ipc.ts (one host). Without the bus commands may be lost; ingest
 * continues.
 */
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Scheduler } from '../base/scheduler.ts';

/**
 * Throws `UnreadMessage` (messages.ts) for a message that it does not understand. The bus waits for no result; a
 * promise that rejects counts as an error that was thrown.
 */
export type Handler = (payload: Buffer, channel: string) => unknown;

export interface Bus {
  /** Neither waits nor throws: a message that cannot be sent now is dropped and counted. */
  publish(channel: string, payload: Buffer | string): void;
  /**
   * Resolves when later messages arrive here. Resolves after a second in any case: the bus is then unavailable, and the
   * reconnect callback runs when messages arrive again. The handler is called until the returned function is called.
   */
  subscribe(channel: string, handler: Handler): Promise<() => void>;
  /**
   * `callback` runs when messages to or from this process may have been lost, all subscriptions are active and there is
   * room again: read state again and publish it again then.
   */
  onReconnect(callback: () => void): void;
  readonly connected: boolean;
  /**
   * True over Redis: members are workers of several hosts, with clocks of their own, and a channel for each of a
   * million devices is cheap. Else all are processes of one host, and few channels with larger messages are cheaper.
   */
  readonly spansHosts?: boolean | undefined;
  /** Published messages that the other side has not taken. Above `busMessagesInFlightMax` further ones are dropped. */
  readonly inFlight?: number | undefined;
  /** Why there is no connection; undefined while there is one, or when none is needed. */
  readonly failure?: string | undefined;
  close(): Promise<void>;
}

export interface BusCounters {
  published: Counter;
  delivered: Counter;
  dropped: Counter;
  unread: Counter;
  bugs: Counter;
  gaps: Counter;
  log: Log | undefined;
}

export function busCounters(metrics: Metrics, log?: Log): BusCounters {
  return {
    log,
    unread: metrics.counter(
      'bus_unread_total',
      'Messages of the bus that were dropped because they could not be read: of another version, or not of Millrace.',
    ),
    bugs: metrics.counter('bus_bugs_total', 'Messages of the bus whose handler threw an error, which is a bug.'),
    gaps: metrics.counter(
      'bus_gaps_total',
      'Times at which a process may have lost messages of the bus. It repeats its state then: at first at once, under a flood at most every 20 s.',
    ),
    published: metrics.counter('bus_published_total', 'Messages given to the bus.'),
    delivered: metrics.counter('bus_delivered_total', 'Messages handed to subscribers.'),
    dropped: metrics.counter(
      'bus_dropped_total',
      'Messages that the bus dropped because it was full or not connected, or they were too large.',
    ),
  };
}

/**
 * Reports the gaps of a bus: moments after which this process repeats its state. A bus that overflows has many gaps a
 * second, and each report makes further messages. So a pause follows each report: a short one at first, twice as long
 * after each further report. Gaps in a pause are reported once, at its end.
 */
export class GapReports {
  readonly #counters: BusCounters;
  readonly #scheduler: Scheduler;
  readonly #callbacks: (() => void)[] = [];
  #pauseMs = 0;
  #isPaused = false;
  /** True when a gap waits for the end of the pause. */
  #isDue = false;
  /** Stops the timer that ends the pause, or begins with short pauses again. */
  #stopTimer = () => {};
  #isClosed = false;

  constructor(counters: BusCounters, scheduler: Scheduler) {
    this.#counters = counters;
    this.#scheduler = scheduler;
  }

  onGap(callback: () => void): void {
    this.#callbacks.push(callback);
  }

  /** `lost`: messages that were dropped because a queue was full; 0 when their number is not known. */
  report(lost = 0): void {
    if (this.#isClosed) return;
    this.#counters.gaps.add(1);
    if (lost > 0) this.#counters.log?.warn('bus_messages_lost', { messages: lost });
    if (this.#isPaused) this.#isDue = true;
    else this.#call();
  }

  close(): void {
    this.#isClosed = true;
    this.#stopTimer();
  }

  #call(): void {
    const { busGapPauseMsMin, busGapPauseMsMax } = limits;
    this.#isPaused = true;
    this.#isDue = false;
    this.#pauseMs = Math.min(Math.max(2 * this.#pauseMs, busGapPauseMsMin), busGapPauseMsMax);
    this.#stopTimer();
    this.#stopTimer = this.#scheduler.after(this.#pauseMs, () => this.#endPause());
    for (const callback of this.#callbacks) callback();
  }

  #endPause(): void {
    this.#isPaused = false;
    if (this.#isDue) {
      this.#call();
    } else {
      this.#stopTimer = this.#scheduler.after(limits.busGapPauseMsMax, () => {
        this.#pauseMs = 0;
      });
    }
  }
}

/**
 * Drops messages that are too large at their sender, where the log names their channel. Such a message would fill the
 * buffers of every process between the sender and the subscribers, and Redis disconnects a subscriber for that.
 */
export class SizeCheck {
  readonly #counters: BusCounters;
  /** Monotonic time of the last log line. */
  #loggedAt = Number.NEGATIVE_INFINITY;

  constructor(counters: BusCounters) {
    this.#counters = counters;
  }

  /** Returns false for a message that was counted and must not be sent. */
  admits(channel: string, payload: Buffer | string): boolean {
    const { length } = payload;
    const { busSentCharsMax: most, busUnreadLogMs } = limits;
    if (length <= most) return true;
    const { dropped, log } = this.#counters;
    dropped.add(1);
    const now = performance.now();
    if (now - this.#loggedAt >= busUnreadLogMs) {
      this.#loggedAt = now;
      log?.error('bus_message_too_large', { channel, length, reason: `a message has at most ${most} characters` });
    }
    return false;
  }
}
