/**
 * The report of a worker about the journals that it ships: how far each is stored. Deletes rely on these reports. The
 * numbers of one report are of one moment.
 */
import type { Clock } from '../base/clock.ts';
import { type Journal, lanes } from '../journal/journal.ts';
import { orderUpTo } from './order-number.ts';

/** The report of a worker's own journal, or of an orphan journal that the worker ships. Orders are decimal strings. */
export interface JournalReport {
  /** Unique across hosts: part of every order number of this journal. */
  writer: number;
  /** One opening of the journal. Consecutive openings of a worker's own journal have consecutive numbers. */
  run: string;
  /** Highest order that is durable or being written; decreases when the running write fails. */
  orderHigh: string;
  /** Every frame up to this order is in ClickHouse. */
  orderShipped: string;
  /** No later opening ships a row with an order up to this one. */
  orderDone: string;
  /** An order ≤ the lowest order that this opening found unconfirmed; null when there was none. */
  orderRecovered: string | null;
  /** Lowest order of rows that wait beside the journal; null when there are none. */
  orderHeld: string | null;
  /** The shards for which such rows wait; absent when they may be of any device. */
  shardsBehind?: number[];
  /** The earliest map of shards on which work of the process relies; 0 = none is known. */
  mapVersion?: number;
  /** True when the highest order is ahead of the clock. */
  isAhead: boolean;
  /** True when the directory was removed: no further row comes from it. */
  gone?: boolean;
}

/** Returns a report. For an orphan journal, whose openings are not counted, `run` is of the process. */
export function reportOf(journal: Journal, writer: number, clock: Clock, mapVersion: number): JournalReport {
  const { orderBegun, orderMax, orderRecovered, epoch, suspects, shardBacklog } = journal;
  // Rows that were divided by an earlier map are divided again: they may be of devices of any shard.
  const isShardKnown = suspects.entries === 0 && (shardBacklog.mapVersionMin ?? mapVersion) >= mapVersion;
  let shipped = orderMax;
  for (const lane of lanes) {
    const order = journal.laneShipped(lane);
    if (order < shipped) shipped = order;
  }
  return {
    writer,
    run: epoch === undefined ? orphanRun : String(epoch),
    // A frame in flight may become durable at any moment, with an order below that of a delete made now.
    orderHigh: orderBegun.toString(),
    orderShipped: shipped.toString(),
    orderDone: journal.orderDone.toString(),
    orderRecovered: orderRecovered?.toString() ?? null,
    orderHeld: journal.orderHeld?.toString() ?? null,
    ...(isShardKnown && { shardsBehind: shardBacklog.shards() }),
    mapVersion,
    isAhead: orderBegun > orderUpTo(clock.now()),
  };
}

const orphanRun = `orphan-${process.pid}-${Date.now()}`;

/** Returns the last report of a removed directory; `orderRecovered` is that of its earlier reports. */
export function goneReport(writer: number, orderRecovered: string | null): JournalReport {
  const order = '0';
  const none = { orderHeld: null, isAhead: false };
  return {
    writer,
    run: orphanRun,
    orderHigh: order,
    orderShipped: order,
    orderDone: order,
    orderRecovered,
    ...none,
    gone: true,
  };
}
