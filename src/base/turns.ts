/**
 * Limits the work that a process does at once for its callers. A tenant may have nine times the places that stay free,
 * a customer three times (`places.ts`). Further work waits, and tenants, then their customers, take turns
 * (`fair-queue.ts`). A full queue refuses the newest work of the owner that has most in it. The caps hold for one
 * process.
 */
import type { Fault } from './errors.ts';
import { FairQueue, type ItemOwner } from './fair-queue.ts';
import { type PlaceOwner, Places, placeOwners } from './places.ts';

interface TurnsOptions {
  atOnceMax: number;
  waitingMax: number;
  /** The refusal of work that finds no place in the queue, or loses it. */
  refusal: () => Fault;
}

interface Waiting {
  go(): void;
  refuse(fault: Fault): void;
}

export class Turns {
  readonly #refusal: () => Fault;
  readonly #places: Places;
  readonly #queue: FairQueue<Waiting>;

  constructor({ atOnceMax, waitingMax, refusal }: TurnsOptions) {
    this.#refusal = refusal;
    this.#places = new Places(atOnceMax);
    this.#queue = new FairQueue(waitingMax);
  }

  get waiting(): number {
    return this.#queue.length;
  }

  /** Runs `work` now or later and returns its result; throws the refusal without running `work`. */
  async run<T>(tenantId: string | null, customerId: string | null, work: () => Promise<T>): Promise<T> {
    const owner = { tenant: tenantId ?? '', caller: customerId ?? '' };
    const owners = ownersOf(owner);
    if (this.#places.take(owners) !== 'taken') await this.#wait(owner);
    try {
      return await work();
    } finally {
      this.#places.release(owners);
      this.#goOn();
    }
  }

  /** Resolves when the waiter has a place. */
  #wait(owner: ItemOwner): Promise<void> {
    return new Promise((resolve, reject) => {
      const waiting: Waiting = {
        go: () => {
          this.#places.take(ownersOf(owner));
          resolve();
        },
        refuse: reject,
      };
      this.#queue.push(owner, waiting)?.refuse(this.#refusal());
    });
  }

  #goOn(): void {
    const hasPlace = (owners: PlaceOwner[]) => this.#places.outcome(owners) === 'taken';
    while (this.#queue.length > 0 && hasPlace([])) {
      const next = this.#queue.shift(
        (tenant) => hasPlace(ownersOf({ tenant, caller: '' })),
        (owner) => hasPlace(ownersOf(owner)),
      );
      if (next === undefined) return;
      next.go();
    }
  }
}

function ownersOf({ tenant, caller }: ItemOwner): PlaceOwner[] {
  return placeOwners(tenant === '' ? null : tenant, caller === '' ? null : caller);
}
