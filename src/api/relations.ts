/**
 * Relations between entities (docs/rest.md#relations): those that gateways make to their devices, and those that users
 * make.
 */

import { usableEntity } from '../admin/entities.ts';
import { type EntityRef, isEntityKind } from '../admin/entity-store.ts';
import { commonGroup, type Relation, type RelationKey } from '../admin/relation-store.ts';
import {
  deleteRelation,
  deleteRelationsOf,
  type RelationInfo,
  readableRelations,
  readRelation,
  relationGroups,
  saveRelation,
} from '../admin/relations.ts';
import { requireTenant, tenantAdmins, tenantReaders, tenantUsers } from '../auth/roles.ts';
import * as Type from '../base/schema.ts';
import type { Postgres } from '../postgres/client.ts';
import { anything, text } from '../rest/body.ts';
import { missing, oneOf, uuid } from '../rest/parameters.ts';
import { type Call, empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed } from '../rest/shapes.ts';
import { entityId } from './shapes.ts';

const groupQuery = Type.Object({ relationTypeGroup: Type.Optional(Type.Enum(relationGroups)) });
const filterQuery = Type.Object({
  ...groupQuery.properties,
  relationType: Type.Optional(Type.String({ description: 'As `Created`; default any' })),
});

const relationsQuery = Type.Object({
  fromId: Type.Optional(Type.String({ format: 'uuid' })),
  fromType: Type.Optional(Type.String()),
  toId: Type.Optional(Type.String({ format: 'uuid' })),
  toType: Type.Optional(Type.String()),
  ...filterQuery.properties,
});

const keyQuery = Type.Object({
  fromId: Type.String({ format: 'uuid' }),
  fromType: Type.String(),
  relationType: Type.String(),
  toId: Type.String({ format: 'uuid' }),
  toType: Type.String(),
  relationTypeGroup: Type.Optional(Type.Enum(relationGroups)),
});

const entityQuery = Type.Object({ entityId: Type.String({ format: 'uuid' }), entityType: Type.String() });

const end = Type.Object({ id: Type.String({ format: 'uuid' }), entityType: Type.String() });
const relationBody = Type.Object({
  from: end,
  to: end,
  type: Type.String({ minLength: 1 }),
  typeGroup: text,
  additionalInfo: anything,
});

const relationShape = closed(
  {
    from: entityId,
    to: entityId,
    type: Type.String(),
    typeGroup: Type.String(),
    version: Type.Integer(),
    additionalInfo: anyJson,
  },
  'EntityRelation',
);
const infoShape = closed(
  { ...relationShape.properties, fromName: Type.String(), toName: Type.String() },
  'EntityRelationInfo',
);

type Filter = Type.Static<typeof filterQuery>;

