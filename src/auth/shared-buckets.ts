/**
 * The token buckets of owners, which all workers and hosts share through the home (`bus/home-exchange.ts`). A message
 * never waits: a worker takes from the account that it keeps of the owner.
 *
 * - A worker that meets an owner presumes full buckets, and reports what it takes.
 * - The only worker that uses an owner has its whole buckets, and reports seldom, or when half of a bucket is used up.
 * - Several workers that use an owner report what they take. The home announces what is left, and each of them may take
 *   a share of that: half of all shares are equal, half go by what each worker took in the last second.
 * - What was taken beyond the limit is a debt, which later messages pay. In any time, all workers together take at most
 *   the refill of that time, one full bucket for each worker, one for each change of the home, and the refill of the
 *   time between two reports.
 * - While the home is silent, a worker without a lease has the limit ÷ the number of workers. Without the bus it has
 *   the whole limit.
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
import { type Bucket, type Shortage, type TokenAccount, TokenBuckets } from './token-buckets.ts';

/** What a worker keeps of an owner while it is not known to be the only user. */
interface Part {
  /** False: this worker counts as the only user until the home says otherwise. */
  isShared: boolean;
  /** Tokens that this worker took since its last report. */
  taken: number[];
  /** Tokens in a report that is not confirmed. */
  sent: number[] | undefined;
  /** The largest number of each kind that one message needed. */
  needs: number[];
  share: number;
  /** What other workers may take. */
  rest: Float64Array | undefined;
  /** What this worker took in the last second. */
  demand: number;
  demandAt: number;
  /** True: the next report has what is left, because this worker was the only user. */
  reportsLeft: boolean;
  /** True: the report that is not confirmed has what was left. */
  sentLeft: boolean;
  reportedAt: number;
}

/** What this worker keeps of an owner. */
export interface BucketUse extends TokenAccount {
  readonly owner: BucketOwner;
  /** Undefined while this worker is the only user. */
  part: Part | undefined;
  isDue: boolean;
  /** Monotonic milliseconds until which this worker may take its share while the home is silent. */
  leasedUntil: number;
  /** The only user reports at this time, or as soon as no more than this part of a bucket is left. */
  nextAt: number;
  lowMark: number;
}

/** A worker may take this multiple of its share while more than `lowPart` is left. */
const calmShares = 4;
/** Below this part the only user reports at times only. */
const leastMark = 0.01;

interface SharedBucketsDeps {
  buckets: readonly Bucket[];
  ownersMax: number;
  /** The counts of each message. */
  kinds: number;
  exchange: HomeExchange;
  clock: Clock;
}

export class SharedBuckets {
  readonly rules: TokenBuckets;
  readonly #deps: SharedBucketsDeps;
  readonly #uses: FifoMap<BucketOwner, BucketUse>;
  readonly #due = new Set<BucketUse>();
  readonly #sent: BucketUse[] = [];

  constructor(deps: SharedBucketsDeps) {
    this.#deps = deps;
    this.rules = new TokenBuckets(deps.buckets, deps.clock);
    this.#uses = new FifoMap(deps.ownersMax);
  }

  get limited(): boolean {
    return this.rules.limited;
  }

  /**
   * Returns what this worker keeps of the owner, refilled up to now (monotonic milliseconds). It is valid in this turn
   * of the loop. Undefined: there is no limit.
   */
  use(owner: BucketOwner, now: number): BucketUse | undefined {
    if (!this.limited) return undefined;
    const use = this.#uses.get(owner) ?? this.#begin(owner);
    const { exchange } = this.#deps;
    if (use.part || exchange.isSilent) this.#refillPart(use, now);
    else this.rules.refill(use, now);
    return use;
  }

  /** Returns the first bucket of this kind with fewer tokens than `count`. */
  shortage(use: BucketUse | undefined, kind: number, count: number): Shortage | undefined {
    if (!use) return undefined;
    const shortage = this.rules.shortage(use, kind, count);
    const { part } = use;
    if (part?.isShared) {
      part.needs[kind] = Math.max(part.needs[kind]!, count);
      // The home announces what is left to users that report.
      if (shortage) this.#report(use);
    }
    return shortage;
  }

