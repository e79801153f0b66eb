/**
 * The devices that changed lately: one bit each, by the number of the device, so that a tenant that changes any number
 * of its devices takes the room of no other tenant. Changes of `generationMs` are one generation, and the time of the
 * last one counts for all of them.
 */
import { limits } from '../../base/limits.ts';

interface Generation {
  /** Number of a page → a bit for each of its devices. */
  readonly pages: Map<number, Uint32Array>;
  /** True when a page had no room: any device may have changed. */
  isAny: boolean;
  readonly begunAt: number;
  lastAt: number;
}

/** A page takes 4 KiB. */
const pageDevices = 32_768;

/** Shorter than the time between two writes of the file: few changes that the file has count as later ones. */
const generationMs = 500;

/**
 * More than those of `knownChangedMs`, so that none is merged while the store answers and the older ones are forgotten.
 * While it does not answer, the file stays as it is, and the two oldest become one.
 */
const generationsMax = limits.knownChangedMs / generationMs + 2;

export class ChangedDevices {
  /** The oldest first. */
  #generations: Generation[] = [];

  add(device: number, now: number): void {
    let newest = this.#generations.at(-1);
    if (newest === undefined || newest.begunAt <= now - generationMs || newest.lastAt > now) {
      newest = { pages: new Map(), isAny: false, begunAt: now, lastAt: now };
      this.#generations.push(newest);
      if (this.#generations.length > generationsMax) merge(this.#generations.shift()!, this.#generations[0]!);
    }
    newest.lastAt = now;
    const page = pageOf(newest, Math.floor(device / pageDevices));
    const bit = device % pageDevices;
    if (page) page[bit >>> 5]! |= 1 << (bit & 31);
  }

  /** Returns true when the device may have changed at this time or later. */
  mayHaveChanged(device: number, since: number): boolean {
    return this.#generations.some((generation) => generation.lastAt >= since && has(generation, device));
  }

  /** Forgets the changes that are older than `knownChangedMs`. */
  forgetOld(now: number): void {
    // A time after now is that of a clock that was set back since.
    this.#generations = this.#generations.filter(({ lastAt }) => lastAt > now - limits.knownChangedMs && lastAt <= now);
  }
}

function has({ pages, isAny }: Generation, device: number): boolean {
  const page = pages.get(Math.floor(device / pageDevices));
  const bit = device % pageDevices;
  return isAny || (page !== undefined && (page[bit >>> 5]! & (1 << (bit & 31))) !== 0);
}

/** Returns undefined when there is no room for the page. */
function pageOf(generation: Generation, number: number): Uint32Array | undefined {
  const known = generation.pages.get(number);
  if (known) return known;
  if (generation.pages.size >= limits.knownChangedPagesMax) {
    generation.isAny = true;
    return undefined;
  }
  const page = new Uint32Array(pageDevices / 32);
  generation.pages.set(number, page);
  return page;
}

/** Adds the changes of `older` to the next generation. */
function merge(older: Generation, next: Generation): void {
  next.isAny ||= older.isAny;
  // After the clock was set back, the older one has the later time.
  next.lastAt = Math.max(next.lastAt, older.lastAt);
  for (const [number, bits] of older.pages) {
    const page = pageOf(next, number);
    if (page) for (let n = 0; n < bits.length; n += 1) page[n]! |= bits[n]!;
  }
}
