/**
 * Shares the buckets of several groups of owners over all workers and hosts: one topic of the home exchange. A group
 * has parts, one for each tenant profile with limits of its own, whose owners have their own buckets.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { HomeEntry, HomeExchange, HomeTopic } from '../bus/home-exchange.ts';
import { isCount, isListOf, isName, isWhole } from '../bus/messages.ts';
import type { BucketOwner, BucketReport, BucketSum } from './bucket-reports.ts';
import { HomeBuckets } from './home-buckets.ts';
import { SharedBuckets } from './shared-buckets.ts';
import type { Bucket } from './token-buckets.ts';

interface SharedLimitsDeps<Group extends string> {
  exchange: HomeExchange;
  topic: string;
  groups: readonly Group[];
  /** Numbers that are counted for each owner. */
  kinds: number;
  /** Returns the buckets of a part of a group; undefined for a part that this worker does not know. */
  find: (group: Group, part: string) => SharedGroup | undefined;
  /** Returns the buckets of all groups and parts. */
  all: () => Iterable<SharedGroup>;
  clock: Clock;
}

/** The buckets of one part of a group: as this worker uses them, and as the home knows them. */
export interface SharedGroup {
  readonly group: string;
  readonly part: string;
  readonly buckets: SharedBuckets;
  readonly home: HomeBuckets;
}

type ReportEntry = [group: string, part: string, owner: BucketOwner, form: BucketReport['form'], numbers: number[]];
type SumEntry = [
  group: string,
  part: string,
  owner: BucketOwner,
  left: number[],
  users: number,
  user: string,
  demand: number,
];

export class SharedLimits<Group extends string> implements HomeTopic {
  readonly #deps: SharedLimitsDeps<Group>;

  constructor(deps: SharedLimitsDeps<Group>) {
    this.#deps = deps;
    deps.exchange.add(deps.topic, this);
  }

  makeGroup(group: Group, part: string, buckets: readonly Bucket[], ownersMax: number): SharedGroup {
    const { exchange, kinds, clock } = this.#deps;
    const shared = new SharedBuckets({ buckets, ownersMax, kinds, exchange, clock });
    return { group, part, buckets: shared, home: new HomeBuckets({ rules: shared.rules, exchange, clock }) };
  }

  isReport(entry: HomeEntry): boolean {
    const [group, part, owner, form, numbers] = entry;
    const isForm = form === 'left' ? isListOf(numbers, isTokens) : form === 'taken' && isListOf(numbers, isCount);
    return isName(group) && isName(part) && isOwner(owner) && isForm;
  }

  isSum(entry: HomeEntry): boolean {
    const [group, part, owner, left, users, user, demand] = entry;
    const isOfOwner = isName(group) && isName(part) && isOwner(owner);
    return isOfOwner && isListOf(left, isTokens) && isCount(users) && isName(user) && isTokens(demand);
  }

  collect(): HomeEntry[] {
    const entries: ReportEntry[] = [];
    const due = [...this.#deps.all()].map((of) => ({ of, waiting: of.buckets.reportsDue }));
    for (const { of, room } of divided(due, limits.rateLimitOwnersPerMessage)) {
      for (const { owner, form, numbers } of of.buckets.collect(room)) {
        entries.push([of.group, of.part, owner, form, numbers]);
      }
    }
    return entries;
  }

  confirmed(): void {
    for (const { buckets } of this.#deps.all()) buckets.confirmed();
  }

  lost(isFirst: boolean): void {
    for (const { buckets } of this.#deps.all()) buckets.lost(isFirst);
  }

  /** Ignores groups and parts that this worker does not know, and buckets that it knows otherwise. */
  count(entry: HomeEntry, worker: string): void {
    const [name, part, owner, form, numbers] = entry as ReportEntry;
    const found = this.#find(name, part);
    if (!found) return;
    const length = form === 'left' ? found.buckets.rules.count : this.#deps.kinds;
    if (numbers.length === length) found.home.count({ owner, form, numbers }, worker);
  }

  sums(countMax: number): HomeEntry[] {
    const entries: SumEntry[] = [];
    const changed = [...this.#deps.all()].map((of) => ({ of, waiting: of.home.sumsChanged }));
    for (const { of, room } of divided(changed, countMax)) {
      for (const { owner, left, users, user, demand } of of.home.sums(room)) {
        entries.push([of.group, of.part, owner, left, users, user, demand]);
      }
    }
    return entries;
  }

  learn(entry: HomeEntry, isConfirming: boolean): void {
    const [name, part, owner, left, users, user, demand] = entry as SumEntry;
    const found = this.#find(name, part);
    if (!found || left.length !== found.buckets.rules.count) return;
    const sum: BucketSum = { owner, left, users, user, demand };
    found.buckets.learn(sum, this.#deps.exchange.worker, isConfirming);
  }

  #find(name: string, part: string): SharedGroup | undefined {
    const group = this.#deps.groups.find((known) => known === name);
    return group === undefined ? undefined : this.#deps.find(group, part);
  }
}

interface Waiting {
  of: SharedGroup;
  /** Owners of the group that wait for a message. */
  waiting: number;
}

/**
 * Divides the room of a message among the groups whose owners wait. What groups with few of them leave is for groups
 * with more: however many devices wait, the tenants are in each message.
 */
function divided(groups: readonly Waiting[], roomOfAll: number): { of: SharedGroup; room: number }[] {
  const waiting = groups.filter((each) => each.waiting > 0).sort((a, b) => a.waiting - b.waiting);
  let left = roomOfAll;
  return waiting.map(({ of, waiting: count }, i) => {
    const room = Math.min(count, Math.ceil(left / (waiting.length - i)));
    left -= room;
    return { of, room };
  });
}

function isOwner(value: unknown): value is BucketOwner {
  return isName(value) || isWhole(value);
}

/** Tokens may be parts, and a debt is negative. */
function isTokens(value: unknown): value is number {
  return Number.isFinite(value);
}
