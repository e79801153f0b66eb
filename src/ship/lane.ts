/**
 * Ships one lane of a journal into ClickHouse: decides when the next unit is inserted, and confirms stored units. Made
 * by `ship.ts`. Frames of many days are passed to `wide-rows.ts`, and the lane continues with its next unit meanwhile.
 */
import { messageOf } from '../base/errors.ts';
import { orderMs } from '../ingest/order-number.ts';
import { type Lane, laneNames, late, type ShipUnit } from '../journal/journal.ts';
import { waitMsMax } from './backoff.ts';
import { withoutNoBlocks } from './no-blocks.ts';
import {
  daysMax,
  framesOf,
  nothingStored,
  type PartOfUnit,
  type StoredOf,
  storedOf,
  unitBytesMax,
  wideOf,
} from './pieces.ts';
import { setAside } from './set-aside.ts';
import { type Inserts, inserterOf } from './shard-inserter.ts';
import { noteWhenLong, type ShipDeps } from './ship-deps.ts';
import type { WideRows } from './wide-rows.ts';

/** Milliseconds of the least interval for each worker of all hosts. The interval is never above the setting. */
const msPerWorker = 125;
/** Rows per second from which on a live lane uses its longest interval. */
const busyRowsPerSecond = 20_000;
/** A late unit with fewer rows waits for more. */
const lateRowsMin = 10_000;
/**
 * Late rows that are inserted without a wait. Each row may need a partition of its own, so rows are counted. The
 * allowance is refilled evenly within the longest wait of the lane.
 */
const quickLateRowsMax = 20;
/** The interval of a lane whose rows callers wait for. */
export const waitedForMs: Record<Lane, number> = { 0: 50, 1: 500 };
/** The least of it for each worker of all hosts where no inserts are joined: 25 inserts a second into a table. */
const waitedForMsPerWorker = 40;
/** Milliseconds after a multiple of its interval at which a lane starts, so that the two lanes take turns. */
const startsAfterMs: Record<Lane, number> = { 0: 0, 1: 25 };
/** A start may be this many milliseconds late, because timers are. */
const startLateMsMax = 10;
const idleMsMax = 60_000;
/** Inserts of one unit at once. */
const parallelMax = 4;

export class LaneLoop {
  readonly #lane: Lane;
  readonly #deps: ShipDeps;
  readonly #wide: WideRows;
  readonly #stopping = new AbortController();
  readonly #inserter: Inserts;
  #running: Promise<void> = Promise.resolve();
  #wake: (() => void) | undefined;
  #hurried = false;
  /** The order up to which rows are shipped without a wait, because a delete waits for them. */
  #flushTo = 0n;
  #lastStart = Number.NEGATIVE_INFINITY;
  #rowsPerSecond = 0;
  #quickLateRows = quickLateRowsMax;

