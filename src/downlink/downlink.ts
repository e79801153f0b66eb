/**
 * Delivers messages to the listeners of a device on any worker or host: long polls and MQTT sessions. A worker with a
 * listener receives the messages to the device, and a worker that owns a command of the device those to the owners of
 * its commands (device-channels.ts). Delivery is at most once: a caller that must not lose a message reads its store
 * again when `onOpened` calls. Payload values travel as JSON text (strings), so that no number loses a digit.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { assert } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { isObject } from '../base/schema.ts';
import type { Bus } from '../bus/bus.ts';
import { isListOf, isName, isText, isWhole, readMessage, UnreadMessage } from '../bus/messages.ts';
import { Announcements } from './announcements.ts';
import { ByDevice } from './by-device.ts';
import type { Channels, DeviceChannels } from './device-channels.ts';
import type { OfferOutcome, Want } from './offer.ts';
import { isOfferPacket, type OfferPacket } from './offer-packets.ts';
import { Offers } from './offers.ts';

/** `rpc-climb` carries messages to owners of commands, which call `onOpened` and `watch` instead of `listen`. */
type Topic = 'attributes' | 'rpc' | 'rpc-climb';
export type ListenerCloseReason = 'credentials_changed' | 'device_deleted';

export interface Listener {
  /**
   * Returns true to take an offer, so that no other listener gets the offer. For a sent message the result means
   * nothing. Throws `UnreadMessage` for a message that has not the shape of its topic.
   */
  receive(message: object): unknown;
  /**
   * Called when the device or its credentials may have changed. May be called twice, and although the session's own
   * token is still valid: the session checks its token. MQTT sessions need no check, because `Sessions` ends them.
   */
  close(reason: ListenerCloseReason): void;
}

type Packet =
  | { kind: 'send'; from: string; device: number; topic: Topic; message: object }
  | { kind: 'opened'; from: string; opened: Opened[] }
  | OfferPacket;

type Opened = [device: number, topic: Topic];

/**
 * Why a listener may take a message now. `late`: a listener that opened earlier has answered an offer too late. `gap`:
 * the bus may have lost the announcement of a listener.
 */
export type OpenedCause = 'opened' | 'late' | 'gap';
type OpenedCallback = (cause: OpenedCause) => void;

function isPacket(value: unknown): value is Packet {
  if (!isObject(value) || !isName(value['from'])) return false;
  const { kind, device, topic, message, opened } = value;
  if (kind === 'send') return isWhole(device) && isText(topic) && isObject(message);
  return kind === 'opened' ? isListOf(opened, isOpened) : isOfferPacket(value);
}

function isOpened(value: unknown): value is Opened {
  return Array.isArray(value) && value.length === 2 && isWhole(value[0]) && isText(value[1]);
}

type Watcher = (device: number, message: object) => void;

interface DownlinkDeps {
  bus: Bus;
  channels: Omit<Channels, 'sessions'>;
  clock?: Clock;
  scheduler?: Scheduler;
  log: Log;
  metrics: Metrics;
}

export class Downlink {
  readonly #bus: Bus;
  readonly #log: Log;
  readonly #node: string;
  readonly #toDevice: DeviceChannels;
  readonly #toOwners: DeviceChannels;
  readonly #offers: Offers;
  readonly #listeners = new ByDevice<Topic, Listener>();
  readonly #openedCallbacks = new ByDevice<Topic, OpenedCallback>();
  readonly #watchers = new Map<Topic, Watcher[]>();
  readonly #outcomes: Record<OfferOutcome, Counter>;
  readonly #bugs: Counter;
  readonly #announcements: Announcements<Opened>;
  /** Callbacks that are called after a gap of the bus: each may read a store. */
  readonly #recoveries: Announcements<OpenedCallback>;
  #leaveInbox: (() => void) | undefined;
  #state: 'new' | 'open' | 'stopped' = 'new';

