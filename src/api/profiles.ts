/** Device profiles (docs/rest.md#device-profiles). */

import { issuersOf, proveIssuer } from '../admin/issuers.ts';
import type { ProfileInput } from '../admin/profile-input.ts';
import { createProfile, deleteProfile, type ProfileDeps, saveProfile, setDefaultProfile } from '../admin/profiles.ts';
import { readKeysOfDevices } from '../attributes/store.ts';
import {
  entityNotFound,
  type Principal,
  requireTenant,
  type TenantPrincipal,
  tenantAdmins,
  tenantReaders,
} from '../auth/roles.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { type FullProfile, provisionTypes, transportTypes } from '../device/model/device.ts';
import { issuerStates } from '../device/sql/issuer-store.ts';
import {
  findDeviceNumbers,
  findFullDefaultProfile,
  findFullProfile,
  findProfiles,
  listProfileNames,
  listProfiles,
} from '../device/sql/profile-store.ts';
import { countRolloutDevices } from '../ota/rollout-store.ts';
import { flag, reference, text, version } from '../rest/body.ts';
import { commaList, entityUuid, missing, oneOf, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds, nullable, pageJson, pageShape } from '../rest/shapes.ts';
import { readLatestKeysOf } from '../telemetry/latest.ts';
import { entityId, idJson } from './shapes.ts';

export interface ProfileRoutesDeps extends ProfileDeps {
  shards: Shards;
}

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
  profileData: Type.Optional(
    Type.Unknown({
      description:
        'Any JSON; kept as it is, a number as a 64-bit float. otaRollout: the pace of packages (perMinute, percent, paused). telemetryTtlDays: days for which telemetry of the devices is kept, 0 to 36500; 0 or absent = as long as the installation keeps telemetry',
    }),
  ),
  defaultRuleChainId: reference,
  defaultDashboardId: reference,
  defaultQueueName: text,
  defaultEdgeRuleChainId: reference,
  firmwareId: reference,
  softwareId: reference,
  externalId: reference,
  version,
  issuerProof: Type.Optional(
    Type.Union([
      Type.Object(
        { nonce: Type.String(), signature: Type.String({ minLength: 1 }) },
        {
          description:
            'Proves at once that the caller holds the key of the issuer in provisionDeviceSecret. The nonce is "millrace-issuer-proof:", the id of the tenant, ":" and 32 to 128 letters, digits, "-" or "_"; the signature of it is base64',
        },
      ),
      Type.Null(),
    ]),
  ),
});

const profileShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    tenantId: entityId,
    name: Type.String(),
    description: nullable(Type.String()),
    image: nullable(Type.String()),
    default: Type.Boolean(),
    type: Type.String(),
    transportType: Type.Enum(transportTypes),
    provisionType: Type.Enum(provisionTypes),
    defaultRuleChainId: nullable(entityId),
    defaultDashboardId: nullable(entityId),
    defaultQueueName: nullable(Type.String()),
    profileData: anyJson,
    provisionDeviceKey: nullable(Type.String()),
    firmwareId: nullable(entityId),
    softwareId: nullable(entityId),
    defaultEdgeRuleChainId: nullable(entityId),
    externalId: nullable(entityId),
    version: Type.Integer(),
  },
  'DeviceProfile',
);

const profileInfoShape = closed(
  {
    id: entityId,
    name: Type.String(),
    image: nullable(Type.String()),
    defaultDashboardId: nullable(entityId),
    type: Type.String(),
    transportType: Type.Enum(transportTypes),
    tenantId: entityId,
  },
  'DeviceProfileInfo',
);

const issuerShape = closed(
  {
    profileId: Type.String({ format: 'uuid' }),
    name: Type.String(),
    /** EARLIER: saved before proofs were required, and in force as long as no profile of another tenant matches. */
    state: Type.Enum(issuerStates),
    nonce: Type.String(),
  },
  'DeviceProfileIssuer',
);
const proofBody = Type.Object({ signature: Type.String({ minLength: 1 }) });

const listQuery = Type.Object({
  ...pageQuery.properties,
  transportType: Type.Optional(Type.Enum(transportTypes)),
});
const idsQuery = Type.Object({ deviceProfileIds: commaList(Type.String({ format: 'uuid' })) });
const keysQuery = Type.Object({ deviceProfileId: Type.Optional(Type.String({ format: 'uuid' })) });

