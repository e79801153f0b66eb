/**
 * Places of reports: threads, and queries of ClickHouse. Work that finds no place waits; tenants take turns, and so do
 * the customers of a tenant. One further place is reserved for a tenant that has none. A full queue makes room for an
 * owner that has less in it.
 */
import type { Fault } from '../base/errors.ts';
import { FairQueue, type ItemOwner } from '../base/fair-queue.ts';

interface TenantTurnsOptions {
  max: number;
  waitingMax: number;
  /** The refusals of work that finds the queue full, and of work that loses its place in the queue. */
  full: () => Fault;
  displaced: () => Fault;
}

interface Waiting {
  readonly owner: ItemOwner;
  admit(): void;
  refuse(fault: Fault): void;
}

export class TenantTurns {
  readonly #options: TenantTurnsOptions;
  readonly #waiting: FairQueue<Waiting>;
  readonly #heldByTenant = new Map<string, number>();
  readonly #heldByCustomer = new Map<string, number>();
  #held = 0;

  constructor(options: TenantTurnsOptions) {
    this.#options = options;
    this.#waiting = new FairQueue(options.waitingMax);
  }

  get held(): number {
    return this.#held;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  /** Resolves when the owner has a place, which `release` gives back. Rejects with the reason of `ended`. */
  take(owner: ItemOwner, ended: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (ended.aborted) return reject(ended.reason);
      if (this.#mayGo(owner)) {
        this.#count(owner, 1);
        return resolve();
      }
      const leave = () => {
        this.#waiting.remove(owner, waiting);
        reject(ended.reason);
      };
      const waiting: Waiting = {
        owner,
        admit() {
          ended.removeEventListener('abort', leave);
          resolve();
        },
        refuse(fault) {
          ended.removeEventListener('abort', leave);
          reject(fault);
        },
      };
      ended.addEventListener('abort', leave, { once: true });
      const refused = this.#waiting.push(owner, waiting);
      refused?.refuse(refused === waiting ? this.#options.full() : this.#options.displaced());
    });
  }

  /** Passes the place on in the same turn of the loop, so that no new work takes it. */
  release(owner: ItemOwner): void {
    this.#count(owner, -1);
    for (;;) {
      const next = this.#waiting.shift(
        (tenant) => this.#mayTenantGo(tenant),
        (each) => this.#mayGo(each),
      );
      if (!next) return;
      this.#count(next.owner, 1);
      next.admit();
    }
  }

  /** A customer leaves a quarter of the places to the other customers of its tenant. */
  #mayGo({ tenant, caller }: ItemOwner): boolean {
    const ofCustomer = caller === '' ? 0 : (this.#heldByCustomer.get(caller) ?? 0);
    if (ofCustomer > 0 && ofCustomer >= Math.floor(this.#options.max * 0.75)) return false;
    return this.#mayTenantGo(tenant);
  }

  #mayTenantGo(tenant: string): boolean {
    const { max } = this.#options;
    return this.#held < max || (this.#held === max && !this.#heldByTenant.has(tenant));
  }

  #count({ tenant, caller }: ItemOwner, change: 1 | -1): void {
    this.#held += change;
    add(this.#heldByTenant, tenant, change);
    if (caller !== '') add(this.#heldByCustomer, caller, change);
  }
}

function add(counts: Map<string, number>, name: string, change: 1 | -1): void {
  const count = (counts.get(name) ?? 0) + change;
  if (count > 0) counts.set(name, count);
  else counts.delete(name);
}
