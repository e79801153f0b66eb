/**
 * Makes rows that ClickHouse refused durable as suspects, so that their lane can continue. Called by `lane.ts` and
 * `wide-rows.ts`. Accepted rows are never dropped: while the disk is full, or too many suspects wait, the caller waits.
 */
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter } from '../base/metrics/metrics.ts';
import type { Sleep } from '../base/scheduler.ts';
import type { Lane } from '../journal/journal.ts';
import type { GivesUnits } from '../journal/seam.ts';
import { readBlock } from '../telemetry/read-block.ts';
import { waitMsMax } from './backoff.ts';
import type { RefusedPayload } from './insert.ts';

interface SetAsideDeps {
  journal: GivesUnits;
  log: Log;
  metrics: { suspects: Counter };
  sleep: Sleep;
  trials: { wake(): void };
  onSuspects?: (lane: Lane, orders: ReadonlySet<bigint>) => void;
}

const suspectsTogether = 1_000;

/**
 * Returns false when the signal was aborted before all rows were durable. `orderMin`: the order of the oldest frame of
 * the unit.
 */
export async function setAside(
  { journal, log, metrics, sleep, trials, onSuspects }: SetAsideDeps,
  lane: Lane,
  refused: readonly RefusedPayload[],
  orderMin: bigint,
  signal: AbortSignal,
): Promise<boolean> {
  if (refused.length === 0) return true;
  const suspects = refused.map((row) => ({ ...row, order: orderOf(row.payload, orderMin) }));
  for (let at = 0; at < suspects.length; ) {
    if (signal.aborted) return false;
    const some = suspects.slice(at, at + suspectsTogether);
    try {
      await journal.suspects.add(some);
      at += some.length;
    } catch (error) {
      log.error('suspects_not_kept', { lane, reason: messageOf(error) });
      await sleep(waitMsMax, signal);
    }
  }
  const rows = suspects.reduce((sum, suspect) => sum + suspect.rows, 0);
  metrics.suspects.add(rows);
  log.error('rows_suspect', { rows, reason: suspects[0]!.reason });
  onSuspects?.(lane, new Set(suspects.map(({ order }) => order)));
  trials.wake();
  return true;
}

/** Returns the smallest order of the rows; bytes that are not a block get the order of the unit's oldest frame. */
function orderOf(payload: Uint8Array, orderMin: bigint): bigint {
  try {
    let least = 2n ** 63n;
    for (const { order } of readBlock(payload)) if (order < least) least = order;
    return least;
  } catch {
    return orderMin;
  }
}
