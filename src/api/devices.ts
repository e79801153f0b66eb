/** Devices, their lists and their credentials (rest.md 3.1, 3.2). */
import Type from 'typebox';
import {
  type Authority,
  entityNotFound,
  type Principal,
  permissionDenied,
  requireCustomerOf,
  requireTenant,
} from '../auth/roles.ts';
import { badRequest, notFound } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { checkedCredentials, type NewCredentials, tokenCredentials } from '../device/credentials.ts';
import { credentialsTypes, type DeviceInfo } from '../device/device.ts';
import {
  type DeviceFilter,
  findCredentials,
  findDevice,
  findDeviceByName,
  findDevices,
  hasCustomer,
  listDevices,
} from '../device/store.ts';
import { saveCredentials } from '../fleet/credentials.ts';
import { createDevice, type DeviceInput, deleteDevice, type NameConflict, saveDevice } from '../fleet/devices.ts';
import type { FleetParts } from '../fleet/parts.ts';
import { reference, text, version } from './body.ts';
import { entityUuid, oneOf, pageLink, pageQuery, required, uuid } from './parameters.ts';
import { type Call, empty, json, type Route, route } from './route.ts';
import {
  credentialsJson,
  credentialsShape,
  deviceInfoJson,
  deviceInfoShape,
  deviceJson,
  deviceShape,
  pageJson,
  pageShape,
} from './shapes.ts';

const admin: Authority[] = ['TENANT_ADMIN'];
const adminAndCustomer: Authority[] = ['TENANT_ADMIN', 'CUSTOMER_USER'];

