/**
 * The bus over Redis pub/sub. Unanswered messages are bounded, and nothing is queued while Redis is unavailable. The
 * connections are a `RedisLink`: redis-single.ts for one server, redis-cluster.ts for a cluster. Channels carry the id
 * of the installation, because Redis' pub/sub knows no database numbers, and the number of the protocol.
 */
import type { RedisOptions } from 'ioredis';
import { type Clock, systemClock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { type Bus, type BusCounters, GapReports, type Handler, SizeCheck } from './bus.ts';
import { SubscriptionBatches } from './subscription-batches.ts';
import { ChannelSubscriptions } from './subscriptions.ts';

export interface RedisLink {
  readonly canPublish: boolean;
  /** Every channel with a listener is subscribed. */
  readonly restored: boolean;
  /** The last error of a connection, also after it is connected again. */
  readonly failure: string | undefined;
  publish(channel: string, payload: Buffer | string): Promise<unknown>;
  /**
   * Subscribes to the channels `entered` and leaves the channels `left`; no channel is in both lists. Never rejects:
   * the next restore makes the subscriptions that cannot be made now.
   */
  change(entered: string[], left: string[]): Promise<void>;
  close(): void;
}

/** The interface of a link to its bus. */
export interface LinkOwner {
  channels(): string[];
  /** True while the channel has a listener. */
  has(channel: string): boolean;
  onMessage(channel: string, payload: Buffer): void;
  /** Called when all subscriptions are active again after messages may have been missed. */
  onRestored(): void;
  log: Log;
}

/** The names of channels on the wire. */
interface ChannelNames {
  /** The prefix for publishing. */
  written: string;
  /** The prefixes for subscribing. */
  read: string[];
}

/**
 * The protocol of the bus. A change of a message's shape needs a new number; added members do not. A version that
 * introduces number N reads N and N - 1 and still writes N - 1; the next version writes N. So hosts of two successive
 * versions understand each other (docs/releases.md).
 */
export const busProtocol = { written: 1, read: [1] };

export function channelNames(installation: string, protocol = busProtocol): ChannelNames {
  const prefix = (number: number) => `millrace:${installation}:${number}:`;
  return { written: prefix(protocol.written), read: protocol.read.map(prefix) };
}

const gapCheckMs = 50;

interface RedisBusTime {
  clock?: Pick<Clock, 'monotonic'>;
  scheduler?: Scheduler;
}

export class RedisBus implements Bus {
  readonly spansHosts = true;
  readonly #link: RedisLink;
  readonly #subscriptions: ChannelSubscriptions;
  readonly #batches: SubscriptionBatches;
  readonly #counters: BusCounters;
  readonly #size: SizeCheck;
  readonly #names: ChannelNames;
  readonly #gaps: GapReports;
  #messagesInFlight = 0;
  #bytesInFlight = 0;
  /** Messages for which there was no room, since the last gap was reported. */
  #lost = 0;
  #closed = false;
  readonly #scheduler: Scheduler;
  /** Ends the checks that run from a gap until the callbacks have run. */
  #endGapChecks: (() => void) | undefined;

  constructor(
    openLink: (owner: LinkOwner) => RedisLink,
    counters: BusCounters,
    log: Log,
    names: ChannelNames,
    { clock = systemClock, scheduler = systemScheduler }: RedisBusTime = {},
  ) {
    this.#names = names;
    this.#scheduler = scheduler;
    this.#counters = counters;
    this.#size = new SizeCheck(counters);
    this.#gaps = new GapReports(counters, scheduler);
    this.#subscriptions = new ChannelSubscriptions(counters);
    this.#link = openLink({
      channels: () => this.#subscriptions.channels(),
      has: (channel) => this.#subscriptions.has(channel),
      onMessage: (channel, payload) => this.#subscriptions.deliver(channel, payload),
      onRestored: () => this.#missed(),
      log,
    });
    this.#batches = new SubscriptionBatches((entered, left) => this.#link.change(entered, left), clock, scheduler);
  }

  get connected(): boolean {
    return this.#link.canPublish && this.#link.restored;
  }

  get inFlight(): number {
    return this.#messagesInFlight;
  }

  get failure(): string | undefined {
    return this.connected ? undefined : (this.#link.failure ?? 'not connected yet');
  }

  publish(channel: string, payload: Buffer | string): void {
    if (!this.#size.admits(channel, payload)) return;
    const name = this.#names.written + channel;
    const bytes = name.length + payload.length;
    const full =
      this.#messagesInFlight >= limits.busMessagesInFlightMax ||
      (this.#messagesInFlight > 0 && this.#bytesInFlight + bytes > limits.busBytesInFlightMax);
    if (full || !this.#link.canPublish) {
      this.#counters.dropped.add(1);
      if (!this.#link.canPublish) this.#missed();
      else this.#lost += 1;
      return;
    }
    this.#counters.published.add(1);
    this.#messagesInFlight += 1;
    this.#bytesInFlight += bytes;
    const settle = () => {
      this.#messagesInFlight -= 1;
      this.#bytesInFlight -= bytes;
      if (this.#lost > 0 && this.#hasRoom) this.#missed();
    };
    this.#link.publish(name, payload).then(settle, () => {
      settle();
      this.#counters.dropped.add(1);
      // A healthy server refused the message: repeating all state would be refused again.
      if (!this.#link.canPublish) this.#missed();
    });
  }

  async subscribe(channel: string, handler: Handler): Promise<() => void> {
    // Each call adds a separate listener, even for the same function.
    const listener: Handler = (payload) => handler(payload, channel);
    const { read } = this.#names;
    const active = read.map((prefix) => {
      this.#subscriptions.add(prefix + channel, listener);
      // Repeated for a further listener: nothing changes at the server, and the answer proves that the subscription is
      // active.
      return this.#batches.enter(prefix + channel);
    });
    await Promise.all(active);
    return () => {
      for (const prefix of read) {
        const name = prefix + channel;
        if (this.#subscriptions.remove(name, listener)) this.#batches.leave(name);
      }
    };
  }

  onReconnect(callback: () => void): void {
    this.#gaps.onGap(callback);
  }

  /** Room for what is repeated after a gap. */
  get #hasRoom(): boolean {
    const { busMessagesInFlightMax, busBytesInFlightMax } = limits;
    return this.#messagesInFlight <= busMessagesInFlightMax / 2 && this.#bytesInFlight <= busBytesInFlightMax / 2;
  }

  /**
   * Messages may have been missed or not sent. The callbacks publish state again, so they run when both connections
   * work: the subscriber may be back before the publisher.
   */
  #missed(): void {
    if (this.#endGapChecks !== undefined || this.#closed) return;
    const tell = () => {
      if (!this.connected || this.#endGapChecks === undefined) return;
      this.#endGapChecks();
      this.#endGapChecks = undefined;
      const lost = this.#lost;
      this.#lost = 0;
      this.#gaps.report(lost);
    };
    this.#endGapChecks = this.#scheduler.every(gapCheckMs, tell);
    this.#scheduler.soon(tell);
  }

  async close(): Promise<void> {
    this.#endGapChecks?.();
    this.#closed = true;
    this.#gaps.close();
    this.#link.close();
  }
}

/**
 * A connection that does not answer within a second is cut, so that a silent server costs one second of messages and
 * bounded memory. Links ping each second, so that a server without messages answers, too.
 */
export function connectionOptions(role: string) {
  return {
    connectionName: `millrace-${role}`,
    connectTimeout: limits.busTimeoutMs,
    socketTimeout: limits.busTimeoutMs,
    // Delivery is at most once: no message is repeated. The link restores subscriptions and then reports.
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
  } satisfies RedisOptions;
}

/** Pings the connections that are up. Any answer is enough: without one, `socketTimeout` cuts the connection. */
export function pingReady(connections: Iterable<{ readonly status: string; ping(): Promise<unknown> }>): void {
  for (const connection of connections) {
    if (connection.status === 'ready') connection.ping().catch(() => {});
  }
}
