/**
 * Checks the credentials that users and provisioning give a device, and computes the id under which they are found
 * (docs/rest.md#credentials). Ids of all kinds share one name space. No store here.
 */
import { createHash } from 'node:crypto';
import { badRequest } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { type CredentialsType, checkAccessToken } from './device.ts';

/** Credentials ready to be stored. */
export interface NewCredentials {
  type: CredentialsType;
  credentialsId: string;
  value: string | null;
}

interface MqttBasic {
  clientId: string | null;
  userName: string | null;
  password: string | null;
}

/**
 * Throws the fault of invalid credentials. `credentialsId` counts for tokens only, `value` for the other kinds only.
 */
export function checkedCredentials(type: CredentialsType, credentialsId: string, value: string | null): NewCredentials {
  switch (type) {
    case 'ACCESS_TOKEN':
      return tokenCredentials(credentialsId);
    case 'MQTT_BASIC':
      return mqttBasicCredentials(parseMqttBasic(value));
    case 'X509_CERTIFICATE':
      return certificateCredentials(value ?? '');
    case 'LWM2M_CREDENTIALS':
      throw badRequest('credentials_type', `Credentials of type ${type} are not supported.`);
  }
}

export function tokenCredentials(token: string): NewCredentials {
  checkAccessToken(token, limits.tokenCharsMax);
  return { type: 'ACCESS_TOKEN', credentialsId: token, value: null };
}

export function mqttBasicCredentials({ clientId, userName, password }: MqttBasic): NewCredentials {
  if (!clientId && !userName) throw badRequest('mqtt_basic', 'Both mqtt client id and user name are empty!');
  if (clientId && password && !userName) {
    throw badRequest('mqtt_basic', 'Password cannot be specified along with client id');
  }
  for (const text of [clientId, userName, password]) if (text) checkCredentialText(text);
  const value = JSON.stringify({ clientId: clientId || null, userName: userName || null, password: password || null });
  const credentialsId = mqttBasicId(clientId ?? '', userName ?? '');
  return { type: 'MQTT_BASIC', credentialsId, value };
}

/** Returns the id of a login. A user name alone is its own id. */
export function mqttBasicId(clientId: string, userName: string): string {
  if (clientId === '') return userName;
  return sha3(userName === '' ? clientId : `${clientId}|${userName}`);
}

/** `text` is PEM, or only its base64; it is stored unchanged. */
export function certificateCredentials(text: string): NewCredentials {
  if (text.length > limits.certificateCharsMax || text.includes('\0')) {
    throw badRequest('certificate', `A certificate has at most ${limits.certificateCharsMax} characters.`);
  }
  if (certificateBody(text) === '') throw badRequest('certificate', 'Device credentials value should be specified!');
  return { type: 'X509_CERTIFICATE', credentialsId: certificateId(text), value: text };
}

export function certificateId(text: string): string {
  return sha3(certificateBody(text));
}

export function readMqttBasic(value: string | null): MqttBasic {
  const { clientId = null, userName = null, password = null } = JSON.parse(value ?? '{}') as Partial<MqttBasic>;
  return { clientId, userName, password };
}

function certificateBody(text: string): string {
  return text.replace(/-----(BEGIN|END) CERTIFICATE-----|[\r\n]/g, '');
}

function parseMqttBasic(value: string | null): MqttBasic {
  const malformed = () => badRequest('mqtt_basic', 'Invalid credentials body for simple mqtt credentials!');
  let members: unknown;
  try {
    members = JSON.parse(value ?? '');
  } catch {
    throw malformed();
  }
  if (typeof members !== 'object' || members === null || Array.isArray(members)) throw malformed();
  const { clientId, userName, password } = members as Record<string, unknown>;
  const texts = [clientId, userName, password].map((member) => {
    if (member === undefined || member === null) return null;
    if (typeof member !== 'string') throw malformed();
    return member;
  });
  return { clientId: texts[0]!, userName: texts[1]!, password: texts[2]! };
}

function checkCredentialText(text: string): void {
  if (text.length > limits.tokenCharsMax) {
    const message = `Validation error: credentialsId length must be equal or less than ${limits.tokenCharsMax}`;
    throw badRequest('credentials_id_length', message);
  }
  if (text.includes('\0')) throw badRequest('credentials_id', 'Validation error: credentialsId is malformed');
}

function sha3(text: string): string {
  return createHash('sha3-256').update(text).digest('hex');
}
