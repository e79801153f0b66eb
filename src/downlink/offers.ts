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

/**
 * `from` is a node: a worker, whose inbox has a new name with each start. `heardAt`: the time at which the worker that
 * answers received the question, by its own monotonic clock. The grant returns this time, so that the worker can refuse
 * a late grant.
 */
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
 * `taken`: exactly one listener took the message. `untaken`: none took it in time; the caller offers again at
 * `onOpened`. `away`: the bus cannot reach other workers or broke meanwhile, so the message may or may not have been
 * taken.
 */
export type OfferOutcome = 'taken' | 'untaken' | 'away';

interface OffersDeps {
  bus: Bus;
  /** True when this worker has a listener. */
  has(device: number, topic: string): boolean;
  /** Offers to the listeners of this worker; returns true when one of them took the message. */
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

  /** Called when a listener opened on any worker: continues the offers that wait for one. */
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
      // The asking worker has already offered the message to its own listeners.
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
   * Calls `stored`, and `proceed` when the message is still wanted. After a slow read all workers are asked again,
   * because a worker takes no late grant.
   */
  async #check(offer: Offer, proceed: () => void): Promise<void> {
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
      proceed();
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
    // The worker takes the grant within `offerWaitMs` or not at all; the answer may take as long again.
    clearTimeout(offer.timer);
    offer.timer = setTimeout(() => offer.settle('away'), 2 * limits.offerWaitMs);
    this.#send(next.node, { kind: 'grant', from: this.node, id, heardAt: next.heardAt, device, topic, message });
  }

  /** Waits for another listener, `offerWaitMs` from now. */
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
