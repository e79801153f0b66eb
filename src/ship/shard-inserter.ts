/**
 * Inserts the rows of a unit into their shards, as `Inserter` does into one server: the blocks are divided by the map
 * of shards, and each part has an inserter of its own. A part whose shard fails for a while moves to the backlog of the
 * shard (`shard-backlogs.ts`), so the lane continues with the rows of the other shards.
 */
import { holdersOf, type ShardMap } from '../clickhouse/shards.ts';
import { blocksByShard } from '../telemetry/shard-blocks.ts';
import type { ControlRow } from './control-row.ts';
import {
  Inserter,
  type InserterDeps,
  type InsertOutcome,
  nothingWaits,
  type Progress,
  refusalOfShards,
  type ShipShards,
} from './insert.ts';
import { rowsIn } from './pieces.ts';
import type { ShardBacklogs } from './shard-backlogs.ts';

/** What a lane needs of `Inserter`. */
export type Inserts = Pick<Inserter, 'insert' | 'refusal' | 'rowsOf' | 'shrink'>;

/** A shard whose inserts of a unit fail, or that answers no ping, after so long gets its rows later. */
const failingMsMax = 2_000;
/** A shard that answers pings, and has not answered the first insert for so long, gets its rows later. */
const unansweredMsMax = 20_000;

type Settings = Omit<InserterDeps, 'clickhouse' | 'control'>;

/** The rows of one unit that are of one shard. */
interface Part {
  shard: number;
  payloads: Uint8Array[];
  /** The payload of the unit from which each of them is. */
  origins: Uint8Array[];
}

interface ShardInserterDeps {
  shards: ShipShards;
  /** The control row of each shard. */
  controls: readonly ControlRow[];
  /** Absent: a part is repeated until its shard takes it. */
  backlogs?: ShardBacklogs;
}

/** Returns the inserter of a lane: with one server nothing is divided. */
export function inserterOf(deps: ShardInserterDeps, settings: Settings): Inserts {
  const [clickhouse, another] = deps.shards.all;
  if (another === undefined) return new Inserter({ ...settings, clickhouse: clickhouse!, control: deps.controls[0]! });
  return new ShardInserter(deps, settings);
}

class ShardInserter implements Inserts {
  readonly #deps: ShardInserterDeps;
  readonly #settings: Settings;
  readonly #inserters: Inserter[];

  constructor(deps: ShardInserterDeps, settings: Settings) {
    this.#deps = deps;
    this.#settings = settings;
    this.#inserters = deps.shards.all.map(
      (clickhouse, shard) => new Inserter({ ...settings, clickhouse, control: deps.controls[shard]! }),
    );
  }

  get refusal(): string | undefined {
    return refusalOfShards(this.#inserters);
  }

  /** A shard whose rows wait in its backlog makes no unit smaller. */
  rowsOf(most: number): number {
    const direct = this.#inserters.filter((_, shard) => !this.#deps.backlogs?.holds(shard));
    return Math.min(most, ...direct.map((inserter) => inserter.rowsOf(most)));
  }

  shrink(rows: number, most: number): void {
    for (const inserter of this.#inserters) inserter.shrink(rows, most);
  }

  async insert(payloads: readonly Uint8Array[], progress: Progress = {}): Promise<InsertOutcome> {
    const { shards } = this.#deps;
    const map = await shards.known(this.#settings.signal);
    if (!map) return { complete: false, refused: [], stored: new Set(), waiting: nothingWaits };
    const end = shards.begin(map);
    try {
      return await this.#insertBy(map, payloads, progress);
    } finally {
      end();
    }
  }

  async #insertBy(
    map: ShardMap,
    payloads: readonly Uint8Array[],
    { orderMin, daysMax }: Progress,
  ): Promise<InsertOutcome> {
    const { once } = this.#settings;
    const parts: Part[] = this.#inserters.map((_, shard) => ({ shard, payloads: [], origins: [] }));
    for (const payload of payloads) {
      for (const [shard, block] of blocksByShard(payload, parts.length, map).entries()) {
        if (block === undefined) continue;
        parts[shard]!.payloads.push(block);
        parts[shard]!.origins.push(payload);
      }
    }
    const present = parts.filter((part) => part.payloads.length > 0);
    const progress = { ...(orderMin !== undefined && { orderMin }), ...(daysMax !== undefined && { daysMax }) };
    const outcomes = await Promise.all(present.map((part) => this.#insertPart(map, part, progress)));
    const refused = outcomes.flatMap((outcome, i) =>
      outcome.refused.map((refusal) => {
        // A suspect is known by its payload, which is one row.
        const place = once ? present[i]!.payloads.indexOf(refusal.payload) : -1;
        return place < 0 ? refusal : { ...refusal, payload: present[i]!.origins[place]! };
      }),
    );
    const stored = new Set(payloads);
    const waiting = new Set<Uint8Array>();
    for (const [i, part] of present.entries()) {
      const outcome = outcomes[i]!;
      for (const [place, origin] of part.origins.entries()) {
        if (!outcome.stored.has(part.payloads[place]!)) stored.delete(origin);
        if (outcome.waiting.has(part.payloads[place]!)) waiting.add(origin);
      }
    }
    const behind = new Set(present.filter((_, i) => outcomes[i]!.waiting.size > 0).map(({ shard }) => shard));
    const waits = (device: number) => holdersOf(map, device).some((shard) => behind.has(shard));
    return { complete: outcomes.every(({ complete }) => complete), refused, stored, waiting, waits };
  }

  async #insertPart(map: ShardMap, part: Part, progress: Progress): Promise<InsertOutcome> {
    const { signal } = this.#settings;
    const { backlogs } = this.#deps;
    const inserter = this.#inserters[part.shard]!;
    if (backlogs === undefined) return await inserter.insert(part.payloads, progress);
    if (!(await backlogs.caughtUp(part.shard, signal))) return await this.#keep(backlogs, map, part, progress);
    const [ended, givingUp] = [new AbortController(), new AbortController()];
    void this.#watch(part.shard, ended.signal, givingUp);
    const outcome = await inserter.insert(part.payloads, { ...progress, signal: givingUp.signal });
    ended.abort();
    if (outcome.complete || signal.aborted) return outcome;
    return await this.#keep(backlogs, map, part, progress, inserter.mark);
  }

  /** Aborts `givingUp` unless the insert ends in time. */
  async #watch(shard: number, ended: AbortSignal, givingUp: AbortController): Promise<void> {
    const { clock, sleep } = this.#settings;
    const clickhouse = this.#deps.shards.all[shard]!;
    const until = clock.monotonic() + unansweredMsMax;
    do {
      await sleep(failingMsMax, ended);
      if (ended.aborted) return;
    } while (!this.#inserters[shard]!.isFailing && (await clickhouse.ping()) && clock.monotonic() < until);
    if (!ended.aborted) givingUp.abort();
  }

  async #keep(
    backlogs: ShardBacklogs,
    { version: mapVersion }: ShardMap,
    { shard, payloads }: Part,
    { orderMin = 0n }: Progress,
    mark?: string,
  ): Promise<InsertOutcome> {
    const rows = payloads.reduce((sum, payload) => sum + rowsIn(payload), 0);
    const complete = await backlogs.keep(shard, { payloads, rows, orderMin, mapVersion }, mark, this.#settings.signal);
    return { complete, refused: [], stored: new Set(), waiting: new Set(payloads) };
  }
}