  /** Takes `counts`, one number for each kind, even beyond the tokens that are left. */
  take(use: BucketUse | undefined, counts: readonly number[]): void {
    if (!use) return;
    this.rules.take(use, counts);
    const { part } = use;
    if (part) add(part.taken, counts);
    else if (use.refilledAt < use.nextAt && !this.rules.isBelow(use, use.lowMark)) return;
    this.#report(use);
  }

  /** Returns the tokens that the owner has left in each bucket, as this worker knows. Changes nothing. */
  levels(owner: BucketOwner): { bucket: Bucket; left: number }[] {
    const use = this.#uses.get(owner);
    const rest = use?.part?.rest;
    if (!use || !rest) return this.rules.levels(use);
    return this.rules.levels({ tokens: use.tokens.map((left, i) => left + rest[i]!), refilledAt: use.refilledAt });
  }

  get reportsDue(): number {
    return this.#due.size;
  }

  /** Returns at most so many reports that are due. */
  collect(countMax: number): BucketReport[] {
    const reports: BucketReport[] = [];
    for (const use of this.#due) {
      if (reports.length >= countMax) break;
      this.#due.delete(use);
      use.isDue = false;
      this.#sent.push(use);
      reports.push(this.#reportOf(use));
    }
    return reports;
  }

  confirmed(): void {
    const now = this.#deps.clock.monotonic();
    for (const use of this.#sent.splice(0)) {
      const { part } = use;
      if (part) part.sent = undefined;
      use.leasedUntil = now + (part?.isShared ? this.#sharedMs : 2 * limits.bucketAloneMs);
      if (part && !part.isShared) this.#useAlone(use, now);
    }
  }

  /**
   * Reports again what may be lost; the home may then count it twice. While the home is silent, a worker has a part of
   * the limit of its own, and what it takes of that is not reported.
   */
  lost(isFirst: boolean): void {
    for (const use of this.#sent.splice(0)) {
      const { part } = use;
      if (!part?.sent) continue;
      if (isFirst) add(part.taken, part.sent);
      part.sent = undefined;
      part.reportsLeft = part.sentLeft;
      this.#report(use);
    }
  }

  /** Takes what the home announces. `isConfirming`: what this worker reported last is in it. */
  learn({ owner, left, users, user, demand }: BucketSum, worker: string, isConfirming: boolean): void {
    const now = this.#deps.clock.monotonic();
    let use = this.#uses.get(owner);
    if (!use) {
      use = this.#makeUse(owner);
      this.rules.set(use, left);
      if (this.rules.isBelow(use, lowPart)) this.#uses.set(owner, use);
      return;
    }
    const isUsing = use.part !== undefined || now < use.leasedUntil;
    if (!use.part && isUsing) {
      if (users > 1) this.#beginSharing(use, users, now);
      // After a time without the home, both may have been the only user.
      else if (user !== worker) this.#report(use);
      return;
    }
    const part = (use.part ??= this.#makePart(now));
    this.#endIdleShare(use, part, now);
    this.rules.set(use, left);
    if (!isConfirming && part.sent) this.rules.take(use, part.sent);
    this.rules.take(use, part.taken);
    if (users === 1 && user === worker) this.#useAlone(use, now + limits.bucketAloneMs);
    else if (users > 1 && (part.isShared || part.sent)) this.#share(use, part, shareOf(part, users, demand, now));
  }

  get #sharedMs(): number {
    return sharedMs(this.#deps.exchange);
  }

  #begin(owner: BucketOwner): BucketUse {
    const use = this.#makeUse(owner);
    this.#uses.set(owner, use);
    return use;
  }

  #refillPart(use: BucketUse, now: number): void {
    const { exchange } = this.#deps;
    if (use.part) {
      if (exchange.isAlone) this.#useAlone(use, 0);
      else this.#endIdleShare(use, use.part, now);
    }
    let share = use.part?.share ?? 1;
    if (exchange.isSilent && now >= use.leasedUntil && !exchange.isAlone) {
      share = Math.min(share, 1 / exchange.workers);
      this.rules.shrink(use, share);
    }
    this.rules.refill(use, now, share);
  }

  #makeUse(owner: BucketOwner): BucketUse {
    const { exchange } = this.#deps;
    const account = this.rules.full();
    const part = exchange.isAlone ? undefined : this.#makePart(account.refilledAt);
    return { ...account, owner, part, isDue: false, leasedUntil: 0, nextAt: 0, lowMark: lowPart };
  }

