/**
 * Entity queries (docs/rest.md#entity-queries): entities that a filter selects, with conditions on their fields,
 * attributes and latest telemetry, sorted by one of these, a page with the named values. A list of devices without
 * conditions is paged by `device/list/`, however long the list is. Every other query reads its entities, at most
 * `limits.queriedEntitiesMax`, and decides here.
 */
import { deviceRows, entityRows, readAttributesOf } from '../attributes/store.ts';
import type { TenantPrincipal } from '../auth/roles.ts';
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { inTurns, nextTurn } from '../base/loop-turns.ts';
import type { ShardReads } from '../clickhouse/shards.ts';
import { listDeviceIds } from '../device/list/list-store.ts';
import type { Queries, SnapshotQueries } from '../postgres/client.ts';
import type { Page } from '../postgres/page.ts';
import { readLatestOf } from '../telemetry/latest.ts';
import type { TypedValue } from '../value/typed.ts';
import { usableEntity } from './entities.ts';
import {
  additionalInfos,
  type EntitySelection,
  type QueriedEntity,
  readEntityFields,
  selectEntities,
} from './entity-query-store.ts';
import type { EntityKind, EntityRef } from './entity-store.ts';
import {
  type Condition,
  fieldValue,
  keyName,
  meets,
  type QueriedValue,
  type ValueKey,
  valueOrder,
} from './key-filter.ts';
import { searchRelations } from './relations.ts';

/** Entities that relations lead to. */
interface RelatedEntities {
  root: EntityRef;
  direction: 'FROM' | 'TO';
  levelsMax: number;
  lastLevelOnly: boolean;
  /** Which relations lead to results, by their type; '' = of any type. Empty = all relations. No kinds = any kind. */
  steps: ReadonlyMap<string, ReadonlySet<EntityKind>>;
  /** Types of the devices; empty = any. */
  deviceTypes: string[];
}

export interface EntityQuery {
  /** The entities: a selection of one kind, or the ends of relations. */
  entities: (Omit<EntitySelection, 'ids' | 'textSearch'> & { ids?: string[] }) | RelatedEntities;
  /** Undefined = every entity. */
  condition: Condition | undefined;
}

export interface EntityPageQuery extends EntityQuery {
  textSearch: string;
  page: number;
  pageSize: number;
  /** Undefined = by id, which is by creation. */
  sort: { key: ValueKey; direction: 'ASC' | 'DESC' } | undefined;
  /** The values that the answer holds. */
  values: ValueKey[];
}

/** An entity of an answer; `values` has the existing values of the named keys, by `keyName`. */
export interface FoundEntity {
  entity: QueriedEntity;
  values: ReadonlyMap<string, QueriedValue>;
}

interface Stores {
  postgres: SnapshotQueries;
  shards: ShardReads;
}

export async function countEntities(stores: Stores, principal: TenantPrincipal, query: EntityQuery): Promise<number> {
  const pageQuery = { ...query, textSearch: '', page: 0, pageSize: 1, sort: undefined, values: [] };
  const listed = await listedDevices(stores.postgres, principal, pageQuery);
  if (listed) return listed.totalElements;
  return (await matching(stores, principal, pageQuery)).length;
}

export async function findQueried(
  stores: Stores,
  principal: TenantPrincipal,
  query: EntityPageQuery,
): Promise<Page<FoundEntity>> {
  const { page, pageSize, values } = query;
  const listed = await listedDevices(stores.postgres, principal, query);
  if (listed) return { ...listed, data: await withValues(stores, principal, listed.data, values) };
  const matched = await matching(stores, principal, query);
  const found = query.sort ? await sortBy(stores, matched, query.sort) : matched;
  const entities = found.slice(page * pageSize, (page + 1) * pageSize);
  const totalPages = Math.ceil(found.length / pageSize);
  return {
    data: await withValues(stores, principal, entities, values),
    totalPages,
    totalElements: found.length,
    hasNext: page + 1 < totalPages,
  };
}

