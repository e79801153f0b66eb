/** SQL of the facts that relations and series need of an entity of any type: its name and its owner. */
import type { Queries } from '../postgres/client.ts';

/** Types of entities that have relations, attributes and telemetry. */
const entityKinds = ['DEVICE', 'CUSTOMER', 'TENANT', 'USER', 'DEVICE_PROFILE'] as const;
export type EntityKind = (typeof entityKinds)[number];

export interface EntityRef {
  id: string;
  type: string;
}

export interface Entity extends EntityRef {
  name: string;
  /** Null: the entity belongs to the tenant itself. */
  customerId: string | null;
}

interface KindTable {
  table: string;
  name: string;
  customer: string;
  tenant: string;
}

const tables: Record<EntityKind, KindTable> = {
  DEVICE: { table: 'device', name: 'name', customer: 'customer_id', tenant: 'tenant_id' },
  CUSTOMER: { table: 'customer', name: 'title', customer: 'id', tenant: 'tenant_id' },
  TENANT: { table: 'tenant', name: 'title', customer: 'null::uuid', tenant: 'id' },
  USER: { table: 'user_account', name: 'email', customer: 'customer_id', tenant: 'tenant_id' },
  DEVICE_PROFILE: { table: 'device_profile', name: 'name', customer: 'null::uuid', tenant: 'tenant_id' },
};

export function isEntityKind(type: string): type is EntityKind {
  return (entityKinds as readonly string[]).includes(type);
}

/** Returns the entities that the tenant has, by `entityKey`. */
export async function findEntities(
  queries: Queries,
  tenantId: string,
  refs: EntityRef[],
): Promise<Map<string, Entity>> {
  const found = new Map<string, Entity>();
  for (const kind of entityKinds) {
    const ids = refs.filter(({ type }) => type === kind).map(({ id }) => id);
    if (ids.length === 0) continue;
    const { table, name, customer, tenant } = tables[kind];
    const rows = await queries.query<Omit<Entity, 'type'>>(
      `select id, ${name} as name, ${customer} as "customerId" from ${table} where id = any($1) and ${tenant} = $2`,
      [ids, tenantId],
    );
    for (const row of rows) found.set(entityKey({ type: kind, id: row.id }), { ...row, type: kind });
  }
  return found;
}

/** Like `findEntities` for one entity, whose row stays locked until the transaction ends. */
export async function holdEntity(queries: Queries, tenantId: string, ref: EntityRef): Promise<Entity | undefined> {
  if (!isEntityKind(ref.type)) return undefined;
  const { table, name, customer, tenant } = tables[ref.type];
  const [row] = await queries.query<Omit<Entity, 'type'>>(
    `select id, ${name} as name, ${customer} as "customerId" from ${table} where id = $1 and ${tenant} = $2 for key share`,
    [ref.id, tenantId],
  );
  return row && { ...row, type: ref.type };
}

/** Returns the number under which the entity has telemetry and attributes; undefined before its first write. */
export async function findNumber(queries: Queries, { type, id }: EntityRef): Promise<number | undefined> {
  const [row] = await queries.query<{ number: number }>(
    'select number from entity_number where entity_id = $1 and entity_type = $2',
    [id, type],
  );
  return row?.number;
}

/**
 * Like `findNumber`, but an entity without a number gets one. The caller's transaction has locked the entity. Two
 * callers at once get the same number.
 */
export async function findOrGiveNumber(queries: Queries, tenantId: string, ref: EntityRef): Promise<number> {
  const known = await findNumber(queries, ref);
  if (known !== undefined) return known;
  await queries.query(
    `insert into entity_number (number, entity_id, entity_type, tenant_id)
     values (nextval(pg_get_serial_sequence('device', 'number')), $1, $2, $3) on conflict do nothing`,
    [ref.id, ref.type, tenantId],
  );
  return (await findNumber(queries, ref))!;
}

export function entityKey({ type, id }: EntityRef): string {
  return `${type} ${id}`;
}
