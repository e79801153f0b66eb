/**
 * The frames of this process that a stream holds: which of its order numbers ClickHouse does not have yet. Deletes
 * depend on it (`stream-report.ts`). Bounded: above a cap, neighbouring appends count as one.
 */
interface Held {
  /** Lowest order of the frames. */
  order: bigint;
  /** Number of their last message. */
  last: number;
  /** Which append this was. */
  append: number;
}

const heldMax = 1_024;

export class OwnFrames {
  #held: Held[] = [];
  /** The highest number that the stream gave to a frame of this process. */
  lastMax = 0;
  /** Appends until now. */
  added = 0;

  get isEmpty(): boolean {
    return this.#held.length === 0;
  }

  /** The lowest order that ClickHouse may not have; undefined when ClickHouse has all orders. */
  get orderMin(): bigint | undefined {
    return this.#held[0]?.order;
  }

  /** Called with the frames of one append. Appends that ran at the same time may come in any order. */
  add(order: bigint, last: number): void {
    this.lastMax = Math.max(this.lastMax, last);
    this.added += 1;
    const held = { order, last, append: this.added };
    for (let newest = this.#held.at(-1); newest && newest.order > order; newest = this.#held.at(-1)) {
      // Both count as one: the orders stay sorted.
      held.last = Math.max(held.last, newest.last);
      this.#held.pop();
    }
    held.last = Math.max(held.last, this.#held.at(-1)?.last ?? 0);
    this.#held.push(held);
    if (this.#held.length <= heldMax) return;
    const pairs: Held[] = [];
    for (let i = 0; i < this.#held.length; i += 2) {
      const second = this.#held[i + 1] ?? this.#held[i]!;
      pairs.push({ ...second, order: this.#held[i]!.order });
    }
    this.#held = pairs;
  }

  /**
   * Called when every message up to `floor` is confirmed. `added`: of the moment before the floor was read. Later
   * frames may be in a stream that was made again meanwhile, where the numbers begin again.
   */
  confirmed(floor: number, added: number): void {
    const waiting = this.#held.findIndex(({ last, append }) => last > floor || append > added);
    if (waiting !== 0) this.#held.splice(0, waiting < 0 ? this.#held.length : waiting);
  }

  /**
   * Called when the stream has ended at `last` for a while: it has lost later frames of this process. An entry may also
   * count earlier frames that are not lost, so entries wait until everything up to `last` is confirmed.
   */
  lostAfter(last: number): void {
    for (const held of this.#held) held.last = Math.min(held.last, last);
    this.lastMax = Math.min(this.lastMax, last);
  }

  /** Called when another stream has taken the place of the known one: its numbers begin again. */
  reset(): void {
    this.#held = [];
    this.lastMax = 0;
  }
}
