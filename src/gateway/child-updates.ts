/**
 * Sends updates of shared attributes to one gateway for its children, with a cap on unconfirmed updates. An update
 * above the cap is not sent: the updates of its child are read again from the store when there is room.
 */

import type { AttributeUpdates } from '../attributes/followers.ts';
import type { Update } from '../attributes/update.ts';
import { assert, type Subject } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Child } from './child.ts';
import type { GatewayLink } from './link.ts';

export class ChildUpdates {
  readonly #gateway: Subject;
  readonly #link: GatewayLink;
  readonly #followers: AttributeUpdates;
  #unconfirmed = 0;
  /** Children whose updates must be read from the store. Until then later updates of such a child are not sent. */
  readonly #toAsk = new Set<Child>();
  readonly #scheduler: Scheduler;
  /** Stops the timer of the next read; undefined while no read is due. */
  #stopRetry: (() => void) | undefined = undefined;
  #hasEnded = false;

  constructor(gateway: Subject, link: GatewayLink, followers: AttributeUpdates, scheduler = systemScheduler) {
    this.#gateway = gateway;
    this.#link = link;
    this.#followers = followers;
    this.#scheduler = scheduler;
  }

  send(child: Child, update: Update): void {
    this.#assertRouted(child);
    if (this.#toAsk.has(child)) return;
    // Without loss-free updates an omitted update could not be read again, so the cap does not apply.
    const isCapped = this.#followers.lossFree;
    if (isCapped && this.#unconfirmed >= limits.gatewayUpdatesInFlightMax) {
      this.#toAsk.add(child);
      return;
    }
    const sent = child.sent(update);
    // Counts the update before the call: the link confirms an update of which no part can be sent at once.
    this.#unconfirmed += 1;
    const taken = this.#link.attributes(child.device.name, update, (delivered) => {
      this.#unconfirmed -= 1;
      assert(this.#unconfirmed >= 0, 'an update is confirmed once', this.#gateway);
      if (delivered) child.arrived(sent);
      this.#ask();
    });
    if (!taken) this.#unconfirmed -= 1;
  }

  /** Called when the store could not be read. */
  askLater(child: Child): void {
    this.#assertRouted(child);
    this.#toAsk.add(child);
    this.#stopRetry ??= this.#scheduler.after(limits.gatewayRetryMs, () => {
      this.#stopRetry = undefined;
      this.#ask();
    });
  }

  /** Called when the child is no longer routed. */
  forget(child: Child): void {
    this.#toAsk.delete(child);
  }

  /** Called when the connection of the gateway has ended. */
  end(): void {
    this.#hasEnded = true;
    this.#stopRetry?.();
    this.#toAsk.clear();
  }

  #ask(): void {
    if (this.#hasEnded) return;
    for (const child of this.#toAsk) {
      if (this.#unconfirmed >= limits.gatewayUpdatesInFlightMax / 2) return;
      this.#toAsk.delete(child);
      child.ask();
    }
  }

  #assertRouted(child: Child): void {
    assert(child.isHere, 'a child that is not routed sends nothing', this.#gateway);
  }
}
