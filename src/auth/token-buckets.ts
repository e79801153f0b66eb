/**
 * Token buckets, written in settings as `capacity:seconds,capacity:seconds`, and what they hold for one owner. All
 * buckets must pass. `shared-buckets.ts` keeps the accounts of owners.
 */
import type { Clock } from '../base/clock.ts';
import { StartError } from '../base/errors.ts';

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

/** The tokens of one owner. */
export interface TokenAccount {
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
  readonly #clock: Clock;

  constructor(buckets: readonly Bucket[], clock: Clock) {
    this.#buckets = buckets;
    this.#clock = clock;
  }

  get limited(): boolean {
    return this.#buckets.length > 0;
  }

  get count(): number {
    return this.#buckets.length;
  }

  full(): TokenAccount {
    const tokens = Float64Array.from(this.#buckets, ({ capacity }) => capacity);
    return { tokens, refilledAt: this.#clock.monotonic() };
  }

  /**
   * Adds the tokens of the time from the last refill up to now (monotonic milliseconds). An owner of a share of the
   * buckets gets that share.
   */
  refill(account: TokenAccount, now: number, share = 1): void {
    const seconds = (now - account.refilledAt) / 1000;
    account.refilledAt = now;
    const { tokens } = account;
    for (let i = 0; i < this.#buckets.length; i += 1) {
      const bucket = this.#buckets[i]!;
      const most = capacityOf(bucket, share);
      if (tokens[i]! >= most) continue;
      tokens[i] = Math.min(most, tokens[i]! + (seconds * bucket.capacity * share) / bucket.seconds);
    }
  }

  /** Takes away the tokens that a share of the buckets cannot hold. */
  shrink({ tokens }: TokenAccount, share: number): void {
    for (let i = 0; i < this.#buckets.length; i += 1) {
      tokens[i] = Math.min(tokens[i]!, capacityOf(this.#buckets[i]!, share));
    }
  }

  /** Sets the tokens that another worker or host reported. */
  set(account: TokenAccount, levels: readonly number[]): void {
    account.refilledAt = this.#clock.monotonic();
    for (let i = 0; i < this.#buckets.length; i += 1) {
      account.tokens[i] = Math.min(this.#buckets[i]!.capacity, levels[i]!);
    }
  }

  /** Returns the first bucket of this kind with fewer tokens than `count`. */
  shortage({ tokens }: TokenAccount, kind: number, count: number): Shortage | undefined {
    for (let i = 0; i < this.#buckets.length; i += 1) {
      const bucket = this.#buckets[i]!;
      if (bucket.kind !== kind || tokens[i]! >= count - rounding) continue;
      const { capacity, seconds } = bucket;
      const retrySeconds = Math.ceil(((Math.min(count, capacity) - tokens[i]!) * seconds) / capacity - rounding);
      return { bucket, retrySeconds: Math.max(1, retrySeconds) };
    }
    return undefined;
  }

  /** True when a bucket holds no more than this part of its capacity. */
  isBelow({ tokens }: TokenAccount, part: number): boolean {
    for (let i = 0; i < this.#buckets.length; i += 1) {
      if (tokens[i]! <= part * this.#buckets[i]!.capacity + rounding) return true;
    }
    return false;
  }

  /** Returns the smallest part of a bucket that is left. */
  partLeft({ tokens }: TokenAccount): number {
    return this.#buckets.reduce((least, { capacity }, i) => Math.min(least, tokens[i]! / capacity), 1);
  }

  /** Returns the tokens in each bucket; a negative number is a debt. `known` is undefined for full buckets. */
  levels(known: TokenAccount | undefined): { bucket: Bucket; left: number }[] {
    const seconds = known === undefined ? 0 : (this.#clock.monotonic() - known.refilledAt) / 1000;
    return this.#buckets.map((bucket, i) => {
      const { capacity } = bucket;
      const left = known === undefined ? capacity : known.tokens[i]! + (seconds * capacity) / bucket.seconds;
      return { bucket, left: Math.min(capacity, left) };
    });
  }

  /** Takes `counts`, one number for each kind, even beyond the tokens that are left. */
  take({ tokens }: TokenAccount, counts: readonly number[]): void {
    for (let i = 0; i < this.#buckets.length; i += 1) tokens[i]! -= counts[this.#buckets[i]!.kind]!;
  }

  /** The kind that the bucket of this index limits. */
  kindOf(i: number): number {
    return this.#buckets[i]!.kind;
  }
}

/** A share of a bucket holds at least one token. */
function capacityOf({ capacity }: Bucket, share: number): number {
  return share === 1 ? capacity : Math.max(1, capacity * share);
}
