/** Reads the state of the tables from ClickHouse: parts, merges, bytes. */
import type { ClickHouse } from './client.ts';

export interface PartsOfTables {
  parts: number;
  /** ClickHouse delays inserts, and later refuses them, when this number is large. */
  partsOfPartitionMax: number;
  bytes: number;
  merges: number;
}

const query = `
  SELECT
    toFloat64(sum(ofPartition)) AS parts,
    toFloat64(max(ofPartition)) AS partsOfPartitionMax,
    toFloat64(sum(bytesOfPartition)) AS bytes,
    toFloat64((SELECT count() FROM system.merges WHERE database = currentDatabase())) AS merges
  FROM (
    SELECT count() AS ofPartition, sum(bytes_on_disk) AS bytesOfPartition
    FROM system.parts
    WHERE active AND database = currentDatabase()
    GROUP BY table, partition_id
  )`;

/** Returns the parts of the server that answers: in a cluster, of one of the servers. */
export async function partsOfTables(clickhouse: ClickHouse, timeoutMs: number): Promise<PartsOfTables> {
  const [row] = await clickhouse.rows<PartsOfTables>(query, {}, { timeoutMs });
  return row!;
}
