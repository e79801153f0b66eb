/** SQL of relations between entities. */

import type { Queries } from '../postgres/client.ts';
import { checkBytes } from '../postgres/page.ts';
import type { EntityRef } from './entity-store.ts';

/** The members that identify a relation. */
export interface RelationKey {
  from: EntityRef;
  to: EntityRef;
  type: string;
  typeGroup: string;
}

export interface Relation extends RelationKey {
  additionalInfo: unknown;
  version: number;
}

/** The type of the relation from a gateway to a device that it made. */
const createdType = 'Created';
export const commonGroup = 'COMMON';

/** Inserts the relations of devices made in this transaction. The transaction has locked the row of each gateway. */
export async function insertCreated(queries: Queries, children: { id: string; gatewayId: string }[]): Promise<void> {
  await queries.query(
    `insert into relation (from_id, from_type, to_id, to_type, type, type_group)
     select from_id, 'DEVICE', to_id, 'DEVICE', $1, $2 from unnest($3::uuid[], $4::uuid[]) as r (from_id, to_id)
     on conflict do nothing`,
    [createdType, commonGroup, children.map(({ gatewayId }) => gatewayId), children.map(({ id }) => id)],
  );
}

const columns = `from_id, from_type, to_id, to_type, type, type_group as "group",
  additional_info as "additionalInfo", version`;

type Row = Record<string, string> & { additionalInfo: unknown; version: number };

function relationOf(row: Row): Relation {
  return {
    from: { id: row['from_id']!, type: row['from_type']! },
    to: { id: row['to_id']!, type: row['to_type']! },
    type: row['type']!,
    typeGroup: row['group']!,
    additionalInfo: row.additionalInfo,
    version: row.version,
  };
}

function keyValues({ from, to, type, typeGroup }: RelationKey): string[] {
  return [from.id, from.type, to.id, to.type, type, typeGroup];
}

/** Inserts the relation, or replaces its `additionalInfo`. The transaction has locked both ends. */
export async function upsertRelation(queries: Queries, key: RelationKey, additionalInfo: unknown): Promise<Relation> {
  const info = additionalInfo === null ? null : JSON.stringify(additionalInfo);
  const [row] = await queries.query<Row>(
    `insert into relation (from_id, from_type, to_id, to_type, type, type_group, additional_info)
     values ($1, $2, $3, $4, $5, $6, $7)
     on conflict (from_id, from_type, type_group, type, to_id, to_type)
       do update set additional_info = excluded.additional_info, version = default
     returning ${columns}`,
    [...keyValues(key), info],
  );
  return relationOf(row!);
}

export async function deleteRelationRow(queries: Queries, key: RelationKey): Promise<Relation | undefined> {
  const [row] = await queries.query<Row>(
    `delete from relation
      where from_id = $1 and from_type = $2 and to_id = $3 and to_type = $4 and type = $5 and type_group = $6
     returning ${columns}`,
    keyValues(key),
  );
  return row && relationOf(row);
}

export async function findRelationRow(queries: Queries, key: RelationKey): Promise<Relation | undefined> {
  const [row] = await queries.query<Row>(
    `select ${columns} from relation
      where from_id = $1 and from_type = $2 and to_id = $3 and to_type = $4 and type = $5 and type_group = $6`,
    keyValues(key),
  );
  return row && relationOf(row);
}

/** Deletes the relations of one group from an entity and to it. */
export async function deleteRelationRows(queries: Queries, { id, type }: EntityRef, group: string): Promise<void> {
  await queries.query(
    `delete from relation
      where type_group = $3 and ((from_id = $1 and from_type = $2) or (to_id = $1 and to_type = $2))`,
    [id, type, group],
  );
}

/**
 * Locks the count: until the transaction ends no other transaction, on any worker or host, adds a relation from this
 * entity.
 */
export async function holdRelationCount(queries: Queries, { type, id }: EntityRef): Promise<void> {
  const name = `relation-count ${type} ${id}`;
  await queries.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [name]);
}

/** True when the `from` end has `countMax` relations and the given relation is not among them. */
export async function hasOtherRelations(queries: Queries, key: RelationKey, countMax: number): Promise<boolean> {
  const { from, to, type, typeGroup } = key;
  const rows = await queries.query(
    `select 1 from relation where from_id = $1 and from_type = $2
        and not exists (select 1 from relation where from_id = $1 and from_type = $2 and to_id = $4 and to_type = $5
                                                 and type = $6 and type_group = $7)
      offset $3 limit 1`,
    [from.id, from.type, countMax - 1, to.id, to.type, type, typeGroup],
  );
  return rows.length > 0;
}

/**
 * Returns the relations of one entity, the oldest first; `type` undefined = of any type. Throws 400 as `checkBytes`
 * does.
 */
export async function listRelations(
  queries: Queries,
  end: 'from' | 'to',
  entity: EntityRef,
  group: string,
  type: string | undefined,
  rowsMax: number,
): Promise<Relation[]> {
  const relations = `from relation
      where ${end}_id = $1 and ${end}_type = $2 and type_group = $3 and ($4::text is null or type = $4)
      order by version limit $5`;
  const values = [entity.id, entity.type, group, type ?? null, rowsMax];
  await checkBytes(queries, ['additional_info'], relations, values);
  const rows = await queries.query<Row>(`select ${columns} ${relations}`, values);
  return rows.map(relationOf);
}

/** The reader whose relations a search follows. `customerId` null = the reader sees those of the whole tenant. */
interface RelationReader {
  customerId: string | null;
  isPublic: boolean;
}

/** Returns relations whose other end the reader may read (`mayRead`), without `additionalInfo`, in no order. */
export async function listRelationsOfMany(
  queries: Queries,
  end: 'from' | 'to',
  entities: EntityRef[],
  group: string,
  { customerId, isPublic }: RelationReader,
  rowsMax: number,
): Promise<Relation[]> {
  const far = end === 'from' ? 'to' : 'from';
  const rows = await queries.query<Row>(
    `select from_id, from_type, to_id, to_type, relation.type, type_group as "group", null as "additionalInfo", version
       from relation join unnest($1::uuid[], $2::text[]) as e (id, type)
         on ${end}_id = e.id and ${end}_type = e.type
      where type_group = $3 and ($5::uuid is null or case ${far}_type
              when 'DEVICE' then exists (select 1 from device d where d.id = ${far}_id and d.customer_id = $5)
              when 'CUSTOMER' then not $6 and ${far}_id = $5
              when 'USER' then not $6 and exists (
                select 1 from user_account u where u.id = ${far}_id and u.customer_id = $5)
              else not $6 end)
      limit $4`,
    [entities.map(({ id }) => id), entities.map(({ type }) => type), group, rowsMax, customerId, isPublic],
  );
  return rows.map(relationOf);
}