/** Returns the page of a list that `device/list/` reads; undefined for a query that it cannot answer. */
async function listedDevices(
  postgres: SnapshotQueries,
  principal: TenantPrincipal,
  { entities, condition, textSearch, page, pageSize, sort }: EntityPageQuery,
): Promise<Page<QueriedEntity> | undefined> {
  if (condition || !('kind' in entities) || entities.kind !== 'DEVICE') return undefined;
  if (entities.ids || entities.namePrefix !== '' || entities.types.length > 1) return undefined;
  const sortProperty = sort ? listSorts.get(keyName(sort.key)) : '';
  if (sortProperty === undefined) return undefined;
  const customerId = principal.authority === 'TENANT_ADMIN' ? undefined : principal.customerId;
  if (customerId === null) return undefined;
  const filter = { tenantId: principal.tenantId, customerId, type: entities.types[0] };
  const link = { pageSize, page, textSearch, sortProperty, sortOrder: sort?.direction ?? 'ASC' };
  const { data, ...totals } = await listDeviceIds(postgres, filter, link);
  const ids = data.map(({ id }) => id);
  const read = await readEntityFields(postgres, principal, 'DEVICE', ids);
  const byId = new Map(read.map((entity) => [entity.id, entity]));
  return { ...totals, data: ids.flatMap((id) => byId.get(id) ?? []) };
}

const listSorts: ReadonlyMap<string, string> = new Map([
  ['ENTITY_FIELD createdTime', 'createdTime'],
  ['ENTITY_FIELD name', 'name'],
  ['ENTITY_FIELD title', 'name'],
  ['ENTITY_FIELD label', 'label'],
  ['ENTITY_FIELD type', 'type'],
]);

/** Returns the entities that the filter selects and that meet the condition, ordered by id. */
async function matching(
  stores: Stores,
  principal: TenantPrincipal,
  { entities, condition, textSearch }: EntityPageQuery,
): Promise<QueriedEntity[]> {
  const selected = await select(stores.postgres, principal, entities, textSearch);
  if (!condition) return selected;
  const valuesOf = await readValues(stores, selected, condition.keys);
  const met: QueriedEntity[] = [];
  await inTurns(selected, (entity) => {
    const values = valuesOf(entity);
    if (meets(condition, (key) => fieldValue(entity, key) ?? values.get(keyName(key)))) met.push(entity);
  });
  return met;
}

async function select(
  queries: Queries,
  principal: TenantPrincipal,
  entities: EntityQuery['entities'],
  textSearch: string,
): Promise<QueriedEntity[]> {
  const rowsMax = limits.queriedEntitiesMax + 1;
  const found: QueriedEntity[] = [];
  if ('kind' in entities) {
    found.push(...(await selectEntities(queries, principal, { ...entities, textSearch }, rowsMax)));
  } else {
    const { root, direction, levelsMax, lastLevelOnly, steps, deviceTypes } = entities;
    await usableEntity(queries, principal, root, 'read');
    const leads = (kinds: ReadonlySet<string> | undefined, end: EntityRef) =>
      kinds !== undefined && (kinds.size === 0 || kinds.has(end.type));
    const finds = (type: string, end: EntityRef) =>
      steps.size === 0 || leads(steps.get(type), end) || leads(steps.get(''), end);
    const ends = await searchRelations(queries, principal, {
      root,
      direction,
      group: 'COMMON',
      levelsMax,
      lastLevelOnly,
      finds,
    });
    if (ends.length >= rowsMax) throw tooManyEntities();
    for (const kind of new Set(ends.map(({ type }) => type as EntityKind))) {
      const ids = ends.filter(({ type }) => type === kind).map(({ id }) => id);
      const selection = { kind, ids, types: kind === 'DEVICE' ? deviceTypes : [], namePrefix: '', textSearch };
      found.push(...(await selectEntities(queries, principal, selection, rowsMax)));
    }
    found.sort((a, b) => (a.id < b.id ? -1 : 1));
  }
  if (found.length >= rowsMax) throw tooManyEntities();
  return found;
}

async function sortBy(
  stores: Stores,
  entities: QueriedEntity[],
  { key, direction }: { key: ValueKey; direction: 'ASC' | 'DESC' },
): Promise<QueriedEntity[]> {
  const valuesOf = await readValues(stores, entities, [key]);
  const name = keyName(key);
  const numbers: Sorted<number>[] = [];
  const strings: Sorted<string>[] = [];
  const without: QueriedEntity[] = [];
  await inTurns(entities, (entity) => {
    const by = valueOrder(fieldValue(entity, key) ?? valuesOf(entity).get(name));
    if (typeof by === 'number') numbers.push({ entity, by });
    else if (by !== undefined) strings.push({ entity, by: by.slice(0, limits.queriedSortCharsMax) });
    else without.push(entity);
  });
  const sign = direction === 'DESC' ? -1 : 1;
  numbers.sort((a, b) => sign * (a.by - b.by));
  await nextTurn();
  strings.sort((a, b) => (a.by === b.by ? 0 : a.by < b.by ? -sign : sign));
  // Entities without the value are last in both directions. Numbers are before strings.
  const ordered: Sorted<unknown>[] = sign === 1 ? [...numbers, ...strings] : [...strings, ...numbers];
  return [...ordered.map(({ entity }) => entity), ...without];
}

