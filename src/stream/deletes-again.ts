/**
 * Lets deletes be carried out again for frames that ClickHouse gets long after they were made. A server that was frozen
 * publishes a frame when it goes on, also when its sender has published the frame again over another server meanwhile,
 * and a stream gives a frame again that is not removed yet. Such a frame was in no report when a delete that covers it
 * was carried out. Deletes are looked for after the insert and before the confirmation, so a process that ends in
 * between leaves the frame to another one.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { orderMs, orderUpTo, writerOf } from '../ingest/order-number.ts';
import type { ShipUnit } from '../journal/journal.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { deviceColumn } from '../telemetry/block-days.ts';

/** A frame whose order was ahead of the clock: `accepted` is the highest order that its time at the servers allows. */
export interface AheadFrame {
  writer: number;
  order: bigint;
  accepted: bigint;
}

/**
 * Lets the deletes of these devices, undefined = of all devices, that cover this order be carried out again. Deletes
 * that were made after a frame of `ahead` was accepted cover the frame from then on.
 */
export type ReopenDeletes = (
  devices: readonly number[] | undefined,
  order: bigint,
  ahead: readonly AheadFrame[],
) => Promise<void>;

interface DeletesAgainDeps {
  reopen: ReopenDeletes;
  clock: Pick<Clock, 'now'>;
  log: Log;
  /** Time after which a frame without an acknowledgement is refused: it may still be stored later. */
  ackMsMax: number;
  /** Above so many devices that wait, the deletes of all devices are looked for. */
  devicesMax?: number;
}

/** A younger frame has no copy: a frame without an answer is published again after this time. */
export const copyMsMin = 2_000;
/** More than the units of both lanes can name at once, so more than this wait only while PostgreSQL does not answer. */
const devicesMaxDefault = 1_000_000;
/** Shipping waits so long for PostgreSQL, which it does not need; then the devices wait in memory. */
const waitMsMax = 1_000;
const againMs = 1_000;

/** What one statement looks for. */
interface Batch {
  devices: Set<number>;
  isOfAll: boolean;
  /** The lowest order of the frames. */
  order: bigint;
  /** By writer and second, the frame with the highest order, which was the last one that the servers took. */
  ahead: Map<string, AheadFrame>;
  /** Resolves when the statement has ended, well or not. */
  ended: Promise<void>;
  end: () => void;
}

export class DeletesAgain {
  readonly #deps: DeletesAgainDeps;
  /** The next statement; undefined: nothing waits. */
  #next: Batch | undefined;
  #sending: Promise<void> | undefined;
  #retry: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(deps: DeletesAgainDeps) {
    this.#deps = deps;
  }

  /**
   * Called when ClickHouse has the rows of a unit. Resolves when the unit may be confirmed; undefined: it may be now.
   * Units that are stored while a statement runs share the next one. `acceptedMs`: when the servers took the frames.
   */
  stored(
    { orders, payloads }: Pick<ShipUnit, 'orders' | 'payloads'>,
    acceptedMs: readonly number[],
  ): Promise<void> | undefined {
    const now = this.#deps.clock.now();
    const youngMs = Math.min(copyMsMin, this.#deps.ackMsMax);
    let batch: Batch | undefined;
    for (const [i, order] of orders.entries()) {
      // The clock of a host was ahead. The host may be gone, so that no delete names its orders.
      const isAhead = orderMs(order) - acceptedMs[i]! >= youngMs;
      // An order that is ahead of this clock says nothing of the age of its frame.
      if (!isAhead && Math.abs(now - orderMs(order)) < youngMs) continue;
      batch = this.#add(order, devicesOf(payloads[i]!));
      if (isAhead) keepLast(batch, { writer: writerOf(order), order, accepted: orderUpTo(acceptedMs[i]!) });
    }
    if (batch === undefined || this.#retry !== undefined) return undefined;
    this.#begin();
    return Promise.race([batch.ended, sleep(waitMsMax, undefined, { ref: false })]);
  }

  /** Tries once more. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#retry);
    this.#begin();
    await Promise.race([this.#sending, sleep(waitMsMax, undefined, { ref: false })]);
  }

  #add(order: bigint, devices: Iterable<number>, isOfAll = false): Batch {
    const batch = (this.#next ??= newBatch(order));
    if (order < batch.order) batch.order = order;
    batch.isOfAll ||= isOfAll;
    for (const device of devices) batch.devices.add(device);
    if (batch.devices.size > (this.#deps.devicesMax ?? devicesMaxDefault)) {
      batch.devices.clear();
      batch.isOfAll = true;
    }
    return batch;
  }

  #begin(): void {
    this.#sending ??= this.#send().finally(() => {
      this.#sending = undefined;
    });
  }

  async #send(): Promise<void> {
    const { reopen, log } = this.#deps;
    for (let batch = this.#next; batch !== undefined; batch = this.#next) {
      this.#next = undefined;
      const { order, devices, isOfAll, ahead } = batch;
      try {
        await reopen(isOfAll ? undefined : [...devices], order, [...ahead.values()]);
      } catch (error) {
        if (!isAway(error)) log.warn('deletes_not_repeated', { reason: messageOf(error) });
        const next = this.#add(order, devices, isOfAll);
        for (const frame of ahead.values()) keepLast(next, frame);
        if (!this.#closed) this.#sendLater();
        return;
      } finally {
        batch.end();
      }
    }
  }

  #sendLater(): void {
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      this.#begin();
    }, againMs);
    this.#retry.unref();
  }
}

function newBatch(order: bigint): Batch {
  let end!: () => void;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  return { devices: new Set(), isOfAll: false, order, ahead: new Map(), ended, end };
}

/** A worker may make thousands of frames while its clock is ahead, and one for each second is enough. */
function keepLast({ ahead }: Batch, frame: AheadFrame): void {
  const place = `${frame.writer} ${Math.floor(orderMs(frame.accepted) / 1_000)}`;
  const kept = ahead.get(place);
  if (kept === undefined || kept.order < frame.order) ahead.set(place, frame);
}

/** Bytes that only begin as a block may name devices that cannot be; none of these bytes is stored. */
function devicesOf(block: Uint8Array): Set<number> {
  const column = deviceColumn(block);
  const devices = new Set<number>();
  // The rows of a device follow each other. Two halves are read, because a BigInt for each row costs an allocation.
  let last = -1;
  for (let at = 0; column !== undefined && at < column.byteLength; at += 8) {
    const device = column.getUint32(at, true) + column.getUint32(at + 4, true) * 2 ** 32;
    if (device === last) continue;
    last = device;
    if (Number.isSafeInteger(device)) devices.add(device);
  }
  return devices;
}
