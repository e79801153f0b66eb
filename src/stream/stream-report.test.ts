/** What deletes learn of a worker whose frames are in a stream. */
import { expect, test } from 'vitest';
import type { JournalReport } from '../ingest/journal-report.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import { OwnFrames } from './own-frames.ts';
import { withStream } from './stream-report.ts';

const now = 1_790_000_000_000;
const journal: JournalReport = {
  ...{ writer: 1, run: '1', orderHigh: '0', orderShipped: '0', orderDone: '0' },
  ...{ orderRecovered: null, orderHeld: null, isAhead: false },
};
const orderAt = (ms: number) => orderUpTo(ms) - 5n;

/** A worker that has published no frame, and one that does so. */
function workerOf(orderBegun = 0n, orderInFlight?: bigint) {
  return { own: [new OwnFrames(), new OwnFrames()] as [OwnFrames, OwnFrames], orderBegun, orderInFlight };
}

function reported(worker: ReturnType<typeof workerOf>, taken: (bigint | undefined)[] = [], local = journal, ms = now) {
  const readers = taken.map((orderOpenMin) => ({ orderOpenMin, orderUntakenMin: undefined }));
  const { orderHigh, orderShipped, orderDone, isAhead } = withStream(local, readers, worker, ms);
  return { high: BigInt(orderHigh), shipped: BigInt(orderShipped), done: BigInt(orderDone), isAhead };
}

test('a delete waits for a frame of another process that this one holds, whatever this one has published', () => {
  const atDelete = reported(workerOf());
  expect(atDelete.shipped).toBe(atDelete.high);
  // The frame was in the stream at the delete, and was taken afterwards.
  const frame = orderAt(now - 1_000);
  const holding = reported(workerOf(), [undefined, frame], journal, now + 60_000);
  expect(holding.shipped).toBe(frame - 1n);
  expect(holding.shipped).toBeLessThan(atDelete.high);
  // Another process ships the frame when this one ends.
  expect(holding.done).toBe(0n);
  const later = reported(workerOf(), [orderAt(now + 59_000)], journal, now + 60_000);
  expect(later.shipped).toBeGreaterThanOrEqual(atDelete.high);
});

test('a delete waits for frames that this process publishes, and for those that ClickHouse does not have', () => {
  const order = orderAt(now);
  expect(reported(workerOf(order, order))).toMatchObject({ shipped: order - 1n, done: order - 1n });
  const worker = workerOf(order);
  worker.own[1].add(order, 7);
  expect(reported(worker)).toMatchObject({ shipped: order - 1n, done: order - 1n, isAhead: false });
  worker.own[1].confirmed(7, 1);
  const stored = reported(worker);
  expect(stored).toMatchObject({ shipped: stored.high, done: order });
  expect(reported(workerOf(orderAt(now + 5_000))).isAhead).toBe(true);
});

test('a delete waits for what the journal on the disk writes and holds, as at another level of acknowledgement', () => {
  const writes = { ...journal, orderHigh: '9', orderShipped: '7', orderDone: '7' };
  expect(reported(workerOf(), [], writes)).toMatchObject({ shipped: 7n, done: 7n });
  // What is stored is done when the position is on the disk.
  const stored = reported(workerOf(), [], { ...writes, orderShipped: '9' });
  expect(stored).toMatchObject({ shipped: stored.high, done: 7n });
  expect(reported(workerOf(), [], { ...writes, orderShipped: '9', orderDone: '9', orderHeld: '4' }).done).toBe(3n);
});
