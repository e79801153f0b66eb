/**
 * The ClickHouse servers over which telemetry is spread. A bucket is a device number modulo 1 024, and each bucket
 * belongs to one shard: the rows of a device are in tables of that server and in no other, so a server that is down
 * stops only its own devices. With one server there is no map, and every call returns that server. The first server
 * also has the data that is not of a single device.
 */
import { unavailable } from '../base/errors.ts';
import type { ClickHouse, Reads } from './client.ts';

export const bucketCount = 1024;
/** In `movesTo`: the bucket does not move. */
export const noShard = 255;

export interface ShardMap {
  /** Increases with each change. */
  readonly version: number;
  /** The shard of each bucket, which answers its reads. */
  readonly shardOf: Uint8Array;
  /** The shard to which a bucket is being moved: rows and deletes go to both. */
  readonly movesTo: Uint8Array;
}

/** Some items and the server that has their devices. */
interface OfShard<Item> {
  clickhouse: ClickHouse;
  items: Item[];
}

/** Reads of one caller, for devices of any shard. */
export interface ShardReads {
  of(device: number): Reads;
  /** Divides the items, of which each concerns one device. */
  each<Item>(items: readonly Item[], deviceOf: (item: Item) => number): { reads: Reads; items: Item[] }[];
}

export class Shards {
  readonly all: readonly ClickHouse[];
  #map: ShardMap | undefined;
  /** Work that relies on a version of the map, by version. */
  readonly #uses = new Map<number, number>();
  #waiting: (() => void)[] = [];

  constructor(all: readonly ClickHouse[]) {
    this.all = all;
  }

  /** The server of everything except the telemetry of devices. */
  get first(): ClickHouse {
    return this.all[0]!;
  }

  /** True when there are several shards, and so a map. */
  get isDivided(): boolean {
    return this.all.length > 1;
  }

  /** Undefined before the map was read, and with one server. */
  get map(): ShardMap | undefined {
    return this.#map;
  }

  set map(map: ShardMap | undefined) {
    this.#map = map;
    if (map !== undefined) for (const resolve of this.#waiting.splice(0)) resolve();
  }

  /** Resolves when the map is known, or when the signal is aborted. */
  async known(signal: AbortSignal): Promise<ShardMap | undefined> {
    while (this.#map === undefined && !signal.aborted) {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
        signal.addEventListener('abort', () => resolve(), { once: true });
      });
    }
    return this.#map;
  }

  /**
   * Called when work begins that stores or deletes rows by this map. The result is called when the work has ended: a
   * bucket moves only when no work relies on an earlier map (`versionInUse`).
   */
  begin(map: Pick<ShardMap, 'version'> | undefined = this.#map): () => void {
    if (map === undefined) return () => {};
    const { version } = map;
    this.#uses.set(version, (this.#uses.get(version) ?? 0) + 1);
    return () => {
      const left = this.#uses.get(version)! - 1;
      if (left > 0) this.#uses.set(version, left);
      else this.#uses.delete(version);
    };
  }

  /** The version of the map on which work of this process relies, the earliest one; 0 before the map is known. */
  get versionInUse(): number {
    return Math.min(this.#map?.version ?? 0, ...this.#uses.keys());
  }

  /** Returns the shard of the device; undefined with one server, and before the map is known. */
  shardOf(device: number): number | undefined {
    return this.#map?.shardOf[device % bucketCount];
  }

  /** Returns the server that answers reads of the device. */
  of(device: number): ClickHouse {
    if (!this.isDivided) return this.first;
    const { shardOf } = this.#known();
    return this.all[shardOf[device % bucketCount]!]!;
  }

  /** Divides the items by the server that answers reads of their devices. */
  byReader<Item>(items: readonly Item[], deviceOf: (item: Item) => number): OfShard<Item>[] {
    if (!this.isDivided) return items.length === 0 ? [] : [{ clickhouse: this.first, items: [...items] }];
    const { shardOf } = this.#known();
    return this.#divided(items, (item) => [shardOf[deviceOf(item) % bucketCount]!]);
  }

  /** Divides the items by every server that has rows of their devices: two while a bucket moves. */
  byHolder<Item>(items: readonly Item[], deviceOf: (item: Item) => number): OfShard<Item>[] {
    if (!this.isDivided) return items.length === 0 ? [] : [{ clickhouse: this.first, items: [...items] }];
    const map = this.#known();
    return this.#divided(items, (item) => holdersOf(map, deviceOf(item)));
  }

  /** Returns the reads of a tenant, which take turns with those of other tenants; null = the system administrators. */
  readsOf(tenantId: string | null): ShardReads {
    return {
      of: (device) => this.of(device).readsOf(tenantId),
      each: (items, deviceOf) =>
        this.byReader(items, deviceOf).map(({ clickhouse, items: own }) => ({
          reads: clickhouse.readsOf(tenantId),
          items: own,
        })),
    };
  }

  async close(): Promise<void> {
    await Promise.all(this.all.map((clickhouse) => clickhouse.close()));
  }

  #known(): ShardMap {
    if (this.#map !== undefined) return this.#map;
    throw unavailable('clickhouse_away', 'This server does not know yet which shard has the device. Try again later.');
  }

  #divided<Item>(items: readonly Item[], shardsOf: (item: Item) => number[]): OfShard<Item>[] {
    const groups = new Map<number, Item[]>();
    for (const item of items) {
      for (const shard of shardsOf(item)) {
        const own = groups.get(shard);
        if (own) own.push(item);
        else groups.set(shard, [item]);
      }
    }
    return [...groups].map(([shard, own]) => ({ clickhouse: this.all[shard]!, items: own }));
  }
}

/** Returns the shards that get rows of the device: two while its bucket moves. */
export function holdersOf({ shardOf, movesTo }: ShardMap, device: number): number[] {
  const bucket = device % bucketCount;
  const [from, to] = [shardOf[bucket]!, movesTo[bucket]!];
  return to === noShard ? [from] : [from, to];
}

/** Returns the map of a new installation (every shard has the same number of buckets), or of one that has rows. */
export function firstShardMap(shards: number, rows: 'none' | 'some'): ShardMap {
  const shardOf = new Uint8Array(bucketCount);
  if (rows === 'none') for (let bucket = 0; bucket < bucketCount; bucket += 1) shardOf[bucket] = bucket % shards;
  return { version: 1, shardOf, movesTo: new Uint8Array(bucketCount).fill(noShard) };
}
