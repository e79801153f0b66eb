/** A first-in first-out queue with a cap: `push` says no instead of growing. A ring, so that `shift` costs nothing. */
export class BoundedQueue<T> {
  readonly capacity: number;
  #items: (T | undefined)[];
  #head = 0;
  #length = 0;

  constructor(capacity: number) {
    this.capacity = capacity;
    this.#items = new Array(Math.min(capacity, 16));
  }

  get length(): number {
    return this.#length;
  }

  /** False when the queue is full: the caller refuses with a reason. */
  push(item: T): boolean {
    if (this.#length === this.capacity) return false;
    if (this.#length === this.#items.length) this.#grow();
    this.#items[(this.#head + this.#length) % this.#items.length] = item;
    this.#length += 1;
    return true;
  }

  shift(): T | undefined {
    if (this.#length === 0) return undefined;
    const item = this.#items[this.#head];
    this.#items[this.#head] = undefined;
    this.#head = (this.#head + 1) % this.#items.length;
    this.#length -= 1;
    return item;
  }

  #grow(): void {
    const items = new Array<T | undefined>(Math.min(this.capacity, this.#items.length * 2));
    for (let i = 0; i < this.#length; i += 1) items[i] = this.#items[(this.#head + i) % this.#items.length];
    this.#items = items;
    this.#head = 0;
  }
}
