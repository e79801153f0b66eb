/**
 * One offer, on the worker of its sender. Only the methods of this file change its state:
 *
 *     state      what the sender waits for           ends after
 *     asking     a listener, on any worker           `waitMs`: untaken
 *     checking   the store: is it still wanted?      no deadline
 *     granted    the answer of one worker            twice `waitMs`: doubtful
 *     settled    nothing
 *
 * A worker that has a listener is granted the message, after a check where the sender has a store. When its listener
 * does not take the message, the offer is asking again, and the next worker is granted.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';
import type { Bus } from '../bus/bus.ts';
import { inboxOf, type OfferPacket } from './offer-packets.ts';

/**
 * `taken`: exactly one listener took the message. `untaken`: none took it in time; the caller offers again at
 * `onOpened`. `away`: the bus cannot reach other workers, and none was granted the message. `doubtful`: a worker was
 * granted the message and did not answer, so its listener may or may not have taken the message.
 */
export type OfferOutcome = 'taken' | 'untaken' | 'away' | 'doubtful';

/** The sender's decision whether the message is still wanted. */
export interface Want {
  /** Returns the decision that the sender can make itself, at any time. */
  now(): boolean;
  /** Reads the decision from a store, and never rejects. Called each time before a listener gets the message. */
  stored?: (() => Promise<boolean>) | undefined;
  /** Called with true when a worker is granted the message, and with false when its listener did not take it. */
  granted?: ((isGranted: boolean) => void) | undefined;
  /** Time for the question and its answer, `offerWaitMs` by default: longer when the bus or a worker is slow. */
  waitMs?: number | undefined;
}

/** The worker of the sender, and its listeners. */
export interface OfferingWorker {
  bus: Bus;
  node: string;
  /** True when this worker has a listener. */
  has(device: number, topic: string): boolean;
  /** Offers to the listeners of this worker; returns true when one of them took the message. */
  offerHere(device: number, topic: string, message: object): boolean;
  /** Called when another worker that has a listener answers an offer after its end. */
  answeredLate(device: number, topic: string): void;
  clock: Clock;
  scheduler: Scheduler;
}

export interface OfferedMessage {
  id: number;
  /** The channel of messages to the device. */
  channel: string;
  device: number;
  topic: string;
  message: object;
  want: Want;
}

export class Offer {
  readonly #worker: OfferingWorker;
  readonly #offered: OfferedMessage;
  readonly #onSettled: (outcome: OfferOutcome) => void;
  #state: 'asking' | 'checking' | 'granted' | 'settled' = 'asking';
  /** Workers that have a listener and were not granted yet, the oldest answer first. */
  #holders: { node: string; heardAt: number }[] = [];
  /** The worker that has not answered yet, in the state `granted`. */
  #grantedTo = '';
  /** True when the workers were asked again after a slow check: the next grant needs no further check. */
  #isChecked = false;
  #stopDeadline = () => {};

  constructor(worker: OfferingWorker, offered: OfferedMessage, onSettled: (outcome: OfferOutcome) => void) {
    this.#worker = worker;
    this.#offered = offered;
    this.#onSettled = onSettled;
  }

  begin(): void {
    this.#waitForHolder();
    this.#ask();
  }

  /** Called when a listener of the topic opened on any worker. */
  opened(topic: string): void {
    const { device, topic: own, want } = this.#offered;
    if (topic !== own || this.#state !== 'asking' || !want.now()) return;
    if (this.#worker.has(device, topic)) this.#whenWanted(() => this.#offerHere());
    else this.#ask();
  }

  /** Called when another worker answers that it has a listener. */
  have(node: string, heardAt: number): void {
    const isKnown = this.#holders.some((holder) => holder.node === node);
    if (isKnown || this.#holders.length >= limits.gatherWorkersMax) return;
    this.#holders.push({ node, heardAt });
    this.#grantNext();
  }

  /** Called when a worker answers whether its listener took the granted message. */
  answered(node: string, taken: boolean): void {
    if (this.#state !== 'granted' || this.#grantedTo !== node) return;
    if (taken) {
      this.settle('taken');
      return;
    }
    this.#offered.want.granted?.(false);
    this.#waitForHolder();
    this.#grantNext();
  }

  settle(outcome: OfferOutcome): void {
    this.#state = 'settled';
    this.#stopDeadline();
    this.#onSettled(outcome);
  }

  #waitForHolder(): void {
    this.#state = 'asking';
    this.#settleAfter(this.#waitMs, 'untaken');
  }

  get #waitMs(): number {
    return this.#offered.want.waitMs ?? limits.offerWaitMs;
  }

  /** Ends the offer when this worker stops. */
  stop(): void {
    this.settle(this.#state === 'granted' ? 'doubtful' : 'away');
  }

  #settleAfter(ms: number, outcome: OfferOutcome): void {
    this.#stopDeadline();
    this.#stopDeadline = this.#worker.scheduler.after(ms, () => this.settle(outcome));
  }

  #ask(): void {
    const { channel, id, device, topic } = this.#offered;
    const packet: OfferPacket = { kind: 'ask', from: this.#worker.node, id, device, topic };
    this.#worker.bus.publish(channel, JSON.stringify(packet));
  }

  #offerHere(): void {
    const { device, topic, message } = this.#offered;
    if (this.#worker.offerHere(device, topic, message)) {
      this.settle('taken');
      return;
    }
    this.#ask();
    // A worker that answered during the check is known, so a second answer of that worker changes nothing.
    this.#grantNext();
  }

  #grantNext(): void {
    if (this.#state !== 'asking' || this.#holders.length === 0 || !this.#offered.want.now()) return;
    if (this.#isChecked) this.#grant();
    else this.#whenWanted(() => this.#grant());
  }

  #grant(): void {
    const { id, device, topic, message, want } = this.#offered;
    const { node, heardAt } = this.#holders.shift()!;
    this.#state = 'granted';
    this.#grantedTo = node;
    this.#isChecked = false;
    want.granted?.(true);
    const waitMs = this.#waitMs;
    // The worker takes the grant within `waitMs` or not at all; the answer may take as long again.
    this.#settleAfter(2 * waitMs, 'doubtful');
    const packet: OfferPacket = { kind: 'grant', from: this.#worker.node, id, heardAt, waitMs, device, topic, message };
    this.#worker.bus.publish(inboxOf(node), JSON.stringify(packet));
  }

  /** Calls `proceed` when the store still wants the message; at once without a store. */
  #whenWanted(proceed: () => void): void {
    const { stored } = this.#offered.want;
    if (stored) void this.#check(stored, proceed);
    else proceed();
  }

  /** Reads the store. After a slow read all workers are asked again, because a worker takes no late grant. */
  async #check(stored: () => Promise<boolean>, proceed: () => void): Promise<void> {
    const { clock } = this.#worker;
    this.#state = 'checking';
    this.#stopDeadline();
    const begin = clock.monotonic();
    const isWanted = await stored();
    if (this.#state !== 'checking') return;
    if (!isWanted || !this.#offered.want.now()) {
      this.settle('untaken');
      return;
    }
    this.#waitForHolder();
    if (clock.monotonic() - begin < limits.offerWaitMs / 2) {
      proceed();
      return;
    }
    this.#isChecked = true;
    this.#holders = [];
    this.#offerHere();
  }
}
