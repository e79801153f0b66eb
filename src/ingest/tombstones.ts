/**
 * Deletes of telemetry as rows in Postgres (tombstones: device, keys, range, order number), and what each does in
 * ClickHouse. It may be carried out any number of times: rows of a later order number stay.
 */
import type { ClickHouse } from '../clickhouse/client.ts';
import {
  deleteLatestStatement,
  deleteStatements,
  erasedLatestKeys,
  rewriteLatestStatement,
} from '../clickhouse/statements.ts';
import type { Queries } from '../postgres/client.ts';

/** What becomes of a latest value inside the range: gone, kept, or replaced by the newest value that remains. */
export type LatestFate = 'delete' | 'keep' | 'rewrite';

export interface Tombstone {
  id: number;
  device: number;
  /** Null = every key. */
  keys: string[] | null;
  /** Range [startTs, endTs). */
  startTs: number;
  endTs: number;
  /** Decimal; null = the device itself is gone, whatever arrives late. */
  orderNumber: string | null;
  latest: LatestFate;
  createdTime: number;
}

export type NewTombstone = Omit<Tombstone, 'id'> & { orderNumber: string };

export async function readTombstones(queries: Queries, afterId: number): Promise<Tombstone[]> {
  return await queries.query<Tombstone>(
    `select id, device, keys, start_ts as "startTs", end_ts as "endTs", order_number::text as "orderNumber", latest,
            created_time as "createdTime"
       from tombstones where id > $1 order by id limit 1000`,
    [afterId],
  );
}

export async function insertTombstone(queries: Queries, tombstone: NewTombstone): Promise<void> {
  const { device, keys, startTs, endTs, orderNumber, latest, createdTime } = tombstone;
  await queries.query(
    `insert into tombstones (device, keys, start_ts, end_ts, order_number, latest, created_time)
     values ($1, $2, $3, $4, $5::bigint, $6, $7)`,
    [device, keys, startTs, endTs, orderNumber, latest, createdTime],
  );
}

export async function deleteTombstone(queries: Queries, id: number): Promise<void> {
  await queries.query('delete from tombstones where id = $1', [id]);
}

/** `cluster`: name of the ClickHouse cluster, '' without one. */
export async function carryOut(
  clickhouse: ClickHouse,
  cluster: string,
  { device, keys, startTs, endTs, orderNumber, latest }: Omit<Tombstone, 'id' | 'createdTime'>,
): Promise<void> {
  const order = orderNumber ?? '9223372036854775807';
  const range = { device, keys: keys ?? [], allKeys: keys === null ? 1 : 0, startTs, endTs, order };
  const { telemetry, latest: latestRows } = deleteStatements(cluster);
  if (orderNumber === null) {
    await clickhouse.exec(telemetry, range);
    await clickhouse.exec(latestRows, range);
    return;
  }
  // Older rows of such a key that the store has not merged yet must not take the place of the one that goes.
  const rows = latest === 'keep' ? [] : await clickhouse.rows<{ key: string }>(erasedLatestKeys, range);
  const affected = rows.map(({ key }) => key);
  await clickhouse.exec(telemetry, range);
  if (affected.length === 0) return;
  await clickhouse.exec(deleteLatestStatement(cluster), { device, keys: affected, order });
  if (latest === 'rewrite') await clickhouse.exec(rewriteLatestStatement, { device, keys: affected });
}
