/**
 * Limits the REST calls of a tenant and of each of its customers. A limit is that of the tenant's profile, or that of
 * the settings where the profile has none. All workers and hosts share the token buckets.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { Tallies } from '../bus/tallies.ts';
import type { LimitedProfile } from './rate-limits.ts';
import { parseBuckets, TokenBuckets } from './token-buckets.ts';

const callers = ['tenant', 'customer'] as const;
type Caller = (typeof callers)[number];

interface RequestLimitDeps {
  settings: Record<Caller, string>;
  bus: Bus;
  clock: Clock;
}

/** The limits of the tenants of one profile, or of all tenants whose profile sets none. */
type Rules = Record<Caller, TokenBuckets>;

const oneRequest = [1];

export class RequestLimits {
  readonly #settings: Record<Caller, string>;
  readonly #clock: Clock;
  readonly #ofSettings: Rules;
  #ofTenants: ReadonlyMap<string, Rules> = new Map();
  #ofProfiles: ReadonlyMap<string, Rules> = new Map();
  readonly #tallies: Tallies<Caller>;

  /** Throws one line that names a malformed setting. */
  constructor({ settings, bus, clock }: RequestLimitDeps) {
    this.#settings = settings;
    this.#clock = clock;
    this.#ofSettings = this.#rules(settings);
    this.#tallies = new Tallies<Caller>({
      bus,
      channel: 'rest-limits',
      groups: callers,
      countsOfOwner: oneRequest.length,
      intervalMs: limits.rateLimitPublishMs,
      ownersPerMessage: limits.rateLimitOwnersPerMessage,
      onCounts: (caller, id, counts) => {
        // The message of a customer has no tenant. Rules of other tenants never ask for the customer's tokens.
        for (const rules of [this.#ofSettings, ...this.#ofProfiles.values()]) rules[caller].take(id, counts);
      },
    });
  }

  async start(): Promise<void> {
    await this.#tallies.start();
  }

  stop(): void {
    this.#tallies.stop();
  }

  /** Limits the tenants of these profiles, and no others, by their profiles. Unchanged limits keep their tokens. */
  useProfiles(profiles: readonly LimitedProfile[]): void {
    const ofProfiles = new Map<string, Rules>();
    const ofTenants = new Map<string, Rules>();
    for (const { id, limits: given, tenantIds } of profiles) {
      const tenant = given.requests.tenant || this.#settings.tenant;
      const customer = given.requests.customer || this.#settings.customer;
      const key = JSON.stringify([id, tenant, customer]);
      const rules = this.#ofProfiles.get(key) ?? this.#rules({ tenant, customer });
      ofProfiles.set(key, rules);
      for (const tenantId of tenantIds) ofTenants.set(tenantId, rules);
    }
    this.#ofProfiles = ofProfiles;
    this.#ofTenants = ofTenants;
  }

  /** Takes one request. Throws 429, and then takes nothing. */
  take(tenantId: string, customerId: string | null): void {
    const rules = this.#ofTenants.get(tenantId) ?? this.#ofSettings;
    check(rules, 'tenant', tenantId);
    if (customerId !== null) check(rules, 'customer', customerId);
    this.#takeOne(rules, 'tenant', tenantId);
    if (customerId !== null) this.#takeOne(rules, 'customer', customerId);
    this.#tallies.publish();
  }

  #takeOne(rules: Rules, caller: Caller, id: string): void {
    if (!rules[caller].limited) return;
    rules[caller].take(id, oneRequest);
    this.#tallies.of(caller).add(id, oneRequest);
  }

  #rules(settings: Record<Caller, string>): Rules {
    const bucketsOf = (caller: Caller) =>
      new TokenBuckets(parseBuckets(`rest.${caller}`, 0, settings[caller]), limits.rateLimitTenantsMax, this.#clock);
    return { tenant: bucketsOf('tenant'), customer: bucketsOf('customer') };
  }
}

function check(rules: Rules, caller: Caller, id: string): void {
  const shortage = rules[caller].shortage(id, 0, 1);
  if (!shortage) return;
  const message = `Too many requests for current ${caller}!`;
  throw new Fault(`request_limit_${caller}`, message, shortage.retrySeconds);
}
