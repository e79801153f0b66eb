/**
 * SQL of the map of shards in PostgreSQL, and of the processes that store rows by it. The first host that has several
 * ClickHouse servers makes the map.
 */
import { StartError, unavailable } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { firstShardMap, noShard, type ShardMap } from '../../clickhouse/shards.ts';
import type { Queries } from '../../postgres/client.ts';

/** The map with the step of a move (`shard-moves.ts`). */
export interface MovingMap extends ShardMap {
  /** True: the moving buckets are copied and read from their new shard; `movesTo` is then the old one. */
  isCopied: boolean;
}

export async function readShardMap(queries: Queries): Promise<ShardMap | undefined> {
  return await readMovingMap(queries);
}

/** Returns the shard of each bucket. Throws a Fault while there is no map, or when the map has unknown servers. */
export async function readShardOfBuckets(queries: Queries, shards: number): Promise<Uint8Array> {
  const map = await readShardMap(queries);
  if (map !== undefined && shardsNeeded(map) <= shards) return map.shardOf;
  throw unavailable('clickhouse_away', 'This server does not know yet which shard has each device. Try again later.');
}

export async function readMovingMap(queries: Queries): Promise<MovingMap | undefined> {
  const [row] = await queries.query<{ version: number; shardOf: Buffer; movesTo: Buffer; isCopied: boolean }>(
    'select version, shard_of as "shardOf", moves_to as "movesTo", is_copied as "isCopied" from shard_map',
    [],
  );
  return row && { ...row, shardOf: new Uint8Array(row.shardOf), movesTo: new Uint8Array(row.movesTo) };
}

/** Writes the version that follows the one in the database. */
export async function writeMovingMap(
  queries: Queries,
  { version, shardOf, movesTo, isCopied }: MovingMap,
): Promise<void> {
  const written = await queries.query(
    `update shard_map set version = $1, shard_of = $2, moves_to = $3, is_copied = $4 where version = $1 - 1 returning id`,
    [version, Buffer.from(shardOf), Buffer.from(movesTo), isCopied],
  );
  if (written.length === 0) throw new StartError('The map of shards was changed by another call: start again.');
}

/** Throws a StartError when the map has a shard that the settings do not name: its devices would have no telemetry. */
export async function checkShardMap(queries: Queries, shards: number): Promise<void> {
  const map = await readShardMap(queries);
  if (!map) return;
  const used = shardsNeeded(map);
  if (used <= shards) return;
  throw new StartError(
    `Telemetry is on ${used} shards and the settings name ${shards}: ` +
      'CLICKHOUSE_URL and CLICKHOUSE_SHARDS must name every server, in the same order as before.',
  );
}

/** Returns how many servers the settings must name for this map. */
export function shardsNeeded({ shardOf, movesTo }: ShardMap): number {
  return 1 + Math.max(...shardOf, ...movesTo.filter((shard) => shard !== noShard));
}

/** Makes the map unless there is one. Rows that are stored already are on the first server. */
export async function makeShardMap(queries: Queries, first: ClickHouse, shards: number): Promise<void> {
  if ((await readShardMap(queries)) !== undefined) return;
  // History may outlive the latest values.
  const [row] = await first.rows<{ count: string }>(
    'SELECT count() AS count FROM (SELECT 1 FROM latest LIMIT 1 UNION ALL SELECT 1 FROM telemetry LIMIT 1)',
  );
  const { version, shardOf, movesTo } = firstShardMap(shards, row!.count === '0' ? 'none' : 'some');
  await queries.query(
    'insert into shard_map (id, version, shard_of, moves_to) values (1, $1, $2, $3) on conflict do nothing',
    [version, Buffer.from(shardOf), Buffer.from(movesTo)],
  );
}

/** A process that stores rows by the map, from before it reads its first one. */
interface MapUse {
  /** The id of one run of the process. */
  id: string;
  host: string;
  /** The earliest map on which work of the process relies; 0: it has read none. */
  mapVersion: number;
}

export async function writeMapUse(queries: Queries, { id, host, mapVersion }: MapUse): Promise<void> {
  await queries.query(
    `insert into shard_map_uses (id, host, map_version) values ($1, $2, $3)
     on conflict (id) do update set map_version = excluded.map_version, heard_at = clock_timestamp()`,
    [id, host, mapVersion],
  );
}

export async function removeMapUse(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from shard_map_uses where id = $1', [id]);
}

/** Processes without a report for so long have ended. */
export async function removeOldMapUses(queries: Queries): Promise<void> {
  await queries.query(`delete from shard_map_uses where not ${isHeard(1)}`, [limits.journalStaleMs]);
}

/** Returns the hosts of the processes that may store rows by a map before this one. */
export async function readEarlierMapUses(queries: Queries, version: number): Promise<string[]> {
  const rows = await queries.query<{ host: string }>(
    `select host from shard_map_uses where map_version < $2 and ${isHeard(1)}`,
    [limits.journalStaleMs, version],
  );
  return rows.map(({ host }) => host);
}

/** A report of the future was made before the clock of the database was set back. */
function isHeard(parameter: number): string {
  return `heard_at between clock_timestamp() - $${parameter} * interval '1 millisecond'
    and clock_timestamp() + $${parameter} * interval '1 millisecond'`;
}
