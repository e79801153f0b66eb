/**
 * Passes the notices of shipping on to the messages that wait for ClickHouse (`StoreAcks`). Shipping may take the
 * frames of an append before the append returns, and their messages wait only after the append: the notices that came
 * before are repeated then. Does nothing unless `ingest.ack` is `store`.
 */
import { type JournalFrame, type Lane, lanes } from '../journal/journal.ts';
import type { TakesFrames } from '../journal/seam.ts';
import type { Commit } from './commit.ts';
import type { StoreAcks, Waiter } from './store-acks.ts';

interface StoreNoticesDeps {
  /** Undefined unless `ingest.ack` is `store`. */
  acks: StoreAcks | undefined;
  journal: Pick<TakesFrames, 'laneShipped'>;
  /** True while an append runs. */
  isAppending: () => boolean;
  /** True: commits have the devices of their messages, because a shard that is down delays its own devices only. */
  notesDevices: boolean;
}

export class StoreNotices {
  readonly #deps: StoreNoticesDeps;
  /** The notices during the append that runs, in order. */
  readonly #early: (() => void)[] = [];

  constructor(deps: StoreNoticesDeps) {
    this.#deps = deps;
  }

  /** Called when frames are in ClickHouse. */
  stored(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#notify((acks) => acks.stored(lane, orders));
  }

  /** Called when rows of these frames are suspects. */
  suspected(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#notify((acks) => acks.refused(lane, orders));
  }

  /** Called when rows of these frames wait for their shard: those of the devices of which `waits` is true. */
  delayed(lane: Lane, orders: ReadonlySet<bigint>, waits?: (device: number) => boolean): void {
    this.#notify((acks) => acks.delayed(lane, orders, waits));
  }

  /** Called when a lane has passed frames, after `stored`. */
  shipped(): void {
    const { acks, journal } = this.#deps;
    for (const lane of lanes) acks?.shipped(lane, journal.laneShipped(lane));
  }

  /** Called when the frames of a commit are durable: its messages wait for ClickHouse from now on. */
  committed(commit: Commit, frames: readonly JournalFrame[]): void {
    const { acks, notesDevices } = this.#deps;
    if (acks === undefined) return;
    const add = (waiters: readonly Waiter[], own: readonly JournalFrame[]): void => {
      const devices = notesDevices ? waiters.map((waiter) => commit.devicesOf(waiter)) : undefined;
      acks.add(waiters, own, commit.since, devices);
    };
    for (const lane of lanes) {
      add(
        commit.waitersOf(lane),
        frames.filter((frame) => frame.lane === lane),
      );
    }
    add(commit.waitersOf('both'), frames);
    for (const notify of this.#early) notify();
    this.shipped();
  }

  /** Called when an append has ended, after `committed`. */
  appendEnded(): void {
    this.#early.length = 0;
  }

  #notify(notify: (acks: StoreAcks) => void): void {
    const { acks, isAppending } = this.#deps;
    if (acks === undefined) return;
    if (isAppending()) this.#early.push(() => notify(acks));
    notify(acks);
  }
}