  constructor({
    bus,
    channels: { toDevice, toOwners },
    clock = systemClock,
    scheduler = systemScheduler,
    log,
    metrics,
  }: DownlinkDeps) {
    this.#bus = bus;
    this.#log = log;
    this.#node = toDevice.node;
    this.#toDevice = toDevice;
    this.#toOwners = toOwners;
    for (const kind of ['send', 'ask']) toDevice.onMessage(kind, (message) => this.#receive(message));
    for (const kind of ['send', 'opened']) toOwners.onMessage(kind, (message) => this.#receive(message));
    const time = { clock, scheduler };
    this.#announcements = new Announcements({ bus, publish: (opened) => this.#publishOpened(opened), ...time });
    const publish = (callbacks: OpenedCallback[]) => {
      for (const callback of callbacks) callback('gap');
    };
    this.#recoveries = new Announcements({ bus, publish, ...time });
    this.#offers = new Offers({
      ...time,
      bus,
      node: this.#node,
      has: (device, topic) => this.#listeners.of(device, topic as Topic).length > 0,
      offerHere: (device, topic, message) => this.#offerHere(device, topic as Topic, message),
      answeredLate: (device, topic) => this.#notifyOpened(device, topic as Topic, 'late'),
    });
    const outcomes = (outcome: OfferOutcome) =>
      metrics.counter('downlink_offers_total', 'Messages offered to one listener of a device.', { outcome });
    this.#outcomes = {
      taken: outcomes('taken'),
      untaken: outcomes('untaken'),
      away: outcomes('away'),
      doubtful: outcomes('doubtful'),
    };
    this.#bugs = metrics.counter('downlink_bugs_total', 'Listeners of devices that threw an error, which is a bug.');
    metrics.observed('downlink_listeners', 'Sessions that listen to a device.', () => this.#listeners.size);
    bus.onReconnect(() => this.#restored());
  }

  /** Opens the inbox of this worker. */
  async start(): Promise<void> {
    assert(this.#state === 'new', 'the downlink starts once');
    this.#state = 'open';
    this.#leaveInbox = await this.#bus.subscribe(this.#offers.inbox, (payload) =>
      this.#receive(readMessage(payload, isPacket)),
    );
  }

  stop(): void {
    assert(this.#state === 'open', 'the downlink stops once, after its start');
    this.#state = 'stopped';
    this.#leaveInbox?.();
    this.#announcements.stop();
    this.#recoveries.stop();
    this.#offers.stop();
  }

  /** Other workers get `onOpened` once messages to the listener arrive. The returned function ends the listener. */
  listen(device: number, topic: Topic, listener: Listener): () => void {
    this.#assertUse(device);
    this.#listeners.add(device, topic, listener);
    this.#toDevice.enter(device);
    if (isAnnounced(topic)) void this.#announce(device, topic, listener);
    return () => {
      if (this.#listeners.remove(device, topic, listener)) this.#toDevice.leave(device);
    };
  }

  /**
   * Resolves when further messages about a device with a listener or a callback here will arrive: then the store can be
   * read.
   */
  async inForce(device: number): Promise<void> {
    this.#assertUse(device);
    await this.#toDevice.activation(device);
    await this.#toOwners.activation(device);
  }

  /**
   * Sends to every listener on every worker and host, at most once. Listeners of this worker get the message before
   * this call returns.
   */
  send(device: number, topic: Topic, message: object): void {
    this.#assertUse(device);
    this.#deliver(device, topic, message);
    const channels = topic === 'rpc-climb' ? this.#toOwners : this.#toDevice;
    const packet: Packet = { kind: 'send', from: this.#node, device, topic, message };
    channels.publish(channels.channelOf(device), packet);
  }

  /**
   * Offers a message to exactly one listener on any worker, first to those of this worker. One offer of a message runs
   * at a time. Until a listener gets the message, `want` can withdraw it.
   */
  async offer(device: number, topic: Topic, message: object, want: Want = always): Promise<OfferOutcome> {
    this.#assertUse(device);
    const outcome = await this.#offerSomewhere(device, topic, message, want);
    this.#outcomes[outcome].add(1);
    return outcome;
  }

  /**
   * Calls `callback` when a listener opens on any worker, or answers an offer too late, until the returned function is
   * called. Register before an offer, so that no listener that opens after the outcome `untaken` is missed.
   */
  onOpened(device: number, topic: Topic, callback: OpenedCallback): () => void {
    this.#assertUse(device);
    let isOver = false;
    // Each call registers a separate callback, even for the same function.
    const own: OpenedCallback = (cause) => {
      if (!isOver) callback(cause);
    };
    this.#openedCallbacks.add(device, topic, own);
    this.#toOwners.enter(device);
    return () => {
      isOver = true;
      if (this.#openedCallbacks.remove(device, topic, own)) this.#toOwners.leave(device);
    };
  }

  /** Calls `watcher` for every sent message of this topic, before the listeners, even when there are none. */
  watch(topic: Topic, watcher: Watcher): void {
    assert(this.#state !== 'stopped', 'a stopped downlink is not watched');
    this.#watchers.set(topic, [...(this.#watchers.get(topic) ?? []), watcher]);
  }

  /** Notifies the sessions of this worker; other workers get such changes through their own `CredentialChanges`. */
  close(device: number, reason: ListenerCloseReason): void {
    for (const listener of this.#listeners.ofAllTopics(device)) listener.close(reason);
  }

  /** Notifies all sessions of this worker, because any device may have changed. */
  closeAll(reason: ListenerCloseReason): void {
    for (const device of this.#listeners.devices()) this.close(device, reason);
  }

  /**
   * The number of a device chooses its channel: to that of another value no worker subscribes. Before the start no
   * answer arrives. A call that began before the stop may end after it.
   */
  #assertUse(device: number): void {
    assert(Number.isSafeInteger(device) && device >= 0, 'a device has a number');
    assert(this.#state !== 'new', 'the downlink is used after its start');
  }

  async #announce(device: number, topic: Topic, listener: Listener): Promise<void> {
    await this.#toDevice.activation(device);
    if (!this.#listeners.has(device, topic, listener)) return;
    this.#notifyOpened(device, topic, 'opened');
    this.#announcements.add([device, topic]);
  }

  /** Announces the listeners that are still open. */
  #publishOpened(all: Opened[]): void {
    const open = all.filter(([device, topic]) => this.#listeners.of(device, topic).length > 0);
    for (const [channel, opened] of this.#toOwners.byChannel(open, ([device]) => device)) {
      const packet: Packet = { kind: 'opened', from: this.#node, opened };
      this.#toOwners.publish(channel, packet);
    }
  }

  async #offerSomewhere(device: number, topic: Topic, message: object, want: Want): Promise<OfferOutcome> {
    if (this.#listeners.of(device, topic).length > 0) {
      if ((want.stored && !(await want.stored())) || !want.now()) return 'untaken';
      if (this.#offerHere(device, topic, message)) return 'taken';
    }
    // The subscription must be active before other workers are asked, or an opening in between would be missed.
    await this.#toOwners.activation(device);
    if (!this.#bus.connected) return 'away';
    return await this.#offers.offer({ channel: this.#toDevice.channelOf(device), device, topic, message, want });
  }

  #deliver(device: number, topic: Topic, message: object): void {
    for (const watcher of this.#watchers.get(topic) ?? []) watcher(device, message);
    for (const listener of this.#listeners.of(device, topic)) this.#give(device, topic, listener, message);
  }

  #offerHere(device: number, topic: Topic, message: object): boolean {
    return this.#listeners.of(device, topic).some((listener) => this.#give(device, topic, listener, message));
  }

  /**
   * Returns true when the listener takes the message. A bug in one listener must not end the sessions of all other
   * devices.
   */
  #give(device: number, topic: Topic, listener: Listener, message: object): boolean {
    try {
      return listener.receive(message) === true;
    } catch (error) {
      if (error instanceof UnreadMessage) throw error;
      this.#bugs.add(1);
      this.#log.error('downlink_bug', { device, topic, error });
      return false;
    }
  }

  #notifyOpened(device: number, topic: Topic, cause: OpenedCause): void {
    // First the callbacks, after which the sender of an open offer may no longer want it.
    for (const callback of this.#openedCallbacks.of(device, topic)) callback(cause);
    this.#offers.opened(device, topic);
  }

  #receive(packet: unknown): void {
    if (!isPacket(packet)) throw new UnreadMessage('another shape');
    if (packet.kind === 'send') {
      if (packet.from !== this.#node) this.#deliver(packet.device, packet.topic, packet.message);
    } else if (packet.kind === 'opened') {
      if (packet.from === this.#node) return;
      for (const [device, topic] of packet.opened) this.#notifyOpened(device, topic, 'opened');
    } else {
      this.#offers.receive(packet);
    }
  }

  /** Called after a reconnect. The bus may have dropped messages, so every listener here counts as just opened. */
  #restored(): void {
    const opened = () =>
      this.#listeners.devices().flatMap((device) => {
        return [...this.#listeners.topicsOf(device)].filter(isAnnounced).map((topic): Opened => [device, topic]);
      });
    this.#announcements.repeat(opened);
    // The messages of listeners that opened on other workers may be lost, too.
    this.#recoveries.repeat(() => this.#openedCallbacks.all());
  }
}

const always: Want = { now: () => true };

/** No sender waits for a listener of attributes: missed updates are in the store. */
function isAnnounced(topic: Topic): boolean {
  return topic !== 'attributes';
}
