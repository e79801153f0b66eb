/**
 * Counts wrong secrets by remote address, so that no caller can try all secrets. A try is counted when it begins and
 * refunded when the secret was right: parallel tries pass no more often than sequential ones. The oldest address makes
 * room for a new one.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { networkOf } from '../base/network.ts';

export interface GuessesOptions {
  clock: Clock;
  /** Wrong tries of one address in a window. */
  wrongMax: number;
  windowMs: number;
  addressesMax: number;
}

interface Window {
  tries: number;
  endsMs: number;
}

export class Guesses {
  readonly #options: GuessesOptions;
  readonly #windows: FifoMap<string, Window>;

  constructor(options: GuessesOptions) {
    this.#options = options;
    this.#windows = new FifoMap(options.addressesMax);
  }

  /** Throws a 429 fault when the address has used up its tries. The returned function refunds this try. */
  begin(remoteAddress: string): () => void {
    const { clock, wrongMax, windowMs } = this.#options;
    const network = networkOf(remoteAddress, 4);
    const now = clock.monotonic();
    let window = this.#windows.get(network);
    if (!window || window.endsMs <= now) {
      window = { tries: 0, endsMs: now + windowMs };
      // Deleted first, because setting a present entry would keep its place in the order of eviction.
      this.#windows.delete(network);
      this.#windows.set(network, window);
    }
    if (window.tries >= wrongMax) {
      const seconds = Math.max(1, Math.ceil((window.endsMs - now) / 1000));
      const message = 'Too many wrong keys from this address; try again later.';
      throw new Fault('guesses', message, seconds);
    }
    window.tries += 1;
    const counted = window;
    return () => {
      counted.tries -= 1;
    };
  }
}
