/**
 * A map with a cap: the oldest entry is evicted to make room for a new one. The map keeps one iterator, because a new
 * `keys().next()` would skip the holes of all evicted entries each time (at a million entries about a millisecond). The
 * iterator never ends early: every key that it returns is deleted at once, so it has not passed any entry. The first
 * eviction makes the iterator: while a map grows, an iterator would keep all its former, smaller tables in memory.
 */
import { assert } from './errors.ts';

export class FifoMap<K, V> {
  readonly #sizeMax: number;
  #entries = new Map<K, V>();
  #oldest: Iterator<K> | undefined = undefined;

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

  /** Returns the evicted value; undefined when no value was evicted. */
  set(key: K, value: V): V | undefined {
    let evicted: V | undefined;
    if (this.#entries.size >= this.#sizeMax && !this.#entries.has(key)) evicted = this.takeOldest();
    this.#entries.set(key, value);
    return evicted;
  }

  /** Removes and returns the oldest value of a map that has entries. */
  takeOldest(): V {
    this.#oldest ??= this.#entries.keys();
    const { value: key, done } = this.#oldest.next();
    assert(!done, 'an entry of a map lies ahead of its iterator');
    const value = this.#entries.get(key) as V;
    this.#entries.delete(key);
    return value;
  }

  delete(key: K): void {
    this.#entries.delete(key);
  }

  clear(): void {
    this.#entries = new Map();
    this.#oldest = undefined;
  }

  values(): Iterable<V> {
    return this.#entries.values();
  }
}
