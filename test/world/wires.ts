/**
 * The wires of a world's buses: a Redis with connections that are cut and made again, and process channels of one host.
 * The messages of one channel keep their order; messages of different channels overtake each other.
 */
import { EventEmitter } from 'node:events';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { BusHub } from '../../src/bus/ipc-primary.ts';
import type { Port } from '../../src/bus/port.ts';
import type { LinkOwner, RedisLink } from '../../src/bus/redis.ts';
import { type RedisConnection, SingleLink } from '../../src/bus/redis-single.ts';
import type { Random } from '../harness/random.ts';
import { ProcessTime, type VirtualTime } from './virtual-time.ts';

/** The pause before a connection is made again that its owner has cut. */
const reconnectMs = 50;

/** The time between two messages of a channel that arrive together. */
const nextMs = 1e-4;

/** Passes messages on in their order, each after a time that the seed chooses. */
class Lane {
  readonly #random: Random;
  readonly #time: VirtualTime;
  #lastAt = 0;

  constructor(time: VirtualTime, random: Random) {
    this.#time = time;
    this.#random = random;
  }

  pass(msMax: number, arrive: () => void): void {
    this.#lastAt = Math.max(this.#lastAt + nextMs, this.#time.passed + this.#random.between(0.02, msMax));
    this.#time.at(this.#lastAt, arrive);
  }
}

/** The process channels of one host, through which its workers reach the hub in the primary. */
export class Host {
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #primary: ProcessTime;
  readonly #hub: BusHub;
  /** The channels to which each living worker subscribes. */
  readonly #channels = new Set<Set<string>>();

  constructor(time: VirtualTime, random: Random, skewMs: number) {
    this.#time = time;
    this.#random = random;
    this.#primary = new ProcessTime(time, skewMs);
    this.#hub = new BusHub(new Metrics(), this.#primary);
  }

