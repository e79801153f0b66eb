/**
 * Stores the rows that wait for their shard beside the lanes (`journal/shard-backlog.ts`): one loop for each shard,
 * which repeats an insert until the shard takes it. While a shard has such rows, its later rows follow them here, so
 * the lanes wait for no shard that does not answer. Made by `ship.ts`.
 */
import { messageOf } from '../base/errors.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics/metrics.ts';
import type { ShardMap } from '../clickhouse/shards.ts';
import { live } from '../journal/journal.ts';
import type { GivesUnits } from '../journal/seam.ts';
import type { ShardRows, ShardUnit } from '../journal/shard-backlog.ts';
import { blocksByShard } from '../telemetry/shard-blocks.ts';
import { waitMsMax } from './backoff.ts';
import type { ControlRow } from './control-row.ts';
import { Inserter, type InserterDeps, refusalOfShards, type ShipShards } from './insert.ts';
import { rowsIn, unitBytesMax } from './pieces.ts';
import { setAside } from './set-aside.ts';

interface ShardBacklogsDeps
  extends Omit<InserterDeps, 'clickhouse' | 'control' | 'metrics' | 'once' | 'parallelMax' | 'patient' | 'signal'> {
  journal: GivesUnits;
  shards: ShipShards;
  /** The control row of each shard. */
  controls: readonly ControlRow[];
  metrics: { rows: Histogram; suspects: Counter };
  registry: Metrics;
  rowsMax: number;
  /** As in `ShipperDeps`. */
  shardBytesMax?: number;
  trials: { wake(): void };
  /** As in `ShipperDeps`. */
  onShipped: () => void;
}

const idleMs = 60_000;
const roomMs = 1_000;
/** The longest time for which a lane waits until a shard has taken the last rows of its backlog. */
const catchUpMsMax = 2_000;
const catchUpCheckMs = 10;
/** Inserts of one unit at once. */
const parallelMax = 2;

export class ShardBacklogs {
  readonly #deps: ShardBacklogsDeps;
  readonly #stopping = new AbortController();
  readonly #inserters: Inserter[];
  readonly #waking: AbortController[];
  /** The shards that have taken rows since rows began to wait for them. */
  readonly #taking = new Set<number>();
  #running: Promise<unknown> = Promise.resolve();