  #makePart(now: number): Part {
    const zeros = () => Array.from({ length: this.#deps.kinds }, () => 0);
    return {
      isShared: false,
      taken: zeros(),
      sent: undefined,
      needs: zeros(),
      share: 1,
      rest: undefined,
      demand: 0,
      demandAt: now,
      reportsLeft: false,
      sentLeft: false,
      reportedAt: now,
    };
  }

  /** Evicted owners stay due, so the number of those that wait has the same cap; the next message reports again. */
  #report(use: BucketUse): void {
    const { exchange, ownersMax } = this.#deps;
    if (use.isDue || exchange.isAlone || this.#due.size >= ownersMax) return;
    use.isDue = true;
    this.#due.add(use);
    exchange.wake();
  }

  #reportOf(use: BucketUse): BucketReport {
    const now = this.#deps.clock.monotonic();
    const { owner, part } = use;
    if (!part) {
      this.rules.refill(use, now);
      const left = this.rules.partLeft(use);
      const isLow = left <= lowPart;
      use.nextAt = now + (isLow ? limits.bucketLowMs : limits.bucketAloneMs);
      use.lowMark = isLow ? left / 2 : lowPart;
      if (left < leastMark) use.lowMark = Number.NEGATIVE_INFINITY;
      return { owner, form: 'left', numbers: [...use.tokens].map(rounded) };
    }
    const { taken, rest, reportsLeft } = part;
    part.sent = taken;
    part.taken = taken.map(() => 0);
    part.reportedAt = now;
    part.sentLeft = reportsLeft;
    part.reportsLeft = false;
    part.demand = decayed(part.demand, now - part.demandAt) + sumOf(taken);
    part.demandAt = now;
    if (!reportsLeft) return { owner, form: 'taken', numbers: taken };
    return { owner, form: 'left', numbers: [...use.tokens].map((left, i) => rounded(left + (rest?.[i] ?? 0))) };
  }

  /** The worker has the whole buckets; it reports at this time. */
  #useAlone(use: BucketUse, nextAt: number): void {
    this.#addRest(use);
    use.part = undefined;
    use.nextAt = nextAt;
    use.lowMark = lowPart;
  }

  /** The home does not count a worker as a user that has not reported for a while. */
  #endIdleShare(use: BucketUse, part: Part, now: number): void {
    if (!part.isShared || now - part.reportedAt < this.#sharedMs) return;
    this.#addRest(use);
    part.isShared = false;
    part.share = 1;
  }

  #addRest(use: BucketUse): void {
    const rest = use.part?.rest;
    if (!rest) return;
    for (let i = 0; i < rest.length; i += 1) use.tokens[i]! += rest[i]!;
    use.part!.rest = undefined;
  }

  #beginSharing(use: BucketUse, users: number, now: number): void {
    this.rules.refill(use, now);
    use.part = { ...this.#makePart(now), reportsLeft: true };
    this.#share(use, use.part, 1 / users);
    this.#report(use);
  }

  /** Divides the tokens of the use into those that this worker may take and the rest. */
  #share(use: BucketUse, part: Part, share: number): void {
    const { tokens } = use;
    part.isShared = true;
    part.share = this.rules.isBelow(use, lowPart) ? share : Math.min(1, calmShares * share);
    part.rest = new Float64Array(tokens.length);
    for (let i = 0; i < tokens.length; i += 1) {
      const all = tokens[i]!;
      if (all <= 0) continue;
      const need = Math.max(1, part.needs[this.rules.kindOf(i)]!);
      tokens[i] = Math.min(all, Math.max(part.share * all, need));
      part.rest[i] = all - tokens[i]!;
    }
    part.needs.fill(0);
  }
}

/** Half of all shares are equal, half go by what each user took. */
function shareOf({ demand: own, demandAt }: Part, users: number, demand: number, now: number): number {
  const part = demand > 0 ? Math.min(1, decayed(own, now - demandAt) / demand) : 1 / users;
  return 0.5 / users + 0.5 * part;
}

function add(sum: number[], counts: readonly number[]): void {
  for (let i = 0; i < sum.length; i += 1) sum[i]! += counts[i]!;
}

function sumOf(counts: readonly number[]): number {
  return counts.reduce((sum, count) => sum + count, 0);
}
