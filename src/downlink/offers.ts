/**
 * Delivers a message to exactly one listener on any worker. The sender asks on the channel of the device for a listener
 * and grants the message to the first worker that has one. That worker answers whether its listener took the message;
 * if not, the next worker is granted. A grant that arrives late is not taken, so after the wait of the sender no
 * listener gets the message. This file keeps the open offers of this worker and answers the offers of other workers;
 * `offer.ts` is one offer.
 */
import { limits } from '../base/limits.ts';
import { Offer, type OfferedMessage, type OfferingWorker, type OfferOutcome } from './offer.ts';
import { inboxOf, type OfferPacket } from './offer-packets.ts';

export class Offers {
  readonly #worker: OfferingWorker;
  readonly #open = new Map<number, Offer>();
  readonly #byDevice = new Map<number, Set<Offer>>();
  #lastId = 0;

  constructor(worker: OfferingWorker) {
    this.#worker = worker;
  }

  get inbox(): string {
    return inboxOf(this.#worker.node);
  }

  offer(message: Omit<OfferedMessage, 'id'>): Promise<OfferOutcome> {
    const offered = { ...message, id: ++this.#lastId };
    return new Promise((resolve) => {
      const offer = new Offer(this.#worker, offered, (outcome) => {
        this.#remove(offered, offer);
        resolve(outcome);
      });
      this.#add(offered, offer);
      offer.begin();
    });
  }

  /** Called when a listener opened on any worker: continues the offers that wait for one. */
  opened(device: number, topic: string): void {
    for (const offer of [...(this.#byDevice.get(device) ?? [])]) offer.opened(topic);
  }

  receive(packet: OfferPacket): void {
    switch (packet.kind) {
      case 'ask':
        this.#answerAsk(packet);
        return;
      case 'have':
        this.#takeHave(packet);
        return;
      case 'grant':
        this.#answerGrant(packet);
        return;
      case 'answer':
        this.#open.get(packet.id)?.answered(packet.from, packet.taken);
        return;
    }
  }

  stop(): void {
    for (const offer of [...this.#open.values()]) offer.stop();
  }

  #answerAsk({ from, id, device, topic }: OfferPacket & { kind: 'ask' }): void {
    // The asking worker has already offered the message to its own listeners.
    if (from === this.#worker.node || !this.#worker.has(device, topic)) return;
    this.#send(from, {
      kind: 'have',
      from: this.#worker.node,
      id,
      heardAt: this.#worker.clock.monotonic(),
      device,
      topic,
    });
  }

  /** A worker that was paused answers an offer that has ended: the next offer reaches its listener. */
  #takeHave({ from, id, heardAt, device, topic }: OfferPacket & { kind: 'have' }): void {
    const offer = this.#open.get(id);
    if (offer) offer.have(from, heardAt);
    else if (device !== undefined && topic !== undefined) this.#worker.answeredLate(device, topic);
  }

  #answerGrant({ from, id, heardAt, waitMs, device, topic, message }: OfferPacket & { kind: 'grant' }): void {
    const waitMsMax = Math.min(waitMs ?? limits.offerWaitMs, limits.offerWaitMsMax);
    const isLate = this.#worker.clock.monotonic() - heardAt > waitMsMax;
    const taken = !isLate && this.#worker.offerHere(device, topic, message);
    this.#send(from, { kind: 'answer', from: this.#worker.node, id, taken });
  }

  #send(node: string, packet: OfferPacket): void {
    this.#worker.bus.publish(inboxOf(node), JSON.stringify(packet));
  }

  #add({ id, device }: OfferedMessage, offer: Offer): void {
    const offers = this.#byDevice.get(device) ?? new Set();
    this.#byDevice.set(device, offers.add(offer));
    this.#open.set(id, offer);
  }

  #remove({ id, device }: OfferedMessage, offer: Offer): void {
    this.#open.delete(id);
    const offers = this.#byDevice.get(device);
    offers?.delete(offer);
    if (offers?.size === 0) this.#byDevice.delete(device);
  }
}
