/** The devices that sent the points of frames, by their numbers, from PostgreSQL. A change is seen within a minute. */
import { FifoMap } from '../base/fifo-map.ts';
import { lookUpSenders, type SenderRow } from '../device/sql/look-up-store.ts';
import type { Queries } from '../postgres/client.ts';

interface Known {
  /** Undefined: there is no such device. */
  sender: SenderRow | undefined;
  readAt: number;
}

const knownMax = 100_000;
const freshMs = 60_000;

export class Senders {
  readonly #postgres: Queries;
  readonly #known = new FifoMap<number, Known>(knownMax);

  constructor(postgres: Queries) {
    this.#postgres = postgres;
  }

  /** Returns the devices of these numbers; those that were deleted are not in it. */
  async find(numbers: Iterable<number>): Promise<Map<number, SenderRow>> {
    const found = new Map<number, SenderRow>();
    const missing = new Set<number>();
    const now = performance.now();
    for (const number of numbers) {
      const known = this.#known.get(number);
      if (!known || now - known.readAt > freshMs) missing.add(number);
      else if (known.sender) found.set(number, known.sender);
    }
    if (missing.size === 0) return found;
    const rows = await lookUpSenders(this.#postgres, [...missing]);
    for (const sender of rows) found.set(sender.number, sender);
    for (const number of missing) this.#known.set(number, { sender: found.get(number), readAt: now });
    return found;
  }
}
