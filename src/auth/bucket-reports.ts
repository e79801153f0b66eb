/** What workers report of the buckets of owners to the home, and what the home announces of them. */
import { limits } from '../base/limits.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';

/** The owner of buckets: a device by its number, any other owner by its id. */
export type BucketOwner = number | string;

export interface BucketReport {
  owner: BucketOwner;
  /** `taken`: what the worker took of each kind since its last report. `left`: the tokens in each bucket. */
  form: 'taken' | 'left';
  numbers: number[];
}

export interface BucketSum {
  owner: BucketOwner;
  /** The tokens in each bucket; a negative number is a debt. */
  left: number[];
  /** The number of workers that use the owner. */
  users: number;
  /** The only user; '' when there are several. */
  user: string;
  /** What all users took lately (`decayed`). */
  demand: number;
}

/** At most this part of a bucket is left: the home announces what is left. */
export const lowPart = 0.5;

/** Returns what remains of a demand when old demand is forgotten: a third after a second. */
export function decayed(demand: number, ms: number): number {
  return demand * Math.exp(-ms / 1000);
}

/** Time for which a worker that shares buckets counts as a user of them after its last report. */
export function sharedMs({ intervalMs }: HomeExchange): number {
  return Math.max(limits.bucketSharedMs, 4 * intervalMs);
}

/** Shortens tokens for a message. */
export function rounded(tokens: number): number {
  return Math.round(tokens * 1000) / 1000;
}
