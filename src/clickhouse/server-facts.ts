/** Reads what an operator wants to know of a ClickHouse server: version, clock, schema, tables. Changes nothing. */
import type { ClickHouse } from './client.ts';

interface ClickHouseFacts {
  version: string;
  /** The clock of the server, in epoch milliseconds. */
  nowMs: number;
}

interface ClickHouseTable {
  table: string;
  parts: string;
  rows: string;
  bytesOnDisk: string;
}

const factsMsMax = 5_000;

/** The database of `clickhouse` must exist: `system` always does. */
export async function clickHouseFacts(clickhouse: ClickHouse): Promise<ClickHouseFacts> {
  const sql = 'SELECT version() AS version, toUnixTimestamp64Milli(now64(3)) AS now';
  const [row] = await clickhouse.rows<{ version: string; now: string }>(sql, {}, { timeoutMs: factsMsMax });
  return { version: row!.version, nowMs: Number(row!.now) };
}

export async function clickHouseSchema(clickhouse: ClickHouse, database: string): Promise<object[]> {
  const sql = `SELECT version, name, toString(applied) AS applied FROM {database:Identifier}.schema_migrations ORDER BY version`;
  return await clickhouse.rows(sql, { database }, { timeoutMs: factsMsMax });
}

export async function clickHouseTables(clickhouse: ClickHouse, database: string): Promise<ClickHouseTable[]> {
  const sql = `SELECT table, toString(count()) AS parts, toString(sum(rows)) AS rows, toString(sum(bytes_on_disk)) AS bytesOnDisk
    FROM system.parts WHERE active AND database = {database:String} GROUP BY table ORDER BY table`;
  return await clickhouse.rows(sql, { database }, { timeoutMs: factsMsMax });
}
