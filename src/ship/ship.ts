/**
 * Ships durable frames from a journal into ClickHouse, one loop for each lane (`lane.ts`). A unit is inserted into the
 * series table and the latest table; only then the journal's position moves. A retry may send rows again: rows are
 * idempotent, so no tokens are needed. A row that is refused alone becomes a suspect (`suspect-trials.ts`), and rows
 * whose shard does not take them wait for it (`shard-backlogs.ts`): both are durable outside the lane.
 */
import type { Clock } from '../base/clock.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { laneNames, lanes } from '../journal/journal.ts';
import type { GivesUnits } from '../journal/seam.ts';
import { ControlRow } from './control-row.ts';
import { LaneLoop } from './lane.ts';
import { ShardBacklogs } from './shard-backlogs.ts';
import { type ShipperDeps, shipMetrics } from './ship-deps.ts';
import { Trials } from './suspect-trials.ts';
import { WideRows } from './wide-rows.ts';

export class Shipper {
  readonly #deps: ShipperDeps;
  readonly #lanes: LaneLoop[];
  readonly #trials: Trials;
  readonly #wide: WideRows;
  readonly #backlogs: ShardBacklogs;

  constructor(deps: ShipperDeps) {
    this.#deps = deps;
    const { shards, clock, journal, timeoutMs, sleep = systemScheduler.sleep, onShipped } = deps;
    const { quarantineKeptDays = 0, expiryTime = async () => undefined } = deps;
    const controls = shards.all.map((clickhouse) => new ControlRow(clickhouse, clock, timeoutMs));
    const { notes } = journal;
    notes.begin(journal.orderRecovered === undefined);
    this.#trials = new Trials({
      ...deps,
      controls,
      notes,
      sleep,
      quarantineKeptDays,
      expiryTime,
      onSettled: onShipped,
    });
    const metrics = shipMetrics(deps.metrics);
    const shared = { ...deps, controls, notes, sleep, metrics, trials: this.#trials, registry: deps.metrics };
    this.#backlogs = new ShardBacklogs(shared);
    const laneDeps = { ...shared, ...(!deps.isReplicated && { backlogs: this.#backlogs }) };
    this.#wide = new WideRows(laneDeps);
    this.#lanes = lanes.map((lane) => new LaneLoop(lane, this.#wide, laneDeps));
    observe(deps.metrics, journal, clock);
  }

  /**
   * Returns why ClickHouse, which answers, has refused the rows of a lane for a while; undefined when it accepts rows.
   */
  get refusal(): string | undefined {
    return [...this.#lanes, this.#backlogs].map(({ refusal }) => refusal).find((refusal) => refusal !== undefined);
  }

  start(): void {
    for (const lane of this.#lanes) lane.start();
    this.#trials.start();
    this.#backlogs.start();
  }

  /** Called when rows may be ready to ship. */
  wake(): void {
    for (const lane of this.#lanes) lane.wake();
  }

  /** Ships the journal's present rows without a wait, because a delete waits for them. */
  flush(): void {
    for (const lane of this.#lanes) lane.flush();
  }

  /** Ships all rows without waiting for more, until none is left or the time is over; then stops. */
  async drain(timeMsMax: number): Promise<void> {
    const deadline = this.#deps.clock.monotonic() + timeMsMax;
    for (const lane of this.#lanes) lane.hurry();
    await Promise.all(this.#lanes.map((lane) => lane.emptied(deadline)));
    await this.stop();
  }

  async stop(): Promise<void> {
    const others = [this.#wide.stop(), this.#trials.stop(), this.#backlogs.stop()];
    await Promise.all([...this.#lanes.map((lane) => lane.stop()), ...others]);
  }
}

function observe(metrics: Metrics, journal: GivesUnits, clock: Clock): void {
  metrics.observed('wal_bytes', 'Bytes of the journal that wait for ClickHouse.', () => journal.backlogBytes);
  metrics.observed(
    'wal_oldest_seconds',
    'Age of the oldest point that waits for ClickHouse.',
    () => journal.oldestUnshippedMs(clock.now()) / 1000,
    'max',
  );
  for (const lane of lanes) {
    const labels = { lane: laneNames[lane] };
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
