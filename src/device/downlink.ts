/**
 * The way down, from anything to the listeners of a device on whatever worker or host: long polls and MQTT sessions.
 * Devices are spread over a fixed number of shard channels; a worker hears a shard while somebody here is interested
 * in one of its devices, so no registry is needed. At most once: who must not lose anything reads its store when
 * `onOpened` or `onRestored` tells. Payload values travel as JSON text (strings), so that no number loses a digit.
 */
import { randomUUID } from 'node:crypto';
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics.ts';
import type { Bus } from '../bus/bus.ts';
import { Shards } from './shards.ts';

/** `session`: everything that listens to the device, whatever the topic. */
export type Topic = 'attributes' | 'rpc' | 'session';
export type CloseReason = 'credentials_changed' | 'device_deleted';

export interface Listener {
  /** True takes an offer: nobody else gets it. Of no meaning for what was sent. */
  receive(message: object): boolean | undefined | void;
  /** May come twice, and `credentials_changed` also when this session's own token is still good: look it up. */
  close(reason: CloseReason): void;
}

/**
 * `taken`: exactly one listener said yes. `nobody`: none did in time; offer again when `onOpened` tells.
 * `away`: the bus cannot reach other workers, or broke in the middle: it may or may not have been taken.
 */
export type Outcome = 'taken' | 'nobody' | 'away';

type Packet =
  | { kind: 'send'; from: string; device: number; topic: Topic; message: object }
  | { kind: 'opened'; from: string; opened: [device: number, topic: Topic][] }
  | { kind: 'ask'; from: string; id: number; device: number; topic: Topic }
  | { kind: 'have'; from: string; id: number; device: number; topic: Topic }
  | { kind: 'grant'; from: string; id: number; device: number; topic: Topic; message: object; ticket: number }
  | { kind: 'answer'; from: string; id: number; taken: boolean };

/** What an offer waits for: a worker that has a listener, then that worker's answer. */
interface Offer {
  message: object;
  /** The worker that was granted. */
  granted: string | undefined;
  others: Candidate[];
  timer: NodeJS.Timeout;
  settle(outcome: Outcome): void;
}

interface Candidate {
  node: string;
  ticket: number;
  device: number;
  topic: Topic;
}

export interface DownlinkParts {
  bus: Bus;
  shards: number;
  metrics: Metrics;
}

export class Downlink {
  readonly #bus: Bus;
  readonly #shards: Shards;
  /** The name of this worker on the bus, new with each start. */
  readonly #node = randomUUID();
  readonly #listeners = new Map<number, Map<Topic, Set<Listener>>>();
  readonly #openedCallbacks = new Map<number, Map<Topic, Set<() => void>>>();
  readonly #watchers: { topic: Topic; callback: (device: number, message: object) => void }[] = [];
  readonly #restoredCallbacks: (() => void)[] = [];
  readonly #offers = new Map<number, Offer>();
  readonly #outcomes: Record<Outcome, Counter>;
  #leaveInbox: (() => void) | undefined;
  #nextId = 1;
  #listenerCount = 0;

