/**
 * How much a device, a gateway for itself, all devices of a gateway, and all devices of a tenant may send: token buckets `count:seconds,count:seconds`, of which all
 * must pass. A post with data points counts as one telemetry message and its points; everything else as one message.
 * Each worker keeps the buckets of the devices it saw and tells the others over the bus at once what it took, so one
 * bucket is meant for all workers and hosts: what is sent over several connections within the same few milliseconds may
 * exceed it, but is a debt that later messages pay. Without the bus each worker counts alone.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { ErrorCode, Fault, StartError } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { isListOf, isObject, isText, isWhole, readMessage } from '../bus/messages.ts';

/** What is counted, and how a refusal names it. */
const counted = {
  messages: 'messages',
  telemetryMessages: 'telemetry messages',
  telemetryDataPoints: 'telemetry data points',
} as const;
type Counted = keyof typeof counted;
const kinds = Object.keys(counted) as Counted[];

const scopeNames = ['device', 'gatewayDevice', 'gateway', 'tenant'] as const;
type ScopeName = (typeof scopeNames)[number];

/** How a refusal names whose limit it is. */
const nounOf: Record<ScopeName, string> = {
  device: 'device',
  gatewayDevice: 'device',
  gateway: 'gateway',
  tenant: 'tenant',
};

/** As in the settings: one text for each kind, '' = unlimited. */
export type RateLimitSettings = Record<ScopeName, Record<Counted, string>>;

export interface Bucket {
  kind: Counted;
  /** Tokens of the full bucket; it fills within `seconds`. */
  capacity: number;
  seconds: number;
}

export interface LimitedDevice {
  readonly number: number;
  readonly tenantId: string;
  readonly isGateway?: boolean | undefined;
}

const channel = 'rate-limits';
/** Refills add up fractions. */
const rounding = 1e-6;
const form = /^[1-9]\d{0,8}:[1-9]\d{0,6}(,[1-9]\d{0,8}:[1-9]\d{0,6})*$/;

/** Throws one line that names the setting. */
export function parseBuckets(setting: string, kind: Counted, text: string): Bucket[] {
  const compact = text.replaceAll(' ', '');
  if (compact === '') return [];
  if (!form.test(compact)) {
    throw new StartError(
      `Setting rateLimits.${setting} is "${text}": it must be empty or like 100:1,3000:60 ` +
        '(at most 100 in 1 second and 3000 in 60 seconds).',
    );
  }
  return compact.split(',').map((part) => {
    const [capacity, seconds] = part.split(':').map(Number) as [number, number];
    return { kind, capacity, seconds };
  });
}

/** Throws a StartError when a limit is malformed. */
export function parseRateLimits(settings: RateLimitSettings): Record<ScopeName, Bucket[]> {
  const bucketsOf = (scope: ScopeName) =>
    kinds.flatMap((kind) => parseBuckets(`${scope}.${kind}`, kind, settings[scope][kind]));
  return {
    device: bucketsOf('device'),
    gatewayDevice: bucketsOf('gatewayDevice'),
    gateway: bucketsOf('gateway'),
    tenant: bucketsOf('tenant'),
  };
}

export interface RateLimitDeps {
  buckets: Record<ScopeName, Bucket[]>;
  bus: Bus;
  clock: Clock;
}

/** Undefined when nothing is limited: then a message costs one comparison. */
export async function openRateLimits(deps: RateLimitDeps): Promise<RateLimits | undefined> {
  if (scopeNames.every((scope) => deps.buckets[scope].length === 0)) return undefined;
  const rateLimits = new RateLimits(deps);
  await rateLimits.start();
  return rateLimits;
}

/** What one worker took since it told the others last: messages, telemetry messages, data points. */
type Taken = [number, number, number];
/** Devices and gateways go by number, tenants by id. */
type Owner = number | string;

interface Told {
  from: string;
  taken: [ScopeName, Owner, Taken][];
}

function isTold(value: unknown): value is Told {
  return isObject(value) && isText(value['from']) && isListOf(value['taken'], isTaken);
}

