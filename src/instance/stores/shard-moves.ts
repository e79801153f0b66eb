/**
 * Moves buckets of devices to other shards while telemetry comes in (`npm run shards`). The steps, each of which every
 * process confirms before the next one:
 *
 *   1. rows and deletes of the buckets go to both shards
 *   2. the rows that are there are copied; deletes that met the copy are carried out again
 *   3. reads go to the new shard, and rows and deletes still to both
 *   4. rows, deletes and reads go to the new shard alone; then the old rows are deleted
 *
 * At every moment the shard that answers reads has every row that is stored. Rows are idempotent, so a move that was
 * interrupted is continued by the next call.
 */
import { randomUUID } from 'node:crypto';
import { type Clock, systemClock } from '../../base/clock.ts';
import { StartError } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import {
  deleteBuckets,
  insertMoved,
  type MovedTable,
  movedDaysQuery,
  movedLatestQuery,
  movedRows,
} from '../../clickhouse/move-statements.ts';
import { bucketCount, noShard } from '../../clickhouse/shards.ts';
import { countOpen, reopenBuckets } from '../../erase/tombstone-store.ts';
import { readJournals } from '../../ingest/journal-store.ts';
import type { Queries } from '../../postgres/client.ts';
import { giveBackLease, takeLease } from '../../postgres/lease.ts';
import { type MovingMap, readEarlierMapUses, readMovingMap, writeMovingMap } from './shard-map-store.ts';

interface MoveDeps {
  postgres: Queries;
  shards: readonly ClickHouse[];
  /** Name of the ClickHouse cluster, '' without a cluster. */
  cluster: string;
  /** True: processes that have not reported for a while have ended, as the operator says. */
  withoutSilent: boolean;
  say: (line: string) => void;
  clock?: Pick<Clock, 'monotonic'>;
  scheduler?: Scheduler;
}

const leaseName = 'shard moves';
/** The lease of a call that was killed refuses further calls for at most this time. */
const leaseMs = 60_000;
const renewMs = 15_000;
const checkMs = 200;
/** The time after which the processes that are waited for are named. */
const namedMs = 10_000;
const copyMsMax = 3_600_000;
/** The most days and rows that one insert of a copy has. */
const daysMax = 30;
const rowsMax = 1_000_000;
const tables: readonly MovedTable[] = ['telemetry', 'latest'];
/** The copy yields to other statements, and takes all rows or fails. */
const copySettings = { priority: '1', timeout_overflow_mode: 'throw', read_overflow_mode: 'throw' } as const;

/** Returns the moves after which every shard has the same number of buckets, give or take one; `emptied`: none. */
export function planMoves(shardOf: Uint8Array, shards: number, emptied?: number): Map<number, number> {
  const kept = Array.from({ length: shards }, (_, shard) => shard).filter((shard) => shard !== emptied);
  const owned: number[][] = Array.from({ length: shards }, () => []);
  for (const [bucket, shard] of shardOf.entries()) owned[shard]!.push(bucket);
  const share = (place: number) =>
    Math.floor(((place + 1) * bucketCount) / kept.length) - Math.floor((place * bucketCount) / kept.length);
  const surplus: number[] = emptied === undefined ? [] : [...owned[emptied]!];
  const lacking: number[] = [];
  // Shards with many buckets keep the larger shares, so that fewer buckets move.
  const bySize = [...kept].sort((a, b) => owned[b]!.length - owned[a]!.length || a - b);
  const shares = kept.map((_, place) => share(place)).sort((a, b) => b - a);
  for (const [place, shard] of bySize.entries()) {
    const own = owned[shard]!;
    surplus.push(...spread(own, Math.max(0, own.length - shares[place]!)));
    for (let n = own.length; n < shares[place]!; n += 1) lacking.push(shard);
  }
  return new Map(surplus.map((bucket, n) => [bucket, lacking[n]!]));
}

/** Returns so many of the buckets, at even distances: neighbours are devices that were made together. */
function spread(buckets: readonly number[], count: number): number[] {
  const { length } = buckets;
  return buckets.filter((_, n) => Math.floor(((n + 1) * count) / length) > Math.floor((n * count) / length));
}

