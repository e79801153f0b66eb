/**
 * Decodes the body of an entity query. A member that would change the result and is not supported is refused by name:
 * a dashboard never shows other entities than it asked for.
 */
import type { EntityPageQuery, EntityQuery } from '../admin/entity-query.ts';
import { queriedFields } from '../admin/entity-query-store.ts';
import { type EntityKind, isEntityKind } from '../admin/entity-store.ts';
import {
  type Condition,
  type Predicate,
  predicateOperations,
  testOf,
  type ValueKey,
  valueTypes,
} from '../admin/key-filter.ts';
import type { TenantPrincipal } from '../auth/roles.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { anything, flag, optional, text } from '../rest/body.ts';
import { reachablePage, uuid } from '../rest/parameters.ts';

const ref = Type.Object({ entityType: Type.String(), id: text });
const texts = optional(Type.Array(Type.String(), { maxItems: limits.listedKeysMax }));
const kindNames = optional(Type.Array(Type.String(), { maxItems: limits.queriedKeysMax }));
const keyShape = Type.Object({ type: Type.String(), key: Type.String() });
const keys = optional(Type.Array(keyShape, { maxItems: limits.queriedKeysMax }));

/** `type` says which of the other members are read. */
const entityFilter = Type.Object({
  type: Type.String({
    description: 'singleEntity, entityList, entityName, entityType, deviceType, deviceSearchQuery or relationsQuery',
  }),
  singleEntity: optional(ref),
  entityType: text,
  entityList: texts,
  entityNameFilter: text,
  deviceType: text,
  deviceTypes: texts,
  deviceNameFilter: text,
  rootEntity: optional(ref),
  rootStateEntity: flag,
  multiRoot: flag,
  direction: text,
  relationType: text,
  filters: optional(
    Type.Array(Type.Object({ relationType: text, entityTypes: kindNames, negate: flag }), {
      maxItems: limits.queriedKeysMax,
    }),
  ),
  maxLevel: optional(Type.Integer()),
  fetchLastLevelOnly: flag,
});

const keyFilters = optional(
  Type.Array(Type.Object({ key: keyShape, valueType: text, predicate: Type.Record(Type.Unknown()) }), {
    maxItems: limits.queriedKeysMax,
  }),
);

export const entityCountQuery = Type.Object({ entityFilter, keyFilters, keyFiltersOperation: text });
export const entityPageQuery = Type.Object({
  ...entityCountQuery.properties,
  pageLink: Type.Object({
    page: Type.Integer({ minimum: 0 }),
    pageSize: Type.Integer({ minimum: 1, maximum: limits.queriedEntitiesMax }),
    textSearch: text,
    sortOrder: optional(Type.Object({ key: keyShape, direction: text })),
    dynamic: anything,
  }),
  entityFields: keys,
  latestValues: keys,
});

type CountBody = Type.Static<typeof entityCountQuery>;
type FilterBody = CountBody['entityFilter'];

export function decodeEntityQuery(principal: TenantPrincipal, body: CountBody): EntityQuery {
  return { entities: decodeFilter(principal, body.entityFilter), condition: decodeCondition(body) };
}

export function decodePageQuery(
  principal: TenantPrincipal,
  body: Type.Static<typeof entityPageQuery>,
): EntityPageQuery {
  const { page, pageSize, textSearch, sortOrder } = body.pageLink;
  const fields = (body.entityFields ?? []).map((key) => decodeKey('entityFields', key));
  const latest = (body.latestValues ?? []).map((key) => decodeKey('latestValues', key));
  const sort = sortOrder
    ? {
        key: comparedKey('pageLink.sortOrder.key', sortOrder.key),
        direction: oneWord('pageLink.sortOrder.direction', sortOrder.direction || 'ASC', ['ASC', 'DESC'] as const),
      }
    : undefined;
  return {
    ...decodeEntityQuery(principal, body),
    ...{
      page: reachablePage(page, pageSize),
      pageSize,
      textSearch: (textSearch ?? '').slice(0, 255),
      sort,
      values: [...fields, ...latest],
    },
  };
}

