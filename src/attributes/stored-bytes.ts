/**
 * Bounds what the attributes of one owner (a device, or another entity) take in the store, for each scope apart. This
 * worker adds up what passes, and reads the sum from the store only when an eighth of the cap was written since the
 * last reading, so that a write rarely costs a read. An owner may then have the cap, and beyond it an eighth for each
 * worker of all hosts and what waits there for its commit.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest, type Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { deviceRows, readStoredBytes } from './store.ts';

/** What a row takes beside its key and value. */
export const rowBytes = 64;

/** As the cap counts them. */
export function bytesOf(entries: Map<string, TypedValue>): number {
  let bytes = 0;
  for (const [key, { text }] of entries) bytes += rowBytes + key.length + text.length;
  return bytes;
}

interface Known {
  /** Since the last reading. */
  written: number;
  reading: Promise<void> | undefined;
  /** Monotonic: what was read until then still counts as more than the cap. */
  fullUntil: number;
}

export class StoredBytes {
  readonly #table: typeof deviceRows;
  readonly #clock: Clock;
  readonly #bytesMax: number;
  readonly #known = new FifoMap<number, Known>(limits.attributeOwnersKnownMax);

  constructor(clock: Clock, table = deviceRows, bytesMax: number = limits.attributeBytesStoredMax) {
    this.#table = table;
    this.#clock = clock;
    this.#bytesMax = bytesMax;
  }

  /** Undefined: there is room. Else resolves when the store was asked and has room, and rejects when it has none. */
  admit(queries: Queries, owner: number, scope: number, bytes: number): Promise<void> | undefined {
    const name = nameOf(owner, scope);
    let known = this.#known.get(name);
    if (!known) {
      // A full map has forgotten what many owners wrote: then the chance of a reading is what counts for each byte.
      const isFull = this.#known.size >= limits.attributeOwnersKnownMax;
      const written = isFull ? (Math.random() * this.#bytesMax) / 8 : 0;
      this.#known.set(name, (known = { written, reading: undefined, fullUntil: 0 }));
    }
    // Calls take effect in their order.
    if (known.fullUntil > 0) {
      if (this.#clock.monotonic() < known.fullUntil) return Promise.reject(tooMuch(this.#bytesMax));
    } else {
      known.written += bytes;
      if (!known.reading && known.written <= this.#bytesMax / 8) return undefined;
    }
    known.reading ??= this.#read(queries, known, owner, scope);
    return known.reading.then(() => this.#room(known));
  }

  /** Until then earlier calls of the owner wait; never rejects. */
  waiting(owner: number, scope: number): Promise<void> | undefined {
    // As many steps as a write waits, so that calls keep their order.
    return this.#known.get(nameOf(owner, scope))?.reading?.then(() => {});
  }

  /** Attributes of the owner were removed: the next write asks the store. */
  removed(owner: number, scope: number): void {
    const known = this.#known.get(nameOf(owner, scope));
    if (known && known.fullUntil > 0) known.fullUntil = Number.MIN_VALUE;
  }

  async #read(queries: Queries, known: Known, owner: number, scope: number): Promise<void> {
    known.written = 0;
    try {
      const stored = await readStoredBytes(queries, owner, scope, this.#table);
      known.fullUntil = stored >= this.#bytesMax ? this.#clock.monotonic() + limits.attributesFullMs : 0;
    } catch {
      // The write itself says what is wrong with the store.
    } finally {
      known.reading = undefined;
    }
  }

  #room({ fullUntil }: Known): void {
    if (fullUntil > 0) throw tooMuch(this.#bytesMax);
  }
}

/** Scopes are below 4. */
function nameOf(owner: number, scope: number): number {
  return owner * 4 + scope;
}

function tooMuch(bytesMax: number): Fault {
  return badRequest(
    'attributes_stored',
    `The attributes of this scope take more than ${bytesMax} bytes: delete some of them, then send new ones.`,
  );
}
