/**
 * Reads what an operator wants to know of a PostgreSQL server: version, clock, connections, schema. Changes nothing.
 */
import type { Queries } from './client.ts';

interface PostgresFacts {
  version: string;
  /** The clock of the server, in epoch milliseconds. */
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

/** The statement that makes the index of letters, which a migration skips when the server lacks pg_trgm. */
export const searchIndexSql =
  'create index concurrently device_search on device using gin (search_text gin_trgm_ops) with (gin_pending_list_limit = 2048)';

/** False when searches of devices read every name. True before the first start. */
export async function hasSearchIndex(queries: Queries): Promise<boolean> {
  const sql = `select to_regclass('device') is null or exists (
    select from pg_index where indexrelid = to_regclass('device_search') and indisvalid) as found`;
  const [row] = await queries.query<{ found: boolean }>(sql, [], { timeoutMs: factsMsMax });
  return row!.found;
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
