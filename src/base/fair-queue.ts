/**
 * A queue with a cap in which owners take turns: tenants first, then the callers of one tenant (deficit round robin:
 * turns are equal in the cost of their items, not in their number). A full queue makes room for an owner with fewer
 * items than another owner, so that no owner can block the others.
 */

/** The owner of an item: the tenant, and one of its callers (a customer, a device); `caller` may be empty. */
export interface ItemOwner {
  readonly tenant: string;
  readonly caller: string;
}

interface Entry<T> {
  readonly item: T;
  readonly cost: number;
}

interface Caller<T> {
  credit: number;
  readonly entries: Line<Entry<T>>;
}

interface Tenant<T> {
  length: number;
  credit: number;
  /** No caller has more items. */
  callerMax: number;
  /** The caller whose turn is next comes first. */
  readonly callers: Map<string, Caller<T>>;
}

export class FairQueue<T> {
  readonly #capacity: number;
  readonly #quantum: number;
  /** The tenant whose turn is next comes first. */
  readonly #tenants = new Map<string, Tenant<T>>();
  /** No tenant has more items. */
  #tenantMax = 0;
  #length = 0;

  /** A turn lasts until items of the cost `quantum` were taken; a dearer item uses up later turns. */
  constructor(capacity: number, quantum = 1) {
    this.#capacity = capacity;
    this.#quantum = quantum;
  }

  get length(): number {
    return this.#length;
  }

  /** Returns true when `push` would find a place for an item of `owner`. */
  hasPlace(owner: ItemOwner): boolean {
    return this.#length < this.#capacity || this.#largerThan(owner) !== undefined;
  }

