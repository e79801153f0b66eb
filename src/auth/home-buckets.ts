/**
 * What the home knows of the buckets of owners: which workers use each of them, and what is left. The only user of an
 * owner knows what is left; the home keeps its last report. When a second worker uses the owner, the home asks the
 * first one for what is left by announcing two users.
 */
import type { Clock } from '../base/clock.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';
import {
  type BucketOwner,
  type BucketReport,
  type BucketSum,
  decayed,
  lowPart,
  rounded,
  sharedMs,
} from './bucket-reports.ts';
import type { TokenAccount, TokenBuckets } from './token-buckets.ts';

interface Owned {
  readonly owner: BucketOwner;
  /** Undefined: full, or known to the only user. */
  account: TokenAccount | undefined;
  /** The only user, or the one user that has not reported what was left when it began to share. */
  user: string;
  /** Monotonic milliseconds of the last report. */
  reportedAt: number;
  /** Monotonic milliseconds of the last report of each user; undefined while there is one. */
  users: Map<string, number> | undefined;
  prunedAt: number;
  /** Taken by others while the report of `user` is awaited. */
  taken: number[] | undefined;
  demand: number;
  demandAt: number;
  announcedAt: number;
  /** True when half of a bucket or less was left at the last announcement. */
  wasLow: boolean;
}

/** Interval of the announcements of shared buckets of which more than half is left. */
const calmMs = 1_000;

interface HomeBucketsDeps {
  rules: TokenBuckets;
  exchange: HomeExchange;
  clock: Clock;
}

export class HomeBuckets {
  readonly #deps: HomeBucketsDeps;
  readonly #owned = new FifoMap<BucketOwner, Owned>(limits.homeOwnersMax);
  readonly #changed = new Set<Owned>();

  constructor(deps: HomeBucketsDeps) {
    this.#deps = deps;
  }

  count({ owner, form, numbers }: BucketReport, worker: string): void {
    const now = this.#deps.clock.monotonic();
    const owned = this.#owned.get(owner) ?? this.#make(owner, worker, now);
    const usersBefore = usersOf(owned);
    this.#noteUser(owned, worker, now);
    owned.reportedAt = now;
    if (form === 'left') this.#setLeft(owned, worker, numbers, now);
    else this.#take(owned, worker, numbers, now);
    const { rules } = this.#deps;
    const isLow = owned.account !== undefined && rules.isBelow(owned.account, lowPart);
    if (!owned.users && !isLow) owned.account = undefined;
    const isNew = usersOf(owned) !== usersBefore;
    const isDue = owned.users !== undefined && now - owned.announcedAt >= calmMs;
    if (isNew || isLow || owned.wasLow || isDue) this.#changed.add(owned);
  }

  /** The number of owners that the next announcements have. */
  get sumsChanged(): number {
    return this.#changed.size;
  }

  sums(countMax: number): BucketSum[] {
    const now = this.#deps.clock.monotonic();
    const sums: BucketSum[] = [];
    for (const owned of this.#changed) {
      if (sums.length >= countMax) break;
      this.#changed.delete(owned);
      sums.push(this.#sumOf(owned, now));
    }
    return sums;
  }

  #make(owner: BucketOwner, user: string, now: number): Owned {
    const owned: Owned = {
      owner,
      account: undefined,
      user,
      reportedAt: now,
      users: undefined,
      prunedAt: now,
      taken: undefined,
      demand: 0,
      demandAt: now,
      announcedAt: Number.NEGATIVE_INFINITY,
      wasLow: false,
    };
    const evicted = this.#owned.set(owner, owned);
    if (evicted) this.#changed.delete(evicted);
    return owned;
  }

  #noteUser(owned: Owned, worker: string, now: number): void {
    const { users, user, reportedAt } = owned;
    if (!users) {
      if (user === worker) return;
      if (now - reportedAt > 1.5 * limits.bucketAloneMs) {
        owned.user = worker;
        return;
      }
      owned.prunedAt = now;
      owned.users = new Map([
        [user, now],
        [worker, now],
      ]);
      owned.taken = [];
      return;
    }
    users.set(worker, now);
    const idleMs = sharedMs(this.#deps.exchange);
    if (now - owned.prunedAt < idleMs / 4) return;
    owned.prunedAt = now;
    for (const [other, at] of users) if (now - at > idleMs) users.delete(other);
    if (users.size > 1) return;
    owned.users = undefined;
    owned.taken = undefined;
    owned.user = worker;
  }

  /** The only user knows what is left. */
  #setLeft(owned: Owned, worker: string, left: number[], now: number): void {
    const { rules } = this.#deps;
    const { users, user, taken } = owned;
    const account = (owned.account ??= rules.full());
    if (!users) {
      rules.set(account, left);
    } else if (worker === user && taken) {
      rules.set(account, left);
      if (taken.length > 0) rules.take(account, taken);
      owned.taken = undefined;
    } else {
      rules.refill(account, now);
      rules.set(
        account,
        left.map((tokens, i) => Math.min(tokens, account.tokens[i]!)),
      );
    }
  }

  #take(owned: Owned, worker: string, counts: number[], now: number): void {
    const { rules } = this.#deps;
    const account = (owned.account ??= rules.full());
    rules.refill(account, now);
    rules.take(account, counts);
    if (owned.taken && worker !== owned.user) {
      owned.taken = counts.map((count, i) => count + (owned.taken![i] ?? 0));
    }
    const sum = counts.reduce((all, count) => all + count, 0);
    owned.demand = decayed(owned.demand, now - owned.demandAt) + sum;
    owned.demandAt = now;
  }

  #sumOf(owned: Owned, now: number): BucketSum {
    const { rules } = this.#deps;
    const account = owned.account ?? rules.full();
    rules.refill(account, now);
    owned.announcedAt = now;
    owned.wasLow = rules.isBelow(account, lowPart);
    const { owner, users, user } = owned;
    return {
      owner,
      left: [...account.tokens].map(rounded),
      users: users?.size ?? 1,
      user: users ? '' : user,
      demand: decayed(owned.demand, now - owned.demandAt),
    };
  }
}

function usersOf({ users }: Owned): number {
  return users?.size ?? 1;
}
