/**
 * Sends messages to one client: within its Maximum Packet Size, with the packet ids of QoS 1 within its Receive
 * Maximum, and one large file at a time. Until the end of a file no other packet is written and nothing is read. The
 * connection makes the object with the first message to the client.
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
import { packetIdAt, payloadBytesMax, publishBytes, publishHead, writePublish } from '../packets/publish.ts';
import type { Confirm, FileOutcome } from '../session/session.ts';
import type { Transport } from '../transport/transport.ts';
import type { QoS } from '../wire/protocol.ts';
import { type FileEnd, OutgoingFile } from './outgoing-file.ts';
import { Qos1Window } from './qos1-window.ts';

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
  #window: Qos1Window | undefined = undefined;
  /** The file that is being sent, or that begins with the next flush. */
  #file: OutgoingFile | undefined = undefined;
  /** Bytes of messages that wait for the end of the file. */
  #afterFileBytes = 0;

  constructor(deps: OutgoingDeps) {
    this.#deps = deps;
  }

  get hasFile(): boolean {
    return this.#file !== undefined;
  }

  /** True when only a part of a packet may have been written: no other packet may follow. */
  get isCut(): boolean {
    return this.#file?.hasBegun === true;
  }

  /** Does what `Session.push` does, on a connection that is open. */
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
      this.#afterFileBytes += packet.length;
      if (this.#afterFileBytes > limits.mqttUnreadBytesMax) {
        connection.close('too_many_pushes');
        return false;
      }
    }
    slowReader.sends(packet.length);
    if (qos === 0) {
      connection.send(packet, confirm);
      return true;
    }
    const window = this.#qos1Window();
    if (window.isFull) {
      connection.close('too_many_pushes');
      return false;
    }
    if (window.add(packet, packetIdAt(packet, payloadBytes, level), confirm)) connection.send(packet);
    return true;
  }

  /** Does what `Session.sendFile` does, on a connection that is open. */
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
    const packetId = qos > 0 ? this.#qos1Window().takeId() : 0;
    if (packetId === undefined) return 'busy';
    const head = publishHead(topic, file.bytes, qos, packetId, level);
    this.#file = new OutgoingFile(transport, head, file, clock, (end) => {
      onEnd();
      this.#fileEnded(end);
    });
    this.#afterFileBytes = 0;
    gate.hold(hold.file);
    // The file begins after the packets that are due, for example the acknowledgement of the request for the file.
    connection.flushSoon();
    return 'taken';
  }

  /** Handles a PUBACK. */
  acknowledged(packetId: number): void {
    const next = this.#window?.acknowledged(packetId);
    if (next !== undefined) this.#deps.connection.send(next);
  }

  /** Begins the file that is next. Returns true while a file is sent: no other packet may be written. */
  beginFile(): boolean {
    this.#file?.begin();
    return this.#file !== undefined;
  }

  /** Called when the transport has no bytes left to write. */
  drained(): void {
    this.#file?.drained();
  }

  /** Called when the transport is closed. */
  stopFile(): void {
    this.#file?.stop();
  }

  /** Called when the connection has ended. */
  drop(): void {
    this.#window?.drop();
    this.#file?.stop();
  }

  /** True when the client has read nothing for too long. `lateMs`: time in which this process did not run. */
  isStalled(now: number, lateMs: number): boolean {
    return this.#file === undefined ? this.#deps.slowReader.isStalled(now) : this.#file.isStalled(now, lateMs);
  }

  #qos1Window(): Qos1Window {
    this.#window ??= new Qos1Window(this.#deps.client.receiveMaximum);
    return this.#window;
  }

  #fileEnded(end: FileEnd): void {
    const { connection, gate, counters } = this.#deps;
    const { reach } = connection;
    if (reach === 'closed') return;
    assert(this.#file !== undefined, 'a file ends once', connection);
    if (end === 'unsent' && reach === 'open') {
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
