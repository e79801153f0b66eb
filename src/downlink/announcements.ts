/**
 * Publishes announcements at a pace that the bus can carry. New ones leave at the end of the turn of the loop, or a few
 * milliseconds after the last ones, as far as the bus has room. Repeated ones, after a gap of the bus, leave at a
 * bounded rate: every worker repeats all that it has then, and Redis disconnects a subscriber that receives too much at
 * once.
 */
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';

export class Announcements<Item> {
  readonly #bus: Bus;
  readonly #publish: (items: Item[]) => void;
  #items: Item[] = [];
  #isFlushing = false;
  /** Monotonic time of the last flush. */
  #flushedMs = Number.NEGATIVE_INFINITY;
  /** The next one is the last element. */
  #repeated: Item[] = [];
  #perTick = 0;
  #timer: NodeJS.Timeout | undefined;
  #isStopped = false;

  /** `publish` leaves out the items that are no longer true. */
  constructor(bus: Bus, publish: (items: Item[]) => void) {
    this.#bus = bus;
    this.#publish = publish;
  }

  add(item: Item): void {
    this.#items.push(item);
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    const waitMs = this.#flushedMs + limits.busGatherMs - performance.now();
    if (waitMs > 0) setTimeout(() => this.#flush(), waitMs).unref();
    else setImmediate(() => this.#flush());
  }

  /** Publishes the items, the last one first, after a random pause. Replaces those that still wait to be repeated. */
  repeat(items: Item[]): void {
    this.#repeated = items;
    const perSecond = Math.max(items.length * limits.repeatedPerSecondShare, limits.repeatedPerSecondMin);
    this.#perTick = Math.ceil((perSecond * limits.repeatTickMs) / 1000);
    clearTimeout(this.#timer);
    if (items.length > 0) this.#repeatIn(Math.random() * limits.repeatStartMsMax);
  }

  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  get #hasRoom(): boolean {
    return (this.#bus.inFlight ?? 0) < limits.busMessagesInFlightMax / 2;
  }

  #flush(): void {
    if (this.#isStopped) return;
    this.#flushedMs = performance.now();
    if (this.#hasRoom) this.#publish(this.#items.splice(0, limits.announcedAtOnceMax));
    if (this.#items.length === 0) this.#isFlushing = false;
    else if (this.#hasRoom) setImmediate(() => this.#flush());
    else setTimeout(() => this.#flush(), limits.announceRetryMs).unref();
  }

  #repeatIn(ms: number): void {
    this.#timer = setTimeout(() => {
      if (this.#hasRoom) this.#publish(this.#repeated.splice(-this.#perTick).reverse());
      if (this.#repeated.length > 0) this.#repeatIn(limits.repeatTickMs);
    }, ms).unref();
  }
}
