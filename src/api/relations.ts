/** Relations of an entity (rest.md 3.8): so far those that gateways make, to the devices that they made. */
import { entityNotFound, requireCustomerOf, requireTenant, tenantReaders } from '../auth/roles.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { findDevice } from '../device/store.ts';
import { commonGroup, listRelations, type Relation } from '../fleet/relation-store.ts';
import type { Queries } from '../postgres/client.ts';
import { missing } from './parameters.ts';
import { json, type Route, route } from './route.ts';
import { anyJson, closed, entityId } from './shapes.ts';

const relationsQuery = Type.Object({
  fromId: Type.Optional(Type.String({ format: 'uuid' })),
  fromType: Type.Optional(Type.String()),
  toId: Type.Optional(Type.String({ format: 'uuid' })),
  toType: Type.Optional(Type.String()),
  relationTypeGroup: Type.Optional(Type.String({ description: 'Default COMMON' })),
  relationType: Type.Optional(Type.String({ description: 'As `Created`; default any' })),
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

export function relationRoutes({ postgres }: { postgres: Queries }): Route[] {
  return [
    route({
      method: 'GET',
      pattern: '/api/relations',
      summary: 'Relations from an entity (fromId, fromType), or to it (toId, toType)',
      roles: tenantReaders,
      query: relationsQuery,
      answer: Type.Array(relationShape),
      async handle({ principal, query }) {
        const { tenantId } = requireTenant(principal);
        const end = query.fromId === undefined && query.toId !== undefined ? 'to' : 'from';
        const [id, type] = end === 'from' ? [query.fromId, query.fromType] : [query.toId, query.toType];
        if (id === undefined) throw missing(`${end}Id`);
        if (type === undefined) throw missing(`${end}Type`);
        // Other entities have no relations here.
        if (type !== 'DEVICE') return json([]);
        const device = await findDevice(postgres, tenantId, id);
        if (!device) throw entityNotFound('Device', id);
        requireCustomerOf(principal, device.customerId);
        const group = query.relationTypeGroup ?? commonGroup;
        const rows = await listRelations(postgres, end, { id, type }, group, query.relationType, limits.relationsMax);
        return json(rows.map(relationJson));
      },
    }),
  ];
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
