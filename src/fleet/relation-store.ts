/** SQL of relations between entities. */
import type { Queries } from '../postgres/client.ts';

export interface EntityRef {
  id: string;
  type: string;
}

export interface Relation {
  from: EntityRef;
  to: EntityRef;
  type: string;
  typeGroup: string;
  additionalInfo: unknown;
  version: number;
}

/** From a gateway to what it made. */
export const createdType = 'Created';
export const commonGroup = 'COMMON';

/** Devices that were made in this transaction, each with its gateway, whose row the transaction holds. */
export async function insertCreated(queries: Queries, children: { id: string; gatewayId: string }[]): Promise<void> {
  await queries.query(
    `insert into relation (from_id, from_type, to_id, to_type, type, type_group)
     select from_id, 'DEVICE', to_id, 'DEVICE', $1, $2 from unnest($3::uuid[], $4::uuid[]) as r (from_id, to_id)
     on conflict do nothing`,
    [createdType, commonGroup, children.map(({ gatewayId }) => gatewayId), children.map(({ id }) => id)],
  );
}

/** Relations of one entity, the oldest first; `type` undefined = of any type. */
export async function listRelations(
  queries: Queries,
  end: 'from' | 'to',
  entity: EntityRef,
  group: string,
  type: string | undefined,
  rowsMax: number,
): Promise<Relation[]> {
  const rows = await queries.query<Record<string, string> & { additionalInfo: unknown; version: number }>(
    `select from_id, from_type, to_id, to_type, type, type_group as "group", additional_info as "additionalInfo", version
       from relation
      where ${end}_id = $1 and ${end}_type = $2 and type_group = $3 and ($4::text is null or type = $4)
      order by version limit $5`,
    [entity.id, entity.type, group, type ?? null, rowsMax],
  );
  return rows.map((row) => ({
    from: { id: row['from_id']!, type: row['from_type']! },
    to: { id: row['to_id']!, type: row['to_type']! },
    type: row['type']!,
    typeGroup: row['group']!,
    additionalInfo: row.additionalInfo,
    version: row.version,
  }));
}
