/**
 * A Redis Cluster with sharded pub/sub, where a channel is on the node of its slot only. Publishing uses ioredis' slot
 * map. Each node has one subscriber connection. The slot map names the node of a slot, and a wrong node answers with
 * the right one (MOVED). (ioredis' own sharded subscribers neither report when they are restored nor notice a silent
 * connection.) While a slot moves, messages of its channels may arrive out of order.
 */
import { Cluster, Command, Redis } from 'ioredis';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { connectionOptions, type LinkOwner, pingReady, type RedisLink } from './redis.ts';
import type { ClusterAddress } from './redis-address.ts';
import { channelsPerCommand } from './subscription-batches.ts';

const redirectsMax = 4;
const retryMs = 200;

/** A listening connection. */
interface ListeningNode {
  redis: Redis;
  /** Reports of ioredis that a slot has left the node, less those that are answers to a subscription of this link. */
  moves: number;
}

/** The channels of one slot that are subscribed, all at one node. */
interface Slot {
  address: string;
  channels: Set<string>;
}

export class ClusterLink implements RedisLink {
  readonly #owner: LinkOwner;
  readonly #address: ClusterAddress;
  readonly #publisher: Cluster;
  /** By `host:port`. */
  readonly #nodes = new Map<string, ListeningNode>();
  /** By number. */
  readonly #slots = new Map<number, Slot>();
  readonly #endHeartbeat: () => void;
  #settling = false;
  #missed = false;
  #closed = false;
  #turn = 0;
  failure: string | undefined;

