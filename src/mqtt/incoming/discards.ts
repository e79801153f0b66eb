/**
 * Counts the messages of one connection that are not stored although their sender gets no refusal (QoS 0, and MQTT 3).
 * A line in the log has their number, at most twice a second. `Inbox` makes the object with the first such message.
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

  /** Logs the number since the last line. `device`: the id; undefined on a provisioning session. */
  log(log: Log, device: string | undefined): void {
    if (this.#messages === 0) return;
    log.warn('mqtt_discarded', { device, messages: this.#messages, reason: this.#reason });
    this.#messages = 0;
  }
}
