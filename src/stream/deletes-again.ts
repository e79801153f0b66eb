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
import { orderMs } from '../ingest/order-number.ts';
import type { ShipUnit } from '../journal/journal.ts';
import { isAway } from '../postgres/client.ts';
import { deviceColumn } from '../telemetry/block-days.ts';

/** Lets the deletes of these devices, undefined = of all devices, that cover this order be carried out again. */
export type ReopenDeletes = (devices: readonly number[] | undefined, order: bigint) => Promise<void>;

interface DeletesAgainDeps {
  reopen: ReopenDeletes;
  clock: Pick<Clock, 'now'>;
  log: Log;
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

export class DeletesAgain {
  readonly #deps: DeletesAgainDeps;
  #devices = new Set<number>();
  #isOfAll = false;
  /** The lowest order of the frames; undefined: nothing waits. */
  #order: bigint | undefined;
  #sending: Promise<void> | undefined;
  #retry: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(deps: DeletesAgainDeps) {
    this.#deps = deps;
  }

  /** Called when ClickHouse has the rows of a unit. Resolves when the unit may be confirmed. */
  async stored({ orders, payloads }: Pick<ShipUnit, 'orders' | 'payloads'>): Promise<void> {
    const now = this.#deps.clock.now();
    for (const [i, order] of orders.entries()) {
      // An order that is ahead of this clock says nothing of the age of its frame.
      if (Math.abs(now - orderMs(order)) >= copyMsMin) this.#add(order, devicesOf(payloads[i]!));
    }
    if (this.#order === undefined || this.#retry !== undefined) return;
    await this.#sendFor(waitMsMax);
  }

  /** Tries once more. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#retry);
    await this.#sendFor(waitMsMax);
  }

  #add(order: bigint, devices: Iterable<number>): void {
    if (this.#order === undefined || order < this.#order) this.#order = order;
    for (const device of devices) this.#devices.add(device);
    if (this.#devices.size <= (this.#deps.devicesMax ?? devicesMaxDefault)) return;
    this.#devices.clear();
    this.#isOfAll = true;
  }

  async #sendFor(msMax: number): Promise<void> {
    this.#sending ??= this.#send().finally(() => {
      this.#sending = undefined;
    });
    await Promise.race([this.#sending, sleep(msMax, undefined, { ref: false })]);
  }

  async #send(): Promise<void> {
    const { reopen, log } = this.#deps;
    while (this.#order !== undefined) {
      const [order, devices, isOfAll] = [this.#order, this.#devices, this.#isOfAll];
      this.#order = undefined;
      this.#devices = new Set();
      this.#isOfAll = false;
      try {
        await reopen(isOfAll ? undefined : [...devices], order);
      } catch (error) {
        if (!isAway(error)) log.warn('deletes_not_repeated', { reason: messageOf(error) });
        this.#isOfAll ||= isOfAll;
        this.#add(order, devices);
        if (!this.#closed) this.#sendLater();
        return;
      }
    }
  }

  #sendLater(): void {
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      void this.#sendFor(0);
    }, againMs);
    this.#retry.unref();
  }
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
