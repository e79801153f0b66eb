/** Who in this process listens to what. Every bus keeps one. */
import type { BusCounters, Handler } from './bus.ts';

export class Subscriptions {
  readonly #handlers = new Map<string, Set<Handler>>();
  readonly #counters: BusCounters;

  constructor(counters: BusCounters) {
    this.#counters = counters;
  }

  add(channel: string, handler: Handler): void {
    const known = this.#handlers.get(channel);
    if (known) known.add(handler);
    else this.#handlers.set(channel, new Set([handler]));
  }

  /** True when the channel has no listener any more. */
  remove(channel: string, handler: Handler): boolean {
    const known = this.#handlers.get(channel);
    if (!known?.delete(handler) || known.size > 0) return false;
    this.#handlers.delete(channel);
    return true;
  }

  channels(): string[] {
    return [...this.#handlers.keys()];
  }

  /** A message for a channel that was just left is nobody's. */
  deliver(channel: string, payload: Buffer): void {
    const handlers = this.#handlers.get(channel);
    if (!handlers) return;
    this.#counters.delivered.add(1);
    for (const handler of [...handlers]) handler(payload, channel);
  }
}
