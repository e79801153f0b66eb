/**
 * A Redis Cluster with sharded pub/sub, where a channel is on one node only. Publishing uses ioredis' slot map. Each
 * node has one subscriber connection, and a channel's node is found by trial: a wrong node answers with the right one
 * (MOVED). (ioredis' own sharded subscribers neither report when they are restored nor notice a silent connection.)
 * While a slot moves, messages of its channels may arrive out of order.
 */
import { Cluster, Redis } from 'ioredis';
import { limits } from '../base/limits.ts';
import { connectionOptions, type LinkOwner, type RedisLink } from './redis.ts';
import type { ClusterAddress } from './redis-address.ts';

const redirectsMax = 4;
const retryMs = 200;

export class ClusterLink implements RedisLink {
  readonly #owner: LinkOwner;
  readonly #address: ClusterAddress;
  readonly #publisher: Cluster;
  /** Listening connections by `host:port`. */
  readonly #nodes = new Map<string, Redis>();
  /** The node of each subscribed channel. */
  readonly #places = new Map<string, string>();
  readonly #heartbeat: NodeJS.Timeout;
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
    this.#heartbeat = setInterval(() => {
      for (const redis of [...this.#nodes.values(), ...this.#publisher.nodes('master')]) {
        if (redis.status === 'ready') redis.ping().catch(() => {});
      }
    }, limits.busTimeoutMs).unref();
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

  async subscribe(channel: string): Promise<void> {
    if (await this.#place(channel)) return;
    this.#missed = true;
    void this.#settle();
  }

  unsubscribe(channel: string): void {
    const address = this.#places.get(channel);
    if (address === undefined) return;
    this.#places.delete(channel);
    const node = this.#nodes.get(address);
    if (node?.status === 'ready') node.sunsubscribe(channel).catch(() => {});
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#heartbeat);
    this.#publisher.disconnect();
    for (const node of this.#nodes.values()) node.disconnect();
  }

  /** Waits until every channel has a node again, then reports that. */
  async #settle(): Promise<void> {
    if (this.#settling) return;
    this.#settling = true;
    const missing = () => this.#owner.channels().filter((channel) => !this.#places.has(channel));
    for (let channels = missing(); channels.length > 0 && !this.#closed; channels = missing()) {
      const placed = await Promise.all(channels.map((channel) => this.#place(channel)));
      if (placed.includes(false)) await new Promise((resolve) => setTimeout(resolve, retryMs));
    }
    this.#settling = false;
    if (this.#closed) return;
    this.#missed = false;
    this.#owner.log.info('bus_connected', { channels: this.#places.size });
    this.#owner.onRestored();
  }

  /** Subscribes to the channel on its node. Returns false when no node has taken the subscription. */
  async #place(channel: string): Promise<boolean> {
    if (this.#places.has(channel)) return true;
    let address = this.#anyNode();
    for (let i = 0; i <= redirectsMax && !this.#closed; i += 1) {
      try {
        const node = this.#nodes.get(address) ?? this.#listenTo(address);
        await node.ssubscribe(channel);
        this.#places.set(channel, address);
        return true;
      } catch (error) {
        const moved = /^MOVED \d+ (.*):(\d+)$/.exec((error as Error).message);
        if (!moved) return false;
        // An empty host means the node that answered.
        address = `${moved[1] || hostOf(address)}:${moved[2]}`;
      }
    }
    return false;
  }

  /** Returns a node to ask: another one at each call, because a node may be dead. */
  #anyNode(): string {
    const known = this.#publisher.nodes('master').map(({ options }) => `${options.host}:${options.port}`);
    const seeds = this.#address.nodes.map(({ host, port }) => `${host}:${port}`);
    const nodes = known.length > 0 ? known : seeds;
    this.#turn += 1;
    return nodes[this.#turn % nodes.length]!;
  }

  #listenTo(address: string): Redis {
    const { login } = this.#address;
    const port = Number(address.slice(address.lastIndexOf(':') + 1));
    const node = new Redis({
      ...connectionOptions('subscribe'),
      ...login,
      host: hostOf(address),
      port,
      // A broken connection ends, so that its channels are located again: the node may have been replaced.
      retryStrategy: () => null,
    });
    this.#nodes.set(address, node);
    node.on('error', (error: Error) => {
      this.failure = `${address}: ${error.message}`;
    });
    node.on('smessageBuffer', (channel: Buffer, payload: Buffer) => {
      this.#owner.onMessage(channel.toString(), payload);
    });
    node.on('moved', () => void this.#verify(address, node));
    node.on('end', () => {
      this.#nodes.delete(address);
      this.#forget(this.#channelsOn(address));
    });
    return node;
  }

  /** Called when a slot has left the node: finds out which of the channels the node still has. */
  async #verify(address: string, node: Redis): Promise<void> {
    const gone: string[] = [];
    const ask = async (channel: string) => {
      await node.ssubscribe(channel).catch(() => gone.push(channel));
    };
    await Promise.all(this.#channelsOn(address).map(ask));
    this.#forget(gone.filter((channel) => this.#places.get(channel) === address));
  }

  #channelsOn(address: string): string[] {
    return [...this.#places].filter(([, place]) => place === address).map(([channel]) => channel);
  }

  #forget(channels: string[]): void {
    if (channels.length === 0 || this.#closed) return;
    for (const channel of channels) this.#places.delete(channel);
    this.#missed = true;
    void this.#settle();
  }
}

function hostOf(address: string): string {
  return address.slice(0, address.lastIndexOf(':'));
}
