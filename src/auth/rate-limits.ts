/**
 * Limits the messages of a device, of a gateway itself, of all devices of a gateway, and of all devices of a tenant. A
 * post with data points counts as one telemetry message and its points, every other message as one message. A limit is
 * that of the tenant's profile, or that of the settings where the profile has none. All workers and hosts share one
 * bucket, within the bounds of `shared-buckets.ts`. Without the bus each worker counts separately.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';
import type { BucketOwner } from './bucket-reports.ts';
import { type ProfileLimits, rateMember } from './profile-limits.ts';
import { type Counted, countedNouns, kinds, type RateLimitSettings, type ScopeName, scopeNames } from './rate-kinds.ts';
import { RulesOfTenants } from './rules-of-tenants.ts';
import type { BucketUse } from './shared-buckets.ts';
import { type SharedGroup, SharedLimits } from './shared-limits.ts';
import { type Bucket, parseBuckets, type Shortage } from './token-buckets.ts';

/** Indexes in `Taken`. */
const messagesKind = 0;
const telemetryMessagesKind = 1;
const telemetryDataPointsKind = 2;

/** The noun for the owner of a limit in a refusal. */
const nounOf: Record<ScopeName, string> = {
  device: 'device',
  gatewayDevice: 'device',
  gateway: 'gateway',
  tenant: 'tenant',
};

interface LimitedDevice {
  readonly number: number;
  readonly tenantId: string;
  readonly isGateway?: boolean | undefined;
}

/** Counts of messages, telemetry messages and data points, one for each of `kinds`. */
type Taken = readonly [number, number, number];

/** Throws a StartError when a limit is malformed. */
export function parseRateLimits(settings: RateLimitSettings): Record<ScopeName, Bucket[]> {
  const bucketsOf = (scope: ScopeName) =>
    kinds.flatMap((kind, i) => parseBuckets(`${scope}.${kind}`, i, settings[scope][kind]));
  return {
    device: bucketsOf('device'),
    gatewayDevice: bucketsOf('gatewayDevice'),
    gateway: bucketsOf('gateway'),
    tenant: bucketsOf('tenant'),
  };
}

interface RateLimitDeps {
  settings: RateLimitSettings;
  /** Shares the buckets with all workers. */
  exchange: HomeExchange;
  clock: Clock;
}

/** A profile that sets limits, with the tenants that have it. */
export interface LimitedProfile {
  id: string;
  name: string;
  limits: ProfileLimits;
  tenantIds: string[];
}

/** A limit, and the tokens that are left. */
interface Level {
  scope: ScopeName;
  /** The setting, or the member of the tenant's profile. */
  limit: string;
  capacity: number;
  seconds: number;
  left: number;
}

/** The limits of the tenants of one profile, or of all tenants whose profile sets none. */
interface Rules {
  /** Equal for rules with the same limits and the same names of limits. */
  key: string;
  settings: RateLimitSettings;
  scopes: Record<ScopeName, SharedGroup>;
  nameOf: (scope: ScopeName, kind: Counted) => string;
}

/** What this worker keeps of the tenant and of the owner of a message. */
interface Uses {
  rules: Rules;
  scope: ScopeName;
  tenant: BucketUse | undefined;
  own: BucketUse | undefined;
}

const oneMessage: Taken = [1, 0, 0];

export class RateLimits {
  /** False while no tenant has a limit: a message then costs this one comparison. */
  isActive = false;
  readonly #clock: Clock;
  readonly #rules: RulesOfTenants<Rules>;
  readonly #shared: SharedLimits<ScopeName>;

