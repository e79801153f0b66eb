/** SQL of what retention does once a day over all hosts. */
import type { Queries } from '../postgres/client.ts';

/** True when it was not done within the last day, by the clock of the database. */
export async function isDue(queries: Queries, name: string): Promise<boolean> {
  const due = await queries.query(
    `select where not exists (select from retention where name = $1 and done_at > clock_timestamp() - interval '1 day')`,
    [name],
  );
  return due.length > 0;
}

export async function setDone(queries: Queries, name: string): Promise<void> {
  await queries.query(
    `insert into retention (name, done_at) values ($1, clock_timestamp())
     on conflict (name) do update set done_at = excluded.done_at`,
    [name],
  );
}
