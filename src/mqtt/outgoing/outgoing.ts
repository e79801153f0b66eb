/**
 * Messages to one client: within its Maximum Packet Size, with the packet ids of QoS 1 within its Receive Maximum, and
 * one large file at a time. Until the end of a file no other packet leaves and nothing is read. Made by a connection
 * when its session opens.
 */
import type { Clock } from '../../base/clock.ts';
import { assert } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { SlicedFile } from '../../ota/chunks.ts';
import type { ClientConnection } from '../flow/client-connection.ts';
import type { Counters } from '../flow/counters.ts';
import { hold, type ReadGate } from '../flow/read-gate.ts';
import type { SlowReader } from '../flow/slow-reader.ts';
import type { Client } from '../packets/client.ts';
import { payloadBytesMax, publishBytes, publishHead, writePublish } from '../packets/publish.ts';
import type { Confirm, FileOutcome } from '../session/session.ts';
import type { Transport } from '../transport/transport.ts';
import type { QoS } from '../wire/protocol.ts';
import { OutgoingFile } from './outgoing-file.ts';
import { Pushes } from './pushes.ts';

interface OutgoingDeps {
  connection: ClientConnection;
  transport: Transport;
  gate: ReadGate;
  slowReader: SlowReader;
  counters: Counters;
  clock: Clock;
  client: Client;
}

export class Outgoing {
  readonly #deps: OutgoingDeps;
  #pushes: Pushes | undefined = undefined;
  /** The file that is being sent or is next. */
  #file: OutgoingFile | undefined = undefined;
  /** Bytes of messages that wait for the end of the file. */
  #behindFileBytes = 0;

  constructor(deps: OutgoingDeps) {
    this.#deps = deps;
  }

  get hasFile(): boolean {
    return this.#file !== undefined;
  }

  /** A part of a packet may have left, so nothing else may follow. */
  get isCut(): boolean {
    return this.#file?.hasBegun === true;
  }

  /** As `Session.push`, on a connection that is open. */
  push(topic: string, payload: string | Uint8Array, qos: QoS, confirm: Confirm | undefined): boolean {
    const { connection, slowReader, counters, client } = this.#deps;
    const { level, packetBytesMax } = client;
    const topicBytes = Buffer.byteLength(topic);
    const payloadBytes = typeof payload === 'string' ? Buffer.byteLength(payload) : payload.length;
    if (publishBytes(topicBytes, payloadBytes, qos, level) > packetBytesMax) {
      counters.pushesTooLarge.add(1);
      return false;
    }
    const packet = writePublish(topic, payload, qos, 0, level);
    if (this.#file !== undefined) {
      this.#behindFileBytes += packet.length;
      if (this.#behindFileBytes > limits.mqttUnreadBytesMax) {
        connection.close('too_many_pushes');
        return false;
      }
    }
    slowReader.sends(packet.length);
    if (qos === 0) {
      connection.send(packet, confirm);
      return true;
    }
    const pushes = this.#withIds();
    if (pushes.isFull) {
      connection.close('too_many_pushes');
      return false;
    }
    const idAt = packet.length - payloadBytes - (level === 5 ? 3 : 2);
    if (pushes.add(packet, idAt, confirm)) connection.send(packet);
    return true;
  }

  /** As `Session.sendFile`, on a connection that is open. */
  sendFile(topic: string, file: SlicedFile, qos: QoS, onEnd: () => void): FileOutcome {
    const { connection, transport, gate, counters, clock, client } = this.#deps;
    const { level, packetBytesMax } = client;
    const topicBytes = Buffer.byteLength(topic);
    if (
      file.bytes > payloadBytesMax(topicBytes, qos, level) ||
      publishBytes(topicBytes, file.bytes, qos, level) > packetBytesMax
    ) {
      counters.pushesTooLarge.add(1);
      return 'too_large';
    }
    if (this.#file !== undefined) return 'busy';
    const packetId = qos > 0 ? this.#withIds().takeId() : 0;
    if (packetId === undefined) return 'busy';
    const head = publishHead(topic, file.bytes, qos, packetId, level);
    this.#file = new OutgoingFile(transport, head, file, clock, (isSent) => {
      onEnd();
      this.#fileEnded(isSent);
    });
    this.#behindFileBytes = 0;
    gate.hold(hold.file);
    // The file begins after the packets that are due, among them the acknowledgement of the request.
    connection.flushSoon();
    return 'taken';
  }

  /** Handles a PUBACK. */
  acknowledged(packetId: number): void {
    const next = this.#pushes?.acknowledged(packetId);
    if (next !== undefined) this.#deps.connection.send(next);
  }

  /** True when a file begins now: no other packet may leave after it. */
  beginFile(): boolean {
    this.#file?.begin();
    return this.#file !== undefined;
  }

  /** The transport has nothing left to write. */
  drained(): void {
    this.#file?.drained();
  }

  /** The transport is closed. */
  stopFile(): void {
    this.#file?.stop();
  }

  /** The connection has ended. */
  drop(): void {
    this.#pushes?.drop();
    this.#file?.stop();
  }

  /** The client has read nothing for too long. `lateMs`: this process did not run. */
  isStalled(now: number, lateMs: number): boolean {
    return this.#file === undefined ? this.#deps.slowReader.isStalled(now) : this.#file.isStalled(now, lateMs);
  }

  #withIds(): Pushes {
    this.#pushes ??= new Pushes(this.#deps.client.receiveMaximum);
    return this.#pushes;
  }

  #fileEnded(isSent: boolean): void {
    const { connection, gate, counters } = this.#deps;
    const { reach } = connection;
    if (reach === 'closed') return;
    assert(this.#file !== undefined, 'a file ends once', connection);
    if (!isSent && reach === 'open') {
      connection.close('file_unreadable');
      return;
    }
    this.#file = undefined;
    if (reach === 'open') {
      counters.packetsOut.add(1);
      connection.flushSoon();
    }
    gate.release(hold.file);
  }
}
