/** Tenants (rest.md 3.11): made by a system administrator, read by their own users. */
import Type from 'typebox';
import { type Authority, authorities, entityNotFound } from '../auth/roles.ts';
import type { Tenant } from '../fleet/customer.ts';
import type { FleetParts } from '../fleet/parts.ts';
import { findTenant } from '../fleet/store.ts';
import { createTenant, saveTenant, type TenantInput } from '../fleet/tenants.ts';
import { anything, contact, reference, text, version } from './body.ts';
import { entityUuid, uuid } from './parameters.ts';
import { json, type Route, route } from './route.ts';
import { entityId, idJson, nullable } from './shapes.ts';

const systemAdmin: Authority[] = ['SYS_ADMIN'];

const tenantBody = Type.Object({
  id: reference,
  title: text,
  region: text,
  ...contact,
  additionalInfo: anything,
  version,
});

const tenantShape = Type.Object({
  id: entityId,
  createdTime: Type.Integer(),
  title: Type.String(),
  name: Type.String(),
  region: nullable(Type.String()),
  country: nullable(Type.String()),
  state: nullable(Type.String()),
  city: nullable(Type.String()),
  address: nullable(Type.String()),
  address2: nullable(Type.String()),
  zip: nullable(Type.String()),
  phone: nullable(Type.String()),
  email: nullable(Type.String()),
  version: Type.Integer(),
  additionalInfo: Type.Unknown(),
});

export function tenantRoutes(parts: FleetParts): Route[] {
  return [
    route({
      method: 'POST',
      pattern: '/api/tenant',
      summary: 'Create a tenant with its default profile, or replace the one with the given id',
      roles: systemAdmin,
      body: tenantBody,
      answer: tenantShape,
      async handle({ body }) {
        const id = entityUuid(body.id);
        const input: TenantInput = { ...body, title: body.title ?? '' };
        return json(tenantJson(await (id ? saveTenant(parts, id, input) : createTenant(parts, input))));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/:tenantId',
      summary: 'A tenant',
      roles: authorities,
      answer: tenantShape,
      async handle({ principal, params }) {
        const id = uuid(params[0]!);
        const isVisible = principal.tenantId === null || principal.tenantId === id;
        const tenant = isVisible ? await findTenant(parts.postgres, id) : undefined;
        if (!tenant) throw entityNotFound('Tenant', id);
        return json(tenantJson(tenant));
      },
    }),
  ];
}

function tenantJson(tenant: Tenant): Type.Static<typeof tenantShape> {
  const { country, state, city, address, address2, zip, phone, email } = tenant;
  return {
    id: idJson('TENANT', tenant.id),
    createdTime: tenant.createdTime,
    title: tenant.title,
    name: tenant.title,
    region: tenant.region,
    ...{ country, state, city, address, address2, zip, phone, email },
    version: tenant.version,
    additionalInfo: tenant.additionalInfo,
  };
}
