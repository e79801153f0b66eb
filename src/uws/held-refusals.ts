/**
 * Refusals of bodies that wait for the time for which they ask their senders to wait, a second at most. Meanwhile the
 * rest of the body stays in the kernel: a sender that tries again at once would fill the event loop with bytes of no
 * use. A stopping server sends the refusals at once. Called by `body.ts`.
 */
import type { Fault } from '../base/errors.ts';
import type { Exchange } from './exchange.ts';

/** Far less than the time after which the library closes a socket that is idle. */
const heldMsMax = 1000;

export class HeldRefusals {
  readonly #held = new Map<Exchange, () => void>();
  #isOver = false;

  /** Calls `answer` later, unless the client disconnects first. */
  hold(exchange: Exchange, { retryAfterSeconds }: Fault, answer: () => void): void {
    if (retryAfterSeconds === 0 || this.#isOver) {
      answer();
      return;
    }
    exchange.pause();
    const end = () => {
      clearTimeout(timer);
      this.#held.delete(exchange);
      if (exchange.done) return;
      exchange.resume();
      answer();
    };
    const timer = setTimeout(end, Math.min(retryAfterSeconds * 1000, heldMsMax));
    this.#held.set(exchange, end);
  }

  /** Sends every refusal now, and those that come later at once. */
  end(): void {
    this.#isOver = true;
    for (const end of [...this.#held.values()]) end();
  }
}
