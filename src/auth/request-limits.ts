/**
 * How often a tenant, and each of its customers, may call the REST API: token buckets as in `rate-limits.ts`. A worker
 * tells the others over the bus what it took, so that one bucket is meant for all workers and hosts.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { ErrorCode, Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Bus } from '../bus/bus.ts';
import { isListOf, isObject, isText, isWhole, readMessage } from '../bus/messages.ts';
import { type Bucket, parseBuckets } from './rate-limits.ts';

const channel = 'request-limits';
const whose = ['tenant', 'customer'] as const;
type Whose = (typeof whose)[number];

export interface RequestLimitDeps {
  settings: Record<Whose, string>;
  bus: Bus;
  clock: Clock;
}

/** Undefined when nothing is limited. Throws one line that names a malformed setting. */
export async function openRequestLimits({
  settings,
  bus,
  clock,
}: RequestLimitDeps): Promise<RequestLimits | undefined> {
  const bucketsOf = (owner: Whose) => parseBuckets(`rest.${owner}`, 'messages', settings[owner]);
  const buckets = { tenant: bucketsOf('tenant'), customer: bucketsOf('customer') };
  if (buckets.tenant.length + buckets.customer.length === 0) return undefined;
  const requestLimits = new RequestLimits(buckets, bus, clock);
  await requestLimits.start();
  return requestLimits;
}

/** Tokens in the order of the buckets; below zero is a debt. */
interface Account {
  tokens: number[];
  refilledAt: number;
}

interface Told {
  from: string;
  taken: [Whose, string, number][];
}

function isTold(value: unknown): value is Told {
  return isObject(value) && isText(value['from']) && isListOf(value['taken'], isTaken);
}

function isTaken(value: unknown): value is Told['taken'][number] {
  if (!Array.isArray(value) || value.length !== 3) return false;
  const [owner, id, count] = value as unknown[];
  return (owner === 'tenant' || owner === 'customer') && isText(id) && isWhole(count);
}

export class RequestLimits {
  readonly #buckets: Record<Whose, Bucket[]>;
  readonly #bus: Bus;
  readonly #clock: Clock;
  readonly #node = randomUUID();
  readonly #accounts = new FifoMap<string, Account>(2 * limits.rateLimitTenantsMax);
  #untold = new Map<string, [Whose, string, number]>();
  #telling: NodeJS.Timeout | undefined;
  #leave: (() => void) | undefined;

  constructor(buckets: Record<Whose, Bucket[]>, bus: Bus, clock: Clock) {
    this.#buckets = buckets;
    this.#bus = bus;
    this.#clock = clock;
  }

  async start(): Promise<void> {
    this.#leave = await this.#bus.subscribe(channel, (payload) => this.#hear(payload));
  }

  stop(): void {
    this.#leave?.();
    clearTimeout(this.#telling);
  }

  /** One request. Throws 429, and then nothing is taken. */
  take(tenantId: string, customerId: string | null): void {
    this.#check('tenant', tenantId);
    if (customerId !== null) this.#check('customer', customerId);
    this.#takeHere('tenant', tenantId);
    if (customerId !== null) this.#takeHere('customer', customerId);
    if (!this.#telling) this.#tell();
  }

  #check(owner: Whose, id: string): void {
    const buckets = this.#buckets[owner];
    if (buckets.length === 0) return;
    const { tokens } = this.#account(owner, id);
    for (const [i, { capacity, seconds }] of buckets.entries()) {
      if (tokens[i]! >= 1) continue;
      const retrySeconds = Math.max(1, Math.ceil(((1 - tokens[i]!) * seconds) / capacity));
      const message = `Too many requests for current ${owner}!`;
      throw new Fault(429, ErrorCode.tooManyRequests, `request_limit_${owner}`, message, retrySeconds);
    }
  }

  #takeHere(owner: Whose, id: string): void {
    if (this.#buckets[owner].length === 0) return;
    this.#subtract(owner, id, 1);
    const noted = this.#untold.get(owner + id);
    if (noted) noted[2] += 1;
    else this.#untold.set(owner + id, [owner, id, 1]);
  }

  #subtract(owner: Whose, id: string, count: number): void {
    const { tokens } = this.#account(owner, id);
    for (let i = 0; i < tokens.length; i += 1) tokens[i]! -= count;
  }

  /** Refilled up to now. */
  #account(owner: Whose, id: string): Account {
    const now = this.#clock.monotonic();
    const buckets = this.#buckets[owner];
    let account = this.#accounts.get(owner + id);
    if (!account) {
      account = { tokens: buckets.map(({ capacity }) => capacity), refilledAt: now };
      this.#accounts.set(owner + id, account);
    }
    const elapsedSeconds = (now - account.refilledAt) / 1000;
    account.refilledAt = now;
    for (const [i, { capacity, seconds }] of buckets.entries()) {
      account.tokens[i] = Math.min(capacity, account.tokens[i]! + (elapsedSeconds * capacity) / seconds);
    }
    return account;
  }

  #tell(): void {
    this.#telling = undefined;
    if (this.#untold.size === 0) return;
    const taken = [...this.#untold.values()];
    this.#untold = new Map();
    this.#bus.publish(channel, JSON.stringify({ from: this.#node, taken }));
    this.#telling = setTimeout(() => this.#tell(), limits.rateLimitTellMs).unref();
  }

  #hear(payload: Buffer): void {
    const { from, taken } = readMessage(payload, isTold);
    if (from === this.#node) return;
    for (const [owner, id, count] of taken) this.#subtract(owner, id, count);
  }
}
