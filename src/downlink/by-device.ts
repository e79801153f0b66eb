/** Sets of items by device and topic. Most devices have one item of one topic. */
import { assert } from '../base/errors.ts';

export class ByDevice<Topic extends string, T> {
  readonly #entries = new Map<number, { topic: Topic; item: T }[]>();
  size = 0;

  add(device: number, topic: Topic, item: T): void {
    assert(!this.has(device, topic, item), 'an item is added once');
    const entry = { topic, item };
    const entries = this.#entries.get(device);
    if (entries) entries.push(entry);
    else this.#entries.set(device, [entry]);
    this.size += 1;
  }

  has(device: number, topic: Topic, item: T): boolean {
    const entries = this.#entries.get(device) ?? [];
    return entries.some((entry) => entry.item === item && entry.topic === topic);
  }

  /** Returns false when the item was not in the set. */
  remove(device: number, topic: Topic, item: T): boolean {
    const entries = this.#entries.get(device) ?? [];
    const at = entries.findIndex((entry) => entry.item === item && entry.topic === topic);
    if (at < 0) return false;
    entries.splice(at, 1);
    if (entries.length === 0) this.#entries.delete(device);
    this.size -= 1;
    return true;
  }

  /** Returns a copy, because the caller's callbacks may remove items. */
  of(device: number, topic: Topic): T[] {
    const entries = this.#entries.get(device);
    return entries ? entries.filter((entry) => entry.topic === topic).map(({ item }) => item) : [];
  }

  ofAllTopics(device: number): T[] {
    return (this.#entries.get(device) ?? []).map(({ item }) => item);
  }

  topicsOf(device: number): Set<Topic> {
    return new Set((this.#entries.get(device) ?? []).map(({ topic }) => topic));
  }

  devices(): number[] {
    return [...this.#entries.keys()];
  }

  all(): T[] {
    return [...this.#entries.values()].flatMap((entries) => entries.map(({ item }) => item));
  }
}