  /** Returns the worker's end, and a function that closes both ends when the worker has ended. */
  attach(worker: ProcessTime): { port: Port; close: () => void } {
    const [port, hubs] = channelOf(this.#time, this.#random, [worker, this.#primary]);
    this.#hub.attach(hubs.port);
    const channels = new Set<string>();
    this.#channels.add(channels);
    const end = () => {
      this.#channels.delete(channels);
      hubs.closed();
    };
    const send: Port['send'] = (message, sent) => {
      noteSubscription(channels, message);
      port.port.send(message, sent);
    };
    return { port: { ...port.port, send }, close: () => this.#time.after(this.#random.between(0.1, 2), end) };
  }

  /** The number of channels that only the hub has, less that of channels that only living workers have. */
  get forgottenChannels(): number {
    return this.#hub.channelCount - new Set([...this.#channels].flatMap((each) => [...each])).size;
  }
}

function noteSubscription(channels: Set<string>, message: object): void {
  const { verb, channel } = message as { verb?: string; channel?: string };
  if (channel === undefined) return;
  if (verb === 'subscribe') channels.add(channel);
  else channels.delete(channel);
}

interface End {
  port: Port;
  /** Called when the other process has ended. */
  closed: () => void;
}

/** Returns the two ends of a process channel. */
function channelOf(time: VirtualTime, random: Random, processes: [ProcessTime, ProcessTime]): [End, End] {
  const receivers: ((message: unknown) => void)[] = [() => {}, () => {}];
  const closings: (() => void)[] = [() => {}, () => {}];
  const lanes = [new Lane(time, random), new Lane(time, random)];
  const end = (own: 0 | 1): End => ({
    closed: () => closings[own]!(),
    port: {
      send(message, sent) {
        lanes[own]!.pass(0.5, () => {
          const other = own === 0 ? 1 : 0;
          // A process that is stalled takes nothing from the channel.
          processes[other].event(() => {
            receivers[other]!(message);
            processes[own].event(sent);
          });
        });
      },
      onMessage(receive) {
        receivers[own] = receive;
      },
      onClose(closed) {
        closings[own] = closed;
      },
    },
  });
  return [end(0), end(1)];
}

export class Redis {
  readonly time: VirtualTime;
  readonly random: Random;
  /** The longest time that a message is on its way in one direction. */
  readonly delayMsMax: number;
  readonly #subscribers = new Map<string, Set<SimConnection>>();
  /**
   * What no Redis does, and a world must notice. `alone`: a message reaches only its sender, and no gap is reported;
   * `forgets`: subscriptions and their ends take no effect; `unordered`: owners receive no announcements of others.
   */
  lie: 'alone' | 'forgets' | 'unordered' | undefined;
  published = 0;
  delivered = 0;

  constructor(time: VirtualTime, random: Random, delayMsMax: number) {
    this.time = time;
    this.random = random;
    this.delayMsMax = delayMsMax;
  }

  subscribe(connection: SimConnection, channel: string): void {
    if (this.lie === 'forgets') return;
    const connections = this.#subscribers.get(channel);
    if (connections) connections.add(connection);
    else this.#subscribers.set(channel, new Set([connection]));
  }

  unsubscribe(connection: SimConnection, channel: string): void {
    if (this.lie === 'forgets') return;
    this.#subscribers.get(channel)?.delete(connection);
  }

  leave(connection: SimConnection): void {
    for (const connections of this.#subscribers.values()) connections.delete(connection);
  }

  channelsOf(connection: SimConnection): string[] {
    return [...this.#subscribers].flatMap(([channel, connections]) => (connections.has(connection) ? [channel] : []));
  }

  publish(from: Link, channel: string, payload: Buffer): void {
    this.published += 1;
    if (this.lie === 'unordered' && payload.includes('"kind":"held"')) return;
    for (const connection of this.#subscribers.get(channel) ?? []) {
      if (this.lie === 'alone' && connection.link !== from) continue;
      this.delivered += 1;
      connection.carry(channel, payload);
    }
  }
}

/** The connections of one process to the Redis, below the real link. */
export class Link {
  readonly #redis: Redis;
  readonly #process: ProcessTime;
  readonly #publisher: SimConnection;
  readonly #subscriber: SimConnection;
  #owner: LinkOwner | undefined;
  #link: SingleLink | undefined;

  constructor(redis: Redis, process: ProcessTime) {
    this.#redis = redis;
    this.#process = process;
    this.#publisher = new SimConnection(this, redis, process);
    this.#subscriber = new SimConnection(this, redis, process);
  }

  open(owner: LinkOwner): RedisLink {
    this.#owner = owner;
    const connections = { publish: this.#publisher, subscribe: this.#subscriber };
    const connect = (_: unknown, role: 'publish' | 'subscribe') => connections[role];
    this.#link = new SingleLink({}, owner, { connect, scheduler: this.#process });
    return this.#link;
  }

  /** Cuts one connection, or both. The process notices the cut after `unnoticedMs` and connects again after `ms`. */
  cut(which: 'publisher' | 'subscriber' | 'both', unnoticedMs: number, ms: number): void {
    if (which !== 'subscriber') this.#publisher.cut(unnoticedMs, ms);
    if (which !== 'publisher') this.#subscriber.cut(unnoticedMs, ms);
  }

  /** The channels to which the process subscribes, without the prefix of the installation. */
  get channels(): Set<string> {
    return new Set(this.#owner?.channels().map(withoutPrefix));
  }

  /** The channels that the Redis has for this process. */
  get subscribed(): Set<string> {
    return new Set(this.#redis.channelsOf(this.#subscriber).map(withoutPrefix));
  }

  close(): void {
    this.#link?.close();
  }
}

function withoutPrefix(name: string): string {
  return name.slice(name.lastIndexOf(':') + 1);
}

/** A connection as ioredis makes it: it connects again by itself, and repeats nothing. */
class SimConnection extends EventEmitter implements RedisConnection {
  readonly link: Link;
  readonly stream = { cork() {}, uncork() {} };
  status = 'connecting';
  readonly #redis: Redis;
  readonly #process: ProcessTime;
  readonly #lanes = new Map<string, Lane>();
  /** Subscriptions take effect in their order. */
  readonly #subscriptions: Lane;
  /** Each rejects a request without an answer, within the event that closes the connection. */
  readonly #unanswered = new Set<() => void>();
  /** Counts the times at which the connection was cut: what was sent before arrives nowhere. */
  #cuts = 0;
  #isCut = true;

  constructor(link: Link, redis: Redis, process: ProcessTime) {
    super();
    this.link = link;
    this.#redis = redis;
    this.#process = process;
    this.#subscriptions = new Lane(redis.time, redis.random);
    this.#connectIn(redis.random.between(0.1, redis.delayMsMax));
  }

  publish(channel: string, payload: Buffer | string): Promise<unknown> {
    const lane = this.#lanes.get(channel) ?? new Lane(this.#redis.time, this.#redis.random);
    this.#lanes.set(channel, lane);
    return this.#ask(lane, () => this.#redis.publish(this.link, channel, Buffer.from(payload)));
  }

  subscribe(...channels: string[]): Promise<unknown> {
    return this.#ask(this.#subscriptions, () => {
      for (const channel of channels) this.#redis.subscribe(this, channel);
    });
  }

  unsubscribe(...channels: string[]): Promise<unknown> {
    return this.#ask(this.#subscriptions, () => {
      for (const channel of channels) this.#redis.unsubscribe(this, channel);
    });
  }

  /** Called by the Redis. */
  carry(channel: string, payload: Buffer): void {
    const cuts = this.#cuts;
    const lane = this.#lanes.get(channel) ?? new Lane(this.#redis.time, this.#redis.random);
    this.#lanes.set(channel, lane);
    lane.pass(this.#redis.delayMsMax, () => {
      if (this.#cuts !== cuts) return;
      this.#process.event(() => this.emit('messageBuffer', Buffer.from(channel), payload));
    });
  }

  async ping(): Promise<void> {}

  async connect(): Promise<void> {}

  disconnect(reconnect = false): void {
    if (reconnect) {
      this.cut(0, reconnectMs);
      return;
    }
    this.#end();
    this.status = 'end';
  }

  cut(unnoticedMs: number, ms: number): void {
    this.#end();
    const cuts = this.#cuts;
    this.#process.after(unnoticedMs, () => {
      if (this.#cuts !== cuts) return;
      this.status = 'reconnecting';
      this.emit('close');
      for (const lost of [...this.#unanswered]) lost();
    });
    this.#connectIn(unnoticedMs + ms);
  }

  #end(): void {
    this.#cuts += 1;
    this.#isCut = true;
    this.#redis.leave(this);
  }

  #connectIn(ms: number): void {
    const cuts = this.#cuts;
    this.#process.after(ms, () => {
      if (this.#cuts !== cuts) return;
      this.#isCut = false;
      this.status = 'ready';
      this.emit('ready');
    });
  }

  /** Resolves with the answer of the Redis; rejects when the connection ends before. */
  #ask(lane: Lane, act: () => void): Promise<unknown> {
    if (this.status !== 'ready') return Promise.reject(new Error("Stream isn't writeable"));
    const { time, random, delayMsMax } = this.#redis;
    const cuts = this.#cuts;
    return new Promise((resolve, reject) => {
      const lost = () => {
        this.#unanswered.delete(lost);
        reject(new Error('Connection is closed.'));
      };
      this.#unanswered.add(lost);
      const answer = () => {
        if (this.#unanswered.delete(lost)) resolve(1);
      };
      if (this.#isCut) return;
      lane.pass(delayMsMax, () => {
        if (this.#cuts !== cuts) return;
        act();
        time.after(random.between(0.02, delayMsMax), () => {
          if (this.#cuts === cuts) this.#process.event(answer);
        });
      });
    });
  }
}
