/**
 * Limits the stored bytes of one owner's attributes (a device, or another entity), for each scope separately. This
 * worker counts the bytes that it writes. It reads the sum from the store only after an eighth of the cap was written,
 * so a write rarely costs a read. An owner may thus exceed the cap by an eighth for each worker of all hosts, plus the
 * writes that wait there for their commit.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest, type Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { ownerAndScope } from './scope.ts';
import { deviceRows, readStoredBytes, rowBytes } from './store.ts';

/** Returns the bytes of the entries as the cap counts them. */
export function storedBytes(entries: Map<string, TypedValue>): number {
  let bytes = 0;
  for (const [key, { text }] of entries) bytes += rowBytes + key.length + text.length;
  return bytes;
}

interface Known {
  /** Bytes written since the last read of the sum. */
  written: number;
  reading: Promise<void> | undefined;
  /** Monotonic milliseconds: until then the owner is refused without another read. */
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

  /** Returns undefined when there is room. Otherwise resolves when the store was read and has room, or rejects. */
  admit(queries: Queries, owner: number, scope: number, bytes: number): Promise<void> | undefined {
    const name = ownerAndScope(owner, scope);
    let known = this.#known.get(name);
    if (!known) {
      // A full map has dropped the counts of many owners: a read then happens with a probability that grows with the
      // bytes.
      const isFull = this.#known.size >= limits.attributeOwnersKnownMax;
      const written = isFull ? (Math.random() * this.#bytesMax) / 8 : 0;
      this.#known.set(name, (known = { written, reading: undefined, fullUntil: 0 }));
    }
    // A later call waits for the read, so that calls take effect in their order.
    if (known.fullUntil > 0) {
      if (this.#clock.monotonic() < known.fullUntil) return Promise.reject(tooMuch(this.#bytesMax));
    } else {
      known.written += bytes;
      if (!known.reading && known.written <= this.#bytesMax / 8) return undefined;
    }
    known.reading ??= this.#read(queries, known, owner, scope);
    return known.reading.then(() => this.#room(known));
  }

  /** Resolves when the earlier calls of the owner may continue; never rejects. */
  waiting(owner: number, scope: number): Promise<void> | undefined {
    // Takes as many microtasks as a write does, so that calls keep their order.
    return this.#known.get(ownerAndScope(owner, scope))?.reading?.then(() => {});
  }

  /** Attributes of the owner were deleted: the next write reads the sum. */
  removed(owner: number, scope: number): void {
    const known = this.#known.get(ownerAndScope(owner, scope));
    if (known && known.fullUntil > 0) known.fullUntil = Number.MIN_VALUE;
  }

  async #read(queries: Queries, known: Known, owner: number, scope: number): Promise<void> {
    known.written = 0;
    try {
      const stored = await readStoredBytes(queries, owner, scope, this.#table);
      known.fullUntil = stored >= this.#bytesMax ? this.#clock.monotonic() + limits.attributesFullMs : 0;
    } catch {
      // A store that fails is reported by the write itself.
    } finally {
      known.reading = undefined;
    }
  }

  #room({ fullUntil }: Known): void {
    if (fullUntil > 0) throw tooMuch(this.#bytesMax);
  }
}

function tooMuch(bytesMax: number): Fault {
  return badRequest(
    'attributes_stored',
    `The attributes of this scope take more than ${bytesMax} bytes: delete some of them, then send new ones.`,
  );
}
