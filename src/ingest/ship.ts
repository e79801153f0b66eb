/**
 * Carries durable frames from a journal into ClickHouse, one loop a lane. A unit is inserted into the series table and
 * the latest table; only then the journal's position moves. A retry may send rows again: they are idempotent
 * (reliability.md 2.2), so there are no tokens. What ClickHouse refuses for its content is cut down to the poison rows.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics.ts';
import { type ClickHouse, ClickHouseError } from '../clickhouse/client.ts';
import { insertLatest, insertTelemetry } from '../clickhouse/statements.ts';
import type { Journal, ShipUnit } from '../journal/journal.ts';
import { QuarantineFull } from '../journal/quarantine.ts';
import { rowsOfBlock, splitBlock } from '../telemetry/read-block.ts';
import { orderMs } from './order.ts';

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
  /** After each confirmed unit. */
  onShipped: () => void;
}

type Lane = 0 | 1;
const late: Lane = 1;

const bytesMax = 64 * 1024 * 1024;
/** Rows a second at which a live lane takes its longest interval. */
const busyRowsPerSecond = 20_000;
/** A late insert of fewer rows than this waits for company, once the quick ones are used up. */
const lateRowsMin = 10_000;
const quickLateInsertsMax = 30;
const idleMsMax = 60_000;
const retryMsMin = 200;
const retryMsMax = 30_000;
/** Failures on the same rows that mean: these rows do it. A store that dies of them, and errors that may be anything. */
const crashesMax = 5;
const unknownErrorsMax = 3;

export class Shipper {
  readonly #options: ShipperOptions;
  readonly #lanes: LaneLoop[];

  constructor(options: ShipperOptions) {
    this.#options = options;
    const metrics = shipMetrics(options.metrics);
    this.#lanes = [new LaneLoop(0, options, metrics), new LaneLoop(late, options, metrics)];
    const { journal } = options;
    options.metrics.observed('wal_bytes', 'Bytes of the journal that wait for ClickHouse.', () => journal.backlogBytes);
    options.metrics.observed(
      'wal_oldest_seconds',
      'Age of the oldest point that waits for ClickHouse.',
      () => journal.oldestUnshippedMs(options.clock.now()) / 1000,
      'max',
    );
  }

