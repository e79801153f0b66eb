/** Types of devices, their profiles and credentials, and the rules that need no store. */
import { randomInt } from 'node:crypto';
import { badRequest } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';

export interface Device {
  id: string;
  /** The number of the device in ClickHouse. */
  number: number;
  createdTime: number;
  tenantId: string;
  customerId: string | null;
  profileId: string;
  /** Name of the profile. */
  type: string;
  name: string;
  label: string | null;
  deviceData: unknown;
  firmwareId: string | null;
  softwareId: string | null;
  externalId: string | null;
  additionalInfo: unknown;
  version: number;
}

export interface DeviceInfo extends Device {
  customerTitle: string | null;
  customerIsPublic: boolean;
  active: boolean;
}

export interface DeviceProfile {
  id: string;
  tenantId: string;
  name: string;
  isDefault: boolean;
}

export const transportTypes = ['DEFAULT', 'MQTT', 'COAP', 'LWM2M', 'SNMP'] as const;
export type TransportType = (typeof transportTypes)[number];

/** How devices may provision themselves. */
export const provisionTypes = [
  'DISABLED',
  'ALLOW_CREATE_NEW_DEVICES',
  'CHECK_PRE_PROVISIONED_DEVICES',
  'X509_CERTIFICATE_CHAIN',
] as const;
export type ProvisionType = (typeof provisionTypes)[number];

/** A profile with all members that a user sets. */
export interface FullProfile extends DeviceProfile {
  createdTime: number;
  description: string | null;
  image: string | null;
  transportType: TransportType;
  provisionType: ProvisionType;
  provisionKey: string | null;
  data: ProfileData;
  defaultRuleChainId: string | null;
  defaultDashboardId: string | null;
  defaultQueueName: string | null;
  defaultEdgeRuleChainId: string | null;
  firmwareId: string | null;
  softwareId: string | null;
  externalId: string | null;
  version: number;
}

/** An absent or null member does not limit the pace. */
interface OtaPace {
  /** Devices notified in a minute; 0 = no limit. */
  perMinute?: number | null;
  /** Part of the devices, from 0 to 100. */
  percent?: number | null;
  paused?: boolean | null;
}

/** Members that Millrace does not use are kept unchanged. */
export interface ProfileData {
  /** Days for which telemetry of the devices is kept; 0 or null = as long as the installation keeps telemetry. */
  telemetryTtlDays?: number | null;
  /** The pace at which devices are notified of the profile's packages. */
  otaRollout?: OtaPace | null;
  provisionConfiguration: { type: ProvisionType; provisionDeviceSecret?: string | null; [member: string]: unknown };
  [member: string]: unknown;
}

export const credentialsTypes = ['ACCESS_TOKEN', 'X509_CERTIFICATE', 'MQTT_BASIC', 'LWM2M_CREDENTIALS'] as const;
export type CredentialsType = (typeof credentialsTypes)[number];

export interface DeviceCredentials {
  id: string;
  createdTime: number;
  deviceId: string;
  type: CredentialsType;
  /** The id that a client sends: the token, the user name or a digest. */
  credentialsId: string;
  value: string | null;
  version: number;
}

export const defaultProfileName = 'default';
export const defaultDeviceData = { configuration: { type: 'DEFAULT' }, transportConfiguration: { type: 'DEFAULT' } };

/** The data of a profile that was made because a device named it as its type. */
export const defaultProfileData = {
  configuration: { type: 'DEFAULT' },
  transportConfiguration: { type: 'DEFAULT' },
  provisionConfiguration: { type: 'DISABLED', provisionDeviceSecret: null },
  alarms: null,
};

export const nameCharsMax = 255;
const tokenAlphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';
const generatedTokenChars = 20;

/** Returns 20 letters and digits, each equally likely: 119 bits. */
export function createAccessToken(): string {
  let token = '';
  for (let i = 0; i < generatedTokenChars; i += 1) token += tokenAlphabet[randomInt(tokenAlphabet.length)];
  return token;
}

/** Checks a string that a user gave for a column; throws its fault. */
export function checkText(field: string, text: string): void {
  if (text.length > nameCharsMax) {
    throw badRequest('text_length', `Validation error: ${field} length must be equal or less than ${nameCharsMax}`);
  }
  // PostgreSQL stores no NUL. Tags are refused because consoles and mails show these names.
  if (text.includes('\0') || /<[a-z/!?]/i.test(text)) {
    throw badRequest('text_malformed', `Validation error: ${field} is malformed`);
  }
}

/**
 * Checks a document that a user gave, which is kept unchanged; throws when it is too long. A string counts its own
 * length.
 */
export function checkDocument(field: string, document: unknown, bytesMax = limits.documentBytesMax): void {
  if (document === undefined || document === null) return;
  const bytes = Buffer.byteLength(typeof document === 'string' ? document : JSON.stringify(document));
  if (bytes <= bytesMax) return;
  throw badRequest('document_bytes', `Validation error: ${field} has ${bytes} bytes; at most ${bytesMax} are kept`);
}

export function checkDeviceName(name: string): void {
  if (name.trim() === '') throw badRequest('device_name', 'Device name should be specified!');
  checkText('name', name);
}

export function checkAccessToken(token: string, charsMax: number): void {
  if (token === '') throw badRequest('credentials_id', 'Device credentials id should be specified!');
  if (token.length > charsMax) {
    throw badRequest(
      'credentials_id_length',
      `Validation error: credentialsId length must be equal or less than ${charsMax}`,
    );
  }
  if (token.includes('\0')) throw badRequest('credentials_id', 'Validation error: credentialsId is malformed');
}
