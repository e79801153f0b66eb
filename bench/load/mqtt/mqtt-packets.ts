/**
 * MQTT packets of the generators as bytes, made once. The PUBLISHes of a connection follow each other in one
 * buffer, all of one length, one for each packet id of its window: what may leave together leaves in one write.
 */
import { DrawnDevices } from '../drawn-devices.ts';
import { MovingRecord, recordText, wanderingDigits } from '../moving-record.ts';

/** MQTT 3.1.1 or 5. */
export type Level = 4 | 5;

export type Qos = 0 | 1;

export const packetType = { connack: 2, publish: 3, puback: 4, suback: 9, pingresp: 13, disconnect: 14 } as const;

interface ConnectFields {
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

export function publishPacket(topic: string, payload: string, packetId: number, level: Level, qos: Qos = 1): Buffer {
  const id = qos === 0 ? Buffer.alloc(0) : twoBytes(packetId);
  return packet(0x30 | (qos << 1), text(topic), id, noProperties(level), Buffer.from(payload));
}

export function subscribePacket(filter: string, packetId: number, level: Level): Buffer {
  return packet(0x82, twoBytes(packetId), noProperties(level), text(filter), Buffer.from([1]));
}

export function pubackPacket(packetId: number): Buffer {
  return packet(0x40, twoBytes(packetId));
}

/** Makes the payload of a slot, of a device or of a gateway for many devices; all slots have one length. */
type PayloadText = (ts: number, slot: number) => string;

/** A message for all these devices of a gateway, with a record of so many points for each. */
export function gatewayText(children: string[], ts: number, points?: number): string {
  const record = recordText(ts, points);
  return `{${children.map((name) => `"${name}":[${record}]`).join(',')}}`;
}

/** The PUBLISHes of one connection. Two slots in a row may be sent together. */
export interface PublishRing {
  /** Makes the next message of this slot; its last one must be acknowledged. */
  move(slot: number): void;
  /** The packets of some slots in a row. */
  bytes(slot: number, count: number): Buffer;
}

export interface RingOrder {
  topic: string;
  slots: number;
  firstTs: number;
  stepMs: number;
  level: Level;
  qos: Qos;
  /** Makes random walks of several rings differ. */
  seed: number;
}

/** The messages of a slot follow each other in steps of a whole turn of the ring: each slot has times of its own. */
export class TurnRing implements PublishRing {
  readonly #packets: PacketsInARow;
  readonly #records: MovingRecord[][];

  constructor({ topic, slots, firstTs, stepMs, level, qos, seed }: RingOrder, payload: PayloadText) {
    const turnMs = slots * stepMs;
    this.#packets = new PacketsInARow(slots, (slot) => {
      return publishPacket(topic, payload(firstTs + slot * stepMs - turnMs, slot), slot + 1, level, qos);
    });
    const { bytes } = this.#packets;
    const places = recordPlaces(bytes);
    const digits = wanderingDigits(bytes, places[0]!);
    const perSlot = places.length / slots;
    this.#records = Array.from({ length: slots }, (_, slot) => {
      return places.slice(slot * perSlot, (slot + 1) * perSlot).map((tsAt, n) => {
        const walk = Math.imul(firstTs + seed + 31 * slot + 7919 * n, 2_654_435_761);
        return new MovingRecord(bytes, tsAt, turnMs, walk, digits);
      });
    });
  }

  move(slot: number): void {
    for (const record of this.#records[slot]!) record.move();
  }

  bytes(slot: number, count: number): Buffer {
    return this.#packets.inARow(slot, count);
  }
}

/** Each message is of one device of a gateway, drawn at random. The names have one width. */
export class DrawnRing implements PublishRing {
  readonly #packets: PacketsInARow;
  readonly #records: MovingRecord[];
  readonly #nameAt: number;
  readonly #devices: DrawnDevices;
  readonly #firstTs: number;
  readonly #stepMs: number;

  constructor({ topic, slots, firstTs, stepMs, level, qos, seed }: RingOrder, names: string[]) {
    const one = names[0]!;
    this.#packets = new PacketsInARow(slots, (slot) => {
      return publishPacket(topic, gatewayText([one], firstTs), slot + 1, level, qos);
    });
    const { bytes } = this.#packets;
    const places = recordPlaces(bytes);
    const digits = wanderingDigits(bytes, places[0]!);
    this.#records = places.map((tsAt, slot) => {
      return new MovingRecord(bytes, tsAt, stepMs, Math.imul(firstTs + seed + 31 * slot, 2_654_435_761), digits);
    });
    this.#nameAt = bytes.indexOf(one);
    this.#devices = new DrawnDevices(names);
    this.#firstTs = firstTs;
    this.#stepMs = stepMs;
  }

  move(slot: number): void {
    const { bytes, packetBytes } = this.#packets;
    const sent = this.#devices.draw(bytes, slot * packetBytes + this.#nameAt);
    this.#records[slot]!.moveTo(this.#firstTs + sent * this.#stepMs);
  }

  bytes(slot: number, count: number): Buffer {
    return this.#packets.inARow(slot, count);
  }
}

/** Packets of one length in one buffer. */
class PacketsInARow {
  readonly bytes: Buffer;
  readonly packetBytes: number;

  constructor(count: number, packetOf: (n: number) => Buffer) {
    const packets = Array.from({ length: count }, (_, n) => packetOf(n));
    this.packetBytes = packets[0]!.length;
    this.bytes = Buffer.concat(packets);
  }

  inARow(first: number, count: number): Buffer {
    return this.bytes.subarray(first * this.packetBytes, (first + count) * this.packetBytes);
  }
}

const tsName = '"ts":';

/** Returns the place of the first digit of each `ts`. */
function recordPlaces(bytes: Buffer): number[] {
  const places: number[] = [];
  for (let at = bytes.indexOf(tsName); at >= 0; at = bytes.indexOf(tsName, at + 1)) places.push(at + tsName.length);
  return places;
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