function isTaken(value: unknown): value is Told['taken'][number] {
  if (!Array.isArray(value) || value.length !== 3) return false;
  const [scope, owner, taken] = value as unknown[];
  const isScope = scopeNames.some((name) => name === scope);
  return isScope && (isText(owner) || isWhole(owner)) && isListOf(taken, isWhole);
}

export class RateLimits {
  readonly #scopes: Record<ScopeName, Scope>;
  readonly #bus: Bus;
  readonly #node = randomUUID();
  #telling: NodeJS.Timeout | undefined;
  #leave: (() => void) | undefined;

  constructor({ buckets, bus, clock }: RateLimitDeps) {
    const { rateLimitDevicesMax: devicesMax, rateLimitTenantsMax: tenantsMax } = limits;
    this.#scopes = {
      device: new Scope('device', buckets.device, devicesMax, clock),
      gatewayDevice: new Scope('gatewayDevice', buckets.gatewayDevice, devicesMax, clock),
      gateway: new Scope('gateway', buckets.gateway, devicesMax, clock),
      tenant: new Scope('tenant', buckets.tenant, tenantsMax, clock),
    };
    this.#bus = bus;
  }

  async start(): Promise<void> {
    this.#leave = await this.#bus.subscribe(channel, (payload) => this.#hear(payload));
  }

  stop(): void {
    this.#leave?.();
    clearTimeout(this.#telling);
  }

  /** Takes a message that brings no data points. Throws 429, and then nothing is taken. */
  message(device: LimitedDevice): void {
    this.#takeMessage(this.#own(device), device);
  }

  /** Before a telemetry or attribute post is read: throws 429 when even one data point would be too much. */
  admit(device: LimitedDevice): void {
    const own = this.#own(device);
    this.#check(own, device, 'telemetryMessages', 1);
    this.#check(own, device, 'telemetryDataPoints', 1);
  }

  /** Takes such a post, once its data points are known; without any it is a plain message. Throws 429. */
  points(device: LimitedDevice, points: number): void {
    this.#takePoints(this.#own(device), device, points);
  }

  /** As `message`, for a child: the children of a gateway share its limits. */
  childMessage(gateway: LimitedDevice): void {
    this.#takeMessage(this.#scopes.gateway, gateway);
  }

  /** As `points`, for a child. */
  childPoints(gateway: LimitedDevice, points: number): void {
    this.#takePoints(this.#scopes.gateway, gateway, points);
  }

  /** Of what a device sends for itself. */
  #own(device: LimitedDevice): Scope {
    return device.isGateway === true ? this.#scopes.gatewayDevice : this.#scopes.device;
  }

  #takeMessage(scope: Scope, sender: LimitedDevice): void {
    this.#check(scope, sender, 'messages', 1);
    this.#take(scope, sender, [1, 0, 0]);
  }

  #takePoints(scope: Scope, sender: LimitedDevice, points: number): void {
    if (points === 0) {
      this.#takeMessage(scope, sender);
      return;
    }
    this.#check(scope, sender, 'telemetryMessages', 1);
    this.#check(scope, sender, 'telemetryDataPoints', points);
    this.#take(scope, sender, [0, 1, points]);
  }

  #check(scope: Scope, sender: LimitedDevice, kind: Counted, count: number): void {
    this.#scopes.tenant.check(sender.tenantId, kind, count);
    scope.check(sender.number, kind, count);
  }

  #take(scope: Scope, sender: LimitedDevice, taken: Taken): void {
    this.#scopes.tenant.takeHere(sender.tenantId, taken);
    scope.takeHere(sender.number, taken);
    // At once after a quiet time, gathered under load.
    if (!this.#telling) this.#tell();
  }

  #tell(): void {
    this.#telling = undefined;
    const all: Told['taken'] = [];
    for (const scope of scopeNames) {
      for (const [owner, taken] of this.#scopes[scope].untold()) all.push([scope, owner, taken]);
    }
    if (all.length === 0) return;
    for (let i = 0; i < all.length; i += limits.rateLimitOwnersPerMessage) {
      const told: Told = { from: this.#node, taken: all.slice(i, i + limits.rateLimitOwnersPerMessage) };
      this.#bus.publish(channel, JSON.stringify(told));
    }
    this.#telling = setTimeout(() => this.#tell(), limits.rateLimitTellMs).unref();
  }

  #hear(payload: Buffer): void {
    const { from, taken } = readMessage(payload, isTold);
    if (from === this.#node) return;
    for (const [scope, owner, amounts] of taken) this.#scopes[scope].take(owner, amounts);
  }
}

