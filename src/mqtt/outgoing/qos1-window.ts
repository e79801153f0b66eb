/**
 * The QoS 1 messages to one client: packet ids, the callbacks that wait for a PUBACK, and the queue of messages above
 * the client's Receive Maximum. `Outgoing` makes the object with the first such message.
 */
import { limits } from '../../base/limits.ts';
import type { Confirm } from '../session/session.ts';

interface Waiting {
  packet: Buffer;
  /** Offset of the packet id. */
  idAt: number;
  confirm: Confirm | undefined;
}

export class Qos1Window {
  readonly #inflightMax: number;
  readonly #inflight = new Map<number, Confirm | undefined>();
  #waiting: Waiting[] = [];
  #waitingFrom = 0;
  #waitingBytes = 0;
  #lastId = 0;

  constructor(receiveMaximum: number) {
    this.#inflightMax = Math.min(receiveMaximum, limits.mqttPushesInflightMax);
  }

  get isFull(): boolean {
    return (
      this.#waiting.length - this.#waitingFrom >= limits.mqttPushesWaitingMax ||
      this.#waitingBytes >= limits.mqttPushBytesWaitingMax
    );
  }

  /** Returns true when the packet got its id and must be sent now; false when the packet waits. */
  add(packet: Buffer, idAt: number, confirm: Confirm | undefined): boolean {
    if (this.#inflight.size < this.#inflightMax) {
      packet.writeUInt16BE(this.#take(confirm), idAt);
      return true;
    }
    this.#waiting.push({ packet, idAt, confirm });
    this.#waitingBytes += packet.length;
    return false;
  }

  /**
   * Returns the id for a message that is sent outside this queue; undefined when too many messages wait for their
   * PUBACK.
   */
  takeId(): number | undefined {
    return this.#inflight.size < this.#inflightMax ? this.#take(undefined) : undefined;
  }

  /** Handles a PUBACK: confirms the message and returns the next packet to send. Unknown ids are ignored. */
  acknowledged(packetId: number): Buffer | undefined {
    if (!this.#inflight.has(packetId)) return undefined;
    const confirm = this.#inflight.get(packetId);
    this.#inflight.delete(packetId);
    confirm?.(true);
    const next = this.#waiting[this.#waitingFrom];
    if (next === undefined) return undefined;
    this.#waitingFrom += 1;
    this.#waitingBytes -= next.packet.length;
    if (this.#waitingFrom === this.#waiting.length) {
      this.#waiting = [];
      this.#waitingFrom = 0;
    } else if (this.#waitingFrom >= 1024) {
      this.#waiting = this.#waiting.slice(this.#waitingFrom);
      this.#waitingFrom = 0;
    }
    next.packet.writeUInt16BE(this.#take(next.confirm), next.idAt);
    return next.packet;
  }

  /** Called when the connection has ended. */
  drop(): void {
    const confirms = [
      ...this.#inflight.values(),
      ...this.#waiting.slice(this.#waitingFrom).map(({ confirm }) => confirm),
    ];
    this.#inflight.clear();
    this.#waiting = [];
    this.#waitingFrom = 0;
    this.#waitingBytes = 0;
    for (const confirm of confirms) confirm?.(false);
  }

  /** Returns an id from 1 to 65535 that is not in flight. */
  #take(confirm: Confirm | undefined): number {
    do {
      this.#lastId = this.#lastId === 0xffff ? 1 : this.#lastId + 1;
    } while (this.#inflight.has(this.#lastId));
    this.#inflight.set(this.#lastId, confirm);
    return this.#lastId;
  }
}