  constructor(address: ClusterAddress, owner: LinkOwner) {
    this.#owner = owner;
    this.#address = address;
    const { nodes, login } = address;
    this.#publisher = new Cluster(nodes, {
      redisOptions: { ...connectionOptions('publish'), ...login },
      // Node connections open at first use, so some of the first messages wait; `RedisBus` bounds how many.
      enableOfflineQueue: true,
      clusterRetryStrategy: (attempt) => Math.min(50 * attempt, limits.busTimeoutMs),
      slotsRefreshTimeout: limits.busTimeoutMs,
      maxRedirections: redirectsMax,
      // Delivery is at most once: a failed message is not repeated after later messages.
      retryDelayOnFailover: 0,
      retryDelayOnClusterDown: 0,
      retryDelayOnTryAgain: 0,
    });
    this.#publisher.on('error', (error: Error) => {
      this.failure = error.message;
    });
    this.#endHeartbeat = systemScheduler.every(limits.busTimeoutMs, () => {
      const listening = [...this.#nodes.values()].map(({ redis }) => redis);
      pingReady([...listening, ...this.#publisher.nodes('master')]);
    });
  }

  get canPublish(): boolean {
    return this.#publisher.status === 'ready';
  }

  get restored(): boolean {
    return !this.#settling && !this.#missed;
  }

  publish(channel: string, payload: Buffer | string): Promise<unknown> {
    return this.#publisher.spublish(channel, payload);
  }

  async change(entered: string[], left: string[]): Promise<void> {
    for (const [number, channels] of bySlot(left)) this.#leave(number, channels);
    const placed = await Promise.all([...bySlot(entered)].map(([number, channels]) => this.#place(number, channels)));
    if (!placed.includes(false)) return;
    this.#missed = true;
    void this.#settle();
  }

  close(): void {
    this.#closed = true;
    this.#endHeartbeat();
    this.#publisher.disconnect();
    for (const { redis } of this.#nodes.values()) redis.disconnect();
  }

  #leave(number: number, channels: string[]): void {
    const slot = this.#slots.get(number);
    const left = channels.filter((channel) => slot?.channels.delete(channel));
    if (slot === undefined || left.length === 0) return;
    if (slot.channels.size === 0) this.#slots.delete(number);
    this.#unsubscribeAt(slot.address, left);
  }

  /** Waits until every channel has a node again, then reports that. */
  async #settle(): Promise<void> {
    if (this.#settling) return;
    this.#settling = true;
    let missing = this.#missing();
    for (let n = 0; missing.size > 0 && !this.#closed; n += 1) {
      // The slot map may name a dead node for a while, so every other attempt asks any node.
      const placed = await Promise.all(
        [...missing].map(([number, channels]) => this.#place(number, channels, n % 2 === 1)),
      );
      if (placed.includes(false)) await systemScheduler.sleep(retryMs);
      missing = this.#missing();
    }
    this.#settling = false;
    if (this.#closed) return;
    this.#missed = false;
    this.#owner.log.info('bus_connected', { channels: this.#owner.channels().length });
    this.#owner.onRestored();
  }

  /** Returns the channels without a node. */
  #missing(): Map<number, string[]> {
    const slots = bySlot(this.#owner.channels());
    for (const [number, channels] of slots) {
      const missing = this.#missingOf(number, channels);
      if (missing.length === 0) slots.delete(number);
      else slots.set(number, missing);
    }
    return slots;
  }

  #missingOf(number: number, channels: string[]): string[] {
    const subscribed = this.#slots.get(number)?.channels;
    return subscribed ? channels.filter((channel) => !subscribed.has(channel)) : channels;
  }

  /** Subscribes to channels of one slot on its node. Returns false when no node has taken the subscriptions. */
  async #place(number: number, channels: string[], asksAny = false): Promise<boolean> {
    const missing = this.#missingOf(number, channels);
    if (missing.length === 0) return true;
    let address = (asksAny ? undefined : this.#nodeOf(number)) ?? this.#anyNode();
    for (let i = 0; i <= redirectsMax && !this.#closed; i += 1) {
      try {
        await this.#subscribeAt(address, missing);
        this.#took(number, address, missing);
        return true;
      } catch (error) {
        const moved = /^MOVED \d+ (.*):(\d+)$/.exec(messageOf(error));
        if (!moved) return false;
        if (this.#slots.get(number)?.address === address) this.#forget([number]);
        // An empty host means the node that answered.
        address = `${moved[1] || hostOf(address)}:${moved[2]}`;
      }
    }
    return false;
  }

  async #subscribeAt(address: string, channels: string[]): Promise<void> {
    const node = this.#nodes.get(address) ?? this.#listenTo(address);
    try {
      for (let i = 0; i < channels.length; i += channelsPerCommand) {
        await node.redis.ssubscribe(...channels.slice(i, i + channelsPerCommand));
      }
    } catch (error) {
      // ioredis has reported this answer as a move, too.
      if (messageOf(error).startsWith('MOVED ')) node.moves -= 1;
      throw error;
    }
  }

  /** Needs no answer: a lost connection has no subscription, and a message without a listener is not delivered. */
  #unsubscribeAt(address: string, channels: string[]): void {
    const redis = this.#nodes.get(address)?.redis;
    if (redis?.status === 'ready') redis.sunsubscribe(...channels).catch(() => {});
  }

  /**
   * Called when the node has taken the subscriptions. Those of the slot at another node have ended. A channel that was
   * left meanwhile was not known to be subscribed, and is unsubscribed now.
   */
  #took(number: number, address: string, taken: string[]): void {
    const channels = taken.filter((channel) => this.#owner.has(channel));
    const left = taken.filter((channel) => !this.#owner.has(channel));
    if (left.length > 0) this.#unsubscribeAt(address, left);
    const known = this.#slots.get(number);
    if (known?.address === address) {
      for (const channel of channels) known.channels.add(channel);
      return;
    }
    if (channels.length > 0) this.#slots.set(number, { address, channels: new Set(channels) });
    else this.#slots.delete(number);
    if (known) this.#recover();
  }

  /** The node of the slot, as this link or the slot map knows. */
  #nodeOf(number: number): string | undefined {
    return this.#slots.get(number)?.address ?? this.#publisher.slots[number]?.[0];
  }

  /** Returns a node to ask: another one at each call, because a node may be dead. */
  #anyNode(): string {
    const known = this.#publisher.nodes('master').map(({ options }) => `${options.host}:${options.port}`);
    const seeds = this.#address.nodes.map(({ host, port }) => `${host}:${port}`);
    const nodes = known.length > 0 ? known : seeds;
    this.#turn += 1;
    return nodes[this.#turn % nodes.length]!;
  }

  #listenTo(address: string): ListeningNode {
    const { login } = this.#address;
    const port = Number(address.slice(address.lastIndexOf(':') + 1));
    const redis = new Redis({
      ...connectionOptions('subscribe'),
      ...login,
      host: hostOf(address),
      port,
      // A broken connection ends, so that its channels are located again: the node may have been replaced.
      retryStrategy: () => null,
    });
    const node: ListeningNode = { redis, moves: 0 };
    this.#nodes.set(address, node);
    redis.on('error', (error: Error) => {
      this.failure = `${address}: ${error.message}`;
    });
    redis.on('smessageBuffer', (channel: Buffer, payload: Buffer) => {
      this.#owner.onMessage(channel.toString(), payload);
    });
    redis.on('moved', () => {
      node.moves += 1;
      // By then the answers to subscriptions of this link are no longer counted.
      if (node.moves === 1) systemScheduler.soon(() => void this.#verify(address, node));
    });
    redis.on('end', () => {
      this.#nodes.delete(address);
      this.#forget(this.#slotsOn(address));
    });
    return node;
  }

  /** Called when a slot may have left the node: finds out which slots the node still has. */
  async #verify(address: string, node: ListeningNode): Promise<void> {
    if (node.moves <= 0) return;
    node.moves = 0;
    const ask = async (number: number): Promise<number[]> => {
      try {
        await this.#subscribeAt(address, [...this.#slots.get(number)!.channels]);
        return [];
      } catch {
        return [number];
      }
    };
    const gone = (await Promise.all(this.#slotsOn(address).map(ask))).flat();
    this.#forget(gone.filter((number) => this.#slots.get(number)?.address === address));
  }

  #slotsOn(address: string): number[] {
    return [...this.#slots].filter(([, slot]) => slot.address === address).map(([number]) => number);
  }

  #forget(numbers: number[]): void {
    if (numbers.length === 0) return;
    for (const number of numbers) this.#slots.delete(number);
    this.#recover();
  }

  #recover(): void {
    if (this.#closed) return;
    this.#missed = true;
    void this.#settle();
  }
}

/** Returns the channels by the numbers of their slots. */
function bySlot(channels: string[]): Map<number, string[]> {
  const slots = new Map<number, string[]>();
  for (const channel of channels) {
    const number = new Command('ssubscribe', [channel]).getSlot();
    const known = slots.get(number);
    if (known) known.push(channel);
    else slots.set(number, [channel]);
  }
  return slots;
}

function hostOf(address: string): string {
  return address.slice(0, address.lastIndexOf(':'));
}
