/**
 * A queue with a cap in which owners take turns: tenants first, and the callers of one tenant among themselves. A full
 * queue makes room for an owner that has less in it than another one, so that no owner can keep the others out.
 */

/** Who waits: the tenant, and which of its callers (a customer, a device); `caller` may be empty. */
export interface Waiter {
  readonly tenant: string;
  readonly caller: string;
}

interface Tenant<T> {
  length: number;
  /** By caller, each in the order of arrival; the caller whose turn it is comes first. */
  readonly callers: Map<string, T[]>;
}

export class FairQueue<T> {
  readonly #capacity: number;
  /** The tenant whose turn it is comes first. */
  readonly #tenants = new Map<string, Tenant<T>>();
  #length = 0;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  get length(): number {
    return this.#length;
  }

  /** The item that has no place, which the caller of `push` refuses: the new one or a displaced one. Undefined: none. */
  push(waiter: Waiter, item: T): T | undefined {
    let displaced: T | undefined;
    if (this.#length >= this.#capacity) {
      const other = this.#largerThan(waiter);
      if (other === undefined) return item;
      displaced = this.#take(other.tenant, other.caller, 'newest');
    }
    let tenant = this.#tenants.get(waiter.tenant);
    if (!tenant) this.#tenants.set(waiter.tenant, (tenant = { length: 0, callers: new Map() }));
    const items = tenant.callers.get(waiter.caller);
    if (items) items.push(item);
    else tenant.callers.set(waiter.caller, [item]);
    tenant.length += 1;
    this.#length += 1;
    return displaced;
  }

  /** The oldest item of the caller whose turn it is, among the callers that `mayGo` accepts. */
  shift(mayGo: (waiter: Waiter) => boolean = always): T | undefined {
    for (const [tenant, { callers }] of this.#tenants) {
      for (const caller of callers.keys()) {
        if (!mayGo({ tenant, caller })) continue;
        const item = this.#take(tenant, caller, 'oldest');
        this.#goLast(tenant, caller);
        return item;
      }
    }
    return undefined;
  }

  /** Removes an item that waits; false when it does not. */
  remove({ tenant, caller }: Waiter, item: T): boolean {
    const items = this.#tenants.get(tenant)?.callers.get(caller);
    const at = items?.indexOf(item) ?? -1;
    if (at < 0) return false;
    items!.splice(at, 1);
    this.#removed(tenant, caller);
    return true;
  }

  /** The caller with most items in the tenant with most; undefined when `waiter` would then have as many. */
  #largerThan({ tenant, caller }: Waiter): Waiter | undefined {
    const [largest, its] = largestOf(this.#tenants, ({ length }) => length);
    const own = this.#tenants.get(tenant);
    const ownLength = own?.length ?? 0;
    if (its && its.length > ownLength + 1) {
      return { tenant: largest, caller: largestOf(its.callers, (items) => items.length)[0] };
    }
    if (!own || !its || its.length > ownLength) return undefined;
    const [most, items] = largestOf(own.callers, ({ length }) => length);
    const isLarger = items !== undefined && items.length > (own.callers.get(caller)?.length ?? 0) + 1;
    return isLarger ? { tenant, caller: most } : undefined;
  }

  #take(tenant: string, caller: string, which: 'oldest' | 'newest'): T {
    const items = this.#tenants.get(tenant)!.callers.get(caller)!;
    const item = which === 'oldest' ? items.shift()! : items.pop()!;
    this.#removed(tenant, caller);
    return item;
  }

  #removed(name: string, caller: string): void {
    const tenant = this.#tenants.get(name)!;
    this.#length -= 1;
    tenant.length -= 1;
    if (tenant.callers.get(caller)!.length === 0) tenant.callers.delete(caller);
    if (tenant.length === 0) this.#tenants.delete(name);
  }

  #goLast(name: string, caller: string): void {
    const tenant = this.#tenants.get(name);
    if (!tenant) return;
    this.#tenants.delete(name);
    this.#tenants.set(name, tenant);
    const items = tenant.callers.get(caller);
    if (!items) return;
    tenant.callers.delete(caller);
    tenant.callers.set(caller, items);
  }
}

const always = () => true;

function largestOf<Value>(map: Map<string, Value>, sizeOf: (value: Value) => number): [string, Value | undefined] {
  let largest: [string, Value | undefined] = ['', undefined];
  for (const [name, value] of map)
    if (largest[1] === undefined || sizeOf(value) > sizeOf(largest[1])) largest = [name, value];
  return largest;
}
