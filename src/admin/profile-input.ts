/**
 * A device profile as a user saves it (docs/rest.md#device-profiles), checked member by member before it is stored. The
 * checks read no store: `profiles.ts` has the rules that depend on other rows.
 */
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import { isUuid } from '../base/uuid.ts';
import { certificateCredentials } from '../device/model/credentials.ts';
import {
  checkDocument,
  checkText,
  type FullProfile,
  nameCharsMax,
  type ProfileData,
  type ProvisionType,
  provisionTypes,
  type TransportType,
} from '../device/model/device.ts';
import { completeTransport } from '../device/model/profile-topics.ts';
import { checkIssuer, type IssuerProof } from './issuers.ts';

/** A profile as a user saves it; absent members are cleared. */
export interface ProfileInput {
  name: string;
  description?: string | null | undefined;
  image?: string | null | undefined;
  isDefault?: boolean | null | undefined;
  transportType: TransportType;
  provisionType: ProvisionType;
  provisionKey?: string | null | undefined;
  data?: unknown;
  defaultRuleChainId?: string | null | undefined;
  defaultDashboardId?: string | null | undefined;
  defaultQueueName?: string | null | undefined;
  defaultEdgeRuleChainId?: string | null | undefined;
  firmwareId?: string | null | undefined;
  softwareId?: string | null | undefined;
  externalId?: string | null | undefined;
  version?: number | null | undefined;
  /** Proof that the tenant holds the issuer's key, when it comes with the profile instead of in its own call. */
  issuerProof?: IssuerProof | undefined;
}

/** The columns that the input of a user decides. */
type CheckedProfile = Omit<FullProfile, 'id' | 'tenantId' | 'createdTime' | 'isDefault' | 'version'>;

/** Returns the values to store. Throws 400 for the first member that is wrong. */
export function checkedProfile(input: ProfileInput): CheckedProfile {
  checkColumns(input);
  const data = checkedData(input);
  return {
    name: input.name,
    description: input.description ?? null,
    image: input.image ?? null,
    transportType: input.transportType,
    provisionType: data.provisionConfiguration.type,
    provisionKey: checkedKey(data, input.provisionKey || null),
    data,
    defaultRuleChainId: input.defaultRuleChainId ?? null,
    defaultDashboardId: input.defaultDashboardId ?? null,
    defaultQueueName: input.defaultQueueName ?? null,
    defaultEdgeRuleChainId: input.defaultEdgeRuleChainId ?? null,
    firmwareId: input.firmwareId ?? null,
    softwareId: input.softwareId ?? null,
    externalId: input.externalId ?? null,
  };
}

function checkColumns({ name, defaultQueueName, description, image, data, externalId }: ProfileInput): void {
  if (name.trim() === '') throw badRequest('profile_name', 'Device profile name should be specified!');
  checkText('name', name);
  if (defaultQueueName) checkText('defaultQueueName', defaultQueueName);
  for (const text of [description, image]) {
    // PostgreSQL stores no NUL.
    if (text?.includes('\0')) throw badRequest('text_malformed', 'Validation error: description is malformed');
  }
  checkDocument('description', description);
  checkDocument('image', image, limits.imageBytesMax);
  checkDocument('profileData', data);
  if (externalId && !isUuid(externalId)) throw badRequest('external_id', 'Invalid entity id');
}

/** Completes the document of a profile, in which members that Millrace does not use are kept unchanged. */
function checkedData(input: ProfileInput): ProfileData {
  const given = input.data ?? {};
  if (!isObject(given)) throw malformedData('profileData must be object');
  const provisionConfiguration = checkedProvisioning(given['provisionConfiguration'], input.provisionType);
  checkTtl(given['telemetryTtlDays'] ?? 0);
  checkPace(given['otaRollout'] ?? {});
  return {
    configuration: { type: 'DEFAULT' },
    alarms: null,
    ...given,
    transportConfiguration: completeTransport(given['transportConfiguration'] ?? { type: input.transportType }),
    provisionConfiguration,
  };
}

/** Returns how devices provision themselves: as `given` in the document, or else by `provisionType` of the profile. */
function checkedProvisioning(given: unknown, provisionType: ProvisionType): ProfileData['provisionConfiguration'] {
  const provision = given ?? { type: provisionType, provisionDeviceSecret: null };
  if (!isObject(provision)) throw malformedData('provisionConfiguration must be object');
  const type = provisionTypes.find((known) => known === (provision['type'] ?? provisionType));
  const secret = provision['provisionDeviceSecret'] ?? null;
  if (!type || (secret !== null && typeof secret !== 'string')) {
    throw malformedData(`provisionConfiguration needs a type of ${provisionTypes.join(', ')} and a secret`);
  }
  return { ...provision, type, provisionDeviceSecret: secret };
}

function checkTtl(days: unknown): void {
  if (isWhole(days, limits.telemetryTtlDaysMax)) return;
  const range = `a whole number of days from 0 to ${limits.telemetryTtlDaysMax}; 0 keeps what the installation keeps`;
  throw malformedData(`telemetryTtlDays must be ${range}`);
}

function checkPace(pace: unknown): void {
  if (isObject(pace)) {
    const { perMinute, percent, paused } = pace;
    const isRate = isWhole(perMinute ?? 0, limits.otaPerMinuteMax);
    if (isRate && isWhole(percent ?? 100, 100) && typeof (paused ?? false) === 'boolean') return;
  }
  const range = `perMinute from 0 to ${limits.otaPerMinuteMax} (0 = no limit), percent from 0 to 100, and paused`;
  throw malformedData(`otaRollout must be an object with ${range}`);
}

/**
 * Returns the provisioning key to store. That of a certificate profile is the digest of its certificate: a device is
 * matched by the certificate that it shows.
 */
function checkedKey({ provisionConfiguration }: ProfileData, key: string | null): string | null {
  const { type, provisionDeviceSecret, certificateRegExPattern } = provisionConfiguration;
  const secret = provisionDeviceSecret ?? '';
  if (key !== null) checkText('provisionDeviceKey', key);
  if (secret.includes('\0')) throw badRequest('provision_secret', 'Provision device secret is malformed!');
  if (type === 'DISABLED') return key;
  if (secret.trim() === '') throw badRequest('provision_secret', 'Provision device secret should be specified!');
  if (type === 'X509_CERTIFICATE_CHAIN') {
    checkPattern(certificateRegExPattern);
    const { credentialsId } = certificateCredentials(secret);
    checkIssuer(secret);
    return credentialsId;
  }
  if (key === null || key.trim() === '') {
    throw badRequest('provision_key', 'Provision device key should be specified!');
  }
  return key;
}

/** Checks the pattern that finds the name of a device in its certificate. */
function checkPattern(pattern: unknown): void {
  if (pattern === undefined || pattern === null) return;
  const isText = typeof pattern === 'string' && pattern.length <= nameCharsMax && !pattern.includes('\0');
  if (isText && isRegExp(pattern)) return;
  throw badRequest('provision_pattern', 'certificateRegExPattern must be a regular expression of JavaScript!');
}

function isRegExp(pattern: string): boolean {
  try {
    new RegExp(pattern);
    return true;
  } catch {
    return false;
  }
}

function isWhole(value: unknown, max: number): boolean {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= max;
}

function malformedData(rule: string): Fault {
  return badRequest('profile_data', `Validation error: ${rule}`);
}