/** Continues what an earlier call has begun, then moves each bucket of `plan` to its shard. */
export async function moveBuckets(deps: MoveDeps, plan: (map: MovingMap) => Map<number, number>): Promise<void> {
  const holder = randomUUID();
  const { postgres, scheduler = systemScheduler } = deps;
  if (!(await takeLease(postgres, leaseName, holder, leaseMs)))
    throw new StartError('Buckets are being moved already. A call that was killed ends this within a minute.');
  const keep = async () => {
    if (await takeLease(postgres, leaseName, holder, leaseMs)) return;
    throw new StartError('Another call moves buckets now: this one ends.');
  };
  // A step may take longer than the lease. A renewal that fails is noticed before the next step.
  const stopRenewing = scheduler.every(renewMs, () => void keep().catch(() => {}));
  try {
    const mover = new Mover(deps, keep);
    await mover.finish();
    await mover.begin(plan);
    await mover.finish();
    await mover.clean();
  } finally {
    stopRenewing();
    await giveBackLease(postgres, leaseName, holder);
  }
}

class Mover {
  readonly #deps: MoveDeps;
  readonly #keep: () => Promise<void>;
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #scheduler: Scheduler;

  constructor(deps: MoveDeps, keep: () => Promise<void>) {
    this.#deps = deps;
    this.#keep = keep;
    this.#clock = deps.clock ?? systemClock;
    this.#scheduler = deps.scheduler ?? systemScheduler;
  }

  async begin(plan: (map: MovingMap) => Map<number, number>): Promise<void> {
    const map = await this.#read();
    const moves = plan(map);
    if (moves.size === 0) return;
    // A shard may have old rows of a bucket that it had before.
    for (const shard of new Set(moves.values())) {
      const buckets = [...moves].flatMap(([bucket, to]) => (to === shard ? [bucket] : []));
      await this.#delete(shard, buckets, { waits: true });
    }
    for (const [bucket, to] of moves) map.movesTo[bucket] = to;
    this.#deps.say(`${moves.size} buckets move`);
    await this.#write({ ...map, isCopied: false });
  }

  /** Carries out the steps that remain of a move. */
  async finish(): Promise<void> {
    let map = await this.#read();
    if (map.movesTo.every((shard) => shard === noShard)) return;
    if (!map.isCopied) {
      await this.#confirmed(map.version);
      await this.#copy(map);
      // A delete that runs now may have met the copy, and is marked as carried out later: it must end before the
      // deletes are reopened.
      map = await this.#write(map);
      await this.#confirmed(map.version);
      await this.#repeatDeletes(map);
      map = await this.#write({ ...exchanged(map), isCopied: true });
    }
    await this.#confirmed(map.version);
    // Reads that began before the change end within this time.
    await this.#scheduler.sleep(limits.telemetryQueryMsMax);
    const movesTo = new Uint8Array(bucketCount).fill(noShard);
    map = await this.#write({ ...map, movesTo, isCopied: false });
    await this.#confirmed(map.version);
    this.#deps.say('the buckets have moved');
  }

  /** Deletes rows of buckets from shards that do not have them any more. */
  async clean(): Promise<void> {
    const { shardOf } = await this.#read();
    for (const shard of this.#deps.shards.keys()) {
      const others = [...shardOf.keys()].filter((bucket) => shardOf[bucket] !== shard);
      await this.#delete(shard, others, { waits: false });
    }
  }

