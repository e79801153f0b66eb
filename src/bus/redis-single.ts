/**
 * The link to one Redis server at a time: a connection to publish and one to subscribe. Both reconnect by themselves;
 * with Sentinels they connect to the server that is the master then.
 */
import { Redis } from 'ioredis';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { connectionOptions, type LinkOwner, pingReady, type RedisLink } from './redis.ts';
import type { ServerAddress } from './redis-address.ts';
import { redisFailureOf } from './redis-failure.ts';
import { channelsPerCommand } from './subscription-batches.ts';

const reconnectMs = 50;

/** What a link uses of a connection of ioredis. */
export interface RedisConnection {
  readonly status: string;
  readonly stream: { cork(): void; uncork(): void };
  on(event: 'error', listener: (error: Error) => void): unknown;
  on(event: 'ready' | 'close' | 'end', listener: () => void): unknown;
  on(event: 'messageBuffer', listener: (channel: Buffer, payload: Buffer) => void): unknown;
  connect(): Promise<unknown>;
  disconnect(reconnect?: boolean): void;
  ping(): Promise<unknown>;
  publish(channel: string, payload: Buffer | string): Promise<unknown>;
  subscribe(...channels: string[]): Promise<unknown>;
  unsubscribe(...channels: string[]): Promise<unknown>;
}

interface SingleLinkDeps {
  connect?: (server: ServerAddress, role: 'publish' | 'subscribe') => RedisConnection;
  scheduler?: Scheduler;
}

export class SingleLink implements RedisLink {
  readonly #publisher: RedisConnection;
  readonly #subscriber: RedisConnection;
  readonly #owner: LinkOwner;
  readonly #scheduler: Scheduler;
  readonly #endHeartbeat: () => void;
  #isCorked = false;
  #wasRestored = false;
  #closed = false;
  restored = false;
  failure: string | undefined;

  constructor(
    server: ServerAddress,
    owner: LinkOwner,
    { connect = connectTo, scheduler = systemScheduler }: SingleLinkDeps = {},
  ) {
    this.#owner = owner;
    this.#scheduler = scheduler;
    this.#publisher = connect(server, 'publish');
    this.#subscriber = connect(server, 'subscribe');
    for (const redis of [this.#publisher, this.#subscriber]) {
      redis.on('error', (error: Error) => {
        this.failure = redisFailureOf(error);
      });
      redis.on('end', () => this.#connectAgain(redis));
    }
    this.#subscriber.on('messageBuffer', (channel: Buffer, payload: Buffer) => {
      owner.onMessage(channel.toString(), payload);
    });
    this.#subscriber.on('ready', () => void this.#restore());
    this.#subscriber.on('close', () => {
      this.restored = false;
    });
    this.#endHeartbeat = scheduler.every(limits.busTimeoutMs, () => pingReady([this.#publisher, this.#subscriber]));
  }

  get canPublish(): boolean {
    return this.#publisher.status === 'ready';
  }

  publish(channel: string, payload: Buffer | string): Promise<unknown> {
    if (!this.#isCorked) this.#cork();
    return this.#publisher.publish(channel, payload);
  }

  /** Does nothing without a connection: the next one restores all subscriptions. */
  async change(entered: string[], left: string[]): Promise<void> {
    if (this.#subscriber.status !== 'ready') return;
    const answers: Promise<unknown>[] = [];
    if (left.length > 0) answers.push(this.#subscriber.unsubscribe(...left));
    if (entered.length > 0) answers.push(this.#subscriber.subscribe(...entered));
    await Promise.allSettled(answers);
  }

  close(): void {
    this.#closed = true;
    this.#endHeartbeat();
    this.#publisher.disconnect();
    this.#subscriber.disconnect();
  }

  /** Lets the messages that are published together leave in one write: ioredis writes each one. */
  #cork(): void {
    const { stream } = this.#publisher;
    this.#isCorked = true;
    stream.cork();
    process.nextTick(() => {
      this.#isCorked = false;
      stream.uncork();
    });
  }

  /**
   * ioredis ends a connection for good when Sentinels report a new master at the moment at which ioredis asks them for
   * the master (failoverDetector). A connect that fails ends the connection again, which repeats this.
   */
  #connectAgain(redis: RedisConnection): void {
    if (this.#closed) return;
    this.#scheduler.after(reconnectMs, () => {
      if (!this.#closed) redis.connect().catch(() => {});
    });
  }

  /** Subscribes to all channels after every connect. A subscription that is requested meanwhile is sent after these. */
  async #restore(): Promise<void> {
    const channels = this.#owner.channels();
    const missed = this.#wasRestored || channels.length > 0;
    try {
      for (let i = 0; i < channels.length; i += channelsPerCommand) {
        // A channel that was left meanwhile has been unsubscribed before this command.
        const next = channels.slice(i, i + channelsPerCommand).filter((channel) => this.#owner.has(channel));
        if (next.length > 0) await this.#subscriber.subscribe(...next);
      }
    } catch {
      // A lost connection repeats this at its next `ready`. A refusal (ACL) cuts the connection, so that the next one
      // tries again.
      if (this.#subscriber.status === 'ready') this.#subscriber.disconnect(true);
      return;
    }
    this.restored = true;
    this.#wasRestored = true;
    this.#owner.log.info('bus_connected', { channels: channels.length });
    if (missed) this.#owner.onRestored();
  }
}

function connectTo(server: ServerAddress, role: string): Redis {
  const retry = (attempt: number) => Math.min(50 * attempt, limits.busTimeoutMs);
  return new Redis({
    ...connectionOptions(role),
    ...server,
    enableOfflineQueue: false,
    // The next Sentinel is asked when one does not answer in time.
    sentinelCommandTimeout: limits.busTimeoutMs,
    retryStrategy: retry,
    sentinelRetryStrategy: retry,
  });
}
