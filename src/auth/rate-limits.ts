/**
 * Limits the messages of a device, of a gateway itself, of all devices of a gateway, and of all devices of a tenant. A
 * post with data points counts as one telemetry message and its points, every other message as one message. Each worker
 * keeps the token buckets of the devices that sent to it, and publishes at once the tokens that it took, so all workers
 * and hosts share one bucket. Messages of several connections within a few milliseconds may overdraw a bucket; later
 * messages pay the debt. Without the bus each worker counts separately.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { Tallies, type Tally, type TallyOwner } from '../bus/tallies.ts';
import { type Bucket, parseBuckets, type Shortage, TokenBuckets } from './token-buckets.ts';

/** The counted kinds, and their names in a refusal. */
const counted = {
  messages: 'messages',
  telemetryMessages: 'telemetry messages',
  telemetryDataPoints: 'telemetry data points',
} as const;
type Counted = keyof typeof counted;
const kinds = Object.keys(counted) as Counted[];
/** Indexes in `Taken`. */
const messagesKind = 0;
const telemetryMessagesKind = 1;
const telemetryDataPointsKind = 2;

const scopeNames = ['device', 'gatewayDevice', 'gateway', 'tenant'] as const;
type ScopeName = (typeof scopeNames)[number];

/** The noun for the owner of a limit in a refusal. */
const nounOf: Record<ScopeName, string> = {
  device: 'device',
  gatewayDevice: 'device',
  gateway: 'gateway',
  tenant: 'tenant',
};

/** As in the settings: one string for each kind, '' = unlimited. */
export type RateLimitSettings = Record<ScopeName, Record<Counted, string>>;

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
  buckets: Record<ScopeName, Bucket[]>;
  bus: Bus;
  clock: Clock;
}

/** Returns undefined when nothing is limited: a message then costs one comparison. */
export async function openRateLimits(deps: RateLimitDeps): Promise<RateLimits | undefined> {
  if (scopeNames.every((scope) => deps.buckets[scope].length === 0)) return undefined;
  const rateLimits = new RateLimits(deps);
  await rateLimits.start();
  return rateLimits;
}

/** A limit, and the tokens that are left. */
interface Level {
  scope: ScopeName;
  /** The setting. */
  limit: string;
  capacity: number;
  seconds: number;
  left: number;
}

interface Scope {
  name: ScopeName;
  buckets: TokenBuckets;
  tally: Tally;
}

export class RateLimits {
  readonly #scopes: Record<ScopeName, Scope>;
  readonly #tallies: Tallies<ScopeName>;

