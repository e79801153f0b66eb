/** Tenant profiles (docs/rest.md#tenant-profiles): what tenants may use, as a system administrator manages it. */

import {
  findDefaultTenantProfile,
  findTenantProfile,
  findTenantProfilesById,
  listTenantProfiles,
  type TenantProfile,
} from '../admin/tenant-profile-store.ts';
import {
  createTenantProfile,
  deleteTenantProfile,
  makeDefaultTenantProfile,
  saveTenantProfile,
  type TenantProfileDeps,
  type TenantProfileInput,
} from '../admin/tenant-profiles.ts';
import { entityNotFound, systemAdmins } from '../auth/roles.ts';
import * as Type from '../base/schema.ts';
import { anything, flag, reference, text, version } from '../rest/body.ts';
import { commaList, entityUuid, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds, nullable, pageJson, pageShape } from '../rest/shapes.ts';
import { entityId, idJson } from './shapes.ts';

const profileBody = Type.Object({
  id: reference,
  name: text,
  description: text,
  default: flag,
  isolatedTbRuleEngine: flag,
  profileData: anything,
  version,
});

const profileShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    name: Type.String(),
    description: nullable(Type.String()),
    isolatedTbRuleEngine: Type.Boolean(),
    default: Type.Boolean(),
    profileData: closed({ configuration: anyJson, queueConfiguration: anyJson }, 'TenantProfileData'),
    version: Type.Integer(),
  },
  'TenantProfile',
);

const infoShape = closed({ id: entityId, name: Type.String() }, 'TenantProfileInfo');

export function tenantProfileRoutes(deps: TenantProfileDeps): Route[] {
  const { postgres } = deps;

  async function found(id: string): Promise<TenantProfile> {
    const profile = await findTenantProfile(postgres, id);
    if (!profile) throw entityNotFound('Tenant profile', id);
    return profile;
  }

  return [
    route({
      method: 'POST',
      pattern: '/api/tenantProfile',
      summary: 'Create a tenant profile, or replace the one with the given id',
      roles: systemAdmins,
      body: profileBody,
      answer: profileShape,
      async handle({ body }) {
        const id = entityUuid(body.id);
        const input: TenantProfileInput = {
          name: body.name ?? '',
          description: body.description,
          isDefault: body.default ?? false,
          isIsolated: body.isolatedTbRuleEngine ?? false,
          profileData: body.profileData,
          version: body.version,
        };
        return json(profileJson(await (id ? saveTenantProfile(deps, id, input) : createTenantProfile(deps, input))));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantProfile/:tenantProfileId',
      summary: 'A tenant profile',
      roles: systemAdmins,
      answer: profileShape,
      handle: async ({ params }) => json(profileJson(await found(params.tenantProfileId))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/tenantProfile/:tenantProfileId',
      summary: 'Delete a tenant profile that is not the default and that no tenant has',
      roles: systemAdmins,
      async handle({ params }) {
        await deleteTenantProfile(deps, params.tenantProfileId);
        return empty;
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/tenantProfile/:tenantProfileId/default',
      summary: 'Give new tenants this profile',
      roles: systemAdmins,
      answer: profileShape,
      async handle({ params }) {
        await makeDefaultTenantProfile(deps, params.tenantProfileId);
        return json(profileJson(await found(params.tenantProfileId)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantProfileInfo/default',
      summary: 'Id and name of the profile that new tenants get',
      roles: systemAdmins,
      answer: infoShape,
      handle: async () => json(infoJson(await findDefaultTenantProfile(postgres))),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantProfileInfo/:tenantProfileId',
      summary: 'Id and name of a tenant profile',
      roles: systemAdmins,
      answer: infoShape,
      handle: async ({ params }) => json(infoJson(await found(params.tenantProfileId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantProfiles',
      summary: 'Tenant profiles',
      roles: systemAdmins,
      query: pageQuery,
      answer: pageShape(profileShape),
      handle: async ({ query }) => json(pageJson(await listTenantProfiles(postgres, pageLink(query)), profileJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantProfiles/list',
      summary: 'Tenant profiles by their ids; ids of no profile are left out',
      roles: systemAdmins,
      query: Type.Object({ ids: commaList(Type.String({ format: 'uuid' })) }),
      answer: Type.Array(profileShape),
      handle: async ({ query }) => json((await findTenantProfilesById(postgres, query.ids)).map(profileJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenantProfileInfos',
      summary: 'Ids and names of tenant profiles',
      roles: systemAdmins,
      query: pageQuery,
      answer: pageShape(infoShape),
      handle: async ({ query }) => json(pageJson(await listTenantProfiles(postgres, pageLink(query)), infoJson)),
    }),
  ];
}

function profileJson(profile: TenantProfile): Type.Static<typeof profileShape> {
  return {
    id: idJson('TENANT_PROFILE', profile.id),
    createdTime: profile.createdTime,
    name: profile.name,
    description: profile.description,
    isolatedTbRuleEngine: false,
    default: profile.isDefault,
    profileData: profile.profileData,
    version: profile.version,
  };
}

/** Returns what ThingsBoard calls `EntityInfo`: an id and a name. */
function infoJson({ id, name }: TenantProfile): Type.Static<typeof infoShape> {
  return { id: idJson('TENANT_PROFILE', id), name };
}
