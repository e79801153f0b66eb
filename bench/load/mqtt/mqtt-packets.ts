/**
 * MQTT packets of the generators as bytes, made once. The PUBLISHes of a connection follow each other in one
 * buffer, all of one length, one for each packet id of its window: what may leave together leaves in one write.
 */
import { MovingRecord, recordText } from '../moving-record.ts';

/** MQTT 3.1.1 or 5. */
export type Level = 4 | 5;

export const packetType = { connack: 2, publish: 3, puback: 4, suback: 9, pingresp: 13, disconnect: 14 } as const;

export interface ConnectFields {
  clientId: string;
  username: string;
  keepAliveSeconds: number;
  level: Level;
}

export function connectPacket({ clientId, username, keepAliveSeconds, level }: ConnectFields): Buffer {
  const userNameAndCleanStart = 0x82;
  return packet(
    0x10,
    text('MQTT'),
    Buffer.from([level, userNameAndCleanStart]),
    twoBytes(keepAliveSeconds),
    noProperties(level),
    text(clientId),
    text(username),
  );
}

export function publishPacket(topic: string, payload: string, packetId: number, level: Level): Buffer {
  return packet(0x32, text(topic), twoBytes(packetId), noProperties(level), Buffer.from(payload));
}

export function subscribePacket(filter: string, packetId: number, level: Level): Buffer {
  return packet(0x82, twoBytes(packetId), noProperties(level), text(filter), Buffer.from([1]));
}

export function pubackPacket(packetId: number): Buffer {
  return packet(0x40, twoBytes(packetId));
}

/** Makes the payload of a device's message, or of a gateway's message for many devices; all slots have one length. */
export type PayloadText = (ts: number, slot: number) => string;

export const devicePayload: PayloadText = (ts) => recordText(ts);

export function gatewayPayload(children: string[]): PayloadText {
  return (ts) => `{${children.map((name) => `"${name}":[${recordText(ts)}]`).join(',')}}`;
}

export class PublishRing {
  readonly #bytes: Buffer;
  readonly #packetBytes: number;
  readonly #records: MovingRecord[][];

  constructor(topic: string, payload: PayloadText, window: number, firstTs: number, stepMs: number, level: Level) {
    // Each packet id has a ts of its own in each turn of the window.
    const turnMs = window * stepMs;
    const packets = Array.from({ length: window }, (_, slot) => {
      return publishPacket(topic, payload(firstTs + slot * stepMs - turnMs, slot), slot + 1, level);
    });
    this.#packetBytes = packets[0]!.length;
    this.#bytes = Buffer.concat(packets);
    this.#records = packets.map((one, slot) => {
      return recordPositions(one).map((at, n) => {
        const seed = Math.imul(firstTs + 31 * slot + 7919 * n, 2_654_435_761);
        return new MovingRecord(this.#bytes, slot * this.#packetBytes + at, turnMs, seed);
      });
    });
  }

  /** Makes the next message of this slot; its last one must be acknowledged. */
  move(slot: number): void {
    for (const record of this.#records[slot]!) record.move();
  }

  /** The packets of some slots in a row. */
  bytes(slot: number, count: number): Buffer {
    return this.#bytes.subarray(slot * this.#packetBytes, (slot + count) * this.#packetBytes);
  }
}

const tsName = '"ts":';

function recordPositions(one: Buffer): number[] {
  const positions: number[] = [];
  for (let at = one.indexOf(tsName); at >= 0; at = one.indexOf(tsName, at + 1)) positions.push(at + tsName.length);
  return positions;
}

function packet(firstByte: number, ...parts: Buffer[]): Buffer {
  const body = Buffer.concat(parts);
  const length: number[] = [];
  for (let rest = body.length; length.length === 0 || rest > 0; rest >>>= 7) {
    length.push((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
  }
  return Buffer.concat([Buffer.from([firstByte, ...length]), body]);
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value);
  return Buffer.concat([twoBytes(bytes.length), bytes]);
}

function twoBytes(value: number): Buffer {
  return Buffer.from([value >> 8, value & 0xff]);
}

function noProperties(level: Level): Buffer {
  return Buffer.alloc(level === 5 ? 1 : 0);
}
