/**
 * The channels of the bus for messages of devices, and which of them this worker receives. A worker subscribes to a
 * channel while it has an interest in one of its devices, so no registry is needed. Over Redis each device has channels
 * of its own: a message costs only the workers that it concerns. Over process channels few shards share all devices,
 * because there a further message costs more than a further receiver.
 */
import { randomUUID } from 'node:crypto';
import { type Clock, systemClock } from '../base/clock.ts';
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { isObject } from '../base/schema.ts';
import type { Bus } from '../bus/bus.ts';
import { isName, isText, readMessage, UnreadMessage } from '../bus/messages.ts';

/** A message as it is sent: `from` is the node of its sender. */
interface Envelope {
  kind: string;
  from: string;
}

/** Checks the shape of the rest. Throws `UnreadMessage` for another shape. */
type EnvelopeHandler = (message: Envelope) => void;

interface Interest {
  count: number;
  /** Undefined when the subscription is active. */
  activation: Promise<void> | undefined;
  leave: (() => void) | undefined;
}

interface DeviceChannelsDeps {
  bus: Bus;
  /** The name of a worker in messages, which is new at each start. */
  node: string;
  /** Channels have the name and a number. */
  name: string;
  /** The device of number n is on channel n mod `shards`. */
  shards: number;
  /** How long a subscription outlives the last interest, because polls come and go. */
  lingerMs: number;
  clock: Clock;
  scheduler: Scheduler;
}

export interface Channels {
  /** Messages to a device: to its listeners. */
  toDevice: DeviceChannels;
  /** Messages about a device to the owners of its commands, who wait for its listeners and replies. */
  toOwners: DeviceChannels;
  /** Announcements of sessions. */
  sessions: DeviceChannels;
}

interface Time {
  clock: Clock;
  scheduler: Scheduler;
}

const systemTime: Time = { clock: systemClock, scheduler: systemScheduler };

export function openChannels(bus: Bus, { clock, scheduler } = systemTime, node: string = randomUUID()): Channels {
  const shared = { bus, node, clock, scheduler };
  if (bus.spansHosts) {
    const each = { ...shared, shards: Number.MAX_SAFE_INTEGER };
    const toDevice = new DeviceChannels({ ...each, name: 'd', lingerMs: limits.deviceLingerMs });
    return { toDevice, toOwners: new DeviceChannels({ ...each, name: 'o', lingerMs: 0 }), sessions: toDevice };
  }
  const few = { ...shared, shards: limits.busShards, lingerMs: limits.shardLingerMs };
  // All sessions of a turn of the loop are one message.
  const sessions = new DeviceChannels({ ...few, name: 's', shards: 1 });
  // A worker without a session receives the stamps of others, too, so it makes no stamp below them.
  sessions.enter(0);
  return {
    toDevice: new DeviceChannels({ ...few, name: 'd' }),
    toOwners: new DeviceChannels({ ...few, name: 'o' }),
    sessions,
  };
}

export class DeviceChannels {
  readonly node: string;
  readonly #deps: DeviceChannelsDeps;
  readonly #interests = new Map<number, Interest>();
  /** Channels without an interest, and the monotonic time at which the last one ended. */
  readonly #idle = new Map<number, number>();
  readonly #handlers = new Map<string, EnvelopeHandler>();
  /** Stops the timer of the next idle channel. */
  #stopSweep: (() => void) | undefined;
  #hasLeft = false;

  constructor(deps: DeviceChannelsDeps) {
    this.#deps = deps;
    this.node = deps.node;
  }

  /** Registers the handler of all messages of a kind, also of those from this worker. */
  onMessage(kind: string, handler: EnvelopeHandler): void {
    assert(!this.#handlers.has(kind), 'a kind of message has one handler');
    this.#handlers.set(kind, handler);
  }

  channelOf(device: number): string {
    return this.#nameOf(device % this.#deps.shards);
  }

  /** Returns the items by the channels of their devices. */
  byChannel<Item>(items: readonly Item[], deviceOf: (item: Item) => number): Map<string, Item[]> {
    const groups = new Map<string, Item[]>();
    for (const item of items) {
      const channel = this.channelOf(deviceOf(item));
      const group = groups.get(channel);
      if (group) group.push(item);
      else groups.set(channel, [item]);
    }
    return groups;
  }

  publish(channel: string, message: Envelope): void {
    this.#deps.bus.publish(channel, JSON.stringify(message));
  }

  /** Counts an interest in the device, until `leave`. */
  enter(device: number): void {
    const number = device % this.#deps.shards;
    const interest = this.#interests.get(number) ?? this.#subscribe(number);
    interest.count += 1;
    if (interest.count === 1) this.#idle.delete(number);
  }

  leave(device: number): void {
    const number = device % this.#deps.shards;
    const interest = this.#interests.get(number);
    if (!interest) return;
    assert(interest.count > 0 || this.#hasLeft, 'an interest in a device ends once');
    interest.count -= 1;
    if (interest.count > 0) return;
    if (this.#deps.lingerMs === 0) this.#unsubscribe(number);
    else this.#linger(number);
  }

  /** Resolves when the subscription is active, or when the bus cannot make it active now. Undefined: it is active. */
  activation(device: number): Promise<void> | undefined {
    return this.#interests.get(device % this.#deps.shards)?.activation;
  }

  leaveAll(): void {
    this.#hasLeft = true;
    this.#stopSweep?.();
    for (const number of [...this.#interests.keys()]) this.#unsubscribe(number);
  }

  #nameOf(number: number): string {
    return `${this.#deps.name}${number}`;
  }

  #subscribe(number: number): Interest {
    const subscribed = this.#deps.bus.subscribe(this.#nameOf(number), this.#receive);
    const interest: Interest = { count: 0, activation: undefined, leave: undefined };
    interest.activation = subscribed.then((leave) => {
      interest.activation = undefined;
      if (this.#interests.get(number) === interest) interest.leave = leave;
      else leave();
    });
    this.#interests.set(number, interest);
    return interest;
  }

  #unsubscribe(number: number): void {
    const interest = this.#interests.get(number);
    this.#interests.delete(number);
    interest?.leave?.();
  }

  #linger(number: number): void {
    const { clock, scheduler, lingerMs } = this.#deps;
    this.#idle.set(number, clock.monotonic());
    this.#stopSweep ??= scheduler.after(lingerMs, () => this.#endIdle());
  }

  #endIdle(): void {
    const { clock, scheduler, lingerMs } = this.#deps;
    this.#stopSweep = undefined;
    const now = clock.monotonic();
    for (const [number, since] of this.#idle) {
      const leftMs = since + lingerMs - now;
      if (leftMs > 0) {
        this.#stopSweep = scheduler.after(leftMs, () => this.#endIdle());
        return;
      }
      this.#idle.delete(number);
      this.#unsubscribe(number);
    }
  }

  readonly #receive = (payload: Buffer): void => {
    const message = readMessage(payload, isEnvelope);
    const handler = this.#handlers.get(message.kind);
    if (!handler) throw new UnreadMessage('another kind');
    handler(message);
  };
}

function isEnvelope(value: unknown): value is Envelope {
  return isObject(value) && isText(value['kind']) && isName(value['from']);
}
