/** Tenants (docs/rest.md#tenants): made by a system administrator, read by their own users. */

import { checkedContact, type Tenant } from '../admin/customer.ts';
import { findTenant, findTenants, listTenants } from '../admin/store.ts';
import { createTenant, deleteTenant, saveTenant, type TenantDeps, type TenantInput } from '../admin/tenants.ts';
import { administrators, entityNotFound, type Principal, systemAdmins, users } from '../auth/roles.ts';
import * as Type from '../base/schema.ts';
import { anything, reference, text, version } from '../rest/body.ts';
import { commaList, entityUuid, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds, nullable, pageJson, pageShape } from '../rest/shapes.ts';
import { contactBody, contactJson, contactShape, entityId, idJson } from './shapes.ts';

const tenantBody = Type.Object({
  id: reference,
  title: text,
  region: text,
  tenantProfileId: reference,
  ...contactBody,
  additionalInfo: anything,
  version,
});

const tenantShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    title: Type.String(),
    name: Type.String(),
    region: nullable(Type.String()),
    tenantProfileId: entityId,
    ...contactShape,
    version: Type.Integer(),
    additionalInfo: anyJson,
  },
  'Tenant',
);

const tenantInfoShape = closed({ ...tenantShape.properties, tenantProfileName: Type.String() }, 'TenantInfo');

export function tenantRoutes(deps: TenantDeps): Route[] {
  async function visibleTenant({ tenantId }: Principal, id: string): Promise<Tenant> {
    const isVisible = tenantId === null || tenantId === id;
    const tenant = isVisible ? await findTenant(deps.postgres, id) : undefined;
    if (!tenant) throw entityNotFound('Tenant', id);
    return tenant;
  }

  return [
    route({
      method: 'POST',
      pattern: '/api/tenant',
      summary: 'Create a tenant with its default device profile, or replace the one with the given id',
      roles: systemAdmins,
      body: tenantBody,
      answer: tenantShape,
      async handle({ body }) {
        const id = entityUuid(body.id);
        const input: TenantInput = {
          ...body,
          title: body.title ?? '',
          tenantProfileId: entityUuid(body.tenantProfileId),
        };
        return json(tenantJson(await (id ? saveTenant(deps, id, input) : createTenant(deps, input))));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/:tenantId',
      summary: 'A tenant; users of its customers do not see its contact data',
      roles: users,
      answer: tenantShape,
      async handle({ principal, params }) {
        const tenant = await visibleTenant(principal, params.tenantId);
        return json(tenantJson(principal.authority === 'CUSTOMER_USER' ? { ...tenant, ...noContact } : tenant));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/info/:tenantId',
      summary: 'A tenant, with the name of its profile',
      roles: administrators,
      answer: tenantInfoShape,
      async handle({ principal, params }) {
        return json(tenantInfoJson(await visibleTenant(principal, params.tenantId)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenants',
      summary: 'Tenants',
      roles: systemAdmins,
      query: pageQuery,
      answer: pageShape(tenantShape),
      handle: async ({ query }) => json(pageJson(await listTenants(deps.postgres, pageLink(query)), tenantJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenants/list',
      summary: 'Tenants by their ids; ids of no tenant are left out',
      roles: systemAdmins,
      query: Type.Object({ tenantIds: commaList(Type.String({ format: 'uuid' })) }),
      answer: Type.Array(tenantShape),
      handle: async ({ query }) => json((await findTenants(deps.postgres, query.tenantIds)).map(tenantJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantInfos',
      summary: 'Tenants, with the names of their profiles',
      roles: systemAdmins,
      query: pageQuery,
      answer: pageShape(tenantInfoShape),
      handle: async ({ query }) => json(pageJson(await listTenants(deps.postgres, pageLink(query)), tenantInfoJson)),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/tenant/:tenantId',
      summary: 'Delete a tenant with everything that it has: users, customers, profiles, devices and their data',
      roles: systemAdmins,
      async handle({ params }) {
        await deleteTenant(deps, params.tenantId);
        return empty;
      },
    }),
  ];
}

const noContact = checkedContact({});

function tenantJson(tenant: Tenant): Type.Static<typeof tenantShape> {
  return {
    id: idJson('TENANT', tenant.id),
    createdTime: tenant.createdTime,
    title: tenant.title,
    name: tenant.title,
    region: tenant.region,
    tenantProfileId: idJson('TENANT_PROFILE', tenant.profileId),
    ...contactJson(tenant),
    version: tenant.version,
    additionalInfo: tenant.additionalInfo,
  };
}

function tenantInfoJson(tenant: Tenant): Type.Static<typeof tenantInfoShape> {
  return { ...tenantJson(tenant), tenantProfileName: tenant.profileName };
}
