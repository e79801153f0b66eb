/**
 * The collaborators and metrics that the parts of shipping share. Made by `ship.ts`, used by its lanes (`lane.ts`) and
 * its wide rows (`wide-rows.ts`).
 */
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { type Counter, coarseBounds, type Histogram, type Metrics } from '../base/metrics/metrics.ts';
import type { Sleep } from '../base/scheduler.ts';
import type { Lane } from '../journal/journal.ts';
import type { GivesUnits } from '../journal/seam.ts';
import type { Notes } from '../journal/ship-notes.ts';
import type { ControlRow } from './control-row.ts';
import type { ShipShards, WaitsForShard } from './insert.ts';
import type { ShardBacklogs } from './shard-backlogs.ts';
import type { Trials } from './suspect-trials.ts';

/** Work that takes longer is noted: a process that finds the note begins with smaller units. */
const longMs = 5_000;

export interface ShipperDeps {
  journal: GivesUnits;
  shards: ShipShards;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** The workers of all hosts, which insert into the same tables; absent: one. */
  fleetWorkers?: () => number;
  intervalMsMin: number;
  intervalMsMax: number;
  rowsMax: number;
  lateSecondsMax: number;
  timeoutMs: number;
  /** As in `ExpirySettings`; absent: nothing expires. */
  quarantineKeptDays?: number;
  expiryTime?: () => Promise<number | undefined>;
  /** A row more than this many milliseconds ahead of its arrival becomes no latest value; 0 = every row may. */
  latestAheadMsMax?: number;
  /** True: senders wait until their rows are stored, so units are small and frequent. */
  callersWait?: boolean;
  /** True: the store joins small inserts of the workers of this host, as the embedded ClickHouse does. */
  joinsInserts?: boolean;
  /** True: inserts go through the relay of this host, which joins them and keeps their pace. */
  isRelayed?: boolean;
  /**
   * True: the lanes give frames of a replicated stream, which are safer there than on the disk of this host. Rows then
   * wait for their shard in the lanes, and not beside them.
   */
  isReplicated?: boolean;
  /** Bytes that wait for one shard beside the lanes, about: then its rows stay in the lanes. Absent: any number. */
  shardBytesMax?: number;
  /** `hostMonotonic()` − `clock.monotonic()`; absent: the lanes of other processes do not matter. */
  hostShiftMs?: number;
  /** Called after each confirmed unit, and when suspects are stored or in quarantine. */
  onShipped: () => void;
  /** Called before `onShipped` with the frames of refused rows, which are durable as suspects or in quarantine. */
  onSuspects?: (lane: Lane, orders: ReadonlySet<bigint>) => void;
  /** Called before `onShipped` with the frames of rows that wait for their shard, and the devices of these rows. */
  onDelayed?: (lane: Lane, orders: ReadonlySet<bigint>, waits?: WaitsForShard) => void;
  /** Called with frames that are stored, before they are confirmed. Other rows are suspects or wait for a shard. */
  onFramesStored?: (lane: Lane, orders: ReadonlySet<bigint>) => void;
  /** Tests pass a sleep with their own clock. */
  sleep?: Sleep;
}

export type ShipDeps = Omit<ShipperDeps, 'metrics' | 'sleep'> & {
  /** The control row of each shard. */
  controls: readonly ControlRow[];
  /** Absent: rows wait for their shard in the lanes. */
  backlogs?: ShardBacklogs;
  notes: Notes;
  sleep: Sleep;
  metrics: ShipMetrics;
  registry: Metrics;
  trials: Trials;
};

interface ShipMetrics {
  rows: Histogram;
  insertSeconds: Histogram;
  visibleSeconds: Histogram;
  suspects: Counter;
  noBlocks: Counter;
}

export function shipMetrics(metrics: Metrics): ShipMetrics {
  const rowBounds = [10, 100, 1000, 10_000, 50_000, 100_000, 200_000, 400_000];
  return {
    rows: metrics.histogram('storage_batch_rows', 'Rows of one unit.', {}, rowBounds),
    insertSeconds: metrics.histogram(
      'storage_insert_seconds',
      'Time to insert one unit into both tables.',
      {},
      coarseBounds,
    ),
    visibleSeconds: metrics.histogram('ingest_visible_seconds', 'From acceptance to readable, by point.'),
    suspects: metrics.counter('ingest_suspect_rows_total', 'Rows that were refused alone and wait for another try.'),
    noBlocks: metrics.counter('ingest_no_blocks_total', 'Frames with right checksums that are no block.'),
  };
}

/** Calls `note` unless the returned function is called in time. */
export function noteWhenLong({ sleep }: Pick<ShipDeps, 'sleep'>, note: () => void): () => void {
  const ended = new AbortController();
  void sleep(longMs, ended.signal).then(() => {
    if (!ended.signal.aborted) note();
  });
  return () => ended.abort();
}
