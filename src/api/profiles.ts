/** Device profiles (rest.md 3.4). */
import Type from 'typebox';
import { readKeysOfDevices } from '../attributes/store.ts';
import { type Authority, entityNotFound, requireTenant, type TenantPrincipal } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { type FullProfile, provisionTypes, transportTypes } from '../device/device.ts';
import {
  findDeviceNumbers,
  findFullDefaultProfile,
  findFullProfile,
  findProfiles,
  listProfileNames,
  listProfiles,
} from '../device/profile-store.ts';
import type { FleetParts } from '../fleet/parts.ts';
import { createProfile, deleteProfile, type ProfileInput, saveProfile, setDefaultProfile } from '../fleet/profiles.ts';
import { readLatestKeysOf } from '../telemetry/latest.ts';
import { anything, flag, reference, text, version } from './body.ts';
import { entityUuid, oneOf, optionalBoolean, pageLink, pageQuery, required, uuid } from './parameters.ts';
import { type Call, empty, json, type Route, route } from './route.ts';
import { entityId, idJson, nullable, pageJson, pageShape } from './shapes.ts';

export interface ProfileRoutesParts extends FleetParts {
  clickhouse: ClickHouse;
}

const admin: Authority[] = ['TENANT_ADMIN'];
const adminAndCustomer: Authority[] = ['TENANT_ADMIN', 'CUSTOMER_USER'];

const profileBody = Type.Object({
  id: reference,
  name: text,
  description: text,
  image: text,
  default: flag,
  type: text,
  transportType: text,
  provisionType: text,
  provisionDeviceKey: text,
  profileData: anything,
  defaultRuleChainId: reference,
  defaultDashboardId: reference,
  defaultQueueName: text,
  defaultEdgeRuleChainId: reference,
  firmwareId: reference,
  softwareId: reference,
  externalId: reference,
  version,
});

const profileShape = Type.Object({
  id: entityId,
  createdTime: Type.Integer(),
  tenantId: entityId,
  name: Type.String(),
  description: nullable(Type.String()),
  image: nullable(Type.String()),
  default: Type.Boolean(),
  type: Type.String(),
  transportType: Type.Enum([...transportTypes]),
  provisionType: Type.Enum([...provisionTypes]),
  defaultRuleChainId: nullable(entityId),
  defaultDashboardId: nullable(entityId),
  defaultQueueName: nullable(Type.String()),
  profileData: Type.Unknown(),
  provisionDeviceKey: nullable(Type.String()),
  firmwareId: nullable(entityId),
  softwareId: nullable(entityId),
  defaultEdgeRuleChainId: nullable(entityId),
  externalId: nullable(entityId),
  version: Type.Integer(),
});

const profileInfoShape = Type.Object({
  id: entityId,
  name: Type.String(),
  image: nullable(Type.String()),
  defaultDashboardId: nullable(entityId),
  type: Type.String(),
  transportType: Type.Enum([...transportTypes]),
  tenantId: entityId,
});

const listQuery = Type.Object({ ...pageQuery.properties, transportType: Type.Optional(Type.String()) });
const keysQuery = Type.Object({ deviceProfileId: Type.Optional(Type.String()) });

