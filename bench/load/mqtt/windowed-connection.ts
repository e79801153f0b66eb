/**
 * One MQTT connection of a generator process: which of its packet ids are in flight since when, and the packets that it
 * sends, each in the slot of its packet id.
 */
import type { Socket } from 'node:net';
import { recordText } from '../moving-record.ts';
import {
  connectPacket,
  DrawnRing,
  gatewayText,
  type Level,
  type PublishRing,
  publishPacket,
  type Qos,
  TurnRing,
} from './mqtt-packets.ts';

const keepAliveSeconds = 600;

export interface MqttClient {
  token: string;
  /** Names of a gateway's devices; empty = the sender is a device itself. */
  children: string[];
}

/** What a connection sends. */
export interface WindowOptions {
  /** Messages in flight on each connection. */
  window: number;
  firstTs: number;
  stepMs: number;
  level: Level;
  /** 0: a message counts as acknowledged when the kernel has taken it. */
  qos: Qos;
  /** Devices of a gateway in each message, which take turns in blocks of so many; 0 = all of them. */
  messageDevices: number;
  /** Points of each device in a message. */
  points: number;
  /** True: each message of a gateway is of one device drawn at random. All devices are connected first. */
  drawn: boolean;
  /** Not 0: every block of devices has so many messages, whatever time that takes. */
  turns: number;
}

/** Called when the kernel has taken the packets of some slots. */
type OnWritten = (connection: WindowedConnection, slots: number[]) => void;

export class WindowedConnection {
  /** Undefined = not connected: it sends nothing. */
  socket: Socket | undefined;
  readonly connectBytes: Buffer;
  readonly #options: WindowOptions;
  readonly #children: string[];
  readonly #ring: PublishRing;
  readonly #onWritten: OnWritten | undefined;
  /** Due time of the message of each slot; -1 = the slot is free. */
  readonly #dueAt: Float64Array;
  #inFlight = 0;
  #nextSlot = 0;
  /** Messages that may still be sent in closed loop. */
  #left: number;
  /** Slots in a row that are ready to leave. */
  #readyFrom = 0;
  #ready = 0;
  /** Devices of the gateway that were asked to connect, and those without an answer. */
  #joined = 0;
  #joinsOpen = 0;
  #allJoined: (() => void) | undefined;

  constructor({ token, children }: MqttClient, options: WindowOptions, n: number, onWritten: OnWritten | undefined) {
    const { window, firstTs, stepMs, level, qos, messageDevices, points, drawn, turns } = options;
    this.#options = options;
    this.#onWritten = onWritten;
    this.#children = children;
    this.connectBytes = connectPacket({ clientId: token, username: token, keepAliveSeconds, level });
    const isGateway = children.length > 0;
    const isDivided = isGateway && !drawn && messageDevices > 0;
    const slots = isDivided ? children.length / messageDevices : window;
    if (!Number.isInteger(slots)) throw new Error(`${children.length} devices in messages of ${messageDevices}`);
    const topic = isGateway ? 'v1/gateway/telemetry' : 'v1/devices/me/telemetry';
    const ring = { topic, slots, firstTs, stepMs, level, qos, seed: 104_729 * n };
    if (!isGateway) this.#ring = new TurnRing(ring, (ts) => recordText(ts, points));
    else if (drawn) this.#ring = new DrawnRing(ring, children);
    else {
      this.#ring = new TurnRing(ring, (ts, slot) => {
        const some = isDivided ? children.slice(slot * messageDevices, (slot + 1) * messageDevices) : children;
        return gatewayText(some, ts, points);
      });
    }
    this.#dueAt = new Float64Array(slots).fill(-1);
    this.#left = turns > 0 ? turns * slots : Number.POSITIVE_INFINITY;
  }

  prepare(slot: number, dueAt: number): void {
    this.#ring.move(slot);
    this.#dueAt[slot] = dueAt;
    this.#inFlight += 1;
    if (this.#ready > 0 && slot !== this.#readyFrom + this.#ready) this.flush();
    if (this.#ready === 0) this.#readyFrom = slot;
    this.#ready += 1;
  }

  /** A packet stays as it is until its acknowledgement, so the socket may send it when it likes. */
  flush(): void {
    if (this.#ready === 0) return;
    const bytes = this.#ring.bytes(this.#readyFrom, this.#ready);
    const onWritten = this.#onWritten;
    if (onWritten === undefined) {
      this.socket!.write(bytes);
    } else {
      const slots = Array.from({ length: this.#ready }, (_, n) => this.#readyFrom + n);
      this.socket!.write(bytes, (error) => {
        if (!error) onWritten(this, slots);
      });
    }
    this.#ready = 0;
  }

  /** Returns the due time of its message; undefined when there was none. */
  release(slot: number): number | undefined {
    const dueAt = this.#dueAt[slot];
    if (dueAt === undefined || dueAt < 0) return undefined;
    this.#dueAt[slot] = -1;
    this.#inFlight -= 1;
    return dueAt;
  }

  /** Closed loop: returns the next slot in order; undefined while it or the window is taken, and when all was sent. */
  nextSlot(): number | undefined {
    const slot = this.#nextSlot;
    const isWaiting = this.#inFlight >= this.#options.window || this.#dueAt[slot]! >= 0;
    if (this.socket === undefined || isWaiting || this.#left === 0) return undefined;
    this.#nextSlot = slot + 1 < this.#dueAt.length ? slot + 1 : 0;
    this.#left -= 1;
    return slot;
  }

  /** Open loop: the slots take turns, so that no packet id gets far ahead with its ts. */
  freeSlot(): number | undefined {
    let slot = this.#dueAt.indexOf(-1, this.#nextSlot);
    if (slot < 0) slot = this.#dueAt.indexOf(-1);
    this.#nextSlot = slot + 1;
    return slot < 0 ? undefined : slot;
  }

  /** Returns the messages in flight. Unless the connection `goesOn`, all slots stay taken: it sends nothing more. */
  lose(goesOn: boolean): number {
    const lost = this.#inFlight;
    this.#dueAt.fill(goesOn ? -1 : Number.POSITIVE_INFINITY);
    this.#inFlight = 0;
    if (!goesOn) this.#left = 0;
    this.#ready = 0;
    this.socket = undefined;
    this.#allJoined?.();
    this.#allJoined = undefined;
    return lost;
  }

  get isJoining(): boolean {
    return this.#allJoined !== undefined;
  }

  /** Resolves when all devices of the gateway are connected. */
  join(): Promise<void> {
    return new Promise((resolve) => {
      if (this.socket === undefined) {
        resolve();
        return;
      }
      this.#allJoined = resolve;
      const first = Math.min(this.#options.window, this.#children.length);
      for (let id = 1; id <= first; id += 1) this.#sendJoin(id);
    });
  }

  /** Called when the join with this packet id was answered. */
  joinNext(packetId: number): void {
    this.#joinsOpen -= 1;
    if (this.#joined < this.#children.length) {
      this.#sendJoin(packetId);
    } else if (this.#joinsOpen === 0) {
      this.#allJoined!();
      this.#allJoined = undefined;
    }
  }

  #sendJoin(packetId: number): void {
    const device = this.#children[this.#joined]!;
    this.#joined += 1;
    this.#joinsOpen += 1;
    this.socket!.write(publishPacket('v1/gateway/connect', JSON.stringify({ device }), packetId, this.#options.level));
  }
}