interface Sorted<By> {
  entity: QueriedEntity;
  by: By;
}

async function withValues(
  stores: Stores,
  principal: TenantPrincipal,
  entities: QueriedEntity[],
  keys: ValueKey[],
): Promise<FoundEntity[]> {
  const valuesOf = await readValues(stores, entities, keys);
  const infos = keys.some(({ type, key }) => type === 'ENTITY_FIELD' && key === 'additionalInfo')
    ? await additionalInfos(stores.postgres, principal, entities)
    : undefined;
  const found: FoundEntity[] = [];
  await inTurns(entities, (entity) => {
    const values = new Map<string, QueriedValue>();
    for (const key of keys) {
      const name = keyName(key);
      const info = key.type === 'ENTITY_FIELD' && key.key === 'additionalInfo' ? infos?.get(entity.id) : undefined;
      const value =
        info !== undefined ? { ts: 0, value: info } : (fieldValue(entity, key) ?? valuesOf(entity).get(name));
      if (value) values.set(name, value);
    }
    found.push({ entity, values });
  });
  return found;
}

type ValuesOf = (entity: QueriedEntity) => ReadonlyMap<string, QueriedValue>;
const none: ReadonlyMap<string, QueriedValue> = new Map();

/** Reads the attributes and the telemetry that `keys` name, of all entities at once. */
async function readValues(stores: Stores, entities: QueriedEntity[], keys: ValueKey[]): Promise<ValuesOf> {
  const stored = keys.filter(({ type }) => type !== 'ENTITY_FIELD');
  checkValues(entities.length, stored);
  const byNumber = new Map<number, Map<string, QueriedValue>>();
  const add = (number: number, name: string, ts: number, value: TypedValue) => {
    let values = byNumber.get(number);
    if (!values) byNumber.set(number, (values = new Map()));
    const earlier = values.get(name);
    if (!earlier || earlier.ts <= ts) values.set(name, { ts, value });
  };
  const series = unique(stored.filter(({ type }) => type === 'TIME_SERIES'));
  const attributes = stored.filter(({ type }) => type !== 'TIME_SERIES');
  const wanted = new Set(attributes.map(keyName));
  const devices = numbersOf(entities.filter(({ kind }) => kind === 'DEVICE'));
  const others = numbersOf(entities.filter(({ kind }) => kind !== 'DEVICE'));
  const [points, ...rows] = await Promise.all([
    readLatestOf(stores.shards, [...devices, ...others], series),
    readAttributesOf(stores.postgres, devices, unique(attributes), deviceRows),
    readAttributesOf(stores.postgres, others, unique(attributes), entityRows),
  ]);
  await inTurns(points, ({ device, key, ts, value }) => add(device, `TIME_SERIES ${key}`, ts, value));
  await inTurns(rows.flat(), ({ owner, scope, key, lastUpdateTs, value }) => {
    for (const type of [scopeTypes[scope - 1]!, 'ATTRIBUTE']) {
      if (wanted.has(`${type} ${key}`)) add(owner, `${type} ${key}`, lastUpdateTs, value);
    }
  });
  return ({ number }) => (number === null ? none : (byNumber.get(number) ?? none));
}

const scopeTypes = ['CLIENT_ATTRIBUTE', 'SHARED_ATTRIBUTE', 'SERVER_ATTRIBUTE'] as const;

function numbersOf(entities: QueriedEntity[]): number[] {
  return entities.flatMap(({ number }) => number ?? []);
}

function unique(keys: ValueKey[]): string[] {
  return [...new Set(keys.map(({ key }) => key))];
}

function checkValues(entities: number, keys: ValueKey[]): void {
  if (entities * keys.length <= limits.queriedValuesMax) return;
  throw badRequest(
    'entity_query_size',
    `${entities} entities with ${keys.length} keys are more than ${limits.queriedValuesMax} values: narrow "entityFilter", name fewer keys, or use a smaller "pageSize".`,
  );
}

function tooManyEntities(): Fault {
  return badRequest(
    'entity_query_size',
    `"entityFilter" selects more than ${limits.queriedEntitiesMax} entities: narrow "entityFilter" or "textSearch". Only devices of all types or of one type, without "keyFilters" and sorted by a field of the entity, may be more.`,
  );
}
