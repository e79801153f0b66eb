/**
 * The turns of answers that are sent in slices. A reader that takes bytes as fast as they come never makes its sender
 * wait for the kernel. Its answer would leave in one turn of the event loop and hold up all other requests, so a turn
 * of the loop sends a bounded number of bytes. The other slices wait for the next turn: tenants, then the callers of
 * each tenant, take turns that are equal in bytes (`base/fair-queue.ts`).
 */
import { FairQueue } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import type { PlaceOwner } from '../base/places.ts';

interface Waiting {
  bytes: number;
  go(): void;
}

export class SliceTurns {
  readonly #bytesMax: number;
  /** An answer waits with one slice, and the answers that are sent have caps: the queue needs none. */
  readonly #queue = new FairQueue<Waiting>(Number.POSITIVE_INFINITY, limits.sliceTurnBytes);
  /** Bytes that may still leave in this turn of the loop. */
  #left: number;
  #isScheduled = false;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
    this.#left = bytesMax;
  }

  /** Returns undefined when a slice may leave now, else a promise that resolves when it may. */
  take(owners: readonly PlaceOwner[], bytes: number): Promise<void> | undefined {
    this.#schedule();
    if (this.#left > 0 && this.#queue.length === 0) {
      this.#left -= bytes;
      return undefined;
    }
    return new Promise((go) => this.#queue.push(queueOwner(owners), { bytes, go }, bytes));
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => this.#begin());
  }

  /** Begins the next turn of the loop. */
  #begin(): void {
    this.#isScheduled = false;
    this.#left = this.#bytesMax;
    while (this.#left > 0) {
      const next = this.#queue.shift();
      if (!next) break;
      this.#left -= next.bytes;
      next.go();
    }
    if (this.#left < this.#bytesMax) this.#schedule();
  }
}

/** The owner with the largest share contains the others, such as a tenant its customers and devices. */
function queueOwner(owners: readonly PlaceOwner[]): { tenant: string; caller: string } {
  let [largest, smallest] = [owners[0], owners[0]];
  for (const owner of owners) {
    if (owner.timesFree > largest!.timesFree) largest = owner;
    if (owner.timesFree < smallest!.timesFree) smallest = owner;
  }
  return { tenant: largest?.name ?? '', caller: smallest?.name ?? '' };
}

/** The turns of all answers of this process. */
export const sliceTurns = new SliceTurns(limits.sliceLoopBytesMax);
