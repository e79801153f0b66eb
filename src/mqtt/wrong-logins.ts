/**
 * Addresses that gave wrong credentials too often in a row are refused for a while, right ones too (`mqtt.wrongLoginsMax`,
 * off by default: many devices may share an address). Each worker counts for itself; old addresses make room for new ones.
 */
import type { Clock } from '../base/clock.ts';
import { AgedMap } from '../device/aged-map.ts';

export interface WrongLoginsOptions {
  clock: Clock;
  wrongMax: number;
  blockMs: number;
  addressesMax: number;
}

interface Tries {
  wrong: number;
  /** Monotonic. */
  lastMs: number;
}

export class WrongLogins {
  readonly #options: WrongLoginsOptions;
  readonly #tries: AgedMap<string, Tries>;

  constructor(options: WrongLoginsOptions) {
    this.#options = options;
    this.#tries = new AgedMap(options.addressesMax);
  }

  isBlocked(address: string): boolean {
    const { wrongMax } = this.#options;
    return (this.#recent(address)?.wrong ?? 0) >= wrongMax;
  }

  wrong(address: string): void {
    const wrong = (this.#recent(address)?.wrong ?? 0) + 1;
    this.#tries.delete(address);
    this.#tries.set(address, { wrong, lastMs: this.#options.clock.monotonic() });
  }

  right(address: string): void {
    this.#tries.delete(address);
  }

  #recent(address: string): Tries | undefined {
    const tries = this.#tries.get(address);
    return tries && this.#options.clock.monotonic() - tries.lastMs < this.#options.blockMs ? tries : undefined;
  }
}