  async #copy(map: MovingMap): Promise<void> {
    const { shards, say } = this.#deps;
    for (const [key, buckets] of groupsOf(map)) {
      const [from, to] = key.split(' ').map(Number) as [number, number];
      const [source, target] = [shards[from]!, shards[to]!];
      const days = await source.rows<{ day: string; count: string }>(
        movedDaysQuery,
        { buckets },
        { timeoutMs: copyMsMax },
      );
      let rows = 0;
      for (const { first, last, count } of windows(days)) {
        await this.#keep();
        await copy(source, target, 'telemetry', { buckets, first, last });
        rows += count;
      }
      await this.#keep();
      await copy(source, target, 'latest', { buckets });
      say(`copied ${rows} rows of ${buckets.length} buckets from shard ${from} to shard ${to}`);
    }
  }

  /** A copied row may have been deleted meanwhile, from `latest` without a trace. */
  async #repeatDeletes(map: MovingMap): Promise<void> {
    const { postgres } = this.#deps;
    const buckets = [...map.movesTo.keys()].filter((bucket) => map.movesTo[bucket] !== noShard);
    const ids = await reopenBuckets(postgres, bucketCount, buckets);
    while ((await countOpen(postgres, ids)) > 0) {
      await this.#keep();
      await this.#scheduler.sleep(checkMs);
    }
  }

  /** `waits`: resolves when the rows are gone, not when the delete has begun. */
  async #delete(shard: number, buckets: number[], { waits }: { waits: boolean }): Promise<void> {
    const { shards, cluster } = this.#deps;
    const clickhouse = shards[shard]!;
    if (buckets.length === 0) return;
    await this.#keep();
    const [latest] = await clickhouse.rows<{ count: string }>(movedLatestQuery, { buckets }, { timeoutMs: copyMsMax });
    const days = await clickhouse.rows<{ day: string }>(movedDaysQuery, { buckets }, { timeoutMs: copyMsMax });
    if (latest!.count === '0' && days.length === 0) return;
    const settings = { mutations_sync: waits ? '1' : '0' };
    for (const table of tables)
      await clickhouse.exec(deleteBuckets(table, cluster, buckets), {}, { timeoutMs: copyMsMax, settings });
  }

  /** Resolves when the work of every process relies on this version of the map or a later one. */
  async #confirmed(version: number): Promise<void> {
    const { postgres, withoutSilent, say } = this.#deps;
    const started = this.#clock.monotonic();
    let named = '';
    for (;;) {
      // A worker that has just started has no report of its journal yet, and commands have no journal.
      const starting = await readEarlierMapUses(postgres, version);
      const journals = await readJournals(postgres);
      const missing = journals.filter(({ mapVersion, isLive }) => mapVersion < version && (isLive || !withoutSilent));
      if (missing.length + starting.length === 0) return;
      const reported = missing.map(({ host, isLive }) => (isLive ? host : `${host} (silent)`));
      const hosts = [...new Set([...starting, ...reported])].join(', ');
      if (this.#clock.monotonic() - started > namedMs && hosts !== named) {
        named = hosts;
        say(`waiting for ${hosts}; --without-silent leaves out hosts that have ended and do not report`);
      }
      await this.#keep();
      await this.#scheduler.sleep(checkMs);
    }
  }

  async #read(): Promise<MovingMap> {
    const map = await readMovingMap(this.#deps.postgres);
    if (!map) throw new StartError('There is no map of shards yet: start Millrace with CLICKHOUSE_SHARDS first.');
    return map;
  }

  async #write(map: MovingMap): Promise<MovingMap> {
    await this.#keep();
    const next = { ...map, version: map.version + 1 };
    await writeMovingMap(this.#deps.postgres, next);
    return next;
  }
}

async function copy(
  source: ClickHouse,
  target: ClickHouse,
  table: MovedTable,
  parameters: { buckets: number[]; first?: number; last?: number },
): Promise<void> {
  const statements = { select: movedRows(table), insert: insertMoved(table) };
  await source.copyTo(target, statements, parameters, { timeoutMs: copyMsMax, settings: copySettings });
}

/** Returns the map in which each moving bucket is read from its new shard. */
function exchanged(map: MovingMap): MovingMap {
  const [shardOf, movesTo] = [map.shardOf.slice(), map.movesTo.slice()];
  for (const [bucket, to] of map.movesTo.entries()) {
    if (to === noShard) continue;
    shardOf[bucket] = to;
    movesTo[bucket] = map.shardOf[bucket]!;
  }
  return { ...map, shardOf, movesTo };
}

/** Returns the moving buckets by their old and new shard. */
function groupsOf({ shardOf, movesTo }: MovingMap): Map<string, number[]> {
  const groups = new Map<string, number[]>();
  for (const [bucket, to] of movesTo.entries()) {
    if (to === noShard) continue;
    const key = `${shardOf[bucket]} ${to}`;
    groups.set(key, [...(groups.get(key) ?? []), bucket]);
  }
  return groups;
}

function windows(days: readonly { day: string; count: string }[]): { first: number; last: number; count: number }[] {
  const found: { first: number; last: number; days: number; count: number }[] = [];
  for (const { day, count } of days) {
    const [number, rows] = [Number(day), Number(count)];
    const open = found.at(-1);
    if (open && open.days < daysMax && open.count + rows <= rowsMax) {
      open.last = number;
      open.days += 1;
      open.count += rows;
    } else found.push({ first: number, last: number, days: 1, count: rows });
  }
  return found;
}
