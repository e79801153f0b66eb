/** What an operator wants to know of a PostgreSQL server: version, clock, connections, schema. Reads only. */
import type { Queries } from './client.ts';

export interface PostgresFacts {
  version: string;
  /** Its clock, in epoch milliseconds. */
  nowMs: number;
  /** Connections of all its clients together. */
  connectionsMax: number;
}

const factsMsMax = 5_000;

export async function postgresFacts(queries: Queries): Promise<PostgresFacts> {
  const sql = `select current_setting('server_version') as "version",
    (extract(epoch from clock_timestamp()) * 1000)::float8 as "nowMs",
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as "connectionsMax"`;
  const [row] = await queries.query<PostgresFacts>(sql, [], { timeoutMs: factsMsMax });
  return row!;
}

export async function postgresSchema(queries: Queries): Promise<object[]> {
  const sql = 'select number, name, applied_at::text as applied from schema_migrations order by number';
  return await queries.query(sql, [], { timeoutMs: factsMsMax });
}

/** Rows are estimates of the planner. */
export async function postgresTables(queries: Queries): Promise<object[]> {
  const sql = `select relname as "table", reltuples::bigint::text as "rows", pg_total_relation_size(oid)::text as "bytesOnDisk"
    from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace order by relname`;
  return await queries.query(sql, [], { timeoutMs: factsMsMax });
}
