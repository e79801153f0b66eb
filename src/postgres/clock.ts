/** Reads the clock of the PostgreSQL server, with which hosts compare their own clocks. */
import type { Queries } from './client.ts';

/** Returns epoch milliseconds, at some time between the call and its answer. */
export async function databaseMs(queries: Queries, timeoutMs: number): Promise<number> {
  const sql = 'select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms';
  const [row] = await queries.query<{ ms: number }>(sql, [], { timeoutMs });
  return row!.ms;
}