  /** `wide`: takes the frames that the late lane does not wait for. */
  constructor(lane: Lane, wide: WideRows, deps: ShipDeps) {
    this.#lane = lane;
    this.#wide = wide;
    this.#deps = deps;
    this.#inserter = inserterOf(deps, {
      ...deps,
      metrics: deps.registry,
      signal: this.#stopping.signal,
      once: false,
      parallelMax,
      patient: lane === late,
    });
    const rows = deps.notes.unfinished(laneNames[lane]);
    if (rows !== undefined) this.#inserter.shrink(rows, deps.rowsMax);
  }

  get refusal(): string | undefined {
    return this.#inserter.refusal;
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Called after each commit, which may have no rows of this lane. */
  wake(): void {
    if (this.#deps.journal.rowsUntaken(this.#lane) > 0) this.#wake?.();
  }

  hurry(): void {
    this.#hurried = true;
    this.#wake?.();
  }

  flush(): void {
    this.#flushTo = this.#deps.journal.orderMax;
    this.#wake?.();
  }

  async emptied(deadline: number): Promise<void> {
    const { journal, clock, sleep } = this.#deps;
    while (journal.rowsWaiting(this.#lane) > 0 && clock.monotonic() < deadline) await sleep(10, this.#stopping.signal);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#wake?.();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { journal } = this.#deps;
    while (!this.#stopping.signal.aborted) {
      const idle = journal.rowsUntaken(this.#lane) === 0;
      const waitMs = idle ? idleMsMax : this.#waitMs();
      if (waitMs > 0) {
        await this.#sleep(waitMs, idle);
        continue;
      }
      const unit = await this.#next();
      if (!unit) continue;
      const part = await withoutNoBlocks(this.#deps, unit, this.#stopping.signal);
      if (!part) return;
      const stored = this.#lane === late ? storedOf(this.#deps.notes, part) : nothingStored;
      const wide = this.#lane === late && part.rows > daysMax ? wideOf(part.payloads, stored) : undefined;
      const done = wide ? await this.#shipApart(unit, part, wide, stored) : await this.#shipWhole(unit, part, stored);
      if (!done) return;
    }
  }

  /** Returns false when the loop was stopped. */
  async #shipWhole(unit: ShipUnit, part: PartOfUnit, stored: StoredOf): Promise<boolean> {
    const { journal, onShipped, onFramesStored } = this.#deps;
    if (part.payloads.length > 0 && !(await this.#ship(part, stored))) return false;
    onFramesStored?.(this.#lane, new Set(part.orders));
    await journal.confirm(unit);
    onShipped();
    return true;
  }

  /**
   * Stores the frames of few days here. The frames of many days are stored beside the lane, which takes its next unit.
   */
  async #shipApart(
    unit: ShipUnit,
    part: PartOfUnit,
    isWide: ReadonlySet<Uint8Array>,
    stored: StoredOf,
  ): Promise<boolean> {
    const { onFramesStored } = this.#deps;
    const [narrow, wide] = [false, true].map((wanted) => framesOf(part, (payload) => isWide.has(payload) === wanted));
    if (narrow!.payloads.length > 0) {
      if (!(await this.#ship(narrow!, stored))) return false;
      onFramesStored?.(this.#lane, new Set(narrow!.orders));
    } else {
      // The allowance counts only partitions that the lane itself makes.
      const now = this.#deps.clock.monotonic();
      this.#quickLateRows = this.#quickRows(now);
      this.#lastStart = now;
    }
    return await this.#wide.take(unit, wide!, this.#stopping.signal);
  }

  /** Reads the next unit. An unreadable disk is read again: its rows were acknowledged. */
  async #next(): Promise<ShipUnit | undefined> {
    const { journal, log, rowsMax, sleep } = this.#deps;
    try {
      return await journal.next(this.#lane, { rowsMax: this.#inserter.rowsOf(rowsMax), bytesMax: unitBytesMax });
    } catch (error) {
      log.error('journal_unread', { reason: messageOf(error) });
      await sleep(waitMsMax, this.#stopping.signal);
      return undefined;
    }
  }

  #waitMs(): number {
    if (this.#hurried) return 0;
    if (this.#flushes) return this.#lastStart + this.#deps.intervalMsMin - this.#deps.clock.monotonic();
    return this.#lane === late ? this.#lateWaitMs() : this.#liveWaitMs();
  }

  get #flushes(): boolean {
    return this.#deps.journal.laneTaken(this.#lane) < this.#flushTo;
  }

  /**
   * Returns the wait of the live lane: 0 when idle; under load, and with many workers, a wait that keeps parts few and
   * points readable in time.
   */
  #liveWaitMs(): number {
    const { journal, fleetWorkers = () => 1, intervalMsMin, intervalMsMax, rowsMax } = this.#deps;
    if (journal.rowsUntaken(this.#lane) >= this.#inserter.rowsOf(rowsMax)) return 0;
    const load = Math.min(1, this.#rowsPerSecond / busyRowsPerSecond);
    const least = Math.min(intervalMsMax, Math.max(intervalMsMin, fleetWorkers() * msPerWorker));
    const interval = least + (intervalMsMax - least) * load;
    return this.#nextStartMs(interval);
  }

  /** Returns the wait of the late lane: 0 for a few rows; more rows wait until they justify their many partitions. */
  #lateWaitMs(): number {
    const { clock, journal, intervalMsMin, lateSecondsMax, rowsMax } = this.#deps;
    const rows = journal.rowsUntaken(this.#lane);
    // While rows of many days are stored, later rows gather, so that the same days are inserted fewer times.
    if (rows >= (this.#wide.busy ? rowsMax : lateRowsMin)) return 0;
    const now = clock.monotonic();
    const quick = this.#quickRows(now);
    // A lane that was idle for long enough ships a larger message at once as well.
    const isQuick = rows <= quick || quick >= quickLateRowsMax;
    if (isQuick || this.#deps.callersWait) return this.#nextStartMs(intervalMsMin);
    const ageMs = clock.now() - (journal.oldestUntakenAt(this.#lane) ?? clock.now());
    return Math.min(1000, lateSecondsMax * 1000 - ageMs);
  }

  /**
   * Returns the milliseconds until the next start. While senders wait, the lanes of all workers of a host start at the
   * same times, so that the embedded ClickHouse can join their inserts. A lane that was idle starts at once. A lane
   * whose start passed during a long insert starts at the next quarter of the interval.
   */
  #nextStartMs(interval: number): number {
    const { callersWait, clock, fleetWorkers = () => 1, hostShiftMs = 0, intervalMsMax, joinsInserts } = this.#deps;
    const now = clock.monotonic();
    if (!callersWait) return this.#lastStart + interval - now;
    const least = joinsInserts ? 0 : fleetWorkers() * waitedForMsPerWorker;
    const every = Math.min(intervalMsMax, Math.max(waitedForMs[this.#lane], least));
    if (now - this.#lastStart >= 2 * every) return 0;
    const shift = hostShiftMs - startsAfterMs[this.#lane];
    const commonFrom = (time: number, step: number) => Math.ceil((time + shift) / step) * step - shift;
    const next = commonFrom(this.#lastStart + every / 2, every);
    return (next < now - startLateMsMax ? commonFrom(now, every / 4) : next) - now;
  }

  /** Returns the allowance of late rows that need no wait. */
  #quickRows(now: number): number {
    const { lateSecondsMax } = this.#deps;
    const back = ((now - this.#lastStart) / 1000) * (quickLateRowsMax / Math.max(1, lateSecondsMax));
    return Math.min(quickLateRowsMax, this.#quickLateRows + back);
  }

  /**
   * Sleeps. `wake` ends the sleep of an idle lane; the pause of a busy lane is ended only by `hurry`, `flush` and
   * `stop`.
   */
  async #sleep(waitMs: number, idle: boolean): Promise<void> {
    const timer = new AbortController();
    const wake = () => {
      if (idle || this.#hurried || this.#flushes || this.#stopping.signal.aborted) timer.abort();
    };
    this.#wake = wake;
    await this.#deps.sleep(waitMs, timer.signal);
    this.#wake = undefined;
  }

  /** Returns true when every row is stored or a durable suspect; false when the loop was stopped. */
  async #ship(part: PartOfUnit, stored: StoredOf): Promise<boolean> {
    const { clock, metrics, notes, onDelayed } = this.#deps;
    const started = clock.monotonic();
    const sinceLast = (started - this.#lastStart) / 1000;
    this.#rowsPerSecond = part.rows / Math.max(0.01, Math.min(sinceLast, 60));
    this.#quickLateRows = Math.max(0, this.#quickRows(started) - part.rows);
    this.#lastStart = started;
    const { signal } = this.#stopping;
    const work = laneNames[this.#lane];
    const ended = noteWhenLong(this.#deps, () => notes.takesLong(work, part.rows));
    const { complete, refused, waiting, waits } = await this.#inserter.insert(part.payloads, {
      stored,
      orderMin: part.orderMin,
    });
    ended();
    if (complete) notes.ended(work);
    if (!complete || !(await setAside(this.#deps, this.#lane, refused, part.orderMin, signal))) return false;
    if (waiting.size > 0) {
      onDelayed?.(this.#lane, new Set(part.orders.filter((_, i) => waiting.has(part.payloads[i]!))), waits);
      return true;
    }
    metrics.rows.observe(part.rows);
    metrics.insertSeconds.observe((clock.monotonic() - started) / 1000);
    metrics.visibleSeconds.observeMany(Math.max(0, clock.now() - orderMs(part.orderMin)) / 1000, part.rows);
    return true;
  }
}
