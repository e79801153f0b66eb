/**
 * The wait of one gateway's messages for a journal that refuses. The messages wait one after the other and share the
 * time, so that each one is answered soon, and a gateway waits once.
 */
import { limits } from '../base/limits.ts';

export class JournalWait {
  readonly #monotonic: () => number;
  /** Undefined while the journal accepts. */
  #since: number | undefined = undefined;
  /** When the journal last refused a message. */
  #refusedAt = 0;

  constructor(monotonic: () => number) {
    this.#monotonic = monotonic;
  }

  /** Called when the journal refuses a message; returns true while the message may wait. */
  mayWait(): boolean {
    const now = this.#monotonic();
    // A refusal long after the last one is another time without room, and no message came meanwhile.
    if (this.#since === undefined || now - this.#refusedAt > limits.mqttPausedMsMax) this.#since = now;
    this.#refusedAt = now;
    return now - this.#since <= limits.mqttPausedMsMax;
  }

  /** Called when the journal accepts a message. */
  end(): void {
    this.#since = undefined;
  }
}
