/**
 * Order numbers: one for each frame, unique across workers and hosts, increasing within a worker and close to the
 * clock. A hybrid logical clock: milliseconds (43 bits) · frames of the same millisecond (6 bits) · writer (14 bits).
 */
import type { Clock } from '../base/clock.ts';
import { assert } from '../base/errors.ts';
import { writerIdMax } from '../journal/identity.ts';

const counterBits = 6n;
const writerBits = 14n;
const counterMax = 63;

export class OrderClock {
  readonly #clock: Clock;
  readonly #writer: bigint;
  #ms: number;
  #counter = 0;

  /** `after`: the highest order that this journal has used; a clock that was set back must not repeat it. */
  constructor(clock: Clock, writer: number, after: bigint) {
    assert(writer >= 0 && writer <= writerIdMax, `writer id ${writer} has 14 bits`);
    this.#clock = clock;
    this.#writer = BigInt(writer);
    this.#ms = orderMs(after);
    this.#counter = counterMax;
  }

  next(): bigint {
    const now = this.#clock.now();
    if (now > this.#ms) {
      this.#ms = now;
      this.#counter = 0;
    } else if (this.#counter < counterMax) {
      this.#counter += 1;
    } else {
      this.#ms += 1;
      this.#counter = 0;
    }
    return (((BigInt(this.#ms) << counterBits) | BigInt(this.#counter)) << writerBits) | this.#writer;
  }
}

/** Returns the milliseconds in an order number. */
export function orderMs(order: bigint): number {
  return Number(order >> (counterBits + writerBits));
}

/** Returns the writer that assigned an order number. */
export function writerOf(order: bigint): number {
  return Number(order & BigInt(writerIdMax));
}

/** Returns the largest order number that any worker can have assigned up to `ms`. */
export function orderUpTo(ms: number): bigint {
  return (BigInt(ms + 1) << (counterBits + writerBits)) - 1n;
}
