/**
 * Messages of one connection that are not stored although their sender gets no refusal (QoS 0, and MQTT 3): each is
 * counted, and a line in the log names their number at most twice a second. Made with the first of them.
 */
import type { Log } from '../../base/log.ts';
import type { Counters } from '../flow/counters.ts';

export class Discards {
  readonly #counters: Counters;
  #messages = 0;
  #reason = '';

  constructor(counters: Counters) {
    this.#counters = counters;
  }

  add(reason: string, qos: 0 | 1 | 2): void {
    this.#counters.discarded(reason, qos);
    this.#messages += 1;
    this.#reason = reason;
  }

  /** `device`: the id; undefined when the connection did not sign in. */
  log(log: Log, device: string | undefined): void {
    if (this.#messages === 0) return;
    log.warn('mqtt_discarded', { device, messages: this.#messages, reason: this.#reason });
    this.#messages = 0;
  }
}
