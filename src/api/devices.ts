/** Devices, their lists and their credentials (docs/rest.md#devices, docs/rest.md#credentials). */

import { type CredentialsDeps, saveCredentials, visibleCredentials } from '../admin/credentials.ts';
import {
  type ChangedDeviceDeps,
  createDevice,
  type DeviceInput,
  deleteDevice,
  type NewDeviceDeps,
  saveDevice,
  saveDeviceWithCredentials,
} from '../admin/devices.ts';
import {
  entityNotFound,
  type Principal,
  permissionDenied,
  requireCustomerOf,
  requireTenant,
  tenantAdmins,
  tenantReaders,
  tenantUsers,
} from '../auth/roles.ts';
import { badRequest, notFound } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import type { DeviceFilter } from '../device/list/list-filter-store.ts';
import { listDevices } from '../device/list/list-store.ts';
import { checkedCredentials, type NewCredentials, tokenCredentials } from '../device/model/credentials.ts';
import { credentialsTypes, type DeviceInfo } from '../device/model/device.ts';
import { findDevice, findDeviceByName, findDevices, hasCustomer } from '../device/sql/store.ts';
import { anything, reference, text, version } from '../rest/body.ts';
import { commaList, entityUuid, missing, oneOf, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { pageJson, pageShape } from '../rest/shapes.ts';
import { conflictQuery, nameConflict } from './queries.ts';
import {
  credentialsJson,
  credentialsShape,
  deviceInfoJson,
  deviceInfoShape,
  deviceJson,
  deviceShape,
} from './shapes.ts';

const deviceBody = Type.Object({
  id: reference,
  name: text,
  type: text,
  label: text,
  customerId: reference,
  deviceProfileId: reference,
  deviceData: anything,
  firmwareId: reference,
  softwareId: reference,
  externalId: reference,
  additionalInfo: anything,
  version,
});

const credentialsBody = Type.Object({
  id: reference,
  deviceId: reference,
  credentialsType: text,
  credentialsId: text,
  credentialsValue: text,
  version,
});

const listQuery = Type.Object({
  ...pageQuery.properties,
  type: Type.Optional(Type.String()),
  deviceProfileId: Type.Optional(Type.String({ format: 'uuid' })),
  active: Type.Optional(Type.Boolean()),
});

export interface DeviceRoutesDeps extends NewDeviceDeps, ChangedDeviceDeps, CredentialsDeps {}

export function deviceRoutes(deps: DeviceRoutesDeps): Route[] {
  const { postgres } = deps;

  /** Returns the device that a path names, if the caller may see it. */
  async function visibleDevice(principal: Principal, id: string): Promise<DeviceInfo> {
    const { tenantId } = requireTenant(principal);
    const device = await findDevice(postgres, tenantId, id);
    if (!device) throw entityNotFound('Device', id);
    requireCustomerOf(principal, device.customerId);
    return device;
  }

  async function deviceNamed(principal: Principal, name: string) {
    const { tenantId } = requireTenant(principal);
    const device = await findDeviceByName(postgres, tenantId, name);
    if (!device) throw notFound("Requested item wasn't found!");
    return json(deviceJson(device));
  }

  async function list(principal: Principal, query: Type.Static<typeof listQuery>, customerId?: string) {
    const { tenantId } = requireTenant(principal);
    const { type, active, deviceProfileId: profileId } = query;
    const filter: DeviceFilter = { tenantId, customerId, type, profileId, active };
    return await listDevices(postgres, filter, pageLink(query));
  }

  /** Throws unless the caller may see the devices of the customer that a path names. */
  async function requireCustomer(principal: Principal, customerId: string): Promise<void> {
    const { tenantId } = requireTenant(principal);
    if (!(await hasCustomer(postgres, tenantId, customerId))) throw entityNotFound('Customer', customerId);
    requireCustomerOf(principal, customerId);
  }

  return [
    route({
      method: 'GET',
      pattern: '/api/device/:deviceId',
      summary: 'A device',
      roles: tenantReaders,
      answer: deviceShape,
      handle: async ({ principal, params }) => json(deviceJson(await visibleDevice(principal, params.deviceId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/device/info/:deviceId',
      summary: 'A device with the names of its customer and profile',
      roles: tenantReaders,
      answer: deviceInfoShape,
      handle: async ({ principal, params }) => json(deviceInfoJson(await visibleDevice(principal, params.deviceId))),
    }),
    route({
      method: 'POST',
      pattern: '/api/device',
      summary: 'Create a device, or replace the one with the given id',
      roles: tenantUsers,
      query: Type.Object({ accessToken: Type.Optional(Type.String()), ...conflictQuery.properties }),
      body: deviceBody,
      answer: deviceShape,
      async handle({ principal, query, body }) {
        const caller = requireTenant(principal);
        const { tenantId } = caller;
        const id = entityUuid(body.id);
        const input = deviceInput(body);
        if (id === null) {
          if (principal.authority !== 'TENANT_ADMIN') throw permissionDenied();
          const credentials = query.accessToken ? tokenCredentials(query.accessToken) : undefined;
          return json(deviceJson(await createDevice(deps, tenantId, input, credentials, nameConflict(query))));
        }
        return json(deviceJson(await saveDevice(deps, caller, id, input)));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/device-with-credentials',
      summary: 'Create a device with given credentials, or replace the one with the given id and its credentials',
      roles: tenantAdmins,
      query: conflictQuery,
      body: Type.Object({ device: deviceBody, credentials: credentialsBody }),
      answer: deviceShape,
      async handle({ principal, query, body }) {
        const caller = requireTenant(principal);
        const { tenantId } = caller;
        const id = entityUuid(body.device.id);
        const credentials = credentialsInput(body.credentials);
        const input = deviceInput(body.device);
        const saved = await (id
          ? saveDeviceWithCredentials(deps, caller, id, input, credentials)
          : createDevice(deps, tenantId, input, credentials, nameConflict(query)));
        return json(deviceJson(saved));
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/device/:deviceId',
      summary: 'Delete a device with its credentials and its data',
      roles: tenantAdmins,
      async handle({ principal, params }) {
        await deleteDevice(deps, requireTenant(principal).tenantId, params.deviceId);
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/device/:deviceId/credentials',
      summary: 'The credentials of a device',
      roles: tenantUsers,
      answer: credentialsShape,
      async handle({ principal, params }) {
        return json(credentialsJson(await visibleCredentials(postgres, principal, params.deviceId)));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/device/credentials',
      summary: 'Replace the credentials of a device',
      roles: tenantAdmins,
      body: credentialsBody,
      answer: credentialsShape,
      async handle({ principal, body }) {
        const { tenantId } = requireTenant(principal);
        const [id, deviceId] = [entityUuid(body.id), entityUuid(body.deviceId)];
        if (deviceId === null) throw badRequest('entity_id', 'Invalid entity id');
        if (id === null) {
          throw badRequest('credentials_unknown', 'Unable to update non-existent device credentials!');
        }
        const input = { id, deviceId, credentials: credentialsInput(body), version: body.version };
        return json(credentialsJson(await saveCredentials(deps, tenantId, input)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/devices',
      summary: 'Devices of the tenant; with `deviceName` the one device of that name',
      roles: tenantAdmins,
      query: Type.Object({ ...Type.Partial(listQuery).properties, deviceName: Type.Optional(Type.String()) }),
      answer: Type.Union([pageShape(deviceShape), deviceShape]),
      async handle({ principal, query: { deviceName, ...query } }) {
        if (deviceName !== undefined) return await deviceNamed(principal, deviceName);
        const { pageSize, page } = query;
        if (pageSize === undefined) throw missing('pageSize');
        if (page === undefined) throw missing('page');
        return json(pageJson(await list(principal, { ...query, pageSize, page }), deviceJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/device',
      summary: 'The device of a name',
      roles: tenantAdmins,
      query: Type.Object({ deviceName: Type.String({ minLength: 1 }) }),
      answer: deviceShape,
      handle: ({ principal, query }) => deviceNamed(principal, query.deviceName),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/deviceInfos',
      summary: 'Devices of the tenant with the names of their customers and profiles',
      roles: tenantAdmins,
      query: listQuery,
      answer: pageShape(deviceInfoShape),
      handle: async ({ principal, query }) => json(pageJson(await list(principal, query), deviceInfoJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/devices',
      summary: 'Devices of a customer',
      roles: tenantReaders,
      query: listQuery,
      answer: pageShape(deviceShape),
      async handle({ principal, params: { customerId }, query }) {
        await requireCustomer(principal, customerId);
        return json(pageJson(await list(principal, query, customerId), deviceJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/deviceInfos',
      summary: 'Devices of a customer with the names of their profiles',
      roles: tenantReaders,
      query: listQuery,
      answer: pageShape(deviceInfoShape),
      async handle({ principal, params: { customerId }, query }) {
        await requireCustomer(principal, customerId);
        return json(pageJson(await list(principal, query, customerId), deviceInfoJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/devices',
      summary: 'Devices by their ids',
      roles: tenantReaders,
      query: Type.Object({ deviceIds: commaList(Type.String({ format: 'uuid' })) }),
      answer: Type.Array(deviceShape),
      async handle({ principal, query }) {
        const { tenantId } = requireTenant(principal);
        const devices = await findDevices(postgres, tenantId, query.deviceIds);
        const isOwn = principal.authority === 'TENANT_ADMIN';
        return json(devices.filter((device) => isOwn || device.customerId === principal.customerId).map(deviceJson));
      },
    }),
  ];
}

function deviceInput(body: Type.Static<typeof deviceBody>): DeviceInput {
  return {
    name: body.name ?? '',
    type: body.type,
    label: body.label,
    profileId: entityUuid(body.deviceProfileId),
    customerId: entityUuid(body.customerId),
    deviceData: body.deviceData,
    firmwareId: entityUuid(body.firmwareId),
    softwareId: entityUuid(body.softwareId),
    externalId: entityUuid(body.externalId),
    additionalInfo: body.additionalInfo,
    version: body.version,
  };
}

function credentialsInput(body: Type.Static<typeof credentialsBody>): NewCredentials {
  if (!body.credentialsType) throw badRequest('credentials_type', 'Device credentials type should be specified');
  const type = oneOf('credentialsType', body.credentialsType, credentialsTypes, 'ACCESS_TOKEN');
  return checkedCredentials(type, body.credentialsId ?? '', body.credentialsValue ?? null);
}
