/**
 * Limits the REST calls of a tenant and of each of its customers, and the commands to the tenant's devices. A limit is
 * that of the tenant's profile, or that of the settings where the profile has none. All workers and hosts share the
 * token buckets (`shared-buckets.ts`).
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';
import { type RequestKind, type RequestRates, requestKinds } from './rate-kinds.ts';
import type { LimitedProfile } from './rate-limits.ts';
import { RulesOfTenants } from './rules-of-tenants.ts';
import type { BucketUse } from './shared-buckets.ts';
import { type SharedGroup, SharedLimits } from './shared-limits.ts';
import { type Bucket, parseBuckets } from './token-buckets.ts';

const sentences: Record<RequestKind, string> = {
  tenant: 'Too many requests for current tenant!',
  customer: 'Too many requests for current customer!',
  commands: 'Too many commands to the devices of this tenant!',
};

interface RequestLimitDeps {
  settings: RequestRates;
  /** Shares the buckets with all workers. */
  exchange: HomeExchange;
  clock: Clock;
}

/** The limits of the tenants of one profile, or of all tenants whose profile sets none. */
interface Rules {
  /** Equal for rules with the same limits. */
  key: string;
  groups: Record<RequestKind, SharedGroup>;
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
  readonly #shared: SharedLimits<RequestKind>;

  /** Throws one line that names a malformed setting. */
  constructor({ settings, exchange, clock }: RequestLimitDeps) {
    this.#settings = settings;
    this.#clock = clock;
    this.#shared = new SharedLimits<RequestKind>({
      exchange,
      topic: 'rest-limits',
      groups: requestKinds,
      kinds: oneRequest.length,
      find: (kind, profileId) => this.#rules.ofProfile(profileId)?.groups[kind],
      all: () => this.#rules.all().flatMap(({ groups }) => requestKinds.map((kind) => groups[kind])),
      clock,
    });
    this.#rules = new RulesOfTenants(this.#makeRules('', '', settings));
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
    const { groups } = this.#rules.of(tenantId);
    const tenant = this.#check(groups, 'tenant', tenantId);
    const customer = customerId === null ? undefined : this.#check(groups, 'customer', customerId);
    groups.tenant.buckets.take(tenant, oneRequest);
    groups.customer.buckets.take(customer, oneRequest);
  }

  /** Takes one command to a device of the tenant. Throws 429, and then takes nothing. */
  takeCommand(tenantId: string): void {
    const { groups } = this.#rules.of(tenantId);
    groups.commands.buckets.take(this.#check(groups, 'commands', tenantId), oneRequest);
  }

  /** Throws 429 when the owner has no request left. */
  #check(groups: Rules['groups'], kind: RequestKind, id: string): BucketUse | undefined {
    const { buckets } = groups[kind];
    const use = buckets.use(id, this.#clock.monotonic());
    const shortage = buckets.shortage(use, 0, 1);
    if (shortage) throw new Fault(`request_limit_${kind}`, sentences[kind], shortage.retrySeconds);
    return use;
  }

  #makeRules(profileId: string, key: string, rates: RequestRates): Rules {
    const parsed = parseRequestRates(rates);
    const groupOf = (kind: RequestKind) =>
      this.#shared.makeGroup(kind, profileId, parsed[kind], limits.rateLimitTenantsMax);
    return {
      key,
      groups: { tenant: groupOf('tenant'), customer: groupOf('customer'), commands: groupOf('commands') },
    };
  }
}
