/**
 * A binary heap of items by deadline, the next one first. An item has its place in `heapAt`, so that removal needs no
 * search. An item is in one heap at most.
 */

export interface HeapItem {
  /** Time of the monotonic clock. */
  readonly deadline: number;
  /** Place in the heap. Only `DeadlineHeap` changes it. */
  heapAt: number;
}

export class DeadlineHeap<T extends HeapItem> {
  readonly #items: T[] = [];

  get size(): number {
    return this.#items.length;
  }

  /** The item with the next deadline. */
  get first(): T | undefined {
    return this.#items[0];
  }

  has(item: T): boolean {
    return this.#items[item.heapAt] === item;
  }

  add(item: T): void {
    this.#items.push(item);
    this.#rise(this.#items.length - 1);
  }

  /** Returns false when the item is not in the heap. */
  remove(item: T): boolean {
    if (!this.has(item)) return false;
    const last = this.#items.pop()!;
    if (last !== item) {
      this.#items[item.heapAt] = last;
      this.#rise(item.heapAt);
      this.#sink(last.heapAt);
    }
    return true;
  }

  /** Moves the item at `at` before its parents with a later deadline. */
  #rise(at: number): void {
    const items = this.#items;
    const item = items[at]!;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (items[parent]!.deadline <= item.deadline) break;
      items[at] = items[parent]!;
      items[at]!.heapAt = at;
      at = parent;
    }
    items[at] = item;
    item.heapAt = at;
  }

  /** Moves the item at `at` after its children with an earlier deadline. */
  #sink(at: number): void {
    const items = this.#items;
    const item = items[at]!;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= items.length) break;
      if (child + 1 < items.length && items[child + 1]!.deadline < items[child]!.deadline) child += 1;
      if (items[child]!.deadline >= item.deadline) break;
      items[at] = items[child]!;
      items[at]!.heapAt = at;
      at = child;
    }
    items[at] = item;
    item.heapAt = at;
  }
}