  constructor({ buckets, bus, clock }: RateLimitDeps) {
    const { rateLimitDevicesMax: devicesMax, rateLimitTenantsMax: tenantsMax } = limits;
    this.#tallies = new Tallies<ScopeName>({
      bus,
      channel: 'rate-limits',
      groups: scopeNames,
      countsOfOwner: kinds.length,
      intervalMs: limits.rateLimitPublishMs,
      ownersPerMessage: limits.rateLimitOwnersPerMessage,
      onCounts: (scope, owner, counts) => this.#scopes[scope].buckets.take(owner, counts),
    });
    const scope = (name: ScopeName, ownersMax: number): Scope => {
      return { name, buckets: new TokenBuckets(buckets[name], ownersMax, clock), tally: this.#tallies.of(name) };
    };
    this.#scopes = {
      device: scope('device', devicesMax),
      gatewayDevice: scope('gatewayDevice', devicesMax),
      gateway: scope('gateway', devicesMax),
      tenant: scope('tenant', tenantsMax),
    };
  }

  async start(): Promise<void> {
    await this.#tallies.start();
  }

  stop(): void {
    this.#tallies.stop();
  }

  /** Takes a message without data points. Throws 429, and then takes nothing. */
  message(device: LimitedDevice): void {
    this.#takeMessage(this.#own(device), device);
  }

  /**
   * Called before a telemetry or attribute post is decoded. Throws 429 when even one data point would exceed a limit.
   */
  admit(device: LimitedDevice): void {
    const scope = this.#own(device);
    this.#check(scope, device, telemetryMessagesKind, 1);
    this.#check(scope, device, telemetryDataPointsKind, 1);
  }

  /** Takes such a post, once its data points are counted; a post without any is a plain message. Throws 429. */
  points(device: LimitedDevice, points: number): void {
    this.#takePoints(this.#own(device), device, points);
  }

  /** Like `message`, for a child: the children of a gateway share its limits. */
  childMessage(gateway: LimitedDevice): void {
    this.#takeMessage(this.#scopes.gateway, gateway);
  }

  /** Like `points`, for a child. */
  childPoints(gateway: LimitedDevice, points: number): void {
    this.#takePoints(this.#scopes.gateway, gateway, points);
  }

  /**
   * Returns the tokens that are left of every limit of the device, as this worker knows; a negative number is a debt.
   */
  levels(device: LimitedDevice): Level[] {
    const { gateway, tenant } = this.#scopes;
    const ofTenant = { scope: tenant, owner: device.tenantId };
    const ofDevice = [this.#own(device), ...(device.isGateway === true ? [gateway] : [])];
    const owners = [...ofDevice.map((scope) => ({ scope, owner: device.number })), ofTenant];
    return owners.flatMap(({ scope: { name, buckets }, owner }) =>
      buckets.levels(owner).map(({ bucket: { kind, capacity, seconds }, left }) => {
        return { scope: name, limit: `rateLimits.${name}.${kinds[kind]}`, capacity, seconds, left };
      }),
    );
  }

  /** The limits on the messages of the device itself. */
  #own(device: LimitedDevice): Scope {
    return device.isGateway === true ? this.#scopes.gatewayDevice : this.#scopes.device;
  }

  #takeMessage(scope: Scope, sender: LimitedDevice): void {
    this.#check(scope, sender, messagesKind, 1);
    this.#take(scope, sender, [1, 0, 0]);
  }

  #takePoints(scope: Scope, sender: LimitedDevice, points: number): void {
    if (points === 0) {
      this.#takeMessage(scope, sender);
      return;
    }
    this.#check(scope, sender, telemetryMessagesKind, 1);
    this.#check(scope, sender, telemetryDataPointsKind, points);
    this.#take(scope, sender, [0, 1, points]);
  }

  #check(scope: Scope, sender: LimitedDevice, kind: number, count: number): void {
    const ofTenant = this.#scopes.tenant.buckets.shortage(sender.tenantId, kind, count);
    if (ofTenant) throw tooMany('tenant', ofTenant, count);
    const own = scope.buckets.shortage(sender.number, kind, count);
    if (own) throw tooMany(scope.name, own, count);
  }

  #take(scope: Scope, sender: LimitedDevice, taken: Taken): void {
    takeOf(this.#scopes.tenant, sender.tenantId, taken);
    takeOf(scope, sender.number, taken);
    this.#tallies.publish();
  }
}

function takeOf({ buckets, tally }: Scope, owner: TallyOwner, taken: Taken): void {
  if (!buckets.limited) return;
  buckets.take(owner, taken);
  tally.add(owner, taken);
}

function tooMany(scope: ScopeName, { bucket, retrySeconds }: Shortage, count: number): Fault {
  const { capacity, seconds } = bucket;
  const kind = kinds[bucket.kind]!;
  const limit = `${capacity} ${counted[kind]} in ${seconds} s (rateLimits.${scope}.${kind})`;
  const advice = count > capacity ? ` This message has ${count}: send it in parts.` : '';
  const message = `Too many requests for current ${nounOf[scope]}! The limit is ${limit}.${advice}`;
  return new Fault(`rate_limit_${scope}`, message, retrySeconds);
}