  start(): void {
    for (const lane of this.#lanes) lane.start();
  }

  /** There may be something to ship. */
  wake(): void {
    for (const lane of this.#lanes) lane.wake();
  }

  /** Ships what is there without waiting for company, until it is gone or the time is up; then stops. */
  async drain(timeMsMax: number): Promise<void> {
    const deadline = this.#options.clock.monotonic() + timeMsMax;
    for (const lane of this.#lanes) lane.hurry();
    await Promise.all(this.#lanes.map((lane) => lane.emptied(deadline)));
    await this.stop();
  }

  async stop(): Promise<void> {
    await Promise.all(this.#lanes.map((lane) => lane.stop()));
  }
}

interface ShipMetrics {
  rows: Histogram;
  insertSeconds: Histogram;
  visibleSeconds: Histogram;
  retries: Counter;
  quarantined: Counter;
}

function shipMetrics(metrics: Metrics): ShipMetrics {
  const rowBounds = [10, 100, 1000, 10_000, 50_000, 100_000, 200_000, 400_000];
  return {
    rows: metrics.histogram('storage_batch_rows', 'Rows of one insert.', {}, rowBounds),
    insertSeconds: metrics.histogram('storage_insert_seconds', 'Time of one insert into both tables.'),
    visibleSeconds: metrics.histogram('ingest_visible_seconds', 'From acceptance to readable, by point.'),
    retries: metrics.counter('storage_retries_total', 'Inserts that had to be repeated.'),
    quarantined: metrics.counter('ingest_quarantined_rows_total', 'Rows that ClickHouse refused for their content.'),
  };
}

class LaneLoop {
  readonly #lane: Lane;
  readonly #options: ShipperOptions;
  readonly #metrics: ShipMetrics;
  readonly #stopping = new AbortController();
  #running: Promise<void> = Promise.resolve();
  #wake: (() => void) | undefined;
  #hurried = false;
  #rowsMax: number;
  #lastStart = Number.NEGATIVE_INFINITY;
  #rowsPerSecond = 0;
  #quickLateInserts = quickLateInsertsMax;

  constructor(lane: Lane, options: ShipperOptions, metrics: ShipMetrics) {
    this.#lane = lane;
    this.#options = options;
    this.#metrics = metrics;
    this.#rowsMax = options.rowsMax;
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

  async emptied(deadline: number): Promise<void> {
    const { journal, clock } = this.#options;
    while (journal.rowsWaiting(this.#lane) > 0 && clock.monotonic() < deadline) await sleep(10);
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
    const { journal, log } = this.#options;
    try {
      return await journal.next(this.#lane, { rowsMax: this.#rowsMax, bytesMax });
    } catch (error) {
      log.error('journal_read', { reason: messageOf(error) });
      await sleep(retryMsMax, undefined, { signal: this.#stopping.signal }).catch(() => {});
      return undefined;
    }
  }

  #waitMs(): number {
    if (this.#hurried) return 0;
    return this.#lane === late ? this.#lateWaitMs() : this.#liveWaitMs();
  }

  /** Idle: at once. Under load: as long as keeps parts few and a point readable in time. */
  #liveWaitMs(): number {
    const { clock, journal, intervalMsMin, intervalMsMax, rowsMax } = this.#options;
    if (journal.rowsWaiting(this.#lane) >= rowsMax) return 0;
    const load = Math.min(1, this.#rowsPerSecond / busyRowsPerSecond);
    const interval = intervalMsMin + (intervalMsMax - intervalMsMin) * load;
    return this.#lastStart + interval - clock.monotonic();
  }

  /** A few late points go at once; many wait until they are worth their many partitions. */
  #lateWaitMs(): number {
    const { clock, journal, intervalMsMin, lateSecondsMax } = this.#options;
    if (journal.rowsWaiting(this.#lane) >= lateRowsMin) return 0;
    const idleSeconds = (clock.monotonic() - this.#lastStart) / 1000;
    if (this.#quickLateInserts + idleSeconds >= 1) return this.#lastStart + intervalMsMin - clock.monotonic();
    const ageMs = clock.now() - (journal.oldestWaitingAt(this.#lane) ?? clock.now());
    return Math.min(1000, lateSecondsMax * 1000 - ageMs);
  }

  /** `wake` ends the sleep of an idle lane; a lane that paces itself is ended by `hurry` and `stop` only. */
  async #sleep(waitMs: number, idle: boolean): Promise<void> {
    const timer = new AbortController();
    this.#wake = () => {
      if (idle || this.#hurried || this.#stopping.signal.aborted) timer.abort();
    };
    await sleep(waitMs, undefined, { signal: timer.signal }).catch(() => {});
    this.#wake = undefined;
  }

  /** True when every row is stored or quarantined; false when the loop was stopped before. */
  async #ship(unit: ShipUnit): Promise<boolean> {
    const { clock } = this.#options;
    const started = clock.monotonic();
    const sinceLast = (started - this.#lastStart) / 1000;
    this.#rowsPerSecond = unit.rows / Math.max(0.01, Math.min(sinceLast, 60));
    this.#quickLateInserts = Math.min(quickLateInsertsMax, this.#quickLateInserts + sinceLast) - 1;
    this.#lastStart = started;
    const done = await this.#insert(unit.payloads, unit.orderMax);
    if (!done) return false;
    this.#metrics.rows.observe(unit.rows);
    this.#metrics.insertSeconds.observe((clock.monotonic() - started) / 1000);
    this.#metrics.visibleSeconds.observeMany(Math.max(0, clock.now() - orderMs(unit.orderMin)) / 1000, unit.rows);
    return true;
  }

  /** Repeats while the store is away; halves what is too much for it; cuts down what it refuses. */
  async #insert(payloads: Uint8Array[], order: bigint): Promise<boolean> {
    const { clickhouse, timeoutMs, log } = this.#options;
    const body = payloads.length === 1 ? (payloads[0] as Buffer) : Buffer.concat(payloads);
    let crashes = 0;
    let unknownErrors = 0;
    for (let attempt = 0; ; attempt += 1) {
      if (this.#stopping.signal.aborted) return false;
      try {
        await Promise.all([
          clickhouse.insertBlocks(insertTelemetry, body, { timeoutMs }),
          clickhouse.insertBlocks(insertLatest, body, { timeoutMs }),
        ]);
        this.#rowsMax = Math.min(this.#options.rowsMax, this.#rowsMax * 2);
        return true;
      } catch (error) {
        assert(error instanceof ClickHouseError, `insert failed in an unknown way: ${messageOf(error)}`);
        this.#metrics.retries.add(1);
        log.warn('storage_insert', { kind: error.kind, code: error.code, reason: error.message.slice(0, 500) });
        // A store that dies of these rows looks like a store that went away, again and again.
        if (error.connectionLost) crashes += 1;
        if (error.kind === 'unknown') unknownErrors += 1;
        if (error.kind === 'size') this.#rowsMax = Math.max(1000, this.#rowsMax >> 1);
        const refused = error.kind === 'content' || error.kind === 'size';
        if (refused || crashes >= crashesMax || unknownErrors >= unknownErrorsMax) {
          return this.#cut(payloads, order, error);
        }
        const backoffMs = Math.min(retryMsMax, retryMsMin * 2 ** Math.min(attempt, 10));
        await this.#retryAfter(backoffMs * (0.5 + Math.random()));
      }
    }
  }

  /** Waits out a backoff, but no longer than the store is away. */
  async #retryAfter(waitMs: number): Promise<void> {
    const { clock, clickhouse } = this.#options;
    const until = clock.monotonic() + waitMs;
    while (clock.monotonic() < until && !this.#stopping.signal.aborted) {
      await sleep(Math.min(retryMsMin, Math.max(1, until - clock.monotonic())));
      if (await clickhouse.ping()) return;
    }
  }

  /** Halves by frames, then by rows, until what is refused stands alone. */
  async #cut(payloads: Uint8Array[], order: bigint, error: ClickHouseError): Promise<boolean> {
    if (payloads.length > 1) {
      const half = payloads.length >> 1;
      return (await this.#insert(payloads.slice(0, half), order)) && (await this.#insert(payloads.slice(half), order));
    }
    const block = payloads[0]!;
    const halves = halvesOf(block);
    if (halves) return (await this.#insert([halves[0]], order)) && (await this.#insert([halves[1]], order));
    const { journal, log } = this.#options;
    const reason = `${error.code} ${error.message.slice(0, 500)}`;
    while (!this.#stopping.signal.aborted) {
      try {
        await journal.quarantine.add([{ reason, payload: block, rows: 1, order }]);
        this.#metrics.quarantined.add(1);
        log.error('row_quarantined', { code: error.code, reason: error.message.slice(0, 500) });
        return true;
      } catch (full) {
        // Accepted rows are not dropped: shipping stands still, and says so, until there is room.
        if (!(full instanceof QuarantineFull)) throw full;
        log.error('quarantine_full', { reason: full.message });
        await sleep(retryMsMax, undefined, { signal: this.#stopping.signal }).catch(() => {});
      }
    }
    return false;
  }
}

/** Undefined for a single row, and for bytes that are no block of ours: those go to quarantine whole. */
function halvesOf(block: Uint8Array): [Uint8Array, Uint8Array] | undefined {
  try {
    const rows = rowsOfBlock(block);
    if (rows < 2) return undefined;
    const half = rows >> 1;
    return [splitBlock(block, 0, half), splitBlock(block, half, rows)];
  } catch {
    return undefined;
  }
}
