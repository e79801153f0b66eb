/**
 * The shard channels to which this worker is subscribed. A subscription lasts a while longer than the last interest in
 * the shard, because polls come and go.
 */
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Bus, Handler } from '../bus/bus.ts';

interface Shard {
  interests: number;
  /** Resolves when the subscription is active, or when the bus cannot make it active now. */
  subscribed: Promise<() => void>;
  isInForce: boolean;
  linger: NodeJS.Timeout | undefined;
}

const done = Promise.resolve();

export class Shards {
  readonly #bus: Bus;
  readonly #count: number;
  readonly #handler: Handler;
  readonly #shards = new Map<number, Shard>();
  #hasLeft = false;

  constructor(bus: Bus, count: number, handler: Handler) {
    this.#bus = bus;
    this.#count = count;
    this.#handler = handler;
  }

  channelOf(device: number): string {
    return `down-${device % this.#count}`;
  }

  /** Counts an interest in the shard of the device, until `leave`. */
  enter(device: number): void {
    const number = device % this.#count;
    const shard = this.#shards.get(number) ?? this.#subscribe(number);
    shard.interests += 1;
    clearTimeout(shard.linger);
    shard.linger = undefined;
  }

  leave(device: number): void {
    const number = device % this.#count;
    const shard = this.#shards.get(number);
    if (!shard) return;
    assert(shard.interests > 0 || this.#hasLeft, 'an interest in a shard ends once');
    shard.interests -= 1;
    if (shard.interests > 0) return;
    shard.linger = setTimeout(() => this.#unsubscribe(number, shard), limits.shardLingerMs).unref();
  }

  /** Resolves when the subscription is active; at once without an interest in the shard. */
  inForce(device: number): Promise<void> {
    const shard = this.#shards.get(device % this.#count);
    if (!shard || shard.isInForce) return done;
    return shard.subscribed.then(() => {});
  }

  leaveAll(): void {
    this.#hasLeft = true;
    for (const [number, shard] of [...this.#shards]) {
      clearTimeout(shard.linger);
      this.#unsubscribe(number, shard);
    }
  }

  #subscribe(number: number): Shard {
    const subscribed = this.#bus.subscribe(`down-${number}`, this.#handler);
    const shard: Shard = { interests: 0, subscribed, isInForce: false, linger: undefined };
    this.#shards.set(number, shard);
    void subscribed.then(() => {
      shard.isInForce = true;
    });
    return shard;
  }

  #unsubscribe(number: number, shard: Shard): void {
    this.#shards.delete(number);
    void shard.subscribed.then((unsubscribe) => unsubscribe());
  }
}
