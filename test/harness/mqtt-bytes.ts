/**
 * MQTT packets by hand, for those that no codec would write: every field is what the test says, right or wrong.
 * `frame` sets the length that belongs to the body; `lyingFrame` any other.
 */
export const packetType = {
  connect: 1,
  connack: 2,
  publish: 3,
  puback: 4,
  pubrec: 5,
  pubrel: 6,
  pubcomp: 7,
  subscribe: 8,
  suback: 9,
  unsubscribe: 10,
  unsuback: 11,
  pingreq: 12,
  pingresp: 13,
  disconnect: 14,
  auth: 15,
} as const;

type Part = Buffer | number | number[];

/** A whole packet. A number among the parts is one byte, a list some bytes. */
export function frame(type: number, flags: number, ...parts: Part[]): Buffer {
  const body = join(parts);
  return Buffer.concat([Buffer.from([(type << 4) | flags]), varInt(body.length), body]);
}

/** Makes a packet whose header announces `length` bytes, with any body. */
export function lyingFrame(type: number, flags: number, length: number, ...parts: Part[]): Buffer {
  return Buffer.concat([Buffer.from([(type << 4) | flags]), varInt(length), join(parts)]);
}

/** Makes a string with its length; a buffer may hold bytes that are not a valid string. */
export function string(text: string | Buffer): Buffer {
  const bytes = Buffer.from(text as string);
  return Buffer.concat([uint16(bytes.length), bytes]);
}

export function uint16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16BE(value);
  return bytes;
}

export function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

/** A variable byte integer in its shortest form, or with `bytesMin` bytes, which is not allowed. */
export function varInt(value: number, bytesMin = 1): Buffer {
  const bytes: number[] = [];
  let rest = value;
  do {
    const low = rest % 128;
    rest = (rest - low) / 128;
    bytes.push(rest > 0 || bytes.length + 1 < bytesMin ? low | 0x80 : low);
  } while (rest > 0 || bytes.length < bytesMin);
  return Buffer.from(bytes);
}

/** The properties of an MQTT 5 packet with their length before them. */
export function properties(...parts: Part[]): Buffer {
  const body = join(parts);
  return Buffer.concat([varInt(body.length), body]);
}

interface ConnectFields {
  protocol?: string | Buffer;
  level?: number;
  /** Connect flags; the default follows from the other fields. */
  flags?: number;
  keepAlive?: number;
  /** MQTT 5 only; with their length. */
  properties?: Buffer;
  clientId?: string | Buffer;
  username?: string | Buffer;
  password?: string | Buffer;
  will?: { topic: string | Buffer; payload: string | Buffer; qos?: number; retain?: boolean; properties?: Buffer };
  clean?: boolean;
  /** Bytes after the last field. */
  trailing?: Buffer;
  headerFlags?: number;
}

/** CONNECT with each field as given. Without level and protocol it is that of MQTT 3.1.1. */
export function connectBytes(fields: ConnectFields = {}): Buffer {
  const { level = 4, clientId = '', keepAlive = 60, username, password, will, clean = true } = fields;
  const flags =
    fields.flags ??
    (clean ? 0x02 : 0) |
      (will ? 0x04 | ((will.qos ?? 0) << 3) | (will.retain ? 0x20 : 0) : 0) |
      (password !== undefined ? 0x40 : 0) |
      (username !== undefined ? 0x80 : 0);
  const isFive = level === 5;
  return frame(
    packetType.connect,
    fields.headerFlags ?? 0,
    string(fields.protocol ?? (level === 3 ? 'MQIsdp' : 'MQTT')),
    level,
    flags,
    uint16(keepAlive),
    ...(isFive ? [fields.properties ?? properties()] : []),
    string(clientId),
    ...(will ? [...(isFive ? [will.properties ?? properties()] : []), string(will.topic), string(will.payload)] : []),
    ...(username !== undefined ? [string(username)] : []),
    ...(password !== undefined ? [string(password)] : []),
    fields.trailing ?? Buffer.alloc(0),
  );
}

export interface PublishFields {
  topic: string | Buffer;
  payload?: string | Buffer;
  qos?: number;
  dup?: boolean;
  retain?: boolean;
  /** Left out of the packet when absent, with any QoS. */
  messageId?: number;
  /** MQTT 5 only; with their length. */
  properties?: Buffer;
}

export function publishBytes(fields: PublishFields): Buffer {
  const { topic, payload = '', qos = 0, dup = false, retain = false, messageId } = fields;
  return frame(
    packetType.publish,
    (dup ? 0x08 : 0) | (qos << 1) | (retain ? 0x01 : 0),
    string(topic),
    ...(messageId !== undefined ? [uint16(messageId)] : []),
    ...(fields.properties ? [fields.properties] : []),
    Buffer.from(payload as string),
  );
}

function join(parts: Part[]): Buffer {
  return Buffer.concat(parts.map((part) => (Buffer.isBuffer(part) ? part : Buffer.from([part].flat()))));
}
