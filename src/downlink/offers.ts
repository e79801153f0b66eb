/**
 * Delivers a message to exactly one listener on any worker. The sender asks the shard for a listener and grants the
 * message to the first worker that has one. That worker answers whether its listener took the message; if not, the next
 * worker is granted. A grant that arrives late is not taken, so after the wait of the sender no listener gets the
 * message.
 */
import { randomUUID } from 'node:crypto';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { isName, isObject, isText, isWhole } from '../bus/messages.ts';

/** `to` and `from` are nodes: each worker has an inbox under a name that is new with each start. */
export type OfferPacket =
  | { kind: 'ask'; from: string; id: number; device: number; topic: string }
  | { kind: 'have'; from: string; id: number; heardAt: number }
  | { kind: 'grant'; from: string; id: number; heardAt: number; device: number; topic: string; message: object }
  | { kind: 'answer'; from: string; id: number; taken: boolean };

export function isOfferPacket(value: unknown): value is OfferPacket {
  if (!isObject(value) || !isName(value['from']) || !isWhole(value['id'])) return false;
  const { kind, heardAt, device, topic, message, taken } = value;
  switch (kind) {
    case 'ask':
      return isWhole(device) && isText(topic);
    case 'have':
      return Number.isFinite(heardAt);
    case 'grant':
      return Number.isFinite(heardAt) && isWhole(device) && isText(topic) && isObject(message);
    case 'answer':
      return typeof taken === 'boolean';
    default:
      return false;
  }
}

/**
 * `taken`: exactly one listener took the message. `untaken`: no listener did in time; offer again at `onOpened`.
 * `away`: the bus cannot reach other workers or broke meanwhile, so the message may or may not have been taken.
 */
export type OfferOutcome = 'taken' | 'untaken' | 'away';

interface OffersDeps {
  bus: Bus;
  has(device: number, topic: string): boolean;
  offerHere(device: number, topic: string, message: object): boolean;
}

/** The sender's decision whether the message is still wanted. */
export interface Want {
  /** Returns the decision that the sender can make itself, at any time. */
  now(): boolean;
  /** Reads the decision from a store; called each time before a listener gets the message. */
  stored?: (() => Promise<boolean>) | undefined;
}

interface Offer {
  id: number;
  channel: string;
  device: number;
  topic: string;
  message: object;
  want: Want;
  /** True while `stored` is running; the deadline does not apply then. */
  isChecking: boolean;
  /** True when `stored` took so long that the workers had to be asked again. */
  isChecked: boolean;
  /** The worker that was granted the message and has not answered. */
  granted: string | undefined;
  /** Other workers with a listener, the oldest answer first. */
  others: { node: string; heardAt: number }[];
  timer: NodeJS.Timeout;
  settle(outcome: OfferOutcome): void;
}

export class Offers {
  readonly node = randomUUID();
  readonly #deps: OffersDeps;
  readonly #open = new Map<number, Offer>();
  readonly #byDevice = new Map<number, Set<number>>();
  #lastId = 0;

  constructor(deps: OffersDeps) {
    this.#deps = deps;
  }

  get inbox(): string {
    return inboxOf(this.node);
  }

