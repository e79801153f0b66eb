/**
 * Reads properties of MQTT 5 strictly: each only in the packets that allow it, once, and with an allowed value. User
 * properties are counted and dropped, except `content-encoding` and `x-millrace-receipt`.
 */
import { limits } from '../../base/limits.ts';
import type { FieldReader } from './field-reader.ts';
import { malformed, protocolError, topicAliasRefused } from './wire-error.ts';

export const property = {
  payloadFormat: 1,
  messageExpiry: 2,
  contentType: 3,
  responseTopic: 8,
  correlationData: 9,
  subscriptionIdentifier: 11,
  sessionExpiry: 17,
  authenticationMethod: 21,
  authenticationData: 22,
  requestProblemInformation: 23,
  willDelay: 24,
  requestResponseInformation: 25,
  reasonString: 31,
  receiveMaximum: 33,
  topicAliasMaximum: 34,
  topicAlias: 35,
  userProperty: 38,
  maximumPacketSize: 39,
} as const;

/** The keys of two user properties in `PacketProperties`. No property of MQTT has a negative id. */
export const contentEncoding = -1;
/** `x-millrace-receipt`: asks for a receipt with the value `true`, and returns it. */
export const receipt = -2;
export const receiptName = 'x-millrace-receipt';

type Kind = 'flag' | 'uint16' | 'uint32' | 'variable' | 'text' | 'binary' | 'pair';

const kinds: Record<number, Kind> = {
  [property.payloadFormat]: 'flag',
  [property.messageExpiry]: 'uint32',
  [property.contentType]: 'text',
  [property.responseTopic]: 'text',
  [property.correlationData]: 'binary',
  [property.subscriptionIdentifier]: 'variable',
  [property.sessionExpiry]: 'uint32',
  [property.authenticationMethod]: 'text',
  [property.authenticationData]: 'binary',
  [property.requestProblemInformation]: 'flag',
  [property.willDelay]: 'uint32',
  [property.requestResponseInformation]: 'flag',
  [property.reasonString]: 'text',
  [property.receiveMaximum]: 'uint16',
  [property.topicAliasMaximum]: 'uint16',
  [property.topicAlias]: 'uint16',
  [property.userProperty]: 'pair',
  [property.maximumPacketSize]: 'uint32',
};

/** The packets that allow each property, as clients send them. */
export const allowed = {
  connect: new Set<number>([
    property.sessionExpiry,
    property.receiveMaximum,
    property.maximumPacketSize,
    property.topicAliasMaximum,
    property.requestResponseInformation,
    property.requestProblemInformation,
    property.userProperty,
    property.authenticationMethod,
    property.authenticationData,
  ]),
  will: new Set<number>([
    property.willDelay,
    property.payloadFormat,
    property.messageExpiry,
    property.contentType,
    property.responseTopic,
    property.correlationData,
    property.userProperty,
  ]),
  publish: new Set<number>([
    property.payloadFormat,
    property.messageExpiry,
    property.contentType,
    property.responseTopic,
    property.correlationData,
    property.topicAlias,
    property.userProperty,
  ]),
  /** PUBACK, PUBREC, PUBREL and PUBCOMP. */
  acknowledgement: new Set<number>([property.reasonString, property.userProperty]),
  subscribe: new Set<number>([property.subscriptionIdentifier, property.userProperty]),
  unsubscribe: new Set<number>([property.userProperty]),
  disconnect: new Set<number>([property.sessionExpiry, property.reasonString, property.userProperty]),
};

export type PacketProperties = Map<number, number | string | Buffer>;

/** Throws a WireError. The result has no user properties except `contentEncoding` and `receipt`. */
export function readProperties(fields: FieldReader, where: ReadonlySet<number>): PacketProperties {
  const part = fields.part(fields.variable());
  const properties: PacketProperties = new Map();
  let userProperties = 0;
  while (part.left > 0) {
    const id = part.variable();
    const kind = kinds[id];
    if (kind === undefined) throw malformed;
    if (!where.has(id)) throw protocolError;
    if (kind === 'pair') {
      const name = part.text().toLowerCase();
      const value = part.text();
      if (name === receiptName) properties.set(receipt, value.toLowerCase());
      else if (name === 'content-encoding') {
        const earlier = properties.get(contentEncoding);
        // Several values form one list, as in HTTP [RFC 9110 section 5.3].
        properties.set(contentEncoding, earlier === undefined ? value : `${earlier}, ${value}`);
      }
      userProperties += 1;
      if (userProperties > limits.mqttUserPropertiesMax) throw protocolError;
      continue;
    }
    if (properties.has(id)) throw protocolError;
    properties.set(id, readValue(part, id, kind));
  }
  return properties;
}

function readValue(fields: FieldReader, id: number, kind: Exclude<Kind, 'pair'>): number | string | Buffer {
  switch (kind) {
    case 'flag': {
      const value = fields.byte();
      if (value > 1) throw protocolError;
      return value;
    }
    case 'uint16': {
      const value = fields.uint16();
      // The server announces no topic aliases, so a client must not use any.
      if (id === property.topicAlias) throw topicAliasRefused;
      if (id === property.receiveMaximum && value === 0) throw protocolError;
      return value;
    }
    case 'uint32': {
      const value = fields.uint32();
      if (id === property.maximumPacketSize && value === 0) throw protocolError;
      return value;
    }
    case 'variable': {
      const value = fields.variable();
      if (value === 0) throw protocolError;
      return value;
    }
    case 'text': {
      const value = fields.text();
      if (id === property.responseTopic && /[+#]/.test(value)) throw protocolError;
      return value;
    }
    case 'binary':
      return fields.binary();
  }
}