  /**
   * Returns the item without a place, which the caller of `push` refuses: the new item or a displaced one. Undefined:
   * every item has a place.
   */
  push(owner: ItemOwner, item: T, cost = 1): T | undefined {
    let displaced: T | undefined;
    if (this.#length >= this.#capacity) {
      const other = this.#largerThan(owner);
      if (other === undefined) return item;
      displaced = this.#take(other.tenant, other.caller, 'newest').item;
    }
    let tenant = this.#tenants.get(owner.tenant);
    if (!tenant) {
      tenant = { length: 0, credit: this.#quantum, callerMax: 0, callers: new Map() };
      this.#tenants.set(owner.tenant, tenant);
    }
    let caller = tenant.callers.get(owner.caller);
    if (!caller) tenant.callers.set(owner.caller, (caller = { credit: this.#quantum, entries: new Line() }));
    caller.entries.push({ item, cost });
    tenant.length += 1;
    this.#length += 1;
    tenant.callerMax = Math.max(tenant.callerMax, caller.entries.length);
    this.#tenantMax = Math.max(this.#tenantMax, tenant.length);
    return displaced;
  }

  /**
   * Removes and returns the oldest item of the next caller, among the callers that `mayGo` accepts of the tenants that
   * `mayTenantGo` accepts. A tenant that is not accepted costs one call, however many callers wait.
   */
  shift(
    mayTenantGo: (tenant: string) => boolean = always,
    mayGo: (owner: ItemOwner) => boolean = always,
  ): T | undefined {
    // An owner whose turn is used up moves to the end, where this loop reaches it again with the credit of one more
    // turn.
    for (const [name, tenant] of this.#tenants) {
      if (!mayTenantGo(name)) continue;
      const accepts = (caller: string) => mayGo({ tenant: name, caller });
      if (tenant.credit <= 0) {
        if (some(tenant.callers.keys(), accepts)) this.#goLast(this.#tenants, name, tenant);
        continue;
      }
      for (const [callerName, caller] of tenant.callers) {
        if (!accepts(callerName)) continue;
        if (caller.credit <= 0) {
          this.#goLast(tenant.callers, callerName, caller);
          continue;
        }
        const { item, cost } = this.#take(name, callerName, 'oldest');
        caller.credit -= cost;
        if (caller.credit <= 0 && caller.entries.length > 0) this.#endTurn(tenant.callers, callerName, caller);
        tenant.credit -= cost;
        if (tenant.credit <= 0 && tenant.length > 0) this.#endTurn(this.#tenants, name, tenant);
        return item;
      }
    }
    return undefined;
  }

  /** Removes a waiting item; returns false when the item does not wait. */
  remove({ tenant, caller }: ItemOwner, item: T): boolean {
    const entries = this.#tenants.get(tenant)?.callers.get(caller)?.entries;
    if (!entries?.remove((entry) => entry.item === item)) return false;
    this.#removed(tenant, caller);
    return true;
  }

  /**
   * Returns the caller with most items in the tenant with most; undefined when `owner` would then have as many. Visits
   * the tenants or callers only when one of them may have more: of thousands with one item each, none has.
   */
  #largerThan({ tenant, caller }: ItemOwner): ItemOwner | undefined {
    const own = this.#tenants.get(tenant);
    const ownLength = own?.length ?? 0;
    if (this.#tenantMax > ownLength + 1) {
      const [name, length] = largestOf(this.#tenants, (each) => each.length, this.#tenantMax);
      this.#tenantMax = length;
      if (length > ownLength + 1) return { tenant: name, caller: largestCaller(this.#tenants.get(name)!)[0] };
    }
    const callerLength = own?.callers.get(caller)?.entries.length ?? 0;
    if (own === undefined || own.callerMax <= callerLength + 1) return undefined;
    const [name, length] = largestCaller(own);
    return length > callerLength + 1 ? { tenant, caller: name } : undefined;
  }

  #take(tenant: string, caller: string, which: 'oldest' | 'newest'): Entry<T> {
    const { entries } = this.#tenants.get(tenant)!.callers.get(caller)!;
    const entry = which === 'oldest' ? entries.takeOldest() : entries.takeNewest();
    this.#removed(tenant, caller);
    return entry;
  }

  #removed(name: string, caller: string): void {
    const tenant = this.#tenants.get(name)!;
    this.#length -= 1;
    tenant.length -= 1;
    if (tenant.callers.get(caller)!.entries.length === 0) tenant.callers.delete(caller);
    if (tenant.length === 0) this.#tenants.delete(name);
  }

  /** Ends a turn outside of a loop over the owners. An only owner stays: a map that becomes empty makes a new table. */
  #endTurn<Owner extends { credit: number }>(owners: Map<string, Owner>, name: string, owner: Owner): void {
    if (owners.size > 1) this.#goLast(owners, name, owner);
    else owner.credit += this.#quantum;
  }

  #goLast<Owner extends { credit: number }>(owners: Map<string, Owner>, name: string, owner: Owner): void {
    owner.credit += this.#quantum;
    owners.delete(name);
    owners.set(name, owner);
  }
}

/** Entries in order of arrival, at least one when an entry is taken. `Array.shift` would copy a long line each time. */
class Line<Item> {
  /** The first `#taken` places are empty. */
  readonly #items: (Item | undefined)[] = [];
  #taken = 0;

  get length(): number {
    return this.#items.length - this.#taken;
  }

  push(item: Item): void {
    this.#items.push(item);
  }

  takeOldest(): Item {
    const item = this.#items[this.#taken]!;
    this.#items[this.#taken] = undefined;
    this.#taken += 1;
    // Each copy follows as many calls as the copy has items, so that a call costs the same in a line of any length.
    if (this.#taken >= 32 && this.#taken >= this.length) {
      this.#items.splice(0, this.#taken);
      this.#taken = 0;
    }
    return item;
  }

  takeNewest(): Item {
    return this.#items.pop()!;
  }

  /** Removes the first item that `isIt` accepts; returns false when there is none. */
  remove(isIt: (item: Item) => boolean): boolean {
    const place = this.#items.findIndex((item) => item !== undefined && isIt(item));
    if (place < 0) return false;
    this.#items.splice(place, 1);
    return true;
  }
}

const always = () => true;

/** Returns true when `accepts` accepts a name. Makes no copy of the names. */
function some(names: Iterable<string>, accepts: (name: string) => boolean): boolean {
  for (const name of names) if (accepts(name)) return true;
  return false;
}

/** Returns the caller with most items, and their number. */
function largestCaller<T>(tenant: Tenant<T>): [string, number] {
  const largest = largestOf(tenant.callers, ({ entries }) => entries.length, tenant.callerMax);
  tenant.callerMax = largest[1];
  return largest;
}

/** Returns the first one with the largest size, and this size. No size is above `max`. */
function largestOf<Value>(
  map: Map<string, Value>,
  sizeOf: (value: Value) => number,
  max: number,
): [name: string, size: number] {
  let largest: [string, number] = ['', 0];
  for (const [name, value] of map) {
    const size = sizeOf(value);
    if (size > largest[1]) largest = [name, size];
    if (size === max) break;
  }
  return largest;
}
