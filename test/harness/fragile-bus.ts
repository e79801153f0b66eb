import type { Bus, Handler } from '../../src/bus/bus.ts';

/** A bus for tests that can be cut off, as Redis can, and counts messages published while it is connected. */
export class FragileBus implements Bus {
  readonly #bus: Bus;
  readonly #callbacks: (() => void)[] = [];
  connected = true;
  published = 0;

  constructor(bus: Bus) {
    this.#bus = bus;
  }
  publish(channel: string, payload: Buffer | string): void {
    if (!this.connected) return;
    this.published += 1;
    this.#bus.publish(channel, payload);
  }
  subscribe(channel: string, handler: Handler) {
    return this.#bus.subscribe(channel, (payload, from) => {
      if (this.connected) handler(payload, from);
    });
  }
  onReconnect(callback: () => void): void {
    this.#callbacks.push(callback);
  }
  restore(): void {
    this.connected = true;
    for (const callback of this.#callbacks) callback();
  }
  close(): Promise<void> {
    return this.#bus.close();
  }
}
