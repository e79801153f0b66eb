/** Values that all hosts share by name, each written once: secrets, ids, and marks of what has happened. */
import type { Queries } from './client.ts';

export async function findSetting(queries: Queries, name: string): Promise<string | undefined> {
  const [row] = await queries.query<{ value: string }>('select value from setting where name = $1', [name]);
  return row?.value;
}

/** Returns the setting `name`; the first caller of all hosts sets it to `value`. */
export async function findOrInsertSetting(queries: Queries, name: string, value: string): Promise<string> {
  await queries.query('insert into setting (name, value) values ($1, $2) on conflict (name) do nothing', [name, value]);
  const [row] = await queries.query<{ value: string }>('select value from setting where name = $1', [name]);
  return row!.value;
}
