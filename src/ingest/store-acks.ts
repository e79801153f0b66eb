/**
 * Acknowledgements of `ingest.ack: store`. A message is acknowledged when every frame with one of its rows is in
 * ClickHouse. It is refused with 503 when that takes too long, when a row of such a frame is refused, or when such a
 * frame cannot be read back from the journal. A lane never waits for the other lane. Memory is bounded: `refusal`
 * returns the reason for which no message is accepted.
 */
import type { Clock } from '../base/clock.ts';
import { type Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Lane, lanes, live } from '../journal/journal.ts';

/** The sender of a message: exactly one of the two functions is called, once. */
export interface Waiter {
  acknowledge(): void;
  refuse(fault: Fault): void;
  /** True when the door of the sender counts its refusals, whatever their cause. */
  readonly countsRefusals?: boolean;
  /**
   * Undefined unless the sender asked for a receipt. The receipt replaces the empty string before the answer, when one
   * was made.
   */
  receipt?: string | undefined;
}

/** True of a fault that a waiter got although its message is in the journal: ClickHouse gets the message later. */
export function isKept({ reason }: Fault): boolean {
  return ['store_slow', 'store_refused', 'store_away'].includes(reason);
}

/** Counts messages that are refused although they were accepted at first. */
export function countRefused(metrics: Metrics, { reason }: Fault, messages: number, waiters: readonly Waiter[]): void {
  const counted = waiters.filter(({ countsRefusals }) => countsRefusals === true).length;
  metrics.counter('ingest_rejected_total', 'Messages refused, by reason.', { reason }).add(messages - counted);
}

interface StoreAcksDeps {
  clock: Clock;
  metrics: Metrics;
  timeoutMs: number;
  onAcknowledged: (messages: number, since: number) => void;
}

/** The devices of the rows of a message. */
export type Devices = readonly number[];

/** Messages whose rows are in the same frames. */
interface Group {
  /** The waiters of the messages; empty after they got their outcome. */
  waiters: readonly Waiter[];
  /** The devices of each of `waiters`; undefined where they are unknown. */
  devices: readonly (Devices | undefined)[] | undefined;
  /** Order numbers of the frames. */
  orders: readonly bigint[];
  /** Lanes whose last frame is not stored yet. */
  lanes: number;
  /** Monotonic time of this process. */
  since: number;
}

interface Entry {
  /** The last frame of the group in this lane. */
  order: bigint;
  /** Frames of the group in this lane that are not stored. */
  left: readonly bigint[];
  group: Group;
}

export class StoreAcks {
  readonly #deps: StoreAcksDeps;
  readonly #queues: [Entry[], Entry[]] = [[], []];
  #waiting = 0;
  /** At the last call, every frame of the live lane up to this order was stored. */
  #liveOrder = 0n;
  /** True when a message of the live lane timed out and nothing was stored since. */
  #stalled = false;