  constructor({ bus, shards, metrics }: DownlinkParts) {
    this.#bus = bus;
    this.#shards = new Shards(bus, shards, (payload) => this.#receive(payload));
    const outcome = (name: Outcome) =>
      metrics.counter('downlink_offers_total', 'Commands offered to devices, by outcome.', { outcome: name });
    this.#outcomes = { taken: outcome('taken'), nobody: outcome('nobody'), away: outcome('away') };
    metrics.observed('downlink_listeners', 'Sessions that listen to a device.', () => this.#listenerCount);
    bus.onReconnect(() => this.#restored());
  }

  /** Opens the inbox of this worker. */
  async start(): Promise<void> {
    this.#leaveInbox = await this.#bus.subscribe(inbox(this.#node), (payload) => this.#receive(payload));
  }

  stop(): void {
    this.#leaveInbox?.();
    this.#shards.leaveAll();
    for (const offer of this.#offers.values()) offer.settle('away');
  }

  /** Others hear that it opened as soon as messages to it would arrive. The result ends it. */
  listen(device: number, topic: Topic, listener: Listener): () => void {
    const topics = upsert(this.#listeners, device, () => new Map<Topic, Set<Listener>>());
    const listeners = upsert(topics, topic, () => new Set());
    assert(!listeners.has(listener), 'a listener listens once');
    listeners.add(listener);
    this.#listenerCount += 1;
    const leave = this.#shards.enter(device);
    let open = true;
    const announce = () => {
      if (!open) return;
      this.#tellOpened(device, topic);
      const opened: [number, Topic][] = [[device, topic]];
      this.#publish(this.#shards.channelOf(device), { kind: 'opened', from: this.#node, opened });
    };
    void this.#shards.inForce(device).then(announce);
    return () => {
      if (!open) return;
      open = false;
      this.#listenerCount -= 1;
      listeners.delete(listener);
      if (listeners.size === 0 && topics.get(topic) === listeners) topics.delete(topic);
      if (topics.size === 0 && this.#listeners.get(device) === topics) this.#listeners.delete(device);
      leave();
    };
  }

  /** Resolves when what is sent from now on to a device that is listened to here arrives: read the store after it. */
  inForce(device: number): Promise<void> {
    return this.#shards.inForce(device);
  }

  /**
   * A number that stays the same while this worker missed nothing that was sent to the device; undefined when it does
   * not hear it. What was cached under one number is stale under another.
   */
  coverage(device: number): number | undefined {
    return this.#bus.connected ? this.#shards.coverage(device) : undefined;
  }

  /** To every listener on every worker and host, at most once; those of this worker before this returns. */
  send(device: number, topic: Topic, message: object): void {
    this.#deliver(device, topic, message);
    this.#publish(this.#shards.channelOf(device), { kind: 'send', from: this.#node, device, topic, message });
  }

  /** To exactly one listener anywhere. */
  async offer(device: number, topic: Topic, message: object): Promise<Outcome> {
    const outcome = this.#offerHere(device, topic, message) ? 'taken' : await this.#offerAbroad(device, topic, message);
    this.#outcomes[outcome].add(1);
    return outcome;
  }

  /** Somebody anywhere began to listen. Register before offering: an opening after a `nobody` is then never missed. */
  onOpened(device: number, topic: Topic, callback: () => void): () => void {
    const topics = upsert(this.#openedCallbacks, device, () => new Map<Topic, Set<() => void>>());
    const callbacks = upsert(topics, topic, () => new Set());
    const own = () => callback();
    callbacks.add(own);
    const leave = this.#shards.enter(device);
    return () => {
      if (!callbacks.delete(own)) return;
      if (callbacks.size === 0 && topics.get(topic) === callbacks) topics.delete(topic);
      if (topics.size === 0 && this.#openedCallbacks.get(device) === topics) this.#openedCallbacks.delete(device);
      leave();
    };
  }

  /** Sees whatever of this topic comes by, listeners or not: for caches. Runs before the listeners. */
  watch(topic: Topic, callback: (device: number, message: object) => void): void {
    this.#watchers.push({ topic, callback });
  }

  /** Messages may have been missed, and are heard again: read the store for everybody who listens. */
  onRestored(callback: () => void): void {
    this.#restoredCallbacks.push(callback);
  }

  /** Tells the sessions of this worker; the other workers hear of the change by themselves (`CredentialChanges`). */
  close(device: number, reason: CloseReason): void {
    const topics = this.#listeners.get(device);
    if (!topics) return;
    for (const listener of [...topics.values()].flatMap((set) => [...set])) listener.close(reason);
  }

  /** Anything may have changed. */
  closeAll(reason: CloseReason): void {
    for (const device of [...this.#listeners.keys()]) this.close(device, reason);
  }

  #offerHere(device: number, topic: Topic, message: object): boolean {
    for (const listener of [...(this.#listeners.get(device)?.get(topic) ?? [])]) {
      if (listener.receive(message) === true) return true;
    }
    return false;
  }

  async #offerAbroad(device: number, topic: Topic, message: object): Promise<Outcome> {
    // Who waits for an opening must hear it before the others are asked, or one between the two would be lost.
    await this.#shards.inForce(device);
    if (!this.#bus.connected) return 'away';
    const id = this.#nextId++;
    return await new Promise((resolve) => {
      const settle = (outcome: Outcome) => {
        clearTimeout(offer.timer);
        this.#offers.delete(id);
        resolve(outcome);
      };
      const timer = setTimeout(settle, limits.offerWaitMs, 'nobody');
      const offer: Offer = { message, granted: undefined, others: [], timer, settle };
      this.#offers.set(id, offer);
      this.#publish(this.#shards.channelOf(device), { kind: 'ask', from: this.#node, id, device, topic });
    });
  }

  #receive(payload: Buffer): void {
    const packet = JSON.parse(payload.toString()) as Packet;
    switch (packet.kind) {
      case 'send':
        if (packet.from !== this.#node) this.#deliver(packet.device, packet.topic, packet.message);
        break;
      case 'opened':
        if (packet.from === this.#node) break;
        for (const [device, topic] of packet.opened) this.#tellOpened(device, topic);
        break;
      case 'ask':
        this.#answerAsk(packet.from, packet.id, packet.device, packet.topic);
        break;
      case 'have': {
        const { from, id, device, topic } = packet;
        this.#candidate(id, { node: from, ticket: (packet as { ticket?: number }).ticket ?? 0, device, topic });
        break;
      }
      case 'grant': {
        const isLate = performance.now() - packet.ticket > limits.offerWaitMs;
        const taken = !isLate && this.#offerHere(packet.device, packet.topic, packet.message);
        this.#publish(inbox(packet.from), { kind: 'answer', from: this.#node, id: packet.id, taken });
        break;
      }
      case 'answer':
        this.#answered(packet.id, packet.from, packet.taken);
        break;
    }
  }
}
