/**
 * What a worker reports of the journals that it ships, when its primary asks: how far each is stored. Deletes go by
 * these reports. The numbers of one report belong to one moment.
 */
import type { Clock } from '../base/clock.ts';
import { type Journal, lanes } from '../journal/journal.ts';
import { orderUpTo } from './order.ts';

/** What a worker reports of its journal, or of an orphan journal that it ships. Orders are decimal. */
export interface JournalReport {
  /** Unique across hosts: part of every order number of this journal. */
  writer: number;
  /** One opening of the journal. Consecutive openings of a worker's own journal have consecutive numbers. */
  run: string;
  /** Highest order that is durable or being written; lower than before when what was being written has failed. */
  orderHigh: string;
  /** Every frame up to this order is in ClickHouse. */
  orderShipped: string;
  /** No later opening ships a row with an order up to this again. */
  orderDone: string;
  /** An order ≤ the lowest one that this opening found unconfirmed; null when there was none. */
  orderRecovered: string | null;
  /** Lowest order of rows that wait beside the journal; null when there are none. */
  orderHeld: string | null;
  /** Its highest order is ahead of the clock. */
  isAhead: boolean;
  /** The directory was removed: nothing will come from it again. */
  gone?: boolean;
}

/** `run` of an orphan journal, which has no openings that are counted, is one of the process. */
export function reportOf(journal: Journal, writer: number, clock: Clock): JournalReport {
  const { orderBegun, orderMax, orderRecovered, epoch } = journal;
  let shipped = orderMax;
  for (const lane of lanes) {
    const order = journal.laneShipped(lane);
    if (order < shipped) shipped = order;
  }
  return {
    writer,
    run: epoch === undefined ? orphanRun : String(epoch),
    // A frame in flight may be durable at any moment, with an order below that of a delete which is made now.
    orderHigh: orderBegun.toString(),
    orderShipped: shipped.toString(),
    orderDone: journal.orderDone.toString(),
    orderRecovered: orderRecovered?.toString() ?? null,
    orderHeld: journal.suspects.orderMin?.toString() ?? null,
    isAhead: orderBegun > orderUpTo(clock.now()),
  };
}

const orphanRun = `orphan-${process.pid}-${Date.now()}`;

/** The last report of a directory that was removed; `orderRecovered` as its earlier reports had it. */
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
