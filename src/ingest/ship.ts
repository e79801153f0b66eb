/**
 * Carries durable frames from a journal into ClickHouse, one loop a lane. A unit is inserted into the series table and
 * the latest table; only then the journal's position moves. A retry may send rows again: they are idempotent, so there
 * are no tokens. A row that is refused alone becomes a suspect (`trials.ts`), durable beside the lane; the lane goes on.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { Journal, ShipUnit } from '../journal/journal.ts';
import { readBlock } from '../telemetry/read-block.ts';
import { type Sleep, sleep as systemSleep, waitMsMax } from './backoff.ts';
import { Control } from './control.ts';
import { Inserter, type RefusedPayload } from './insert.ts';
import { orderMs } from './order.ts';
import { Trials } from './trials.ts';

export interface ShipperOptions {
  journal: Journal;
  clickhouse: ClickHouse;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  intervalMsMin: number;
  intervalMsMax: number;
  rowsMax: number;
  lateSecondsMax: number;
  timeoutMs: number;
  /** Days after which an entry of the quarantine is dropped; 0 = never. */
  quarantineKeptDays?: number;
  /** True: senders wait until their rows are stored, so units are small and frequent. */
  callersWait?: boolean;
  /** After each confirmed unit, and when suspects are stored or in quarantine. */
  onShipped: () => void;
  /** Rows of these frames were refused; they are durable as suspects. Called before `onShipped`. */
  onSuspects?: (lane: Lane, orders: ReadonlySet<bigint>) => void;
  /** For tests: waits of a clock that is not the system's. */
  sleep?: Sleep;
}

type Lane = 0 | 1;
const late: Lane = 1;

/** A body is a copy of its frames: a lane holds twice this. 400 000 numeric rows are 14 MB. */
const bytesMax = 16 * 1024 * 1024;
/** Rows a second at which a live lane takes its longest interval. */
const busyRowsPerSecond = 20_000;
/** A late insert of fewer rows than this waits for company. */
const lateRowsMin = 10_000;
/**
 * A few late rows go at once: each row may be a partition of its own, so rows are what is counted. This many may go;
 * the allowance comes back evenly within the longest wait of the lane.
 */
const quickLateRowsMax = 20;
/** Interval of a lane for whose rows callers wait. */
const waitedForMs: Record<Lane, number> = { 0: 100, 1: 500 };
const idleMsMax = 60_000;

export class Shipper {
  readonly #options: ShipperOptions;
  readonly #lanes: LaneLoop[];
  readonly #trials: Trials;