const deviceBody = Type.Object({
  id: reference,
  name: text,
  type: text,
  label: text,
  customerId: reference,
  deviceProfileId: reference,
  deviceData: Type.Optional(Type.Unknown()),
  firmwareId: reference,
  softwareId: reference,
  externalId: reference,
  additionalInfo: Type.Optional(Type.Unknown()),
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

const conflictQuery = {
  nameConflictPolicy: Type.Optional(Type.Enum(['FAIL', 'UNIQUIFY'])),
  uniquifySeparator: Type.Optional(Type.String()),
  uniquifyStrategy: Type.Optional(Type.Enum(['RANDOM', 'INCREMENTAL'])),
};

const listQuery = Type.Object({
  ...pageQuery.properties,
  type: Type.Optional(Type.String()),
  deviceProfileId: Type.Optional(Type.String()),
  active: Type.Optional(Type.Boolean()),
});

export function deviceRoutes(fleet: FleetParts): Route[] {
  const { postgres } = fleet;

  /** The device that a path names, if the caller may see it. */
  async function visibleDevice(principal: Principal, id: string): Promise<DeviceInfo> {
    const { tenantId } = requireTenant(principal);
    const device = await findDevice(postgres, tenantId, uuid(id));
    if (!device) throw entityNotFound('Device', uuid(id));
    requireCustomerOf(principal, device.customerId);
    return device;
  }

  async function deviceNamed(principal: Principal, name: string) {
    const { tenantId } = requireTenant(principal);
    const device = name.includes('\0') ? undefined : await findDeviceByName(postgres, tenantId, name);
    if (!device) throw notFound("Requested item wasn't found!");
    return json(deviceJson(device));
  }

  async function list({ principal, query }: Call, customerId: string | undefined) {
    const { tenantId } = requireTenant(principal);
    const profileId = query.get('deviceProfileId');
    const type = query.get('type')?.replaceAll('\0', '') || undefined;
    const active = query.get('active');
    const filter: DeviceFilter = {
      tenantId,
      customerId,
      type,
      profileId: profileId ? uuid(profileId) : undefined,
      active: active ? oneOf('active', active, ['true', 'false'], 'true') === 'true' : undefined,
    };
    return await listDevices(postgres, filter, pageLink(query));
  }

  /** The customer that a path names, if the caller may see its devices. */
  async function visibleCustomer(principal: Principal, id: string): Promise<string> {
    const { tenantId } = requireTenant(principal);
    const customerId = uuid(id);
    if (!(await hasCustomer(postgres, tenantId, customerId))) throw entityNotFound('Customer', customerId);
    requireCustomerOf(principal, customerId);
    return customerId;
  }

  return [
    route({
      method: 'GET',
      pattern: '/api/device/:deviceId',
      summary: 'A device',
      roles: adminAndCustomer,
      answer: deviceShape,
      handle: async ({ principal, params }) => json(deviceJson(await visibleDevice(principal, params[0]!))),
    }),
    route({
      method: 'GET',
      pattern: '/api/device/info/:deviceId',
      summary: 'A device with the names of its customer and profile',
      roles: adminAndCustomer,
      answer: deviceInfoShape,
      handle: async ({ principal, params }) => json(deviceInfoJson(await visibleDevice(principal, params[0]!))),
    }),
    route({
      method: 'POST',
      pattern: '/api/device',
      summary: 'Create a device, or replace the one with the given id',
      roles: adminAndCustomer,
      query: Type.Object({ accessToken: Type.Optional(Type.String()), ...conflictQuery }),
      body: deviceBody,
      answer: deviceShape,
      async handle({ principal, query, body }) {
        const { tenantId } = requireTenant(principal);
        const id = entityUuid(body.id);
        const input = deviceInput(body);
        if (id === null) {
          if (principal.authority !== 'TENANT_ADMIN') throw permissionDenied();
          const accessToken = query.get('accessToken') ?? '';
          const credentials = accessToken ? tokenCredentials(accessToken) : undefined;
          return json(deviceJson(await createDevice(fleet, tenantId, input, credentials, nameConflict(query))));
        }
        const stored = await visibleDevice(principal, id);
        // A customer user changes a device, not whose it is.
        if (principal.authority === 'CUSTOMER_USER') input.customerId = stored.customerId;
        return json(deviceJson(await saveDevice(fleet, tenantId, id, input)));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/device-with-credentials',
      summary: 'Create a device with given credentials',
      roles: admin,
      query: Type.Object(conflictQuery),
      body: Type.Object({ device: deviceBody, credentials: credentialsBody }),
      answer: deviceShape,
      async handle({ principal, query, body }) {
        const { tenantId } = requireTenant(principal);
        const credentials = credentialsInput(body.credentials);
        const input = deviceInput(body.device);
        return json(deviceJson(await createDevice(fleet, tenantId, input, credentials, nameConflict(query))));
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/device/:deviceId',
      summary: 'Delete a device with its credentials and its data',
      roles: admin,
      async handle({ principal, params }) {
        await deleteDevice(fleet, requireTenant(principal).tenantId, uuid(params[0]!));
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/device/:deviceId/credentials',
      summary: 'The credentials of a device',
      roles: adminAndCustomer,
      answer: credentialsShape,
      async handle({ principal, params }) {
        const { id } = await visibleDevice(principal, params[0]!);
        const credentials = await findCredentials(postgres, id);
        // Deleted since the line above.
        if (!credentials) throw entityNotFound('Device', id);
        return json(credentialsJson(credentials));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/device/credentials',
      summary: 'Replace the credentials of a device',
      roles: admin,
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
        return json(credentialsJson(await saveCredentials(fleet, tenantId, input)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/devices',
      summary: 'Devices of the tenant; with `deviceName` the one device of that name',
      roles: admin,
      query: Type.Object({ ...listQuery.properties, deviceName: Type.Optional(Type.String()) }),
      answer: pageShape(deviceShape),
      async handle(call) {
        const name = call.query.get('deviceName');
        if (name !== null) return await deviceNamed(call.principal, name);
        return json(pageJson(await list(call, undefined), deviceJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/device',
      summary: 'The device of a name',
      roles: admin,
      query: Type.Object({ deviceName: Type.String() }),
      answer: deviceShape,
      handle: ({ principal, query }) => deviceNamed(principal, required(query, 'deviceName')),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/deviceInfos',
      summary: 'Devices of the tenant with the names of their customers and profiles',
      roles: admin,
      query: listQuery,
      answer: pageShape(deviceInfoShape),
      handle: async (call) => json(pageJson(await list(call, undefined), deviceInfoJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/devices',
      summary: 'Devices of a customer',
      roles: adminAndCustomer,
      query: listQuery,
      answer: pageShape(deviceShape),
      async handle(call) {
        const customerId = await visibleCustomer(call.principal, call.params[0]!);
        return json(pageJson(await list(call, customerId), deviceJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/deviceInfos',
      summary: 'Devices of a customer with the names of their profiles',
      roles: adminAndCustomer,
      query: listQuery,
      answer: pageShape(deviceInfoShape),
      async handle(call) {
        const customerId = await visibleCustomer(call.principal, call.params[0]!);
        return json(pageJson(await list(call, customerId), deviceInfoJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/devices',
      summary: 'Devices by their ids',
      roles: adminAndCustomer,
      query: Type.Object({ deviceIds: Type.String() }),
      answer: Type.Array(deviceShape),
      async handle({ principal, query }) {
        const { tenantId } = requireTenant(principal);
        const ids = required(query, 'deviceIds').split(',').map(uuid);
        if (ids.length > limits.listedKeysMax) {
          throw badRequest('ids', `At most ${limits.listedKeysMax} devices can be asked for at once.`);
        }
        const devices = await findDevices(postgres, tenantId, ids);
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

function nameConflict(query: URLSearchParams): NameConflict {
  return {
    policy: oneOf('nameConflictPolicy', query.get('nameConflictPolicy'), ['FAIL', 'UNIQUIFY'], 'FAIL'),
    separator: query.get('uniquifySeparator') ?? '_',
    strategy: oneOf('uniquifyStrategy', query.get('uniquifyStrategy'), ['RANDOM', 'INCREMENTAL'], 'RANDOM'),
  };
}