  offer(channel: string, device: number, topic: string, message: object, want: Want): Promise<OfferOutcome> {
    const id = ++this.#lastId;
    return new Promise((resolve) => {
      const settle = (outcome: OfferOutcome) => {
        clearTimeout(offer.timer);
        this.#open.delete(id);
        ids.delete(id);
        if (ids.size === 0 && this.#byDevice.get(device) === ids) this.#byDevice.delete(device);
        resolve(outcome);
      };
      const timer = setTimeout(settle, limits.offerWaitMs, 'untaken' satisfies OfferOutcome);
      const state = { isChecking: false, isChecked: false, granted: undefined, others: [] };
      const offer: Offer = { id, channel, device, topic, message, want, ...state, timer, settle };
      const ids = this.#byDevice.get(device) ?? new Set();
      this.#open.set(id, offer);
      this.#byDevice.set(device, ids.add(id));
      this.#ask(offer);
    });
  }

  /** A listener opened while offers wait: the offers reach it at once. */
  opened(device: number, topic: string): void {
    for (const id of [...(this.#byDevice.get(device) ?? [])]) {
      const offer = this.#open.get(id)!;
      if (offer.topic !== topic || offer.granted !== undefined || offer.isChecking || !offer.want.now()) continue;
      if (!this.#deps.has(device, topic)) this.#ask(offer);
      else if (offer.want.stored) void this.#check(offer, () => this.#handHere(offer));
      else this.#handHere(offer);
    }
  }

  receive(packet: OfferPacket): void {
    const { has, offerHere } = this.#deps;
    const { from, id } = packet;
    if (packet.kind === 'ask') {
      // Listeners of the asking worker were offered it before.
      if (from === this.node || !has(packet.device, packet.topic)) return;
      this.#send(from, { kind: 'have', from: this.node, id, heardAt: performance.now() });
      return;
    }
    if (packet.kind === 'grant') {
      const isLate = performance.now() - packet.heardAt > limits.offerWaitMs;
      const taken = !isLate && offerHere(packet.device, packet.topic, packet.message);
      this.#send(from, { kind: 'answer', from: this.node, id, taken });
      return;
    }
    const offer = this.#open.get(id);
    if (!offer) return;
    if (packet.kind === 'have') {
      const isKnown = offer.others.some(({ node }) => node === from);
      if (isKnown || offer.others.length >= limits.gatherWorkersMax) return;
      offer.others.push({ node: from, heardAt: packet.heardAt });
    } else if (offer.granted === from) {
      offer.granted = undefined;
      if (packet.taken) offer.settle('taken');
      else this.#wait(offer);
    }
    this.#grantNext(offer);
  }

  stop(): void {
    for (const offer of [...this.#open.values()]) offer.settle('away');
  }

  #handHere(offer: Offer): void {
    if (this.#deps.offerHere(offer.device, offer.topic, offer.message)) offer.settle('taken');
    else this.#ask(offer);
  }

  #grantNext(offer: Offer): void {
    const { want, granted, others, isChecking, isChecked } = offer;
    if (granted !== undefined || isChecking || others.length === 0) return;
    if (!this.#open.has(offer.id) || !want.now()) return;
    if (want.stored && !isChecked) void this.#check(offer, () => this.#grant(offer));
    else this.#grant(offer);
  }

  /**
   * Calls `stored`, and continues when it resolves true. A worker takes no late grant: after a slow read all workers
   * are asked again.
   */
  async #check(offer: Offer, goOn: () => void): Promise<void> {
    offer.isChecking = true;
    clearTimeout(offer.timer);
    const begin = performance.now();
    const isWanted = await offer.want.stored!();
    offer.isChecking = false;
    if (!this.#open.has(offer.id)) return;
    if (!isWanted || !offer.want.now()) {
      offer.settle('untaken');
      return;
    }
    this.#wait(offer);
    if (performance.now() - begin < limits.offerWaitMs / 2) {
      goOn();
      return;
    }
    offer.isChecked = true;
    offer.others = [];
    this.#handHere(offer);
  }

  #grant(offer: Offer): void {
    const next = offer.others.shift();
    if (!next) return;
    const { id, device, topic, message } = offer;
    offer.granted = next.node;
    offer.isChecked = false;
    // A grant is taken in time or not at all; the answer may need as long again.
    clearTimeout(offer.timer);
    offer.timer = setTimeout(() => offer.settle('away'), 2 * limits.offerWaitMs);
    this.#send(next.node, { kind: 'grant', from: this.node, id, heardAt: next.heardAt, device, topic, message });
  }

  /** The listener left meanwhile; another one may exist. */
  #wait(offer: Offer): void {
    clearTimeout(offer.timer);
    offer.timer = setTimeout(() => offer.settle('untaken'), limits.offerWaitMs);
  }

  #ask({ channel, id, device, topic }: Offer): void {
    const packet: OfferPacket = { kind: 'ask', from: this.node, id, device, topic };
    this.#deps.bus.publish(channel, JSON.stringify(packet));
  }

  #send(node: string, packet: OfferPacket): void {
    this.#deps.bus.publish(inboxOf(node), JSON.stringify(packet));
  }
}

function inboxOf(node: string): string {
  return `worker-${node}`;
}