function decodeFilter(principal: TenantPrincipal, filter: FilterBody): EntityQuery['entities'] {
  const none = { namePrefix: '', types: [] };
  switch (filter.type) {
    case 'singleEntity': {
      const { kind, id } = decodeRef(principal, 'entityFilter.singleEntity', filter.singleEntity);
      return { ...none, kind, ids: [id] };
    }
    case 'entityList': {
      const ids = (filter.entityList ?? wrong('"entityFilter.entityList" is missing.')).map(uuid);
      return { ...none, kind: decodeKind('entityFilter.entityType', filter.entityType), ids };
    }
    case 'entityName': {
      const namePrefix = filter.entityNameFilter ?? '';
      return { ...none, kind: decodeKind('entityFilter.entityType', filter.entityType), namePrefix };
    }
    case 'entityType':
      return { ...none, kind: decodeKind('entityFilter.entityType', filter.entityType) };
    case 'deviceType':
      return { kind: 'DEVICE', types: deviceTypes(filter), namePrefix: filter.deviceNameFilter ?? '' };
    case 'deviceSearchQuery':
      return {
        ...decodeSearch(principal, filter),
        steps: new Map([[filter.relationType ?? '', new Set<EntityKind>(['DEVICE'])]]),
        deviceTypes: deviceTypes(filter),
      };
    case 'relationsQuery': {
      return { ...decodeSearch(principal, filter), steps: decodeSteps(filter), deviceTypes: [] };
    }
    default:
      throw badRequest(
        'entity_query',
        `"entityFilter.type" "${filter.type.slice(0, 50)}" is not supported: use singleEntity, entityList, entityName, entityType, deviceType, deviceSearchQuery or relationsQuery.`,
      );
  }
}

/** Several filters for one type of relation add up. */
function decodeSteps({ filters }: FilterBody): Map<string, Set<EntityKind>> {
  const steps = new Map<string, Set<EntityKind>>();
  for (const { relationType, entityTypes, negate } of filters ?? []) {
    if (negate) throw unsupported('entityFilter.filters.negate');
    const kinds = (entityTypes ?? []).map((type) => decodeKind('entityFilter.filters.entityTypes', type));
    const type = relationType ?? '';
    const earlier = steps.get(type);
    // A filter without kinds is for any kind.
    const isAny = kinds.length === 0 || earlier?.size === 0;
    steps.set(type, new Set(isAny ? [] : [...(earlier ?? []), ...kinds]));
  }
  return steps;
}

function deviceTypes({ deviceTypes: several, deviceType: one }: FilterBody): string[] {
  return several ?? (one ? [one] : []);
}

function decodeSearch(principal: TenantPrincipal, filter: FilterBody) {
  if (filter.rootStateEntity) throw unsupported('entityFilter.rootStateEntity');
  if (filter.multiRoot) throw unsupported('entityFilter.multiRoot');
  const { kind, id } = decodeRef(principal, 'entityFilter.rootEntity', filter.rootEntity);
  return {
    root: { type: kind, id },
    direction: oneWord('entityFilter.direction', filter.direction || 'FROM', ['FROM', 'TO'] as const),
    levelsMax: Math.max(0, filter.maxLevel ?? 1),
    lastLevelOnly: filter.fetchLastLevelOnly ?? false,
  };
}

/** Resolves the entities of dashboards that depend on the user: CURRENT_USER, CURRENT_CUSTOMER, CURRENT_TENANT. */
function decodeRef(
  principal: TenantPrincipal,
  name: string,
  given: Type.Static<typeof ref> | null | undefined,
): { kind: EntityKind; id: string } {
  if (!given) return wrong(`"${name}" is missing.`);
  switch (given.entityType) {
    case 'CURRENT_USER':
      return { kind: 'USER', id: principal.userId };
    case 'CURRENT_TENANT':
      return { kind: 'TENANT', id: principal.tenantId };
    case 'CURRENT_CUSTOMER':
      return { kind: 'CUSTOMER', id: principal.customerId ?? wrong(`"${name}": the caller has no customer.`) };
    default:
      return { kind: decodeKind(`${name}.entityType`, given.entityType), id: uuid(given.id ?? '') };
  }
}

function decodeKind(name: string, type: string | null | undefined): EntityKind {
  if (type && isEntityKind(type)) return type;
  return wrong(`"${name}" must be DEVICE, CUSTOMER, TENANT, USER or DEVICE_PROFILE.`);
}