  constructor({ settings, exchange, clock }: RateLimitDeps) {
    this.#clock = clock;
    this.#shared = new SharedLimits<ScopeName>({
      exchange,
      topic: 'rate-limits',
      groups: scopeNames,
      kinds: kinds.length,
      find: (scope, profileId) => this.#rules.ofProfile(profileId)?.scopes[scope],
      all: () => this.#rules.all().flatMap(({ scopes }) => scopeNames.map((name) => scopes[name])),
      clock,
    });
    const nameOf = (scope: ScopeName, kind: Counted) => `rateLimits.${scope}.${kind}`;
    this.#rules = new RulesOfTenants(this.#makeRules('', '', settings, nameOf));
    this.#setActive();
  }

  /** Limits the tenants of these profiles, and no others, by their profiles. Unchanged limits keep their tokens. */
  useProfiles(profiles: readonly LimitedProfile[]): void {
    const { ofSettings } = this.#rules;
    this.#rules.use(profiles, ({ id, name, limits: given }) => {
      const settings = merged(ofSettings.settings, given.rates);
      const key = JSON.stringify([name, settings]);
      const nameOf = (scope: ScopeName, kind: Counted) =>
        given.rates[scope][kind] === ''
          ? ofSettings.nameOf(scope, kind)
          : `${rateMember(scope, kind)} of tenant profile "${name}"`;
      return { key, make: () => this.#makeRules(id, key, settings, nameOf) };
    });
    this.#setActive();
  }

  /** Returns the limits of a tenant as strings; '' = unlimited. */
  settingsOf(tenantId: string): RateLimitSettings {
    return this.#rules.of(tenantId).settings;
  }

  /** Takes a message without data points. Throws 429, and then takes nothing. */
  message(device: LimitedDevice): void {
    if (this.isActive) takeMessage(this.#uses(ownScope(device), device));
  }

  /**
   * Called before a telemetry or attribute post is decoded. Throws 429 when even one data point would exceed a limit.
   */
  admit(device: LimitedDevice): void {
    if (!this.isActive) return;
    const uses = this.#uses(ownScope(device), device);
    check(uses, telemetryMessagesKind, 1);
    check(uses, telemetryDataPointsKind, 1);
  }

  /**
   * Takes a post that `admit` has let pass, once its data points are counted; a post without data points counts as a
   * message. Throws 429.
   */
  points(device: LimitedDevice, points: number): void {
    if (this.isActive) takePoints(this.#uses(ownScope(device), device), points);
  }

  /** Like `message`, for a child: the children of a gateway share its limits. */
  childMessage(gateway: LimitedDevice): void {
    if (this.isActive) takeMessage(this.#uses('gateway', gateway));
  }

  /** Like `points`, for a child. */
  childPoints(gateway: LimitedDevice, points: number): void {
    if (this.isActive) takePoints(this.#uses('gateway', gateway), points);
  }

  /**
   * Returns the tokens that are left of every limit of the device, as this worker knows; a negative number is a debt.
   */
  levels(device: LimitedDevice): Level[] {
    const { scopes, nameOf } = this.#rules.of(device.tenantId);
    const ofDevice: ScopeName[] = device.isGateway === true ? ['gatewayDevice', 'gateway'] : ['device'];
    const owners = [
      ...ofDevice.map((scope) => ({ scope, owner: device.number as BucketOwner })),
      { scope: 'tenant' as const, owner: device.tenantId },
    ];
    return owners.flatMap(({ scope, owner }) =>
      scopes[scope].buckets.levels(owner).map(({ bucket: { kind, capacity, seconds }, left }) => {
        return { scope, limit: nameOf(scope, kinds[kind]!), capacity, seconds, left };
      }),
    );
  }

  #uses(scope: ScopeName, sender: LimitedDevice): Uses {
    const rules = this.#rules.of(sender.tenantId);
    const { scopes } = rules;
    const now = this.#clock.monotonic();
    return {
      rules,
      scope,
      tenant: scopes.tenant.buckets.use(sender.tenantId, now),
      own: scopes[scope].buckets.use(sender.number, now),
    };
  }

  #makeRules(profileId: string, key: string, settings: RateLimitSettings, nameOf: Rules['nameOf']): Rules {
    const { rateLimitDevicesMax: devicesMax, rateLimitTenantsMax: tenantsMax } = limits;
    const buckets = parseRateLimits(settings);
    const scope = (name: ScopeName, ownersMax: number): SharedGroup =>
      this.#shared.makeGroup(name, profileId, buckets[name], ownersMax);
    const scopes = {
      device: scope('device', devicesMax),
      gatewayDevice: scope('gatewayDevice', devicesMax),
      gateway: scope('gateway', devicesMax),
      tenant: scope('tenant', tenantsMax),
    };
    return { key, settings, scopes, nameOf };
  }

  #setActive(): void {
    this.isActive = this.#rules.all().some(({ scopes }) => scopeNames.some((name) => scopes[name].buckets.limited));
  }
}

/** Returns the scope of the limits on messages of the device itself. */
function ownScope(device: LimitedDevice): ScopeName {
  return device.isGateway === true ? 'gatewayDevice' : 'device';
}

function takeMessage(uses: Uses): void {
  check(uses, messagesKind, 1);
  take(uses, oneMessage);
}

function takePoints(uses: Uses, points: number): void {
  if (points === 0) {
    takeMessage(uses);
    return;
  }
  check(uses, telemetryMessagesKind, 1);
  check(uses, telemetryDataPointsKind, points);
  take(uses, [0, 1, points]);
}

function check({ rules, scope, tenant, own }: Uses, kind: number, count: number): void {
  const ofTenant = rules.scopes.tenant.buckets.shortage(tenant, kind, count);
  if (ofTenant) throw tooMany('tenant', ofTenant, count, rules);
  const ofOwn = rules.scopes[scope].buckets.shortage(own, kind, count);
  if (ofOwn) throw tooMany(scope, ofOwn, count, rules);
}

function take({ rules, scope, tenant, own }: Uses, taken: Taken): void {
  rules.scopes.tenant.buckets.take(tenant, taken);
  rules.scopes[scope].buckets.take(own, taken);
}

/** Takes each limit of a profile, and the setting where the profile has none. */
function merged(settings: RateLimitSettings, given: RateLimitSettings): RateLimitSettings {
  const scope = (name: ScopeName) =>
    Object.fromEntries(kinds.map((kind) => [kind, given[name][kind] || settings[name][kind]])) as Record<
      Counted,
      string
    >;
  return {
    device: scope('device'),
    gatewayDevice: scope('gatewayDevice'),
    gateway: scope('gateway'),
    tenant: scope('tenant'),
  };
}

function tooMany(scope: ScopeName, { bucket, retrySeconds }: Shortage, count: number, { nameOf }: Rules): Fault {
  const { capacity, seconds } = bucket;
  const kind = kinds[bucket.kind]!;
  const limit = `${capacity} ${countedNouns[kind]} in ${seconds} s (${nameOf(scope, kind)})`;
  const advice = count > capacity ? ` This message has ${count}: send it in parts.` : '';
  const message = `Too many requests for current ${nounOf[scope]}! The limit is ${limit}.${advice}`;
  return new Fault(`rate_limit_${scope}`, message, retrySeconds);
}