/** Tokens of one owner, in the order of the scope's buckets; below zero is a debt. */
interface Account {
  tokens: Float64Array;
  /** Monotonic milliseconds of the last refill. */
  refilledAt: number;
}

/** The buckets of all devices, all gateways, or all tenants. An owner that was forgotten begins with full buckets. */
class Scope {
  readonly #name: ScopeName;
  readonly #buckets: Bucket[];
  readonly #accounts: FifoMap<Owner, Account>;
  readonly #clock: Clock;
  /** What was taken here since the others were told last. */
  #untold = new Map<Owner, Taken>();

  constructor(name: ScopeName, buckets: Bucket[], ownersMax: number, clock: Clock) {
    this.#name = name;
    this.#buckets = buckets;
    this.#accounts = new FifoMap(ownersMax);
    this.#clock = clock;
  }

  get limited(): boolean {
    return this.#buckets.length > 0;
  }

  /** Throws 429 when a bucket of this kind holds less than `count`. */
  check(owner: Owner, kind: Counted, count: number): void {
    if (!this.limited) return;
    const { tokens } = this.#account(owner);
    for (let i = 0; i < this.#buckets.length; i += 1) {
      const bucket = this.#buckets[i]!;
      if (bucket.kind === kind && tokens[i]! < count - rounding) throw tooMany(this.#name, bucket, count, tokens[i]!);
    }
  }

  takeHere(owner: Owner, taken: Taken): void {
    if (!this.limited) return;
    this.take(owner, taken);
    const noted = this.#untold.get(owner);
    if (!noted) this.#untold.set(owner, [...taken]);
    else for (let i = 0; i < noted.length; i += 1) noted[i]! += taken[i]!;
  }

  untold(): Map<Owner, Taken> {
    const untold = this.#untold;
    if (untold.size > 0) this.#untold = new Map();
    return untold;
  }

  take(owner: Owner, taken: Taken): void {
    if (!this.limited) return;
    const { tokens } = this.#account(owner);
    for (let i = 0; i < this.#buckets.length; i += 1) tokens[i]! -= taken[kinds.indexOf(this.#buckets[i]!.kind)]!;
  }

  /** Refilled up to now. */
  #account(owner: Owner): Account {
    const now = this.#clock.monotonic();
    const known = this.#accounts.get(owner);
    if (!known) {
      const account = { tokens: Float64Array.from(this.#buckets, ({ capacity }) => capacity), refilledAt: now };
      this.#accounts.set(owner, account);
      return account;
    }
    const seconds = (now - known.refilledAt) / 1000;
    known.refilledAt = now;
    for (let i = 0; i < this.#buckets.length; i += 1) {
      const bucket = this.#buckets[i]!;
      known.tokens[i] = Math.min(bucket.capacity, known.tokens[i]! + (seconds * bucket.capacity) / bucket.seconds);
    }
    return known;
  }
}

function tooMany(scope: ScopeName, bucket: Bucket, count: number, tokens: number): Fault {
  const { kind, capacity, seconds } = bucket;
  const text = `${capacity} ${counted[kind]} in ${seconds} s (rateLimits.${scope}.${kind})`;
  const advice = count > capacity ? ` This message has ${count}: send it in deps.` : '';
  const message = `Too many requests for current ${nounOf[scope]}! The limit is ${text}.${advice}`;
  const retrySeconds = Math.ceil(((Math.min(count, capacity) - tokens) * seconds) / capacity - rounding);
  return new Fault(429, ErrorCode.tooManyRequests, `rate_limit_${scope}`, message, Math.max(1, retrySeconds));
}
