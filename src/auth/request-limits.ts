/**
 * Limits the REST calls of a tenant and of each of its customers, and the commands to the tenant's devices. A limit is
 * that of the tenant's profile, or that of the settings where the profile has none. All workers and hosts share the
 * token buckets.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { Tallies, type Tally } from '../bus/tallies.ts';
import { type RequestKind, type RequestRates, requestKinds } from './rate-kinds.ts';
import type { LimitedProfile } from './rate-limits.ts';
import { RulesOfTenants } from './rules-of-tenants.ts';
import { type Bucket, parseBuckets, TokenBuckets } from './token-buckets.ts';

const sentences: Record<RequestKind, string> = {
  tenant: 'Too many requests for current tenant!',
  customer: 'Too many requests for current customer!',
  commands: 'Too many commands to the devices of this tenant!',
};

interface RequestLimitDeps {
  settings: RequestRates;
  bus: Bus;
  /** The workers of all hosts; absent: one. */
  fleetWorkers?: () => number;
  clock: Clock;
}

/** The limits of the tenants of one profile, or of all tenants whose profile sets none. */
interface Rules {
  /** Equal for rules with the same limits. */
  key: string;
  buckets: Record<RequestKind, TokenBuckets>;
  tallies: Record<RequestKind, Tally>;
}

const oneRequest = [1];

/** Throws a StartError when a limit is malformed. */
export function parseRequestRates(rates: RequestRates): Record<RequestKind, Bucket[]> {
  const bucketsOf = (kind: RequestKind) => parseBuckets(`rest.${kind}`, 0, rates[kind]);
  return { tenant: bucketsOf('tenant'), customer: bucketsOf('customer'), commands: bucketsOf('commands') };
}

export class RequestLimits {
  readonly #settings: RequestRates;
  readonly #clock: Clock;
  readonly #rules: RulesOfTenants<Rules>;
  readonly #tallies: Tallies<RequestKind>;

  /** Throws one line that names a malformed setting. */
  constructor({ settings, bus, fleetWorkers, clock }: RequestLimitDeps) {
    this.#settings = settings;
    this.#clock = clock;
    this.#tallies = new Tallies<RequestKind>({
      bus,
      channel: 'rest-limits',
      groups: requestKinds,
      countsOfOwner: oneRequest.length,
      fleetWorkers,
      ownersPerMessage: limits.rateLimitOwnersPerMessage,
      onCounts: (kind, id, counts, profileId) => {
        this.#rules.ofProfile(profileId)?.buckets[kind].take(id, counts);
      },
    });
    this.#rules = new RulesOfTenants(this.#makeRules('', '', settings));
  }

  async start(): Promise<void> {
    await this.#tallies.start();
  }

  stop(): void {
    this.#tallies.stop();
  }

  /** Limits the tenants of these profiles, and no others, by their profiles. Unchanged limits keep their tokens. */
  useProfiles(profiles: readonly LimitedProfile[]): void {
    this.#rules.use(profiles, ({ id, limits: given }) => {
      const rates = { ...this.#settings };
      for (const kind of requestKinds) if (given.requests[kind] !== '') rates[kind] = given.requests[kind];
      const key = JSON.stringify(rates);
      return { key, make: () => this.#makeRules(id, key, rates) };
    });
  }

  /** Takes one request. Throws 429, and then takes nothing. */
  take(tenantId: string, customerId: string | null): void {
    const rules = this.#rules.of(tenantId);
    check(rules, 'tenant', tenantId);
    if (customerId !== null) check(rules, 'customer', customerId);
    this.#takeOne(rules, 'tenant', tenantId);
    if (customerId !== null) this.#takeOne(rules, 'customer', customerId);
    this.#tallies.publish();
  }

  /** Takes one command to a device of the tenant. Throws 429, and then takes nothing. */
  takeCommand(tenantId: string): void {
    const rules = this.#rules.of(tenantId);
    check(rules, 'commands', tenantId);
    this.#takeOne(rules, 'commands', tenantId);
    this.#tallies.publish();
  }

  #takeOne({ buckets, tallies }: Rules, kind: RequestKind, id: string): void {
    if (!buckets[kind].limited) return;
    buckets[kind].take(id, oneRequest);
    tallies[kind].add(id, oneRequest);
  }

  #makeRules(profileId: string, key: string, rates: RequestRates): Rules {
    const parsed = parseRequestRates(rates);
    const bucketsOf = (kind: RequestKind) => new TokenBuckets(parsed[kind], limits.rateLimitTenantsMax, this.#clock);
    const tallyOf = (kind: RequestKind) => this.#tallies.tally(kind, profileId);
    return {
      key,
      buckets: { tenant: bucketsOf('tenant'), customer: bucketsOf('customer'), commands: bucketsOf('commands') },
      tallies: { tenant: tallyOf('tenant'), customer: tallyOf('customer'), commands: tallyOf('commands') },
    };
  }
}

function check({ buckets }: Rules, kind: RequestKind, id: string): void {
  const shortage = buckets[kind].shortage(id, 0, 1);
  if (shortage) throw new Fault(`request_limit_${kind}`, sentences[kind], shortage.retrySeconds);
}
