/**
 * Reads CONNECT strictly and writes CONNACK, with a reason code for every error for which the specification has one.
 */
import type { IConnackPacket } from 'mqtt-packet';
import { FieldReader } from '../wire/field-reader.ts';
import { allowed, type PacketProperties, property, readProperties } from '../wire/properties.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { malformed } from '../wire/wire-error.ts';
import { type Client, unknownClient } from './client.ts';
import { generate, generateWithin } from './generate.ts';

export interface Connect {
  kind: 'connect';
  client: Client;
  clientId: string;
  username: string | undefined;
  password: Buffer | undefined;
  keepAliveSeconds: number;
}

interface RefusedConnect {
  kind: 'refusal';
  client: Client;
  refusal: ConnectRefusal;
}

/** Refusals of CONNECT: reason code of MQTT 5, return code of MQTT 3, Reason String. The name is the metric label. */
const refusals = {
  unsupported_version: { reasonCode: 0x84, returnCode: 1, text: 'This server speaks MQTT 3.1, 3.1.1 and 5.' },
  client_id: { reasonCode: 0x85, returnCode: 2, text: 'The client id is not valid here, and there is no user name.' },
  credentials: {
    reasonCode: 0x86,
    returnCode: 5,
    text: 'No device has these credentials: check the access token or user name and password.',
  },
  not_authorized: {
    reasonCode: 0x87,
    returnCode: 5,
    text: 'No credentials: the user name is the access token of a device.',
  },
  certificate: {
    reasonCode: 0x87,
    returnCode: 5,
    text: 'No device has this client certificate, or it is not valid now.',
  },
  unavailable: {
    reasonCode: 0x88,
    returnCode: 3,
    text: 'Devices cannot be looked up at the moment; connect again later.',
  },
  transport: { reasonCode: 0x88, returnCode: 3, text: 'The profile of this device has another transport.' },
  auth_method: { reasonCode: 0x8c, returnCode: 5, text: 'Enhanced authentication is not supported.' },
  quota: { reasonCode: 0x97, returnCode: 3, text: 'The tenant has reached its limit of devices.' },
  will_retain: {
    reasonCode: 0x9a,
    returnCode: 5,
    text: 'Retained messages are not supported, nor is a will to be retained.',
  },
  rate: { reasonCode: 0x9f, returnCode: 3, text: 'Too many attempts to connect; wait before the next one.' },
} as const satisfies Record<string, { reasonCode: number; returnCode: number; text: string }>;

export type ConnectRefusal = keyof typeof refusals;

const anyReceiveMaximum = 65_535;

/** Decodes `bytes[start..end)`, the body of the first packet. Throws a WireError for a packet that gets no answer. */
export function readConnect(bytes: Buffer, start: number, end: number): Connect | RefusedConnect {
  const fields = new FieldReader(bytes, start, end);
  const name = fields.text();
  const version = fields.byte();
  const level = levelOf(name, version);
  if (level === undefined) {
    return refuse(name === 'MQTT' && version > 4 && version < 0x80 ? 5 : 4, 'unsupported_version');
  }
  const flags = fields.byte();
  if ((flags & 0x01) !== 0) return refuse(level, 'unsupported_version');
  const keepAliveSeconds = fields.uint16();
  const properties: PacketProperties | undefined = level === 5 ? readProperties(fields, allowed.connect) : undefined;
  const clientId = fields.text();
  const willRetain = readWill(fields, flags, level);
  const hasUsername = (flags & 0x80) !== 0;
  const hasPassword = (flags & 0x40) !== 0;
  if (hasPassword && !hasUsername && level !== 5) throw malformed;
  const username = hasUsername ? fields.text() : undefined;
  const password = hasPassword ? fields.binary() : undefined;
  fields.finish();
  if (level === 3 && clientId === '') return refuse(level, 'client_id');
  if (willRetain && level === 5) return refuse(level, 'will_retain');
  if (properties?.has(property.authenticationMethod)) return refuse(level, 'auth_method');
  if (properties?.has(property.authenticationData)) throw malformed;
  return {
    kind: 'connect',
    client: {
      level,
      isTerse: properties?.get(property.requestProblemInformation) === 0,
      packetBytesMax: (properties?.get(property.maximumPacketSize) as number | undefined) ?? Number.POSITIVE_INFINITY,
      receiveMaximum: (properties?.get(property.receiveMaximum) as number | undefined) ?? anyReceiveMaximum,
    },
    clientId,
    username,
    password,
    keepAliveSeconds,
  };
}

function levelOf(name: string, version: number): ProtocolLevel | undefined {
  if (name === 'MQIsdp' && version === 3) return 3;
  if (name === 'MQTT' && (version === 4 || version === 5)) return version;
  return undefined;
}

/**
 * Reads the will and drops it, because a will has no subscribers here. Returns true when the will would be retained.
 */
function readWill(fields: FieldReader, flags: number, level: ProtocolLevel): boolean {
  const qos = (flags >> 3) & 3;
  const retain = (flags & 0x20) !== 0;
  if ((flags & 0x04) === 0) {
    if (qos !== 0 || retain) throw malformed;
    return false;
  }
  if (qos === 3) throw malformed;
  if (level === 5) readProperties(fields, allowed.will);
  const topic = fields.text();
  if (topic === '' || /[+#]/.test(topic)) throw malformed;
  fields.binary();
  return retain;
}

function refuse(level: ProtocolLevel, refusal: ConnectRefusal): RefusedConnect {
  return { kind: 'refusal', client: { ...unknownClient, level }, refusal };
}

interface Welcome {
  packetBytesMax: number;
  receiveMaximum: number;
  /** '' = the client sent its own id. */
  assignedClientId: string;
  /** Sent as a user property; '' = not sent. */
  worker: string;
}

/** Writes CONNACK. Session Present is always 0. */
export function connackBytes(
  level: ProtocolLevel,
  { packetBytesMax, receiveMaximum, assignedClientId, worker }: Welcome,
): Buffer {
  if (level !== 5) return generate({ cmd: 'connack', returnCode: 0, sessionPresent: false });
  const properties: IConnackPacket['properties'] = {
    sessionExpiryInterval: 0,
    receiveMaximum,
    retainAvailable: false,
    maximumPacketSize: packetBytesMax,
    topicAliasMaximum: 0,
    wildcardSubscriptionAvailable: true,
    subscriptionIdentifiersAvailable: false,
    sharedSubscriptionAvailable: false,
  };
  if (assignedClientId !== '') properties.assignedClientIdentifier = assignedClientId;
  if (worker !== '') properties.userProperties = { 'x-millrace-worker': worker };
  return generate({ cmd: 'connack', reasonCode: 0, sessionPresent: false, properties }, { protocolVersion: 5 });
}

/**
 * Writes a refusal. `text` replaces the sentence of the refusal. A client that wants no Reason String, or whose Maximum
 * Packet Size is too small for the sentence, gets the code only.
 */
export function refusalBytes({ level, isTerse, packetBytesMax }: Client, refusal: ConnectRefusal, text = ''): Buffer {
  const { reasonCode, returnCode, text: sentence } = refusals[refusal];
  if (level !== 5) return generate({ cmd: 'connack', returnCode, sessionPresent: false });
  const packet: IConnackPacket = { cmd: 'connack', reasonCode, sessionPresent: false };
  return generateWithin(packet, isTerse ? [] : [{ reasonString: text || sentence }], packetBytesMax);
}
