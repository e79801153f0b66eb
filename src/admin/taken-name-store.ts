/** SQL of the names of other tenants that a tenant has met (`taken-names.ts`). */
import type { Queries } from '../postgres/client.ts';

interface TakenNameTries {
  met: number;
  endsTime: number;
}

/** Names of other tenants that the owner met in the running window. */
export async function findTakenNameTries(queries: Queries, owner: string, now: number): Promise<TakenNameTries> {
  const [row] = await queries.query<TakenNameTries>(
    'select met, window_ends_time as "endsTime" from taken_name_tries where owner = $1 and window_ends_time > $2',
    [owner, now],
  );
  return row ?? { met: 0, endsTime: now };
}

/** Adds to the running window, or begins one, and returns the sum. Deletes some windows that have ended. */
export async function countTakenNames(
  queries: Queries,
  owner: string,
  names: number,
  now: number,
  windowMs: number,
): Promise<TakenNameTries> {
  const [row] = await queries.query<TakenNameTries>(
    `with ended as (
       delete from taken_name_tries where owner in (
         select owner from taken_name_tries where window_ends_time <= $3 and owner <> $1 limit 100 for update skip locked))
     insert into taken_name_tries as tries (owner, met, window_ends_time) values ($1, $2, $4)
     on conflict (owner) do update set
       met = case when tries.window_ends_time > $3 then tries.met + $2 else $2 end,
       window_ends_time = case when tries.window_ends_time > $3 then tries.window_ends_time else $4 end
     returning met, window_ends_time as "endsTime"`,
    [owner, names, now, now + windowMs],
  );
  return row!;
}
