/**
 * The names of the tables that hold rows. In a cluster `telemetry`, `latest` and others are spread over the shards, and
 * each server has its rows in a local table. `cluster`: '' = one server.
 */

/** Returns the table that holds the rows of one server. */
export function localTable(table: string, cluster: string): string {
  return cluster === '' ? table : `${table}_local`;
}

/** Returns the table as a statement names it that changes the rows of all servers. */
export function localTables(table: string, cluster: string): string {
  return cluster === '' ? table : `${localTable(table, cluster)} ON CLUSTER '${cluster}'`;
}