  constructor(options: ShipperOptions) {
    this.#options = options;
    const { clickhouse, clock, journal, timeoutMs, sleep = systemSleep, quarantineKeptDays = 0, onShipped } = options;
    const control = new Control(clickhouse, clock, timeoutMs);
    this.#trials = new Trials({ ...options, control, sleep, quarantineKeptDays, onSettled: onShipped });
    const metrics = shipMetrics(options.metrics);
    const parts = { ...options, control, sleep, metrics, trials: this.#trials, registry: options.metrics };
    this.#lanes = [new LaneLoop(0, parts), new LaneLoop(late, parts)];
    observe(options.metrics, journal, clock);
  }

  start(): void {
    for (const lane of this.#lanes) lane.start();
    this.#trials.start();
  }

  /** There may be something to ship. */
  wake(): void {
    for (const lane of this.#lanes) lane.wake();
  }

  /** A delete waits for what the journal holds now: the lanes ship it without company. */
  flush(): void {
    for (const lane of this.#lanes) lane.flush();
  }

  /** Ships what is there without waiting for company, until it is gone or the time is up; then stops. */
  async drain(timeMsMax: number): Promise<void> {
    const deadline = this.#options.clock.monotonic() + timeMsMax;
    for (const lane of this.#lanes) lane.hurry();
    await Promise.all(this.#lanes.map((lane) => lane.emptied(deadline)));
    await this.stop();
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#lanes.map((lane) => lane.stop()), this.#trials.stop()]);
  }
}

function observe(metrics: Metrics, journal: Journal, clock: Clock): void {
  metrics.observed('wal_bytes', 'Bytes of the journal that wait for ClickHouse.', () => journal.backlogBytes);
  metrics.observed(
    'wal_oldest_seconds',
    'Age of the oldest point that waits for ClickHouse.',
    () => journal.oldestUnshippedMs(clock.now()) / 1000,
    'max',
  );
  for (const lane of [0, 1] as const) {
    const labels = { lane: lane === late ? 'late' : 'live' };
    const bytes = () => journal.bytesWaiting(lane);
    const seconds = () => Math.max(0, clock.now() - (journal.oldestWaitingAt(lane) ?? clock.now())) / 1000;
    metrics.observed('wal_lane_bytes', 'Bytes of one lane that wait for ClickHouse.', bytes, 'sum', labels);
    metrics.observed(
      'wal_lane_oldest_seconds',
      'Age of the oldest frame of one lane that waits.',
      seconds,
      'max',
      labels,
    );
  }
}

interface ShipMetrics {
  rows: Histogram;
  insertSeconds: Histogram;
  visibleSeconds: Histogram;
  suspects: Counter;
}

function shipMetrics(metrics: Metrics): ShipMetrics {
  const rowBounds = [10, 100, 1000, 10_000, 50_000, 100_000, 200_000, 400_000];
  return {
    rows: metrics.histogram('storage_batch_rows', 'Rows of one unit.', {}, rowBounds),
    insertSeconds: metrics.histogram('storage_insert_seconds', 'Time to insert one unit into both tables.'),
    visibleSeconds: metrics.histogram('ingest_visible_seconds', 'From acceptance to readable, by point.'),
    suspects: metrics.counter('ingest_suspect_rows_total', 'Rows that were refused alone and wait for another try.'),
  };
}

type LaneParts = Omit<ShipperOptions, 'metrics'> & {
  control: Control;
  sleep: Sleep;
  metrics: ShipMetrics;
  registry: Metrics;
  trials: Trials;
};

class LaneLoop {
  readonly #lane: Lane;
  readonly #options: LaneParts;
  readonly #stopping = new AbortController();
  readonly #inserter: Inserter;
  #running: Promise<void> = Promise.resolve();
  #wake: (() => void) | undefined;
  #hurried = false;
  /** What is waited for goes without company: up to this order. */
  #flushTo = 0n;
  #lastStart = Number.NEGATIVE_INFINITY;
  #rowsPerSecond = 0;
  #quickLateRows = quickLateRowsMax;

  constructor(lane: Lane, parts: LaneParts) {
    this.#lane = lane;
    this.#options = parts;
    this.#inserter = new Inserter({ ...parts, metrics: parts.registry, signal: this.#stopping.signal, once: false });
  }

  start(): void {
    this.#running = this.#run();
  }

  wake(): void {
    this.#wake?.();
  }

  hurry(): void {
    this.#hurried = true;
    this.wake();
  }

  flush(): void {
    this.#flushTo = this.#options.journal.orderMax;
    this.wake();
  }

  async emptied(deadline: number): Promise<void> {
    const { journal, clock, sleep } = this.#options;
    while (journal.rowsWaiting(this.#lane) > 0 && clock.monotonic() < deadline) await sleep(10, this.#stopping.signal);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.wake();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { journal, onShipped } = this.#options;
    while (!this.#stopping.signal.aborted) {
      const idle = journal.rowsWaiting(this.#lane) === 0;
      const waitMs = idle ? idleMsMax : this.#waitMs();
      if (waitMs > 0) {
        await this.#sleep(waitMs, idle);
        continue;
      }
      const unit = await this.#next();
      if (!unit) continue;
      const shipped = await this.#ship(unit);
      if (!shipped) return;
      await journal.confirm(unit);
      onShipped();
    }
  }

  /** A disk that cannot be read is tried again: what waits there was acknowledged. */
  async #next(): Promise<ShipUnit | undefined> {
    const { journal, log, rowsMax, sleep } = this.#options;
    try {
      return await journal.next(this.#lane, { rowsMax: this.#inserter.rowsOf(rowsMax), bytesMax });
    } catch (error) {
      log.error('journal_read', { reason: messageOf(error) });
      await sleep(waitMsMax, this.#stopping.signal);
      return undefined;
    }
  }

  #waitMs(): number {
    if (this.#hurried) return 0;
    if (this.#flushes) return this.#lastStart + this.#options.intervalMsMin - this.#options.clock.monotonic();
    return this.#lane === late ? this.#lateWaitMs() : this.#liveWaitMs();
  }

  get #flushes(): boolean {
    return this.#options.journal.laneShipped(this.#lane) < this.#flushTo;
  }

  /** Idle: at once. Under load: as long as keeps parts few and a point readable in time. */
  #liveWaitMs(): number {
    const { clock, journal, intervalMsMin, intervalMsMax, rowsMax } = this.#options;
    if (journal.rowsWaiting(this.#lane) >= this.#inserter.rowsOf(rowsMax)) return 0;
    const load = Math.min(1, this.#rowsPerSecond / busyRowsPerSecond);
    const interval = intervalMsMin + (intervalMsMax - intervalMsMin) * load;
    return this.#lastStart + this.#intervalFor(interval) - clock.monotonic();
  }

  /** A few late rows go at once; many wait until they are worth their many partitions. */
  #lateWaitMs(): number {
    const { clock, journal, intervalMsMin, lateSecondsMax } = this.#options;
    const rows = journal.rowsWaiting(this.#lane);
    if (rows >= lateRowsMin) return 0;
    const now = clock.monotonic();
    const quick = this.#quickRows(now);
    // A lane that was quiet for long enough lets a larger message go at once as well.
    const isQuick = rows <= quick || quick >= quickLateRowsMax;
    if (isQuick || this.#options.callersWait) return this.#lastStart + this.#intervalFor(intervalMsMin) - now;
    const ageMs = clock.now() - (journal.oldestWaitingAt(this.#lane) ?? clock.now());
    return Math.min(1000, lateSecondsMax * 1000 - ageMs);
  }

  #intervalFor(interval: number): number {
    return this.#options.callersWait ? Math.min(interval, waitedForMs[this.#lane]) : interval;
  }

  /** The allowance of late rows that need not wait for company. */
  #quickRows(now: number): number {
    const { lateSecondsMax } = this.#options;
    const back = ((now - this.#lastStart) / 1000) * (quickLateRowsMax / Math.max(1, lateSecondsMax));
    return Math.min(quickLateRowsMax, this.#quickLateRows + back);
  }

  /** `wake` ends the sleep of an idle lane; a lane that paces itself is ended by `hurry`, `flush` and `stop` only. */
  async #sleep(waitMs: number, idle: boolean): Promise<void> {
    const timer = new AbortController();
    this.#wake = () => {
      if (idle || this.#hurried || this.#flushes || this.#stopping.signal.aborted) timer.abort();
    };
    await this.#options.sleep(waitMs, timer.signal);
    this.#wake = undefined;
  }

  /** True when every row is stored or a durable suspect; false when the loop was stopped before. */
  async #ship(unit: ShipUnit): Promise<boolean> {
    const { clock, metrics } = this.#options;
    const started = clock.monotonic();
    const sinceLast = (started - this.#lastStart) / 1000;
    this.#rowsPerSecond = unit.rows / Math.max(0.01, Math.min(sinceLast, 60));
    this.#quickLateRows = Math.max(0, this.#quickRows(started) - unit.rows);
    this.#lastStart = started;
    const { complete, refused } = await this.#inserter.insert(unit.payloads);
    if (!complete) return false;
    if (refused.length > 0 && !(await this.#setAside(unit, refused))) return false;
    metrics.rows.observe(unit.rows);
    metrics.insertSeconds.observe((clock.monotonic() - started) / 1000);
    metrics.visibleSeconds.observeMany(Math.max(0, clock.now() - orderMs(unit.orderMin)) / 1000, unit.rows);
    return true;
  }

  /** Accepted rows are not dropped: while their disk is full, or too many wait already, the lane stands and says so. */
  async #setAside(unit: ShipUnit, refused: readonly RefusedPayload[]): Promise<boolean> {
    const { journal, log, metrics, sleep, trials, onSuspects } = this.#options;
    const suspects = refused.map((row) => ({ ...row, order: orderOf(row.payload, unit.orderMin) }));
    for (let at = 0; at < suspects.length; ) {
      if (this.#stopping.signal.aborted) return false;
      const some = suspects.slice(at, at + suspectsTogether);
      try {
        await journal.suspects.add(some);
        at += some.length;
      } catch (error) {
        log.error('suspects_not_kept', { lane: this.#lane, reason: messageOf(error) });
        await sleep(waitMsMax, this.#stopping.signal);
      }
    }
    const rows = suspects.reduce((sum, suspect) => sum + suspect.rows, 0);
    metrics.suspects.add(rows);
    log.error('rows_suspect', { rows, reason: suspects[0]!.reason });
    onSuspects?.(this.#lane, new Set(suspects.map(({ order }) => order)));
    trials.wake();
    return true;
  }
}

const suspectsTogether = 1_000;

/** Smallest order of its rows; bytes that are no block count as the oldest frame of their unit. */
function orderOf(payload: Uint8Array, orderMin: bigint): bigint {
  try {
    let least = 2n ** 63n;
    for (const { order } of readBlock(payload)) if (order < least) least = order;
    return least;
  } catch {
    return orderMin;
  }
}