export function profileRoutes(parts: ProfileRoutesParts): Route[] {
  const { postgres, clickhouse } = parts;

  async function profileOf(caller: TenantPrincipal, id: string): Promise<FullProfile> {
    const profile = await findFullProfile(postgres, caller.tenantId, uuid(id));
    if (!profile) throw entityNotFound('Device profile', uuid(id));
    return profile;
  }

  async function page({ principal, query }: Call, item: (profile: FullProfile) => unknown) {
    const { tenantId } = requireTenant(principal);
    const given = query.get('transportType');
    const transportType = given ? oneOf('transportType', given, transportTypes, 'DEFAULT') : undefined;
    return json(pageJson(await listProfiles(postgres, { tenantId, transportType }, pageLink(query)), item));
  }

  /** Those of other tenants are left out without a word. */
  async function named({ principal, query }: Call) {
    const { tenantId } = requireTenant(principal);
    const ids = required(query, 'deviceProfileIds').split(',').map(uuid);
    if (ids.length > limits.listedKeysMax) {
      throw badRequest('ids', `At most ${limits.listedKeysMax} profiles can be asked for at once.`);
    }
    return json((await findProfiles(postgres, tenantId, ids)).map(profileInfoJson));
  }

  /** Numbers of the devices whose keys are asked for. */
  async function devicesOf({ principal, query }: Call): Promise<number[]> {
    const caller = requireTenant(principal);
    const id = query.get('deviceProfileId');
    const profile = id ? await profileOf(caller, id) : undefined;
    return await findDeviceNumbers(postgres, caller.tenantId, profile?.id, limits.keySampleDevicesMax);
  }

  return [
    route({
      method: 'POST',
      pattern: '/api/deviceProfile',
      summary: 'Create a device profile, or replace the one with the given id',
      roles: admin,
      body: profileBody,
      answer: profileShape,
      async handle({ principal, body }) {
        const { tenantId } = requireTenant(principal);
        const id = entityUuid(body.id);
        const input = profileInput(body);
        const saved = await (id ? saveProfile(parts, tenantId, id, input) : createProfile(parts, tenantId, input));
        return json(profileJson(saved));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/:profileId',
      summary: 'A device profile',
      roles: admin,
      answer: profileShape,
      handle: async ({ principal, params }) => json(profileJson(await profileOf(requireTenant(principal), params[0]!))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/deviceProfile/:profileId',
      summary: 'Delete a device profile that no device has',
      roles: admin,
      async handle({ principal, params }) {
        await deleteProfile(parts, requireTenant(principal).tenantId, uuid(params[0]!));
        return empty;
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/deviceProfile/:profileId/default',
      summary: 'Make a device profile the default one',
      roles: admin,
      answer: profileShape,
      handle: async ({ principal, params }) =>
        json(profileJson(await setDefaultProfile(parts, requireTenant(principal).tenantId, uuid(params[0]!)))),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfiles',
      summary: 'Device profiles',
      roles: admin,
      query: listQuery,
      answer: pageShape(profileShape),
      handle: (call) => page(call, profileJson),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfos',
      summary: 'Device profiles in short; with `deviceProfileIds` an array of those',
      roles: adminAndCustomer,
      query: Type.Object({ ...listQuery.properties, deviceProfileIds: Type.Optional(Type.String()) }),
      answer: pageShape(profileInfoShape),
      handle: (call) => (call.query.has('deviceProfileIds') ? named(call) : page(call, profileInfoJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfos/list',
      summary: 'Device profiles in short, by their ids',
      roles: adminAndCustomer,
      query: Type.Object({ deviceProfileIds: Type.String() }),
      answer: Type.Array(profileInfoShape),
      handle: named,
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfo/default',
      summary: 'The default device profile in short',
      roles: adminAndCustomer,
      answer: profileInfoShape,
      async handle({ principal }) {
        const profile = await findFullDefaultProfile(postgres, requireTenant(principal).tenantId);
        if (!profile) throw entityNotFound('Device profile', 'default');
        return json(profileInfoJson(profile));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfo/:profileId',
      summary: 'A device profile in short',
      roles: adminAndCustomer,
      answer: profileInfoShape,
      handle: async ({ principal, params }) =>
        json(profileInfoJson(await profileOf(requireTenant(principal), params[0]!))),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/names',
      summary: 'Names of the device profiles',
      roles: adminAndCustomer,
      query: Type.Object({ activeOnly: Type.Optional(Type.Boolean()) }),
      answer: Type.Array(Type.Object({ id: entityId, name: Type.String() })),
      async handle({ principal, query }) {
        const { tenantId } = requireTenant(principal);
        const names = await listProfileNames(postgres, tenantId, optionalBoolean(query, 'activeOnly', false));
        return json(names.map(({ id, name }) => ({ id: idJson('DEVICE_PROFILE', id), name })));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/devices/keys/timeseries',
      summary: 'Telemetry keys of the newest devices of a profile, or of all',
      roles: admin,
      query: keysQuery,
      answer: Type.Array(Type.String()),
      handle: async (call) => json(await readLatestKeysOf(clickhouse, await devicesOf(call))),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/devices/keys/attributes',
      summary: 'Attribute keys of the newest devices of a profile, or of all',
      roles: admin,
      query: keysQuery,
      answer: Type.Array(Type.String()),
      handle: async (call) => json(await readKeysOfDevices(postgres, await devicesOf(call))),
    }),
  ];
}

function profileInput(body: Type.Static<typeof profileBody>): ProfileInput {
  oneOf('type', body.type ?? null, ['DEFAULT'], 'DEFAULT');
  return {
    name: body.name ?? '',
    description: body.description,
    image: body.image,
    isDefault: body.default,
    transportType: oneOf('transportType', body.transportType ?? null, transportTypes, 'DEFAULT'),
    provisionType: oneOf('provisionType', body.provisionType ?? null, provisionTypes, 'DISABLED'),
    provisionKey: body.provisionDeviceKey,
    data: body.profileData,
    defaultRuleChainId: entityUuid(body.defaultRuleChainId),
    defaultDashboardId: entityUuid(body.defaultDashboardId),
    defaultQueueName: body.defaultQueueName,
    defaultEdgeRuleChainId: entityUuid(body.defaultEdgeRuleChainId),
    firmwareId: entityUuid(body.firmwareId),
    softwareId: entityUuid(body.softwareId),
    externalId: entityUuid(body.externalId),
    version: body.version,
  };
}

function profileJson(profile: FullProfile): Type.Static<typeof profileShape> {
  return {
    id: idJson('DEVICE_PROFILE', profile.id),
    createdTime: profile.createdTime,
    tenantId: idJson('TENANT', profile.tenantId),
    name: profile.name,
    description: profile.description,
    image: profile.image,
    default: profile.isDefault,
    type: 'DEFAULT',
    transportType: profile.transportType,
    provisionType: profile.provisionType,
    defaultRuleChainId: profile.defaultRuleChainId ? idJson('RULE_CHAIN', profile.defaultRuleChainId) : null,
    defaultDashboardId: profile.defaultDashboardId ? idJson('DASHBOARD', profile.defaultDashboardId) : null,
    defaultQueueName: profile.defaultQueueName,
    profileData: profile.data,
    provisionDeviceKey: profile.provisionKey,
    firmwareId: profile.firmwareId ? idJson('OTA_PACKAGE', profile.firmwareId) : null,
    softwareId: profile.softwareId ? idJson('OTA_PACKAGE', profile.softwareId) : null,
    defaultEdgeRuleChainId: profile.defaultEdgeRuleChainId
      ? idJson('RULE_CHAIN', profile.defaultEdgeRuleChainId)
      : null,
    externalId: profile.externalId ? idJson('DEVICE_PROFILE', profile.externalId) : null,
    version: profile.version,
  };
}

function profileInfoJson(profile: FullProfile): Type.Static<typeof profileInfoShape> {
  const { id, name, image, defaultDashboardId, type, transportType, tenantId } = profileJson(profile);
  return { id, name, image, defaultDashboardId, type, transportType, tenantId };
}
