/**
 * Limits the bytes that one process holds for one purpose: a cap for all of them, and a share for each owner, so that
 * no owner can use up the room of the others. Owners without bytes are forgotten.
 */

export interface BudgetOwner {
  /** The name is unique among all owners of a budget: `address 10.0.0.7`. */
  name: string;
  bytesMax: number;
}

export class ByteBudget {
  readonly #bytesMax: number;
  readonly #heldBy = new Map<string, number>();
  #held = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get held(): number {
    return this.#held;
  }

  /** False when the cap or the share of an owner has no room: then nothing is taken. */
  take(bytes: number, owners: readonly BudgetOwner[]): boolean {
    if (this.#held + bytes > this.#bytesMax) return false;
    if (this.lacking(bytes, owners)) return false;
    this.#held += bytes;
    for (const { name } of owners) this.#heldBy.set(name, (this.#heldBy.get(name) ?? 0) + bytes);
    return true;
  }

  /** Returns the first owner whose share has no room; undefined when all shares have room. */
  lacking<Any extends BudgetOwner>(bytes: number, owners: readonly Any[]): Any | undefined {
    return owners.find(({ name, bytesMax }) => (this.#heldBy.get(name) ?? 0) + bytes > bytesMax);
  }

  /** Releases what `take` took for these owners, or a part of it. */
  release(bytes: number, owners: readonly BudgetOwner[]): void {
    this.#held -= bytes;
    for (const { name } of owners) {
      const left = (this.#heldBy.get(name) ?? 0) - bytes;
      if (left > 0) this.#heldBy.set(name, left);
      else this.#heldBy.delete(name);
    }
  }
}

/** The bytes that one piece of work holds of a budget. */
export class Held {
  readonly #budget: ByteBudget;
  readonly #owners: readonly BudgetOwner[];
  #bytes = 0;

  constructor(budget: ByteBudget, owners: readonly BudgetOwner[]) {
    this.#budget = budget;
    this.#owners = owners;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Holds `bytes` in all. Returns false when there is no room: then the held bytes stay as they were. */
  grow(bytes: number): boolean {
    if (!this.#budget.take(bytes - this.#bytes, this.#owners)) return false;
    this.#bytes = bytes;
    return true;
  }

  release(): void {
    this.#budget.release(this.#bytes, this.#owners);
    this.#bytes = 0;
  }
}