export function profileRoutes(deps: ProfileRoutesDeps): Route[] {
  const { postgres, shards } = deps;

  async function profileOf(caller: TenantPrincipal, id: string): Promise<FullProfile> {
    const profile = await findFullProfile(postgres, caller.tenantId, id);
    if (!profile) throw entityNotFound('Device profile', id);
    return profile;
  }

  async function page(
    principal: Principal,
    query: Type.Static<typeof listQuery>,
    item: (profile: FullProfile) => unknown,
  ) {
    const { tenantId } = requireTenant(principal);
    const filter = { tenantId, transportType: query.transportType };
    return json(pageJson(await listProfiles(postgres, filter, pageLink(query)), item));
  }

  /** Profiles of other tenants are left out silently. */
  async function named(principal: Principal, ids: string[]) {
    const { tenantId } = requireTenant(principal);
    return json((await findProfiles(postgres, tenantId, ids)).map(profileInfoJson));
  }

  /** Returns the numbers of the devices whose keys are requested. */
  async function devicesOf(principal: Principal, id: string | undefined): Promise<number[]> {
    const caller = requireTenant(principal);
    const profile = id ? await profileOf(caller, id) : undefined;
    return await findDeviceNumbers(postgres, caller.tenantId, profile?.id, limits.keySampleDevicesMax);
  }

  return [
    route({
      method: 'POST',
      pattern: '/api/deviceProfile',
      summary: 'Create a device profile, or replace the one with the given id',
      roles: tenantAdmins,
      body: profileBody,
      answer: profileShape,
      async handle({ principal, body }) {
        const { tenantId } = requireTenant(principal);
        const id = entityUuid(body.id);
        const input = profileInput(body);
        const saved = await (id ? saveProfile(deps, tenantId, id, input) : createProfile(deps, tenantId, input));
        return json(profileJson(saved));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/:profileId',
      summary: 'A device profile',
      roles: tenantAdmins,
      answer: profileShape,
      handle: async ({ principal, params }) =>
        json(profileJson(await profileOf(requireTenant(principal), params.profileId))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/deviceProfile/:profileId',
      summary: 'Delete a device profile that no device has',
      roles: tenantAdmins,
      async handle({ principal, params }) {
        await deleteProfile(postgres, requireTenant(principal).tenantId, params.profileId);
        return empty;
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/deviceProfile/:profileId/default',
      summary: 'Make a device profile the default one',
      roles: tenantAdmins,
      answer: profileShape,
      handle: async ({ principal, params }) =>
        json(profileJson(await setDefaultProfile(postgres, requireTenant(principal).tenantId, params.profileId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/issuers',
      summary:
        'Issuers of device certificates in profiles, whether their keys are proven, and what such a key has to sign',
      roles: tenantAdmins,
      query: pageQuery,
      answer: pageShape(issuerShape),
      handle: async ({ principal, query }) =>
        json(
          pageJson(await issuersOf(postgres, requireTenant(principal).tenantId, pageLink(query)), (issuer) => issuer),
        ),
    }),
    route({
      method: 'POST',
      pattern: '/api/deviceProfile/:profileId/issuerProof',
      summary: 'Proves that the caller holds the key of the issuer: its signature of the nonce, as base64',
      roles: tenantAdmins,
      body: proofBody,
      answer: issuerShape,
      handle: async ({ principal, params, body }) =>
        json(await proveIssuer(postgres, requireTenant(principal).tenantId, params.profileId, body.signature)),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfiles',
      summary: 'Device profiles',
      roles: tenantAdmins,
      query: listQuery,
      answer: pageShape(profileShape),
      handle: ({ principal, query }) => page(principal, query, profileJson),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfos',
      summary: 'Device profiles in short; with `deviceProfileIds` an array of those',
      roles: tenantReaders,
      query: Type.Partial(Type.Object({ ...listQuery.properties, ...idsQuery.properties })),
      answer: Type.Union([pageShape(profileInfoShape), Type.Array(profileInfoShape)]),
      async handle({ principal, query: { deviceProfileIds, ...query } }) {
        if (deviceProfileIds) return await named(principal, deviceProfileIds);
        const { pageSize, page: number } = query;
        if (pageSize === undefined) throw missing('pageSize');
        if (number === undefined) throw missing('page');
        return await page(principal, { ...query, pageSize, page: number }, profileInfoJson);
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfos/list',
      summary: 'Device profiles in short, by their ids',
      roles: tenantReaders,
      query: idsQuery,
      answer: Type.Array(profileInfoShape),
      handle: ({ principal, query }) => named(principal, query.deviceProfileIds),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfileInfo/default',
      summary: 'The default device profile in short',
      roles: tenantReaders,
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
      roles: tenantReaders,
      answer: profileInfoShape,
      handle: async ({ principal, params }) =>
        json(profileInfoJson(await profileOf(requireTenant(principal), params.profileId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/:profileId/otaRollout',
      summary: 'How many devices of a profile wait for the notification of its packages',
      roles: tenantAdmins,
      answer: closed({ waiting: Type.Integer() }, 'OtaRollout'),
      async handle({ principal, params }) {
        const { id } = await profileOf(requireTenant(principal), params.profileId);
        return json({ waiting: await countRolloutDevices(postgres, id) });
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/names',
      summary: 'Names of the device profiles',
      roles: tenantReaders,
      query: Type.Object({ activeOnly: Type.Optional(Type.Boolean()) }),
      answer: Type.Array(closed({ id: entityId, name: Type.String() }, 'EntityName')),
      async handle({ principal, query }) {
        const { tenantId } = requireTenant(principal);
        const names = await listProfileNames(postgres, tenantId, query.activeOnly ?? false);
        return json(names.map(({ id, name }) => ({ id: idJson('DEVICE_PROFILE', id), name })));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/devices/keys/timeseries',
      summary: 'Telemetry keys of the newest devices of a profile, or of all',
      roles: tenantAdmins,
      readsTelemetry: true,
      query: keysQuery,
      answer: Type.Array(Type.String()),
      handle: async ({ principal, query }) =>
        json(
          await readLatestKeysOf(shards.readsOf(principal.tenantId), await devicesOf(principal, query.deviceProfileId)),
        ),
    }),
    route({
      method: 'GET',
      pattern: '/api/deviceProfile/devices/keys/attributes',
      summary: 'Attribute keys of the newest devices of a profile, or of all',
      roles: tenantAdmins,
      query: keysQuery,
      answer: Type.Array(Type.String()),
      handle: async ({ principal, query }) =>
        json(await readKeysOfDevices(postgres, await devicesOf(principal, query.deviceProfileId))),
    }),
  ];
}

function profileInput(body: Type.Static<typeof profileBody>): ProfileInput {
  oneOf('type', body.type, ['DEFAULT'], 'DEFAULT');
  return {
    name: body.name ?? '',
    description: body.description,
    image: body.image,
    isDefault: body.default,
    transportType: oneOf('transportType', body.transportType, transportTypes, 'DEFAULT'),
    provisionType: oneOf('provisionType', body.provisionType, provisionTypes, 'DISABLED'),
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
    issuerProof: body.issuerProof ?? undefined,
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
