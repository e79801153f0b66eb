/**
 * Publishes announcements at a pace that the bus can carry. New ones leave at the end of the turn of the loop, or a few
 * milliseconds after the last ones, as far as the bus has room. Repeated ones, after a gap of the bus, leave at a
 * bounded rate: every worker repeats all that it has then, and Redis disconnects a subscriber that receives too much at
 * once.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Bus } from '../bus/bus.ts';

interface AnnouncementsDeps<Item> {
  bus: Bus;
  /** Leaves out the items that are no longer true. */
  publish: (items: Item[]) => void;
  clock?: Clock | undefined;
  scheduler?: Scheduler | undefined;
}

export class Announcements<Item> {
  readonly #bus: Bus;
  readonly #publish: (items: Item[]) => void;
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  #items: Item[] = [];
  #isFlushing = false;
  /** Monotonic time of the last flush. */
  #flushedMs = Number.NEGATIVE_INFINITY;
  /** The next one is the last element. */
  #repeated: Item[] = [];
  /** Returns the items of the repetition that follows; undefined while none is due. */
  #due: (() => Item[]) | undefined;
  #perTick = 0;
  /** Stops the timer of the next repeated items; undefined while nothing is repeated. */
  #stopRepeating: (() => void) | undefined;
  #isStopped = false;

  constructor({ bus, publish, clock = systemClock, scheduler = systemScheduler }: AnnouncementsDeps<Item>) {
    this.#bus = bus;
    this.#publish = publish;
    this.#clock = clock;
    this.#scheduler = scheduler;
  }

  add(item: Item): void {
    this.#items.push(item);
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    const waitMs = this.#flushedMs + limits.busGatherMs - this.#clock.monotonic();
    if (waitMs > 0) this.#scheduler.after(waitMs, () => this.#flush());
    else this.#scheduler.soon(() => this.#flush());
  }

  /**
   * Publishes the items, the last one first, after a random pause. A repetition that runs goes on to its end first, so
   * that frequent gaps of the bus keep no item from its turn.
   */
  repeat(items: () => Item[]): void {
    if (this.#isStopped) return;
    this.#due = items;
    if (this.#stopRepeating === undefined) this.#repeatIn(Math.random() * limits.repeatStartMsMax);
  }

  stop(): void {
    this.#isStopped = true;
    this.#stopRepeating?.();
  }

  get #hasRoom(): boolean {
    return (this.#bus.inFlight ?? 0) < limits.busMessagesInFlightMax / 2;
  }

  #flush(): void {
    if (this.#isStopped) return;
    this.#flushedMs = this.#clock.monotonic();
    if (this.#hasRoom) this.#publish(this.#items.splice(0, limits.announcedAtOnceMax));
    if (this.#items.length === 0) this.#isFlushing = false;
    else if (this.#hasRoom) this.#scheduler.soon(() => this.#flush());
    else this.#scheduler.after(limits.announceRetryMs, () => this.#flush());
  }

  #repeatIn(ms: number): void {
    this.#stopRepeating = this.#scheduler.after(ms, () => {
      if (this.#repeated.length === 0) this.#beginRepetition();
      if (this.#hasRoom) this.#publish(this.#repeated.splice(-this.#perTick).reverse());
      if (this.#repeated.length > 0) this.#repeatIn(limits.repeatTickMs);
      else if (this.#due !== undefined) this.#repeatIn(Math.random() * limits.repeatStartMsMax);
      else this.#stopRepeating = undefined;
    });
  }

  #beginRepetition(): void {
    this.#repeated = this.#due?.() ?? [];
    this.#due = undefined;
    this.#perTick = Math.ceil((repeatedPerSecond(this.#repeated.length) * limits.repeatTickMs) / 1000);
  }
}

/** How many of so many items may be announced again in a second. */
export function repeatedPerSecond(items: number): number {
  return Math.max(items * limits.repeatedPerSecondShare, limits.repeatedPerSecondMin);
}
