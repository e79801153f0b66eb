/**
 * Reads what ClickHouse has of single points: which write of each point is shown, for `ingest/receipt-states.ts`. One
 * query of each shard by the primary key (device, key, ts), whatever the size of the table.
 */
import type { Reads } from '../clickhouse/client.ts';
import type { ShardReads } from '../clickhouse/shards.ts';
import { readRows } from './latest.ts';

/** What a sender knows of a point. Points at server time of one millisecond also differ in `seq` and `origin`. */
interface PointName {
  device: number;
  key: string;
  ts: number;
}

/** The newest write of a point. */
export interface WrittenPoint extends PointName {
  seq: number;
  /** `version` of a point at server time, else 0. */
  origin: bigint;
  version: bigint;
  /** True: the point was deleted. */
  isErased: boolean;
  /** `digestOf` its value (`ingest/receipt.ts`). */
  digest: number;
}

/** A checksum of the value, equal to `digestOf` of `ingest/receipt.ts`. */
const digestSql = 'CRC32(concat(char(kind), reinterpretAsFixedString(num), reinterpretAsFixedString(int), text))';

/** Unlike a read of history, also returns deleted points. */
export async function readWrittenPoints(shards: ShardReads, points: readonly PointName[]): Promise<WrittenPoint[]> {
  const found = await Promise.all(
    shards.each(points, ({ device }) => device).map(({ reads, items }) => readOfShard(reads, items)),
  );
  return found.flat();
}

async function readOfShard(clickhouse: Reads, points: readonly PointName[]): Promise<WrittenPoint[]> {
  const devices = points.map(({ device }) => device);
  const keys = points.map(({ key }) => key);
  const times = points.map(({ ts }) => ts);
  const rows = await readRows<{
    device: string;
    key: string;
    ts: string;
    seq: number;
    origin: string;
    version: string;
    isErased: number;
    digest: number;
  }>(
    clickhouse,
    `SELECT device, key, ts, seq, origin, version, kind = 0 AS isErased, ${digestSql} AS digest
       FROM telemetry FINAL
   PREWHERE device IN {devices:Array(UInt64)} AND key IN {keys:Array(String)} AND ts IN {times:Array(Int64)}
        AND ts >= {oldest:Int64} AND ts <= {newest:Int64}
        AND (device, key, ts) IN arrayZip({devices:Array(UInt64)}, {keys:Array(String)}, {times:Array(Int64)})
      SETTINGS do_not_merge_across_partitions_select_final = 1`,
    { devices, keys, times, oldest: Math.min(...times), newest: Math.max(...times) },
    { max_threads: 1 },
  );
  return rows.map(({ device, key, ts, seq, origin, version, isErased, digest }) => ({
    device: Number(device),
    key,
    ts: Number(ts),
    seq,
    origin: BigInt(origin),
    version: BigInt(version),
    isErased: isErased === 1,
    digest,
  }));
}
