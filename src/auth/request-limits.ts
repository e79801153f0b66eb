/** Limits the REST calls of a tenant and of each of its customers. All workers and hosts share the token buckets. */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { Tallies } from '../bus/tallies.ts';
import { parseBuckets, TokenBuckets } from './token-buckets.ts';

const callers = ['tenant', 'customer'] as const;
type Caller = (typeof callers)[number];

interface RequestLimitDeps {
  settings: Record<Caller, string>;
  bus: Bus;
  clock: Clock;
}

/** Returns undefined when nothing is limited. Throws one line that names a malformed setting. */
export async function openRequestLimits(deps: RequestLimitDeps): Promise<RequestLimits | undefined> {
  const requestLimits = new RequestLimits(deps);
  if (!requestLimits.limited) return undefined;
  await requestLimits.start();
  return requestLimits;
}

const oneRequest = [1];

export class RequestLimits {
  readonly #buckets: Record<Caller, TokenBuckets>;
  readonly #tallies: Tallies<Caller>;

  constructor({ settings, bus, clock }: RequestLimitDeps) {
    const bucketsOf = (caller: Caller) =>
      new TokenBuckets(parseBuckets(`rest.${caller}`, 0, settings[caller]), limits.rateLimitTenantsMax, clock);
    this.#buckets = { tenant: bucketsOf('tenant'), customer: bucketsOf('customer') };
    this.#tallies = new Tallies<Caller>({
      bus,
      channel: 'rest-limits',
      groups: callers,
      countsOfOwner: oneRequest.length,
      intervalMs: limits.rateLimitPublishMs,
      ownersPerMessage: limits.rateLimitOwnersPerMessage,
      onCounts: (caller, id, counts) => this.#buckets[caller].take(id, counts),
    });
  }

  get limited(): boolean {
    return callers.some((caller) => this.#buckets[caller].limited);
  }

  async start(): Promise<void> {
    await this.#tallies.start();
  }

  stop(): void {
    this.#tallies.stop();
  }

  /** Takes one request. Throws 429, and then takes nothing. */
  take(tenantId: string, customerId: string | null): void {
    this.#check('tenant', tenantId);
    if (customerId !== null) this.#check('customer', customerId);
    this.#takeOne('tenant', tenantId);
    if (customerId !== null) this.#takeOne('customer', customerId);
    this.#tallies.publish();
  }

  #check(caller: Caller, id: string): void {
    const shortage = this.#buckets[caller].shortage(id, 0, 1);
    if (!shortage) return;
    const message = `Too many requests for current ${caller}!`;
    throw new Fault(`request_limit_${caller}`, message, shortage.retrySeconds);
  }

  #takeOne(caller: Caller, id: string): void {
    if (!this.#buckets[caller].limited) return;
    this.#buckets[caller].take(id, oneRequest);
    this.#tallies.of(caller).add(id, oneRequest);
  }
}
