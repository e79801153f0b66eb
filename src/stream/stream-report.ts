/**
 * The report of a worker's journal when its frames are in a stream. Deletes wait for a worker until ClickHouse has the
 * frames that the worker has begun to publish and those that it has taken, and for the streams until ClickHouse has
 * what they held (`stream-watch.ts`): a worker that is gone has left its frames there.
 */
import type { JournalReport } from '../ingest/journal-report.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import { lanes } from '../journal/journal.ts';
import type { LaneReader } from './lane-reader.ts';
import type { StreamWriter } from './stream-writer.ts';

/** `report`: of the journal on the disk of the worker. */
export function withStream(
  report: JournalReport,
  readers: readonly Pick<LaneReader, 'orderOpenMin' | 'orderUntakenMin'>[],
  writer: Pick<StreamWriter, 'own' | 'orderInFlight' | 'orderBegun'>,
  nowMs: number,
): JournalReport {
  const local = {
    high: BigInt(report.orderHigh),
    shipped: BigInt(report.orderShipped),
    done: BigInt(report.orderDone),
  };
  const published = [...lanes.map((lane) => writer.own[lane].orderMin), writer.orderInFlight];
  // Another process may have stored and confirmed a frame that this one took before, while this one was cut off from
  // the servers. The frame is then in no other report, and this process may store it again at any moment.
  const taken = readers.flatMap(({ orderOpenMin, orderUntakenMin }) => [orderOpenMin, orderUntakenMin]);
  const high = largest(local.high, writer.orderBegun);
  const shipped = least([...published, local.high > local.shipped ? local.shipped + 1n : undefined], high);
  const held = report.orderHeld === null ? shipped : BigInt(report.orderHeld) - 1n;
  // Frames that were taken are left to other processes, so a later opening does not ship them.
  const done = least([...published, local.high > local.done ? local.done + 1n : undefined], high);
  // Frames of any process are taken: their orders are up to the clock, whatever this one has published.
  const all = largest(high, orderUpTo(nowMs));
  return {
    ...report,
    orderHigh: all.toString(),
    orderShipped: least([shipped < high ? shipped + 1n : undefined, ...taken], all).toString(),
    orderDone: (held < done ? held : done).toString(),
    isAhead: high > orderUpTo(nowMs),
  };
}

function largest(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}

/** Returns the order before the lowest one that waits, at most `high`. */
function least(waiting: readonly (bigint | undefined)[], high: bigint): bigint {
  return waiting.reduce<bigint>((min, order) => (order !== undefined && order - 1n < min ? order - 1n : min), high);
}
