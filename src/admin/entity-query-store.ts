/** SQL of entity queries: the entities that a filter selects, with the fields that entities of their kind have. */
import type { TenantPrincipal } from '../auth/roles.ts';
import { limits } from '../base/limits.ts';
import { hasLetters, searched } from '../device/list/list-filter-store.ts';
import type { Queries } from '../postgres/client.ts';
import { checkBytes, contains, containsPattern } from '../postgres/page.ts';
import type { EntityKind, EntityRef } from './entity-store.ts';

/** Entities of one kind. The conditions add up; an empty one selects all. */
export interface EntitySelection {
  kind: EntityKind;
  ids?: string[] | undefined;
  /** The beginning of the name, in any letter case; `%` means any characters. */
  namePrefix: string;
  /** Types of devices. */
  types: string[];
  /** Part of the name or label. */
  textSearch: string;
}

export interface QueriedEntity {
  kind: EntityKind;
  id: string;
  /** Number of the attributes and telemetry of the entity; null before the first of either. */
  number: number | null;
  fields: Record<string, string | number | null>;
}

interface KindSql {
  from: string;
  number: string;
  tenant: string;
  /** Property of the API → SQL. `name` is always there. */
  fields: Record<string, string>;
}

const contact = {
  ...{ email: 'e.email', phone: 'e.phone', country: 'e.country', state: 'e.state', city: 'e.city' },
  ...{ address: 'e.address', address2: 'e.address2', zip: 'e.zip' },
};
const numbered = (table: string, kind: EntityKind) =>
  `${table} e left join entity_number n on n.entity_id = e.id and n.entity_type = '${kind}'`;

const kinds: Record<EntityKind, KindSql> = {
  DEVICE: {
    from: 'device e join device_profile p on p.id = e.device_profile_id',
    number: 'e.number',
    tenant: 'e.tenant_id',
    fields: { name: 'e.name', type: 'p.name', label: 'e.label' },
  },
  CUSTOMER: {
    from: numbered('customer', 'CUSTOMER'),
    number: 'n.number',
    tenant: 'e.tenant_id',
    fields: { name: 'e.title', ...contact },
  },
  TENANT: { from: numbered('tenant', 'TENANT'), number: 'n.number', tenant: 'e.id', fields: { name: 'e.title' } },
  USER: {
    from: numbered('user_account', 'USER'),
    number: 'n.number',
    tenant: 'e.tenant_id',
    fields: { name: 'e.email', email: 'e.email', firstName: 'e.first_name', lastName: 'e.last_name', phone: 'e.phone' },
  },
  DEVICE_PROFILE: {
    from: numbered('device_profile', 'DEVICE_PROFILE'),
    number: 'n.number',
    tenant: 'e.tenant_id',
    fields: { name: 'e.name', type: 'e.type' },
  },
};

/** Names of fields that some kind of entity has. */
export const queriedFields: ReadonlySet<string> = new Set([
  ...['createdTime', 'entityType', 'title', 'label', 'type', 'additionalInfo'],
  ...Object.values(kinds).flatMap(({ fields }) => Object.keys(fields)),
]);

/** Condition on the entities whose values the caller may read. */
function visible(principal: TenantPrincipal, kind: EntityKind, values: unknown[]): string {
  const { authority, customerId, userId, isPublic } = principal;
  if (authority === 'TENANT_ADMIN') return 'true';
  if (kind === 'DEVICE') return `e.customer_id = $${values.push(customerId)}`;
  if (isPublic) return 'false';
  if (kind === 'CUSTOMER') return `e.id = $${values.push(customerId)}`;
  return kind === 'USER' ? `e.id = $${values.push(userId)}` : 'false';
}

/** Returns at most `rowsMax` entities, ordered by id. */
export async function selectEntities(
  queries: Queries,
  principal: TenantPrincipal,
  { kind, ids, namePrefix, types, textSearch }: EntitySelection,
  rowsMax: number,
): Promise<QueriedEntity[]> {
  const { from, number, tenant, fields } = kinds[kind];
  const values: unknown[] = [principal.tenantId];
  const where = [`${tenant} = $1`, visible(principal, kind, values)];
  const parameter = (value: unknown) => `$${values.push(value)}`;
  if (ids) where.push(`e.id = any(${parameter(ids)}::uuid[])`);
  if (types.length > 0) where.push(`${fields['type']} = any(${parameter(types)}::text[])`);
  if (namePrefix !== '') where.push(startsWith(kind, namePrefix, parameter));
  if (textSearch !== '') {
    where.push(
      kind === 'DEVICE'
        ? searched('e', textSearch, 'letters', parameter)
        : contains(fields['name']!, parameter(containsPattern(textSearch))),
    );
  }
  const columns = Object.entries(fields).map(([name, sql]) => `${sql} as "${name}"`);
  const rows = await queries.query<Record<string, string | number | null>>(
    `select e.id as "$id", ${number} as "$number", e.created_time as "createdTime", ${columns.join(', ')} from ${from}
      where ${where.join(' and ')} order by e.id limit ${rowsMax}`,
    values,
  );
  return rows.map(({ $id, $number, ...read }) => ({
    kind,
    id: $id as string,
    number: $number as number | null,
    fields: read,
  }));
}

function startsWith(kind: EntityKind, prefix: string, parameter: (value: unknown) => string): string {
  const pattern = parameter(`${prefix.replace(/[\\_]/g, '\\$&')}%`);
  if (kind !== 'DEVICE') return `${kinds[kind].fields['name']} ilike ${pattern} collate any_letter_case`;
  // The column begins with the name. Its index helps a pattern with three letters.
  const folded = `(lower(${pattern}::text collate any_letter_case) collate "C")`;
  const found = hasLetters(prefix) ? `e.search_text like ${folded}` : `textlike(e.search_text, ${folded})`;
  return `${found} and e.name ilike ${pattern} collate any_letter_case`;
}

/** Returns the entities of `ids` that the caller may read. */
export async function readEntityFields(
  queries: Queries,
  principal: TenantPrincipal,
  kind: EntityKind,
  ids: string[],
): Promise<QueriedEntity[]> {
  if (ids.length === 0) return [];
  const selection = { kind, ids, namePrefix: '', types: [], textSearch: '' };
  return await selectEntities(queries, principal, selection, limits.queriedEntitiesMax);
}

/** Returns the documents `additionalInfo` of the entities that have one, by id. Throws 400 when they are too long. */
export async function additionalInfos(
  queries: Queries,
  { tenantId }: TenantPrincipal,
  entities: EntityRefs,
): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const kind of new Set(entities.map((entity) => entity.kind))) {
    if (kind === 'DEVICE_PROFILE') continue;
    const { from, tenant } = kinds[kind];
    const ids = entities.filter((entity) => entity.kind === kind).map(({ id }) => id);
    const rows = `from ${from} where e.id = any($1::uuid[]) and ${tenant} = $2`;
    const values = [ids, tenantId];
    if (ids.length * limits.documentBytesMax > limits.pageBytesMax) {
      await checkBytes(queries, ['e.additional_info'], rows, values);
    }
    const read = await queries.query<{ id: string; info: string | null }>(
      `select e.id, e.additional_info::text as info ${rows}`,
      values,
    );
    for (const { id, info } of read) if (info !== null) found.set(id, info);
  }
  return found;
}

type EntityRefs = readonly (Pick<EntityRef, 'id'> & { kind: EntityKind })[];
