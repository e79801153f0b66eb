/**
 * A map with a cap: the entry that came first makes room for the next. One iterator walks along for ever: a fresh
 * `keys().next()` would step over the holes of all evicted entries each time (at a million entries about a
 * millisecond). It never ends early, because every key it gives out is deleted at once, so all that is in the map lies
 * ahead of it.
 */
import { assert } from './errors.ts';

export class FifoMap<K, V> {
  readonly #sizeMax: number;
  #entries = new Map<K, V>();
  #oldest = this.#entries.keys();

  constructor(sizeMax: number) {
    assert(sizeMax > 0, 'a map has room for an entry');
    this.#sizeMax = sizeMax;
  }

  get size(): number {
    return this.#entries.size;
  }

  get(key: K): V | undefined {
    return this.#entries.get(key);
  }

  /** The value that had to go, if one had to. */
  set(key: K, value: V): V | undefined {
    let evicted: V | undefined;
    if (this.#entries.size >= this.#sizeMax && !this.#entries.has(key)) {
      const { value: oldest, done } = this.#oldest.next();
      assert(!done, 'an entry of a full map lies ahead of its iterator');
      evicted = this.#entries.get(oldest);
      this.#entries.delete(oldest);
    }
    this.#entries.set(key, value);
    return evicted;
  }

  delete(key: K): void {
    this.#entries.delete(key);
  }

  clear(): void {
    this.#entries = new Map();
    this.#oldest = this.#entries.keys();
  }

  values(): Iterable<V> {
    return this.#entries.values();
  }
}