  constructor(deps: StoreAcksDeps) {
    this.#deps = deps;
    deps.metrics.observed('ingest_store_waiters', 'Messages that wait until ClickHouse has them.', () => this.#waiting);
  }

  /** Messages that wait until ClickHouse has them. */
  get waiting(): number {
    return this.#waiting;
  }

  /**
   * Called when frames are durable and `waiters` wait for ClickHouse since `since`. Orders of a lane increase from call
   * to call.
   */
  add(
    waiters: readonly Waiter[],
    frames: readonly { lane: Lane; order: bigint }[],
    since: number,
    devices?: readonly (Devices | undefined)[],
  ): void {
    if (waiters.length === 0) return;
    const orders = frames.map(({ order }) => order);
    const group: Group = { waiters, devices, orders, lanes: 0, since };
    for (const lane of lanes) {
      const left = frames.filter((frame) => frame.lane === lane).map(({ order }) => order);
      if (left.length === 0) continue;
      group.lanes += 1;
      this.#queues[lane].push({ order: left.at(-1)!, left, group });
    }
    this.#waiting += waiters.length;
  }

  /** Called for frames that are in ClickHouse; frames with suspects were refused before. */
  stored(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#queues[lane] = this.#queues[lane].filter((entry) => {
      entry.left = entry.left.filter((order) => !orders.has(order));
      if (entry.left.length > 0) return true;
      this.#passed(entry);
      return false;
    });
  }

  /**
   * Called when the lane has passed every frame up to `order`, after `stored`. A frame that is not stored then could
   * not be read back.
   */
  shipped(lane: Lane, order: bigint): void {
    if (lane === live && order > this.#liveOrder) {
      this.#liveOrder = order;
      this.#stalled = false;
    }
    const queue = this.#queues[lane];
    let done = 0;
    for (; done < queue.length && queue[done]!.order <= order; done += 1)
      this.#refuse(queue[done]!.group, unreadable());
    if (done > 0) queue.splice(0, done);
  }

  /** Counts a lane whose frames of the group are all stored. */
  #passed({ group }: Entry): void {
    group.lanes -= 1;
    if (group.lanes > 0 || group.waiters.length === 0) return;
    const { waiters, since } = group;
    this.#settle(group);
    for (const waiter of waiters) waiter.acknowledge();
    this.#deps.onAcknowledged(waiters.length, since);
  }

  /**
   * Called for frames with refused rows. The message of such a row is unknown, so all messages of the frame are
   * refused.
   */
  refused(lane: Lane, orders: ReadonlySet<bigint>): void {
    this.#refuseFrames(lane, orders, refusedRows);
  }

  /**
   * Called for frames with rows that wait for their shard, as `refused` is. `waits` is true of the devices of these
   * rows. A message of other devices only is acknowledged with the rest of its frames.
   */
  delayed(lane: Lane, orders: ReadonlySet<bigint>, waits: (device: number) => boolean = () => true): void {
    for (const { group } of this.#queues[lane]) {
      if (!group.orders.some((order) => orders.has(order))) continue;
      const { waiters, devices } = group;
      const mayWait = waiters.map((_, place) => devices?.[place]?.some((device) => waits(device)) ?? true);
      group.waiters = waiters.filter((_, place) => mayWait[place]);
      this.#refuse(group, shardAway());
      group.waiters = waiters.filter((_, place) => !mayWait[place]);
      group.devices = devices?.filter((_, place) => !mayWait[place]);
    }
  }

  /** `idle`: no row of the live lane waits for ClickHouse. */
  expire(idle: boolean): void {
    if (idle) this.#stalled = false;
    const { clock, timeoutMs } = this.#deps;
    const before = clock.monotonic() - timeoutMs;
    for (const lane of lanes) {
      const queue = this.#queues[lane];
      let done = 0;
      while (done < queue.length && queue[done]!.group.since <= before) {
        if (lane === live && queue[done]!.group.waiters.length > 0) this.#stalled = true;
        this.#refuse(queue[done]!.group, tooSlow(timeoutMs));
        done += 1;
      }
      if (done > 0) queue.splice(0, done);
    }
  }

  /** Called at a stop: refuses all messages that wait, because no later call would. */
  end(): void {
    for (const queue of this.#queues) {
      for (const { group } of queue.splice(0)) this.#refuse(group, stopsBefore());
    }
  }

  /** Returns the reason why no message is accepted; undefined when messages are accepted. */
  refusal(): Fault | undefined {
    if (this.#stalled) return storeAway(this.#deps.timeoutMs);
    return this.#waiting >= limits.storeWaitersMax ? tooManyWait() : undefined;
  }

  #refuse(group: Group, fault: Fault): void {
    const { waiters } = group;
    if (waiters.length === 0) return;
    this.#settle(group);
    countRefused(this.#deps.metrics, fault, waiters.length, waiters);
    for (const waiter of waiters) waiter.refuse(fault);
  }

  #refuseFrames(lane: Lane, orders: ReadonlySet<bigint>, faultOf: () => Fault): void {
    for (const { group } of this.#queues[lane]) {
      if (group.orders.some((order) => orders.has(order))) this.#refuse(group, faultOf());
    }
  }

  #settle(group: Group): void {
    this.#waiting -= group.waiters.length;
    group.waiters = [];
  }
}

function tooSlow(timeoutMs: number): Fault {
  const message =
    `ClickHouse has not stored this message within ${timeoutMs} ms (INGEST_STORE_ACK_MS_MAX). ` +
    'The message is in the journal and is stored later; sending it again is harmless when it has a "ts".';
  return unavailable('store_slow', message);
}

function stopsBefore(): Fault {
  const message =
    'This server stops before ClickHouse has stored this message. ' +
    'The message is in the journal and is stored later; sending it again is harmless when it has a "ts".';
  return unavailable('store_slow', message);
}

function storeAway(timeoutMs: number): Fault {
  const message = `ClickHouse has stored nothing for more than ${timeoutMs} ms (INGEST_STORE_ACK_MS_MAX); send again.`;
  return unavailable('store_away', message, 5);
}

function refusedRows(): Fault {
  const message =
    'ClickHouse refused a row of this message, or of one that came at the same time. The rows are kept and tried again.';
  return unavailable('store_refused', message, 5);
}

function shardAway(): Fault {
  const message =
    'The shard of ClickHouse for a row of this message does not take rows now. ' +
    'The message is kept and stored later; sending it again is harmless when it has a "ts".';
  return unavailable('store_away', message, 5);
}

function unreadable(): Fault {
  const message =
    'This message could not be read back from the journal. Its damaged bytes are in quarantine; send it again.';
  return unavailable('store_unread', message);
}

function tooManyWait(): Fault {
  return unavailable('store_waiters', 'Too many messages wait for ClickHouse already; send again.');
}
