/**
 * The report of a worker's journal when its frames are in a stream. Deletes wait for a worker until ClickHouse has the
 * frames that the worker has begun to publish, and for the streams until ClickHouse has what they held
 * (`stream-watch.ts`): a worker that is gone has left its frames there.
 */
import type { JournalReport } from '../ingest/journal-report.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import { type Journal, lanes } from '../journal/journal.ts';
import type { StreamWriter } from './stream-writer.ts';

export function withStream(
  report: JournalReport,
  journal: Pick<Journal, 'rowsWaiting' | 'laneShipped'>,
  writer: StreamWriter,
  nowMs: number,
): JournalReport {
  const waiting: bigint[] = [];
  for (const lane of lanes) {
    if (journal.rowsWaiting(lane) > 0) waiting.push(journal.laneShipped(lane) + 1n);
    const own = writer.own[lane].orderMin;
    if (own !== undefined) waiting.push(own);
  }
  if (writer.orderInFlight !== undefined) waiting.push(writer.orderInFlight);
  const high = largest(BigInt(report.orderHigh), writer.orderBegun);
  const shipped = waiting.reduce((least, order) => (order - 1n < least ? order - 1n : least), high);
  const held = report.orderHeld === null ? shipped : BigInt(report.orderHeld) - 1n;
  return {
    ...report,
    orderHigh: high.toString(),
    orderShipped: shipped.toString(),
    orderDone: (held < shipped ? held : shipped).toString(),
    isAhead: high > orderUpTo(nowMs),
  };
}

function largest(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