export function relationRoutes({ postgres }: { postgres: Postgres }): Route[] {
  async function list({ principal }: Call, direction: 'from' | 'to', entity: EntityRef, filter: Filter) {
    const caller = requireTenant(principal);
    // Entities of other types have no relations here.
    if (!isEntityKind(entity.type)) return [];
    await usableEntity(postgres, caller, entity, 'read');
    const group = filter.relationTypeGroup ?? commonGroup;
    return await readableRelations(postgres, caller, direction, entity, group, filter.relationType);
  }

  async function listByQuery(call: Call<object, Type.Static<typeof relationsQuery>>): Promise<RelationInfo[]> {
    const { query } = call;
    const direction = query.fromId === undefined && query.toId !== undefined ? 'to' : 'from';
    const [id, type] = direction === 'from' ? [query.fromId, query.fromType] : [query.toId, query.toType];
    if (id === undefined) throw missing(`${direction}Id`);
    if (type === undefined) throw missing(`${direction}Type`);
    return await list(call, direction, { id, type }, query);
  }

  const save = async ({ principal, body }: Call<object, object, Type.Static<typeof relationBody>>): Promise<Relation> =>
    await saveRelation(postgres, requireTenant(principal), keyOfBody(body), body.additionalInfo);

  const remove = async ({ principal, query }: Call<object, Type.Static<typeof keyQuery>>): Promise<Relation> =>
    await deleteRelation(postgres, requireTenant(principal), keyOfQuery(query));

  const ofEntity = (['from', 'to'] as const).flatMap((direction) => [
    route({
      method: 'GET',
      pattern: `/api/relations/${direction}/:entityType/:entityId`,
      summary: `Relations ${direction} an entity`,
      roles: tenantReaders,
      query: filterQuery,
      answer: Type.Array(relationShape),
      handle: async (call) => json((await list(call, direction, refOf(call.params), call.query)).map(relationJson)),
    }),
    route({
      method: 'GET',
      pattern: `/api/relations/${direction}/:entityType/:entityId/:relationType`,
      summary: `Relations of one type ${direction} an entity`,
      roles: tenantReaders,
      query: groupQuery,
      answer: Type.Array(relationShape),
      async handle(call) {
        const { relationType, ...entity } = call.params;
        return json((await list(call, direction, refOf(entity), { ...call.query, relationType })).map(relationJson));
      },
    }),
    route({
      method: 'GET',
      pattern: `/api/relations/info/${direction}/:entityType/:entityId`,
      summary: `Relations ${direction} an entity, with the names of both ends`,
      roles: tenantReaders,
      query: filterQuery,
      answer: Type.Array(infoShape),
      handle: async (call) => json((await list(call, direction, refOf(call.params), call.query)).map(infoJson)),
    }),
  ]);

  return [
    route({
      method: 'GET',
      pattern: '/api/relations',
      summary: 'Relations from an entity (fromId, fromType), or to it (toId, toType)',
      roles: tenantReaders,
      query: relationsQuery,
      answer: Type.Array(relationShape),
      handle: async (call) => json((await listByQuery(call)).map(relationJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/relations/info',
      summary: 'As GET /api/relations, with the names of both ends',
      roles: tenantReaders,
      query: relationsQuery,
      answer: Type.Array(infoShape),
      handle: async (call) => json((await listByQuery(call)).map(infoJson)),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/relations',
      summary: 'Delete the relations of the group COMMON from an entity and to it',
      roles: tenantAdmins,
      query: entityQuery,
      async handle({ principal, query }) {
        await deleteRelationsOf(postgres, requireTenant(principal), { id: query.entityId, type: query.entityType });
        return empty;
      },
    }),
    ...ofEntity,
    route({
      method: 'GET',
      pattern: '/api/relation',
      summary: 'One relation',
      roles: tenantReaders,
      query: keyQuery,
      answer: relationShape,
      handle: async ({ principal, query }) =>
        json(relationJson(await readRelation(postgres, requireTenant(principal), keyOfQuery(query)))),
    }),
    route({
      method: 'POST',
      pattern: '/api/relation',
      summary: 'Relate two entities, or change what is said about their relation',
      roles: tenantUsers,
      body: relationBody,
      async handle(call) {
        await save(call);
        return empty;
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/v2/relation',
      summary: 'As POST /api/relation; answers the relation',
      roles: tenantUsers,
      body: relationBody,
      answer: relationShape,
      handle: async (call) => json(relationJson(await save(call))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/relation',
      summary: 'Delete a relation',
      roles: tenantUsers,
      query: keyQuery,
      async handle(call) {
        await remove(call);
        return empty;
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/v2/relation',
      summary: 'As DELETE /api/relation; answers the relation',
      roles: tenantUsers,
      query: keyQuery,
      answer: relationShape,
      handle: async (call) => json(relationJson(await remove(call))),
    }),
  ];
}

function refOf({ entityType, entityId }: { entityType: string; entityId: string }): EntityRef {
  return { type: entityType, id: entityId };
}

function keyOfBody({ from, to, type, typeGroup }: Type.Static<typeof relationBody>): RelationKey {
  return {
    from: { type: from.entityType, id: uuid(from.id) },
    to: { type: to.entityType, id: uuid(to.id) },
    type,
    typeGroup: oneOf('typeGroup', typeGroup, relationGroups, commonGroup),
  };
}

function keyOfQuery(query: Type.Static<typeof keyQuery>): RelationKey {
  return {
    from: { type: query.fromType, id: query.fromId },
    to: { type: query.toType, id: query.toId },
    type: query.relationType,
    typeGroup: query.relationTypeGroup ?? commonGroup,
  };
}

function relationJson({ from, to, type, typeGroup, version, additionalInfo }: Relation) {
  return {
    from: { entityType: from.type, id: from.id },
    to: { entityType: to.type, id: to.id },
    type,
    typeGroup,
    version,
    additionalInfo,
  };
}

function infoJson(relation: RelationInfo) {
  return { ...relationJson(relation), fromName: relation.fromName, toName: relation.toName };
}
