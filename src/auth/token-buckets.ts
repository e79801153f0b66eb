/**
 * Token buckets, written in settings as `capacity:seconds,capacity:seconds`, and the tokens that each owner has left.
 * All buckets must pass. An owner that the cap evicted begins with full buckets. One process owns the tokens;
 * `bus/tallies.ts` delivers what other processes took.
 */
import type { Clock } from '../base/clock.ts';
import { StartError } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import type { TallyOwner } from '../bus/tallies.ts';

export interface Bucket {
  /** The index of the count, among those given to `take`, that this bucket limits. */
  kind: number;
  /** Tokens of the full bucket. An empty bucket is full again after `seconds`. */
  capacity: number;
  seconds: number;
}

/** A bucket with too few tokens, and the seconds until it has enough. */
export interface Shortage {
  bucket: Bucket;
  retrySeconds: number;
}

interface Account {
  /** Tokens in the order of the buckets; a negative number is a debt. */
  tokens: Float64Array;
  /** Monotonic milliseconds of the last refill. */
  refilledAt: number;
}

/** Refills accumulate rounding errors. */
const rounding = 1e-6;
const form = /^[1-9]\d{0,8}:[1-9]\d{0,6}(,[1-9]\d{0,8}:[1-9]\d{0,6})*$/;

/** Throws one line that names the setting; '' = unlimited. */
export function parseBuckets(setting: string, kind: number, text: string): Bucket[] {
  const buckets = readBuckets(kind, text);
  if (buckets) return buckets;
  const variable = `RATE_LIMITS_${setting.replaceAll('.', '_').replaceAll(/[A-Z]/g, '_$&').toUpperCase()}`;
  throw new StartError(
    `Setting rateLimits.${setting} (${variable}) is "${text}": it must be empty or like 100:1,3000:60 ` +
      '(at most 100 in 1 second and 3000 in 60 seconds).',
  );
}

/** Returns undefined when the string is malformed; '' = unlimited. */
export function readBuckets(kind: number, text: string): Bucket[] | undefined {
  const compact = text.replaceAll(' ', '');
  if (compact === '') return [];
  if (!form.test(compact)) return undefined;
  return compact.split(',').map((part) => {
    const [capacity, seconds] = part.split(':').map(Number) as [number, number];
    return { kind, capacity, seconds };
  });
}

export class TokenBuckets {
  readonly #buckets: readonly Bucket[];
  readonly #accounts: FifoMap<TallyOwner, Account>;
  readonly #clock: Clock;

  constructor(buckets: readonly Bucket[], ownersMax: number, clock: Clock) {
    this.#buckets = buckets;
    this.#accounts = new FifoMap(ownersMax);
    this.#clock = clock;
  }

  get limited(): boolean {
    return this.#buckets.length > 0;
  }

  /** Returns the first bucket of this kind with fewer tokens than `count`. */
  shortage(owner: TallyOwner, kind: number, count: number): Shortage | undefined {
    if (!this.limited) return undefined;
    const { tokens } = this.#account(owner);
    for (let i = 0; i < this.#buckets.length; i += 1) {
      const bucket = this.#buckets[i]!;
      if (bucket.kind !== kind || tokens[i]! >= count - rounding) continue;
      const { capacity, seconds } = bucket;
      const retrySeconds = Math.ceil(((Math.min(count, capacity) - tokens[i]!) * seconds) / capacity - rounding);
      return { bucket, retrySeconds: Math.max(1, retrySeconds) };
    }
    return undefined;
  }

  /** Returns the tokens that the owner has left in each bucket; a negative number is a debt. Changes nothing. */
  levels(owner: TallyOwner): { bucket: Bucket; left: number }[] {
    const known = this.#accounts.get(owner);
    const seconds = known === undefined ? 0 : (this.#clock.monotonic() - known.refilledAt) / 1000;
    return this.#buckets.map((bucket, i) => {
      const { capacity } = bucket;
      const left = known === undefined ? capacity : known.tokens[i]! + (seconds * capacity) / bucket.seconds;
      return { bucket, left: Math.min(capacity, left) };
    });
  }

  /** Takes `counts`, one number for each kind, even beyond the tokens that are left. */
  take(owner: TallyOwner, counts: readonly number[]): void {
    if (!this.limited) return;
    const { tokens } = this.#account(owner);
    for (let i = 0; i < this.#buckets.length; i += 1) tokens[i]! -= counts[this.#buckets[i]!.kind]!;
  }

  /** Returns the account, refilled up to now. */
  #account(owner: TallyOwner): Account {
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
