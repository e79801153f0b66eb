/**
 * SQL of tries that are counted in a window: names of other tenants that a tenant has met (`taken-names.ts`), and wrong
 * keys for the claim of a device (`onboarding/claim.ts`). The counts hold for all workers and hosts. A window ends by
 * the clock of the host that asks.
 */
import type { Queries } from '../postgres/client.ts';

interface Tries {
  count: number;
  endsTime: number;
}

/** Returns the tries of the running window. */
export async function findTries(queries: Queries, subject: string, now: number): Promise<Tries> {
  const [row] = await queries.query<Tries>(
    'select count, window_ends_time as "endsTime" from tries where subject = $1 and window_ends_time > $2',
    [subject, now],
  );
  return row ?? { count: 0, endsTime: now };
}

/** Adds to the running window, or begins one, and returns the sum. Deletes some windows that have ended. */
export async function countTries(
  queries: Queries,
  subject: string,
  count: number,
  now: number,
  windowMs: number,
): Promise<Tries> {
  const [row] = await queries.query<Tries>(
    `with ended as (
       delete from tries where subject in (
         select subject from tries where window_ends_time <= $3 and subject <> $1 limit 100 for update skip locked))
     insert into tries as known (subject, count, window_ends_time) values ($1, $2, $4)
     on conflict (subject) do update set
       count = case when known.window_ends_time > $3 then known.count + $2 else $2 end,
       window_ends_time = case when known.window_ends_time > $3 then known.window_ends_time else $4 end
     returning count, window_ends_time as "endsTime"`,
    [subject, count, now, now + windowMs],
  );
  return row!;
}

export async function forgetTries(queries: Queries, subject: string): Promise<void> {
  await queries.query('delete from tries where subject = $1', [subject]);
}
