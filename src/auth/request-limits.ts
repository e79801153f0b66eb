/**
 * Limits the REST calls of a tenant and of each of its customers. A limit is that of the tenant's profile, or that of
 * the settings where the profile has none. All workers and hosts share the token buckets.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { Tallies, type Tally } from '../bus/tallies.ts';
import type { LimitedProfile } from './rate-limits.ts';
import { parseBuckets, TokenBuckets } from './token-buckets.ts';

const callers = ['tenant', 'customer'] as const;
type Caller = (typeof callers)[number];

interface RequestLimitDeps {
  settings: Record<Caller, string>;
  bus: Bus;
  /** As in `TalliesDeps`. */
  workers?: () => number;
  clock: Clock;
}

/** The limits of the tenants of one profile, or of all tenants whose profile sets none. */
interface Rules {
  /** Rules with one key limit alike. */
  key: string;
  buckets: Record<Caller, TokenBuckets>;
  tallies: Record<Caller, Tally>;
}

const oneRequest = [1];

export class RequestLimits {
  readonly #settings: Record<Caller, string>;
  readonly #clock: Clock;
  readonly #ofSettings: Rules;
  #ofTenants: ReadonlyMap<string, Rules> = new Map();
  /** By id of the profile. */
  #ofProfiles: ReadonlyMap<string, Rules> = new Map();
  readonly #tallies: Tallies<Caller>;

  /** Throws one line that names a malformed setting. */
  constructor({ settings, bus, workers, clock }: RequestLimitDeps) {
    this.#settings = settings;
    this.#clock = clock;
    this.#tallies = new Tallies<Caller>({
      bus,
      channel: 'rest-limits',
      groups: callers,
      countsOfOwner: oneRequest.length,
      workers,
      ownersPerMessage: limits.rateLimitOwnersPerMessage,
      onCounts: (caller, id, counts, profileId) => {
        const rules = profileId === '' ? this.#ofSettings : this.#ofProfiles.get(profileId);
        rules?.buckets[caller].take(id, counts);
      },
    });
    this.#ofSettings = this.#rules('', '', settings);
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
      const key = JSON.stringify([tenant, customer]);
      const known = this.#ofProfiles.get(id);
      const rules = known?.key === key ? known : this.#rules(id, key, { tenant, customer });
      ofProfiles.set(id, rules);
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
    const { buckets, tallies } = rules;
    if (!buckets[caller].limited) return;
    buckets[caller].take(id, oneRequest);
    tallies[caller].add(id, oneRequest);
  }

  #rules(profileId: string, key: string, settings: Record<Caller, string>): Rules {
    const bucketsOf = (caller: Caller) =>
      new TokenBuckets(parseBuckets(`rest.${caller}`, 0, settings[caller]), limits.rateLimitTenantsMax, this.#clock);
    return {
      key,
      buckets: { tenant: bucketsOf('tenant'), customer: bucketsOf('customer') },
      tallies: {
        tenant: this.#tallies.tally('tenant', profileId),
        customer: this.#tallies.tally('customer', profileId),
      },
    };
  }
}

function check(rules: Rules, caller: Caller, id: string): void {
  const shortage = rules.buckets[caller].shortage(id, 0, 1);
  if (!shortage) return;
  const message = `Too many requests for current ${caller}!`;
  throw new Fault(`request_limit_${caller}`, message, shortage.retrySeconds);
}