function decodeKey(name: string, { type, key }: ValueKey): ValueKey {
  if (!(valueTypes as readonly string[]).includes(type)) {
    return wrong(
      `"${name}" has the type "${type.slice(0, 50)}", which is not supported: use ${valueTypes.join(', ')}.`,
    );
  }
  if (type === 'ENTITY_FIELD' && !queriedFields.has(key)) {
    return wrong(
      `"${name}" names the field "${key.slice(0, 50)}", which no entity has: use ${[...queriedFields].join(', ')}.`,
    );
  }
  return { type, key };
}

function comparedKey(name: string, key: ValueKey): ValueKey {
  if (key.type === 'ENTITY_FIELD' && key.key === 'additionalInfo') {
    return wrong(`"${name}" must not be the field "additionalInfo".`);
  }
  return decodeKey(name, key);
}

function decodeCondition({ keyFilters: given, keyFiltersOperation }: CountBody): Condition | undefined {
  if (!given || given.length === 0) return undefined;
  const count = { left: limits.queriedKeysMax, chars: limits.queriedTextCharsMax };
  const filters = given.map(({ key, predicate }) => ({
    key: comparedKey('keyFilters.key', key),
    test: testOf(decodePredicate(predicate, count)),
  }));
  const operation = oneWord('keyFiltersOperation', keyFiltersOperation || 'AND', ['AND', 'OR'] as const);
  const byName = new Map(filters.map(({ key }) => [`${key.type} ${key.key}`, key]));
  return { operation, filters, keys: [...byName.values()] };
}

/** `count` is what all predicates of a query together may still have, also those inside others. */
function decodePredicate(given: unknown, count: { left: number; chars: number }): Predicate {
  const name = 'keyFilters.predicate';
  if ((count.left -= 1) < 0) {
    throw badRequest('entity_query_size', `"keyFilters" have more than ${limits.queriedKeysMax} predicates.`);
  }
  if (typeof given !== 'object' || given === null) return wrong(`"${name}" must be an object.`);
  const { type, operation, value, ignoreCase, predicates } = given as Record<string, unknown>;
  if (type === 'COMPLEX') {
    if (!Array.isArray(predicates)) return wrong(`"${name}.predicates" must be a list.`);
    return {
      type,
      operation: oneWord(`${name}.operation`, operation, ['AND', 'OR'] as const),
      predicates: predicates.map((each) => decodePredicate(each, count)),
    };
  }
  if (type !== 'STRING' && type !== 'NUMERIC' && type !== 'BOOLEAN') {
    return wrong(`"${name}.type" must be STRING, NUMERIC, BOOLEAN or COMPLEX.`);
  }
  const word = oneWord(`${name}.operation`, operation, predicateOperations[type]);
  const wanted = decodeWanted(value);
  if (type === 'STRING' && typeof wanted === 'string') {
    if ((count.chars -= wanted.length) < 0) {
      throw badRequest(
        'entity_query_size',
        `The texts of "keyFilters" have more than ${limits.queriedTextCharsMax} characters.`,
      );
    }
    return { type, operation: word, value: wanted, ignoreCase: ignoreCase === true };
  }
  if (type === 'NUMERIC' && typeof wanted === 'number') return { type, operation: word, value: wanted };
  if (type === 'BOOLEAN' && typeof wanted === 'boolean') return { type, operation: word, value: wanted };
  return wrong(`"${name}.value.defaultValue" must be a value of the type ${type}.`);
}

/** A value of the user replaces the default. */
function decodeWanted(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const { defaultValue, userValue, dynamicValue } = value as Record<string, unknown>;
  const source = (dynamicValue as { sourceType?: unknown } | null | undefined)?.sourceType;
  if (source !== undefined && source !== null) throw unsupported('keyFilters.predicate.value.dynamicValue');
  return userValue ?? defaultValue;
}

function oneWord<T extends string>(name: string, given: unknown, words: readonly T[]): T {
  return words.find((word) => word === given) ?? wrong(`"${name}" must be one of ${words.join(', ')}.`);
}

function wrong(message: string): never {
  throw new Fault('entity_query', message);
}

function unsupported(name: string): Fault {
  return new Fault('entity_query', `"${name}" is not supported: leave the member out.`);
}
