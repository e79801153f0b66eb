/**
 * Limits how many devices get a first record each second, in this worker and of one tenant, so that a flood of devices
 * costs little. A device above the limit gets no record and is counted.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';

export class FirstRecords {
  readonly #clock: Clock;
  readonly #unrecorded: Counter;
  #second = 0;
  #inSecond = 0;
  readonly #ofTenant = new Map<string, number>();

  constructor({ clock, metrics }: { clock: Clock; metrics: Metrics }) {
    this.#clock = clock;
    this.#unrecorded = metrics.counter(
      'diagnostics_unrecorded_total',
      'Refusals, ends of connections and odd times of devices that got no record, because too many got one at once.',
    );
  }

  /** Takes a place for a device of the tenant; false = counted only. */
  take(tenantId: string): boolean {
    const second = Math.floor(this.#clock.monotonic() / 1000);
    if (second !== this.#second) {
      this.#second = second;
      this.#inSecond = 0;
      this.#ofTenant.clear();
    }
    const ofTenant = this.#ofTenant.get(tenantId) ?? 0;
    if (this.#inSecond >= limits.diagnosedNewPerSecondMax || ofTenant >= limits.diagnosedNewPerTenantMax) {
      this.#unrecorded.add(1);
      return false;
    }
    this.#inSecond += 1;
    this.#ofTenant.set(tenantId, ofTenant + 1);
    return true;
  }
}
