/** Leases in PostgreSQL, for work that one process of all hosts does at a time. */
import type { Queries } from './client.ts';

/**
 * Returns true when this process holds the lease for the next `forMs`. At most one process of all hosts holds a lease.
 * All holders of a lease pass the same `forMs`: a lease that ends later was taken before the clock of the database was
 * set back. Such a lease is shortened to `forMs`, so that its holder can take it again.
 */
export async function takeLease(queries: Queries, name: string, holder: string, forMs: number): Promise<boolean> {
  const rows = await queries.query<{ holder: string }>(
    `insert into lease (name, holder, until) values ($1, $2, clock_timestamp() + $3 * interval '1 millisecond')
     on conflict (name) do update
       set holder = case when lease.until < clock_timestamp() then excluded.holder else lease.holder end,
           until = excluded.until
      where lease.holder = excluded.holder or lease.until < clock_timestamp()
            or lease.until > clock_timestamp() + $3 * interval '1 millisecond'
     returning holder`,
    [name, holder, forMs],
  );
  return rows[0]?.holder === holder;
}

export async function giveBackLease(queries: Queries, name: string, holder: string): Promise<void> {
  await queries.query('delete from lease where name = $1 and holder = $2', [name, holder]);
}
