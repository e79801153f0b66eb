/** SQL that writes the attributes of entities that are not devices. */
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { textOf } from './attribute-row.ts';

export async function upsertEntityAttributes(
  queries: Queries,
  entity: number,
  scope: number,
  entries: Map<string, TypedValue>,
  ts: number,
): Promise<void> {
  const values = [...entries.values()];
  await queries.query(
    `insert into entity_attribute (entity, scope, key, kind, value, last_update_ts)
     select $1, $2, w.key, w.kind, w.value, $3 from unnest($4::text[], $5::smallint[], $6::text[]) as w (key, kind, value)
      order by w.key collate "C"
     on conflict (entity, scope, key) do update
        set kind = excluded.kind, value = excluded.value, last_update_ts = excluded.last_update_ts`,
    [entity, scope, ts, [...entries.keys()], values.map(({ kind }) => kind), values.map(textOf)],
  );
}

export async function deleteEntityAttributes(
  queries: Queries,
  entity: number,
  scope: number,
  keys: string[],
): Promise<void> {
  await queries.query('delete from entity_attribute where entity = $1 and scope = $2 and key = any($3)', [
    entity,
    scope,
    keys,
  ]);
}
