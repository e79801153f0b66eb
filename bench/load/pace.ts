/**
 * The due times of an open loop: messages are due in bursts of one millisecond, whatever the server does. A late tick
 * catches up, with the due times that its messages should have had.
 */

/** `rate`: messages/s after the ramp. `rampMs`: time in which the rate grows from 0; 0 = full rate at once. */
export interface PaceOrder {
  rate: number;
  rampMs: number;
}

export class Pace {
  readonly #order: PaceOrder;
  #isStopped = false;

  constructor(order: PaceOrder) {
    this.#order = order;
  }

  /** Calls `due` once for each message, and `tickEnded` after each burst. */
  start(startedAt: number, due: (at: number) => void, tickEnded: () => void = () => {}): void {
    let scheduled = 0;
    let ticks = 0;
    const tick = (): void => {
      if (this.#isStopped) return;
      const now = performance.now();
      for (; startedAt + ticks <= now; ticks += 1) {
        const target = Math.floor(dueUntil(ticks + 1, this.#order));
        for (; scheduled < target; scheduled += 1) due(startedAt + ticks);
      }
      tickEnded();
      setTimeout(tick, 1);
    };
    tick();
  }

  stop(): void {
    this.#isStopped = true;
  }
}

/** Returns how many messages are due within the first `ms` milliseconds. */
export function dueUntil(ms: number, { rate, rampMs }: PaceOrder): number {
  if (ms < rampMs) return (rate * ms * ms) / (2 * rampMs) / 1000;
  return (rate * (ms - rampMs / 2)) / 1000;
}

const spentMax = 65_536;

/** Due times of messages that wait for a free connection, oldest first. */
export class DueTimes {
  #times: number[] = [];
  #head = 0;

  get length(): number {
    return this.#times.length - this.#head;
  }

  push(at: number): void {
    this.#times.push(at);
  }

  shift(): number | undefined {
    if (this.length === 0) return undefined;
    const at = this.#times[this.#head]!;
    this.#head += 1;
    if (this.#head > spentMax) {
      this.#times = this.#times.slice(this.#head);
      this.#head = 0;
    }
    return at;
  }
}
