/**
 * The JSON of entities: exactly these members in this order, null written as null. Clients with a strict mapper fail at
 * any other member. A shape with a title has a name in the API document.
 */

import type { Contact } from '../admin/customer.ts';
import { authorities } from '../auth/roles.ts';
import type { User } from '../auth/user.ts';
import * as Type from '../base/schema.ts';
import { nullUuid } from '../base/uuid.ts';
import { credentialsTypes, type Device, type DeviceCredentials, type DeviceInfo } from '../device/model/device.ts';
import { text } from '../rest/body.ts';
import { anyJson, closed, milliseconds, nullable } from '../rest/shapes.ts';

export const entityId = closed({ entityType: Type.String(), id: Type.String({ format: 'uuid' }) }, 'EntityId');
type EntityId = Type.Static<typeof entityId>;

export const contactBody = {
  country: text,
  state: text,
  city: text,
  address: text,
  address2: text,
  zip: text,
  phone: text,
  email: text,
};

export const contactShape = {
  country: nullable(Type.String()),
  state: nullable(Type.String()),
  city: nullable(Type.String()),
  address: nullable(Type.String()),
  address2: nullable(Type.String()),
  zip: nullable(Type.String()),
  phone: nullable(Type.String()),
  email: nullable(Type.String()),
};

export function contactJson({ country, state, city, address, address2, zip, phone, email }: Contact): Contact {
  return { country, state, city, address, address2, zip, phone, email };
}

export const deviceShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    tenantId: entityId,
    customerId: entityId,
    name: Type.String(),
    type: Type.String(),
    label: nullable(Type.String()),
    deviceProfileId: entityId,
    deviceData: anyJson,
    firmwareId: nullable(entityId),
    softwareId: nullable(entityId),
    externalId: nullable(entityId),
    version: Type.Integer(),
    additionalInfo: anyJson,
  },
  'Device',
);

export const deviceInfoShape = closed(
  {
    ...deviceShape.properties,
    customerTitle: nullable(Type.String()),
    customerIsPublic: Type.Boolean(),
    deviceProfileName: Type.String(),
    active: Type.Boolean(),
  },
  'DeviceInfo',
);

export const credentialsShape = closed(
  {
    id: closed({ id: Type.String({ format: 'uuid' }) }),
    createdTime: milliseconds,
    deviceId: entityId,
    credentialsType: Type.Enum(credentialsTypes),
    credentialsId: Type.String(),
    credentialsValue: nullable(Type.String()),
    version: Type.Integer(),
  },
  'DeviceCredentials',
);

export const userShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    tenantId: entityId,
    customerId: entityId,
    email: Type.String(),
    authority: Type.Enum(authorities),
    firstName: nullable(Type.String()),
    lastName: nullable(Type.String()),
    phone: nullable(Type.String()),
    version: Type.Integer(),
    name: Type.String(),
    additionalInfo: anyJson,
  },
  'User',
);

export function deviceJson(device: Device): Type.Static<typeof deviceShape> {
  return {
    id: idJson('DEVICE', device.id),
    createdTime: device.createdTime,
    tenantId: idJson('TENANT', device.tenantId),
    customerId: idJson('CUSTOMER', device.customerId),
    name: device.name,
    type: device.type,
    label: device.label,
    deviceProfileId: idJson('DEVICE_PROFILE', device.profileId),
    deviceData: device.deviceData,
    firmwareId: device.firmwareId && idJson('OTA_PACKAGE', device.firmwareId),
    softwareId: device.softwareId && idJson('OTA_PACKAGE', device.softwareId),
    externalId: device.externalId && idJson('DEVICE', device.externalId),
    version: device.version,
    additionalInfo: device.additionalInfo,
  } as Type.Static<typeof deviceShape>;
}

export function deviceInfoJson(device: DeviceInfo): Type.Static<typeof deviceInfoShape> {
  return {
    ...deviceJson(device),
    customerTitle: device.customerTitle,
    customerIsPublic: device.customerIsPublic,
    deviceProfileName: device.type,
    active: device.active,
  };
}

export function credentialsJson(credentials: DeviceCredentials): Type.Static<typeof credentialsShape> {
  return {
    id: { id: credentials.id },
    createdTime: credentials.createdTime,
    deviceId: idJson('DEVICE', credentials.deviceId),
    credentialsType: credentials.type,
    credentialsId: credentials.credentialsId,
    credentialsValue: credentials.value,
    version: credentials.version,
  };
}

export function userJson(user: User): Type.Static<typeof userShape> {
  return {
    id: idJson('USER', user.id),
    createdTime: user.createdTime,
    tenantId: idJson('TENANT', user.tenantId),
    customerId: idJson('CUSTOMER', user.customerId),
    email: user.email,
    authority: user.authority,
    firstName: user.firstName,
    lastName: user.lastName,
    phone: user.phone,
    version: user.version,
    name: user.email,
    additionalInfo: user.additionalInfo,
  };
}

export function idJson(entityType: string, id: string | null): EntityId {
  return { entityType, id: id ?? nullUuid };
}
