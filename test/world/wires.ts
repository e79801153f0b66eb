/**
 * The wires of a world's buses: a Redis, with links that are cut and connected again, and process channels of one host.
 * The messages of one channel keep their order; messages of different channels overtake each other.
 */
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { BusHub } from '../../src/bus/ipc-primary.ts';
import type { Port } from '../../src/bus/port.ts';
import type { LinkOwner, RedisLink } from '../../src/bus/redis.ts';
import type { Random } from '../harness/random.ts';
import { ProcessTime, type VirtualTime } from './virtual-time.ts';

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
    return { port: port.port, close: () => this.#time.after(this.#random.between(0.1, 2), hubs.closed) };
  }
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
          processes[other].event(() => receivers[other]!(message));
          processes[own].event(sent);
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
  readonly #subscribers = new Map<string, Set<Link>>();
  /** True: a message reaches only its sender, and no gap is noticed, as on no Redis: a world must notice it. */
  lies = false;
  published = 0;
  delivered = 0;

  constructor(time: VirtualTime, random: Random, delayMsMax: number) {
    this.time = time;
    this.random = random;
    this.delayMsMax = delayMsMax;
  }

  subscribe(link: Link, channel: string): void {
    const links = this.#subscribers.get(channel);
    if (links) links.add(link);
    else this.#subscribers.set(channel, new Set([link]));
  }

  unsubscribe(link: Link, channel: string): void {
    this.#subscribers.get(channel)?.delete(link);
  }

  leave(link: Link): void {
    for (const links of this.#subscribers.values()) links.delete(link);
  }

  publish(from: Link, channel: string, payload: Buffer): void {
    this.published += 1;
    for (const link of this.#subscribers.get(channel) ?? []) {
      if (this.lies && link !== from) continue;
      this.delivered += 1;
      link.carry(channel, payload);
    }
  }
}

/** The connections of one process to the Redis. */
export class Link implements RedisLink {
  canPublish = true;
  restored = true;
  failure: string | undefined;
  readonly #redis: Redis;
  readonly #process: ProcessTime;
  readonly #owner: LinkOwner;
  readonly #toRedis = new Map<string, Lane>();
  readonly #fromRedis = new Map<string, Lane>();
  /** Answers that have not come; each with its rejection. */
  readonly #unanswered = new Set<() => void>();
  /** Counts the times at which each connection was cut. */
  #publisherCuts = 0;
  #subscriberCuts = 0;
  #isPublisherCut = false;
  #isSubscriberCut = false;

  constructor(redis: Redis, process: ProcessTime, owner: LinkOwner) {
    this.#redis = redis;
    this.#process = process;
    this.#owner = owner;
  }

  publish(channel: string, payload: Buffer | string): Promise<unknown> {
    const { delayMsMax } = this.#redis;
    const cuts = this.#publisherCuts;
    return new Promise((resolve, reject) => {
      const settle = (how: () => void) => () => {
        if (this.#unanswered.delete(lost)) this.#process.event(how);
      };
      const lost = () => settle(() => reject(new Error('Connection is closed.')))();
      this.#unanswered.add(lost);
      if (this.#isPublisherCut) return;
      lane(this.#toRedis, channel, this.#redis).pass(delayMsMax, () => {
        if (this.#publisherCuts > cuts) return;
        this.#redis.publish(this, channel, Buffer.from(payload));
        this.#redis.time.after(this.#redis.random.between(0.02, delayMsMax), () => {
          if (this.#publisherCuts === cuts) settle(() => resolve(1))();
        });
      });
    });
  }

  subscribe(channel: string): Promise<void> {
    return this.#change(channel, () => this.#redis.subscribe(this, channel));
  }

  unsubscribe(channel: string): void {
    void this.#change(channel, () => this.#redis.unsubscribe(this, channel));
  }

  /** Called by the Redis. */
  carry(channel: string, payload: Buffer): void {
    const cuts = this.#subscriberCuts;
    lane(this.#fromRedis, channel, this.#redis).pass(this.#redis.delayMsMax, () => {
      if (this.#subscriberCuts === cuts) this.#process.event(() => this.#owner.onMessage(channel, payload));
    });
  }

  /** Cuts one connection, or both. The process notices the cut after `unnoticedMs` and connects again after `ms`. */
  cut(which: 'publisher' | 'subscriber' | 'both', unnoticedMs: number, ms: number): void {
    if (which !== 'subscriber') this.#cutPublisher(unnoticedMs, ms);
    if (which !== 'publisher') this.#cutSubscriber(unnoticedMs, ms);
  }

  /** The channels to which the process subscribes, without the prefix of the installation. */
  get channels(): string[] {
    return this.#owner.channels().map((name) => name.slice(name.lastIndexOf(':') + 1));
  }

  close(): void {
    this.#redis.leave(this);
    this.#publisherCuts += 1;
    this.#subscriberCuts += 1;
  }

  #cutPublisher(unnoticedMs: number, ms: number): void {
    this.#publisherCuts += 1;
    const cuts = this.#publisherCuts;
    this.#isPublisherCut = true;
    this.#process.after(unnoticedMs, () => {
      if (this.#publisherCuts > cuts) return;
      this.canPublish = false;
      this.failure = 'cut';
      for (const lost of [...this.#unanswered]) lost();
    });
    this.#process.after(unnoticedMs + ms, () => {
      if (this.#publisherCuts > cuts) return;
      this.#isPublisherCut = false;
      this.canPublish = true;
    });
  }

  #cutSubscriber(unnoticedMs: number, ms: number): void {
    this.#subscriberCuts += 1;
    const cuts = this.#subscriberCuts;
    this.#isSubscriberCut = true;
    this.#redis.leave(this);
    this.#process.after(unnoticedMs, () => {
      if (this.#subscriberCuts === cuts) this.restored = false;
    });
    this.#process.after(unnoticedMs + ms, () => {
      if (this.#subscriberCuts === cuts) void this.#restore(cuts);
    });
  }

  async #restore(cuts: number): Promise<void> {
    this.#isSubscriberCut = false;
    const channels = this.#owner.channels();
    await Promise.all(channels.map((channel) => this.subscribe(channel)));
    if (this.#subscriberCuts > cuts) return;
    this.restored = true;
    this.#owner.onRestored();
  }

  /** Resolves with the answer of the Redis; soon without a connection, because the next one subscribes again. */
  #change(channel: string, change: () => void): Promise<void> {
    const cuts = this.#subscriberCuts;
    if (this.#isSubscriberCut) return this.#process.sleep(0);
    return new Promise((resolve) => {
      const { time, random, delayMsMax } = this.#redis;
      // All subscriptions of a connection take effect in their order.
      lane(this.#toRedis, `subscription ${channel}`, this.#redis).pass(delayMsMax, () => {
        if (this.#subscriberCuts === cuts) change();
        time.after(random.between(0.02, delayMsMax), () => this.#process.event(resolve));
      });
    });
  }
}

function lane(lanes: Map<string, Lane>, channel: string, { time, random }: Redis): Lane {
  const known = lanes.get(channel) ?? new Lane(time, random);
  lanes.set(channel, known);
  return known;
}
