/**
 * Counts refused messages by tenant: `refused_messages_total{tenant}`. The first tenants with a refusal get a label of
 * their own, all later ones share the label `other`, so that a scrape stays small. The numbers are of this worker.
 */
import type { Counter, Metrics } from '../base/metrics/metrics.ts';

const tenantsMax = 50;
const others = 'other';

export class TenantRefusals {
  readonly #metrics: Metrics;
  readonly #counters = new Map<string, Counter>();

  constructor(metrics: Metrics) {
    this.#metrics = metrics;
  }

  add(tenantId: string): void {
    const tenant = this.#counters.has(tenantId) || this.#counters.size < tenantsMax ? tenantId : others;
    let counter = this.#counters.get(tenant);
    if (counter === undefined) {
      const help = 'Messages of known devices that were refused, by tenant.';
      counter = this.#metrics.counter('refused_messages_total', help, { tenant });
      this.#counters.set(tenant, counter);
    }
    counter.add(1);
  }
}
