/**
 * Stores late frames that touch more days than one insert should: a day is a partition, and an insert into thousands of
 * partitions takes many seconds. The lane continues with its next unit meanwhile. The unit of the frames stays open, so
 * the position of the lane waits for the frames. Notes beside the journal say which rows are stored, so a killed
 * process repeats little. Frames that arrive during an insert share the next one. The bytes of waiting frames are
 * capped: at the cap the lane waits.
 */
import { orderMs } from '../ingest/order-number.ts';
import { late, type ShipUnit } from '../journal/journal.ts';
import type { TimeRange } from '../journal/ship-notes.ts';
import { daysMax, leastOf, type PartOfUnit, storedOf } from './pieces.ts';
import { setAside } from './set-aside.ts';
import { type Inserts, inserterOf } from './shard-inserter.ts';
import { noteWhenLong, type ShipDeps } from './ship-deps.ts';

/** Bytes of frames that wait or are being stored. At this cap the lane waits. */
const heldBytesMax = 32 * 1024 * 1024;
/** Bytes of frames that are stored together. */
const togetherBytesMax = 16 * 1024 * 1024;
/**
 * The engine runs eight statements at once by default, for all workers: reads and the lanes need some of these places.
 */
const parallelMax = 2;

interface Item extends PartOfUnit {
  unit: ShipUnit;
  bytes: number;
}

export class WideRows {
  readonly #deps: ShipDeps;
  readonly #inserter: Inserts;
  readonly #stopping = new AbortController();
  readonly #waiting: Item[] = [];
  #heldBytes = 0;
  /** Days of one insert: fewer after a process that was killed during a long one. */
  #daysMax = daysMax;
  /** True when this process has stored a range: it advances, so no later process needs smaller inserts. */
  #advances = false;
  #running: Promise<void> | undefined;
  #onRoom: (() => void) | undefined;

  constructor(deps: ShipDeps) {
    this.#deps = deps;
    const { signal } = this.#stopping;
    this.#inserter = inserterOf(deps, {
      ...deps,
      metrics: deps.registry,
      signal,
      once: false,
      parallelMax,
      patient: true,
    });
    const unfinished = deps.notes.unfinished('wide');
    if (unfinished !== undefined) this.#daysMax = Math.max(1, Math.min(daysMax, unfinished >> 1));
    const help = 'Bytes of late rows of many days that are being stored beside the lane.';
    deps.registry.observed('wal_wide_bytes', help, () => this.#heldBytes);
  }

  /** True while rows are being stored. */
  get busy(): boolean {
    return this.#running !== undefined;
  }

  /**
   * Resolves when there is room: the part is stored later, and then its unit is confirmed. The unit no longer has
   * payloads or orders. Returns false when shipping was stopped.
   */
  async take(unit: ShipUnit, part: PartOfUnit, signal: AbortSignal): Promise<boolean> {
    const bytes = part.payloads.reduce((sum, { length }) => sum + length, 0);
    while (this.#heldBytes > 0 && this.#heldBytes + bytes > heldBytesMax && !signal.aborted) {
      await new Promise<void>((resolve) => {
        this.#onRoom = resolve;
      });
    }
    if (signal.aborted || this.#stopping.signal.aborted) return false;
    // Copies the payloads: each is a view of a larger buffer, which must not stay in memory for so long.
    const payloads = part.payloads.map((payload) => Uint8Array.from(payload));
    unit.payloads.length = 0;
    unit.orders.length = 0;
    this.#waiting.push({ ...part, payloads, unit, bytes });
    this.#heldBytes += bytes;
    this.#running ??= this.#run();
    return true;
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#onRoom?.();
    await this.#running;
  }

  async #run(): Promise<void> {
    try {
      while (this.#waiting.length > 0 && !this.#stopping.signal.aborted) {
        const items = this.#next();
        if (!(await this.#store(items))) return;
        for (const { bytes } of items) this.#heldBytes -= bytes;
        this.#onRoom?.();
      }
    } finally {
      // Runs in the turn in which the last part ended: a part that arrives later starts a new run.
      this.#running = undefined;
    }
  }

  #next(): Item[] {
    const items = [this.#waiting.shift()!];
    for (let { bytes } = items[0]!; this.#waiting.length > 0; ) {
      bytes += this.#waiting[0]!.bytes;
      if (bytes > togetherBytesMax) break;
      items.push(this.#waiting.shift()!);
    }
    return items;
  }

  /** Returns false when shipping was stopped before all rows were stored or durable suspects. */
  async #store(items: readonly Item[]): Promise<boolean> {
    const { clock, journal, metrics, notes, onShipped, onDelayed, onFramesStored } = this.#deps;
    const started = clock.monotonic();
    const orderMin = leastOf(items.map((item) => item.orderMin));
    const payloads = items.flatMap((item) => item.payloads);
    const orders = items.flatMap((item) => item.orders);
    const ofInsert = { stored: storedOf(notes, { payloads, orders }), daysMax: this.#daysMax, orderMin };
    const ended = noteWhenLong(this.#deps, () => {
      if (!this.#advances) notes.takesLong('wide', ofInsert.daysMax);
    });
    const onStored = (range: TimeRange) => {
      ended();
      // Earlier wide frames are stored, and the lane has stored its own frames of these units.
      notes.stored(orders.at(-1)!, range, journal.laneShipped(late));
      notes.ended('wide');
      this.#advances = true;
    };
    const { complete, refused, waiting, waits } = await this.#inserter.insert(payloads, { ...ofInsert, onStored });
    ended();
    if (!complete) return false;
    notes.ended('wide');
    this.#daysMax = Math.min(daysMax, Math.ceil(this.#daysMax * 1.5));
    if (!(await setAside(this.#deps, late, refused, orderMin, this.#stopping.signal))) return false;
    const rows = items.reduce((sum, item) => sum + item.rows, 0);
    metrics.rows.observe(rows);
    metrics.insertSeconds.observe((clock.monotonic() - started) / 1000);
    if (waiting.size === 0)
      metrics.visibleSeconds.observeMany(Math.max(0, clock.now() - orderMs(orderMin)) / 1000, rows);
    else onDelayed?.(late, new Set(orders.filter((_, i) => waiting.has(payloads[i]!))), waits);
    onFramesStored?.(late, new Set(items.flatMap((item) => item.orders)));
    await Promise.all(items.map(({ unit }) => journal.confirm(unit)));
    onShipped();
    return true;
  }
}
