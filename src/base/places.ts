/**
 * Limits the places that one process has for one purpose: a cap for all of them, and a share for each owner that grows
 * with the free places. An owner may hold at most `timesFree` times the places that stay free, and always one while any
 * is free. A single owner leaves a part free (with 9, a tenth); n owners together leave 1 / (1 + 9 n), so a new owner
 * finds room.
 */

export interface PlaceOwner {
  /** The name is unique among all owners: an id, or `address 10.0.0.7`. */
  readonly name: string;
  readonly timesFree: number;
}

/** `full`: no place is free. `share`: the owner has its share, and others still find a place. */
type PlaceOutcome = 'taken' | 'full' | 'share';

export class Places {
  readonly #max: number;
  readonly #heldBy = new Map<string, number>();
  #held = 0;

  constructor(max: number) {
    this.#max = max;
  }

  get held(): number {
    return this.#held;
  }

  /** Returns the result that `take` would have now. */
  outcome(owners: readonly PlaceOwner[], count = 1): PlaceOutcome {
    const free = this.#max - this.#held - count;
    if (free < 0) return 'full';
    for (const { name, timesFree } of owners) {
      const held = this.#heldBy.get(name) ?? 0;
      if (held > 0 && held + count > timesFree * free) return 'share';
    }
    return 'taken';
  }

  /** Takes `count` places for all owners, or none. */
  take(owners: readonly PlaceOwner[], count = 1): PlaceOutcome {
    const outcome = this.outcome(owners, count);
    if (outcome !== 'taken') return outcome;
    this.#held += count;
    for (const { name } of owners) this.#heldBy.set(name, (this.#heldBy.get(name) ?? 0) + count);
    return outcome;
  }

  /** Releases what `take` took for these owners, or a part of it. */
  release(owners: readonly PlaceOwner[], count = 1): void {
    this.#held -= count;
    for (const { name } of owners) {
      const left = (this.#heldBy.get(name) ?? 0) - count;
      if (left > 0) this.#heldBy.set(name, left);
      else this.#heldBy.delete(name);
    }
  }
}

/** A tenant leaves a tenth of the places free, a customer a quarter. The system administrators count as one tenant. */
export function placeOwners(tenantId: string | null, customerId: string | null): PlaceOwner[] {
  const tenant = { name: tenantId ?? 'system', timesFree: 9 };
  return customerId === null ? [tenant] : [tenant, { name: customerId, timesFree: 3 }];
}

/** A device has a tenth of the places at most, beside the shares of its tenant and customer. */
export function devicePlaceOwners(device: {
  number: number;
  tenantId: string;
  customerId: string | null;
}): PlaceOwner[] {
  const own = { name: `device ${device.number}`, timesFree: 1 / 9 };
  return [own, ...placeOwners(device.tenantId, device.customerId)];
}