  constructor(deps: ShardBacklogsDeps) {
    this.#deps = deps;
    const { shards, controls, registry, journal } = deps;
    this.#waking = shards.all.map(() => new AbortController());
    this.#inserters = shards.all.map((clickhouse, shard) => {
      const { signal } = this.#stopping;
      const ofShard = { clickhouse, control: controls[shard]!, metrics: registry, signal };
      return new Inserter({ ...deps, ...ofShard, once: false, parallelMax, patient: true });
    });
    const { shardBacklog } = journal;
    const wake = (shard: number) => this.#waking[shard]?.abort();
    shardBacklog.onAdded = wake;
    // With one server no rows wait here.
    for (const shard of shards.all.length > 1 ? shards.all.keys() : []) {
      const labels = { shard: String(shard) };
      const help = 'Bytes of rows that wait for a shard of ClickHouse, beside the lanes.';
      registry.observed('shard_backlog_bytes', help, () => shardBacklog.bytesOf(shard), 'sum', labels);
    }
  }

  /** Returns why a shard, which answers, has refused rows for a while. */
  get refusal(): string | undefined {
    return refusalOfShards(this.#inserters);
  }

  start(): void {
    // Rows may also wait for a shard that the settings do not name any more.
    const numbers = new Set([...this.#inserters.keys(), ...this.#deps.journal.shardBacklog.shards()]);
    this.#running = Promise.all([...numbers].map((shard) => this.#run(shard)));
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    for (const waking of this.#waking) waking.abort();
    await this.#running;
  }

  /** True while later rows of the shard must follow earlier ones here. */
  holds(shard: number): boolean {
    return this.#deps.journal.shardBacklog.holds(shard);
  }

  /**
   * Returns true when later rows of the shard may go to the shard. Waits for a moment while the shard takes the last
   * rows here: rows that come all the time would otherwise follow each other here without end.
   */
  async caughtUp(shard: number, signal: AbortSignal): Promise<boolean> {
    const { journal, sleep } = this.#deps;
    const isTaking = () => this.#taking.has(shard) && !this.#inserters[shard]!.isFailing && !signal.aborted;
    for (let waitedMs = 0; this.holds(shard) && isTaking() && waitedMs < catchUpMsMax; waitedMs += catchUpCheckMs) {
      if (journal.shardBacklog.bytesOf(shard) > unitBytesMax) return false;
      await sleep(catchUpCheckMs, signal);
    }
    return !this.holds(shard);
  }

  /**
   * Keeps rows of a shard that a lane gives, when there is room. `mark`: of their inserts that were given up, which may
   * still run. Returns false when the signal was aborted before the rows were durable.
   */
  async keep(shard: number, rows: ShardRows, mark: string | undefined, signal: AbortSignal): Promise<boolean> {
    const { journal, log, sleep, shardBytesMax = Number.POSITIVE_INFINITY } = this.#deps;
    if (mark !== undefined) this.#inserters[shard]!.endFirst(mark);
    const isFull = () => journal.shardBacklog.bytesOf(shard) >= shardBytesMax;
    if (isFull()) log.warn('shard_backlog_full', { shard });
    while (isFull() && !signal.aborted) await sleep(roomMs, signal);
    return await this.#add(shard, rows, signal);
  }

  async #add(shard: number, rows: ShardRows, signal: AbortSignal): Promise<boolean> {
    const { journal, log, sleep } = this.#deps;
    while (!signal.aborted) {
      try {
        const isFirst = !this.holds(shard);
        await journal.shardBacklog.add(shard, rows);
        if (isFirst) this.#taking.delete(shard);
        if (isFirst) log.warn('shard_behind', { shard });
        return true;
      } catch (error) {
        log.error('shard_rows_not_kept', { shard, reason: messageOf(error) });
        await sleep(waitMsMax, signal);
      }
    }
    return false;
  }

  async #run(shard: number): Promise<void> {
    const { journal, log, rowsMax, sleep } = this.#deps;
    const { signal } = this.#stopping;
    const inserter = this.#inserters[shard];
    while (!signal.aborted) {
      const waking = new AbortController();
      if (inserter) this.#waking[shard] = waking;
      try {
        const most = inserter?.rowsOf(rowsMax) ?? rowsMax;
        const unit = await journal.shardBacklog.next(shard, { rowsMax: most, bytesMax: unitBytesMax });
        if (!unit && !inserter) return;
        if (!unit) await sleep(idleMs, waking.signal);
        else if (await this.#store(shard, unit)) {
          this.#taking.add(shard);
          if (!this.holds(shard)) log.info('shard_caught_up', { shard });
        }
      } catch (error) {
        // The disk cannot be read or written: the files stay.
        log.error('shard_backlog_failed', { shard, reason: messageOf(error) });
        await sleep(waitMsMax, signal);
      }
    }
  }

  /** Returns false when shipping was stopped before all rows were stored or durable suspects. */
  async #store(shard: number, unit: ShardUnit): Promise<boolean> {
    const { signal } = this.#stopping;
    const { shards } = this.#deps;
    // With one server there is no map: the settings named several before.
    const isDivided = shards.all.length > 1;
    const map = isDivided ? await shards.known(signal) : undefined;
    if (isDivided && !map) return this.#giveBack(unit);
    const end = map && shards.begin(map);
    try {
      return await this.#storeBy(map, shard, unit);
    } catch (error) {
      this.#giveBack(unit);
      throw error;
    } finally {
      end?.();
    }
  }

  async #storeBy(map: ShardMap | undefined, shard: number, unit: ShardUnit): Promise<boolean> {
    const { journal, metrics, shards, onShipped } = this.#deps;
    const { signal } = this.#stopping;
    const { orderMin } = unit;
    const inserter = this.#inserters[shard];
    const mapVersion = map?.version ?? 0;
    // Buckets may have moved since the rows were divided. Rows that follow their bucket are divided by this map.
    const hasMoved = unit.mapVersion < mapVersion || !inserter;
    const divide = (payload: Uint8Array) => (map ? blocksByShard(payload, shards.all.length, map) : [payload]);
    const divided = hasMoved ? unit.payloads.map(divide) : [];
    const others = hasMoved ? [...shards.all.keys()].filter((other) => other !== shard) : [];
    for (const other of others) {
      const payloads = divided.flatMap((blocks) => blocks[other] ?? []);
      if (payloads.length === 0) continue;
      const rows = payloads.reduce((sum, payload) => sum + rowsIn(payload), 0);
      // Not refused by a full backlog: two of them could wait for each other.
      const isKept = await this.#add(other, { payloads, rows, orderMin, mapVersion }, signal);
      if (!isKept) return this.#giveBack(unit);
    }
    const payloads = hasMoved ? divided.flatMap((blocks) => blocks[shard] ?? []) : unit.payloads;
    if (inserter && payloads.length > 0) {
      const { complete, refused } = await inserter.insert(payloads, { orderMin });
      // Messages of these rows have had their answer.
      const answered = { ...this.#deps, onSuspects: () => {} };
      if (!complete || !(await setAside(answered, live, refused, orderMin, signal))) return this.#giveBack(unit);
    }
    await journal.shardBacklog.settle(unit);
    metrics.rows.observe(unit.rows);
    onShipped();
    return true;
  }

  #giveBack(unit: ShardUnit): false {
    this.#deps.journal.shardBacklog.giveBack(unit);
    return false;
  }
}
