/** Relations as users make, delete and follow them. Relations that gateways make are in `relation-store.ts`. */
import { permissionDenied, type TenantPrincipal } from '../auth/roles.ts';
import { badRequest, type Fault, notFound, tooLarge } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { checkDocument, checkText } from '../device/model/device.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { mayRead, mayWrite, unknownEntity, usableEntity } from './entities.ts';
import { type EntityRef, entityKey, findEntities, holdEntity } from './entity-store.ts';
import {
  commonGroup,
  deleteRelationRow,
  deleteRelationRows,
  findRelationRow,
  hasOtherRelations,
  holdRelationCount,
  listRelations,
  listRelationsOfMany,
  type Relation,
  type RelationKey,
  upsertRelation,
} from './relation-store.ts';

export const relationGroups = [
  ...['COMMON', 'DASHBOARD', 'RULE_CHAIN', 'RULE_NODE', 'EDGE', 'EDGE_AUTO_ASSIGN_RULE_CHAIN'],
] as const;

export interface RelationInfo extends Relation {
  fromName: string;
  toName: string;
}

export async function saveRelation(
  postgres: Postgres,
  principal: TenantPrincipal,
  key: RelationKey,
  additionalInfo: unknown,
): Promise<Relation> {
  if (key.type.trim() === '') throw badRequest('relation_type', 'Relation type should be specified!');
  checkText('type', key.type);
  checkDocument('additionalInfo', additionalInfo);
  return await postgres.transaction(async (queries) => {
    await holdEnds(queries, principal, key);
    await holdRelationCount(queries, key.from);
    if (await hasOtherRelations(queries, key, limits.relationsOfEntityMax)) {
      throw badRequest(
        'relations',
        `An entity has at most ${limits.relationsOfEntityMax} relations to other entities.`,
      );
    }
    return await upsertRelation(queries, key, additionalInfo ?? null);
  });
}

/** Returns the deleted relation. */
export async function deleteRelation(
  postgres: Postgres,
  principal: TenantPrincipal,
  key: RelationKey,
): Promise<Relation> {
  return await postgres.transaction(async (queries) => {
    await holdEnds(queries, principal, key);
    const relation = await deleteRelationRow(queries, key);
    if (!relation) throw relationNotFound();
    return relation;
  });
}

/** Deletes the relations of the group `COMMON` from an entity and to it. */
export async function deleteRelationsOf(
  postgres: Postgres,
  principal: TenantPrincipal,
  entity: EntityRef,
): Promise<void> {
  await usableEntity(postgres, principal, entity, 'write');
  // Two calls whose entities are related to each other may lock their relations in different orders.
  await postgres.transaction((queries) => deleteRelationRows(queries, entity, commonGroup), { again: true });
}

/** Returns a relation; the caller may read both ends. */
export async function readRelation(queries: Queries, principal: TenantPrincipal, key: RelationKey): Promise<Relation> {
  for (const end of [key.from, key.to]) await usableEntity(queries, principal, end, 'read');
  const relation = await findRelationRow(queries, key);
  if (!relation) throw relationNotFound();
  return relation;
}

function relationNotFound(): Fault {
  return notFound("Requested item wasn't found!");
}

/** Locks both ends in one order for all callers, so that two callers never wait for each other. */
async function holdEnds(queries: Queries, principal: TenantPrincipal, { from, to }: RelationKey): Promise<void> {
  const ends = [from, to].sort((a, b) => (entityKey(a) < entityKey(b) ? -1 : 1));
  for (const end of ends) {
    const entity = await holdEntity(queries, principal.tenantId, end);
    if (!entity) throw unknownEntity(end);
    if (!mayWrite(principal, entity)) throw permissionDenied();
  }
}

/** Returns the relations of an entity whose other ends the caller may read, with the names of both ends. */
export async function readableRelations(
  queries: Queries,
  principal: TenantPrincipal,
  end: 'from' | 'to',
  entity: EntityRef,
  group: string,
  type: string | undefined,
): Promise<RelationInfo[]> {
  const relations = await listRelations(queries, end, entity, group, type, limits.relationsMax);
  const known = await findEntities(
    queries,
    principal.tenantId,
    relations.flatMap(({ from, to }) => [from, to]),
  );
  return relations.flatMap((relation) => {
    const from = known.get(entityKey(relation.from));
    const to = known.get(entityKey(relation.to));
    if (!from || !to || !mayRead(principal, from) || !mayRead(principal, to)) return [];
    return [{ ...relation, fromName: from.name, toName: to.name }];
  });
}

interface RelationSearch {
  root: EntityRef;
  direction: 'FROM' | 'TO';
  group: string;
  /** True for a relation that leads to a result, with the entity at its end. */
  finds(type: string, end: EntityRef): boolean;
  /** 0 = up to `limits.relationLevelsMax`. */
  levelsMax: number;
  /** Returns only the ends of the last level, or of paths that end before it. */
  lastLevelOnly: boolean;
}

/**
 * Returns the entities that relations lead to from a root, each entity once. The search of a customer user ends at
 * entities that the user may not read: such an entity, and what others relate to it, changes no result and no refusal.
 */
export async function searchRelations(
  queries: Queries,
  principal: TenantPrincipal,
  search: RelationSearch,
): Promise<EntityRef[]> {
  const { authority, customerId, isPublic } = principal;
  const reader = { customerId: authority === 'TENANT_ADMIN' ? null : customerId, isPublic };
  const { root, direction, group, finds, lastLevelOnly } = search;
  const levelsMax =
    search.levelsMax > 0 ? Math.min(search.levelsMax, limits.relationLevelsMax) : limits.relationLevelsMax;
  const [near, far] = direction === 'FROM' ? (['from', 'to'] as const) : (['to', 'from'] as const);
  const seen = new Set([entityKey(root)]);
  const results = new Map<string, EntityRef>();
  let level: EntityRef[] = [root];
  for (let depth = 1; depth <= levelsMax && level.length > 0; depth += 1) {
    const relations = await listRelationsOfMany(queries, near, level, group, reader, limits.relationsMax + 1);
    if (relations.length > limits.relationsMax || seen.size > limits.relationsMax) {
      throw tooManyRelations();
    }
    const found = relations.filter((relation) => finds(relation.type, relation[far]));
    const next = new Map(relations.map((relation) => [entityKey(relation[far]), relation[far]] as const));
    const goesOn = new Set<string>();
    if (lastLevelOnly && depth < levelsMax && found.length > 0) {
      const below = await listRelationsOfMany(
        queries,
        near,
        [...next.values()],
        group,
        reader,
        limits.relationsMax + 1,
      );
      if (below.length > limits.relationsMax) throw tooManyRelations();
      for (const relation of below) goesOn.add(entityKey(relation[near]));
    }
    for (const relation of found) {
      const key = entityKey(relation[far]);
      if (!goesOn.has(key)) results.set(key, relation[far]);
    }
    level = [...next].filter(([key]) => !seen.has(key)).map(([, ref]) => ref);
    for (const ref of level) seen.add(entityKey(ref));
  }
  return [...results.values()];
}

function tooManyRelations(): Fault {
  return tooLarge('relations_found', `The search finds more than ${limits.relationsMax} relations: lower "maxLevel".`);
}
