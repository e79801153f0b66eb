/**
 * The request of a device that provisions itself, and its answers (docs/http.md#provisioning). No answer repeats any
 * part of the request.
 */

import { badRequest, Fault } from '../base/errors.ts';
import {
  certificateCredentials,
  mqttBasicCredentials,
  type NewCredentials,
  readMqttBasic,
  tokenCredentials,
} from '../device/model/credentials.ts';
import { createAccessToken } from '../device/model/device.ts';
import { type Json, type JsonObject, readJson } from '../value/json.ts';
import type { ReadBody } from '../value/lenient.ts';

const requestedTypes = ['ACCESS_TOKEN', 'MQTT_BASIC', 'X509_CERTIFICATE'] as const;
type RequestedType = (typeof requestedTypes)[number];

export interface ProvisionRequest {
  key: string;
  secret: string;
  /** Trimmed; null = any name. */
  deviceName: string | null;
  credentialsType: RequestedType;
  token: string | null;
  clientId: string | null;
  username: string | null;
  password: string | null;
  /** Contains a certificate, despite its name on the wire. */
  hash: string | null;
  gateway: boolean;
}

export type ProvisionOutcome =
  | { status: 'SUCCESS'; credentials: NewCredentials }
  | { status: 'NOT_FOUND' }
  | { status: 'FAILURE' };

/** Throws a 400 fault that names the member and contains no value of the request. */
export function decodeProvision(body: Buffer, readBody: ReadBody): ProvisionRequest {
  const root = parse(body, readBody);
  if (!(root instanceof Map)) throw badRequest('provision_shape', 'A provisioning request must be a JSON object.');
  const gateway = root.get('gateway') ?? false;
  if (typeof gateway !== 'boolean') throw badRequest('provision_gateway', 'Member "gateway" must be true or false.');
  const typeName = optionalText(root, 'credentialsType') ?? 'ACCESS_TOKEN';
  const credentialsType = requestedTypes.find((type) => type === typeName);
  if (!credentialsType) {
    throw badRequest('provision_type', `Member "credentialsType" must be one of ${requestedTypes.join(', ')}.`);
  }
  return {
    key: requiredText(root, 'provisionDeviceKey'),
    secret: requiredText(root, 'provisionDeviceSecret'),
    deviceName: optionalText(root, 'deviceName')?.trim() ?? null,
    credentialsType,
    token: optionalText(root, 'token'),
    clientId: optionalText(root, 'clientId'),
    username: optionalText(root, 'username'),
    password: optionalText(root, 'password'),
    hash: optionalText(root, 'hash'),
    gateway,
  };
}

/**
 * Returns the credentials that the device chose, else a random token. Throws a fault when the chosen credentials are
 * not allowed.
 */
export function requestedCredentials(request: ProvisionRequest): NewCredentials {
  const { clientId, username, password } = request;
  switch (request.credentialsType) {
    case 'ACCESS_TOKEN':
      return tokenCredentials(request.token || createAccessToken());
    case 'MQTT_BASIC':
      return mqttBasicCredentials({ clientId, userName: username, password });
    case 'X509_CERTIFICATE':
      return certificateCredentials(request.hash ?? '');
  }
}

export function provisionJson(outcome: ProvisionOutcome): object {
  switch (outcome.status) {
    case 'SUCCESS': {
      const { type } = outcome.credentials;
      return { credentialsValue: credentialsValue(outcome.credentials), credentialsType: type, status: 'SUCCESS' };
    }
    case 'NOT_FOUND':
      return { errorMsg: 'Provision data was not found!', status: 'NOT_FOUND' };
    case 'FAILURE':
      return { errorMsg: 'Failed to provision device!', status: 'FAILURE' };
  }
}

function credentialsValue({ type, credentialsId, value }: NewCredentials): unknown {
  if (type === 'ACCESS_TOKEN') return credentialsId;
  if (type !== 'MQTT_BASIC') return value;
  const present = Object.entries(readMqttBasic(value)).filter(([, text]) => text !== null);
  return Object.fromEntries(present);
}

function parse(body: Buffer, readBody: ReadBody): Json {
  try {
    return readBody(body, readJson);
  } catch (error) {
    // The parser's message may contain a part of a secret.
    if (error instanceof Fault) throw badRequest('provision_json', 'The body is not valid JSON.');
    throw error;
  }
}

function requiredText(root: JsonObject, member: string): string {
  const text = optionalText(root, member);
  if (text === null) throw badRequest('provision_member', `Member "${member}" is missing.`);
  return text;
}

function optionalText(root: JsonObject, member: string): string | null {
  const value = root.get(member) ?? null;
  if (value !== null && typeof value !== 'string') {
    throw badRequest('provision_member', `Member "${member}" must be a string.`);
  }
  return value;
}
