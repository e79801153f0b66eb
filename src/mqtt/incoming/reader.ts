/**
 * Reads the packets of one connection while its gate is open: cuts them from the received bytes, passes each PUBLISH to
 * the inbox and any other packet to the connection. Packets above `packetBytesMax` go to `LargePackets`, which only
 * gateways have. Bytes that arrive while the gate is closed are kept.
 */

import type { Clock } from '../../base/clock.ts';
import { assert } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Work } from '../../base/running-work.ts';
import type { ClientConnection } from '../flow/client-connection.ts';
import type { Counters } from '../flow/counters.ts';
import type { Deadlines } from '../flow/deadlines.ts';
import { type Gated, ReadGate, type ReadGateDeps } from '../flow/read-gate.ts';
import type { Transport } from '../transport/transport.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import { packetType } from '../wire/protocol.ts';
import { ReceivedPackets, type Step } from '../wire/received-packets.ts';
import { WireError } from '../wire/wire-error.ts';
import type { Inbox } from './inbox.ts';
import type { LargePackets } from './large-packets.ts';

/** The connection, as its reader sees it. */
export interface PacketHandler extends ClientConnection {
  /** Returns the reason to end the connection before its first packet; undefined = the packet may be read. */
  refusesFirst(): CloseReason | undefined;
  /** Handles the first packet, which `received` holds. Throws a WireError for what ends the connection. */
  connect(): void;
  /** Handles a later packet other than PUBLISH. Throws as `connect`. */
  dispatch(): void;
  /** Returns the handler of packets above `packetBytesMax`; undefined for a client that may not send them. */
  largePackets(): LargePackets | undefined;
  /** Called before a packet above the cap ends the connection. */
  tooLarge(bytes: number): void;
  /** Called when all kept bytes are read and nothing holds the connection. */
  caughtUp(): void;
}

interface ReaderDeps extends ReadGateDeps {
  counters: Counters;
}

/** The first byte of a CONNECT, whose flags are 0. */
const connectByte = packetType.connect << 4;
const publishType = packetType.publish;

export class Reader implements Gated {
  readonly #clock: Clock;
  readonly #counters: Counters;
  readonly #connection: PacketHandler;
  readonly #deadlines: Deadlines;
  readonly received = new ReceivedPackets();
  readonly gate: ReadGate;
  /** The largest packet. Only gateways may send a larger one. */
  packetBytesMax: number = limits.mqttFirstPacketBytesMax;
  /** Takes each PUBLISH. Set with the session. */
  inbox: Inbox | undefined = undefined;
  #large: LargePackets | undefined = undefined;
  #isFirst = true;
  #isReading = false;
  #isClosed = false;

  constructor(
    deps: ReaderDeps,
    connection: PacketHandler,
    transport: Transport,
    deadlines: Deadlines,
    inflightMax: number,
  ) {
    this.#clock = deps.clock;
    this.#counters = deps.counters;
    this.#connection = connection;
    this.#deadlines = deadlines;
    this.gate = new ReadGate(deps, this, transport, inflightMax);
  }

  /** True inside the handler of a packet. */
  get isReading(): boolean {
    return this.#isReading;
  }

  work(): Work {
    return this.#connection.work();
  }

  /** Takes received bytes, which are valid during the call only. */
  take(bytes: Buffer): void {
    this.#counters.bytesIn.add(bytes.length);
    this.received.feed(bytes);
    if (this.gate.held === 0) this.#read();
    else this.received.keep();
  }

  /** Called by the gate when no reason holds any more. */
  readOn(): void {
    assert(this.gate.held === 0, 'a connection is read when nothing holds it', this.#connection);
    if (this.#isReading || this.#isClosed) return;
    // Nothing was read, so the silence of the client does not count: Keep Alive starts again.
    this.#deadlines.receivedAt = this.#clock.monotonic();
    this.#read();
    // The kept bytes may cause another hold.
    if (this.gate.held === 0 && !this.#isClosed) this.#connection.caughtUp();
  }

  /** Ends a wait for the journal or for room early, because the transport can keep no more. */
  endWait(): void {
    this.gate.endWait();
    this.#large?.endWait();
  }

  /** Called when the transport is closed: a packet that waits for room is refused. */
  endWaitForRoom(): void {
    this.#large?.endWait();
  }

  /** Called twice a second. */
  sweep(now: number): void {
    this.#large?.sweep(now);
  }

  /** Called when the connection has ended. */
  close(): void {
    assert(!this.#isClosed, 'the reading of a connection ends once', this.#connection);
    this.#isClosed = true;
    this.received.clear();
    this.gate.close();
    this.#large?.close();
  }

  #read(): void {
    this.#isReading = true;
    const { received, gate } = this;
    let now = 0;
    let readAt = 0;
    while (gate.held === 0 && !this.#isClosed) {
      if (this.#isFirst && this.#refusesFirst()) break;
      const step = received.next(this.packetBytesMax);
      if (step === 'more') {
        if (this.#large?.hasProgressed()) this.#deadlines.receivedAt = this.#clock.monotonic();
        break;
      }
      if (step === 'packet') {
        // Only whole packets count as activity, so single bytes postpone no deadline.
        if (now === 0) {
          now = this.#clock.monotonic();
          readAt = this.#clock.now();
        }
        this.#deadlines.receivedAt = now;
        this.#counters.packetsIn[received.type]!.add(1);
        this.#handle(readAt);
      } else {
        this.#takeLarge(step);
      }
    }
    this.#isReading = false;
    if (gate.held !== 0 && !this.#isClosed) received.keep();
  }

  #refusesFirst(): boolean {
    const reason = this.#connection.refusesFirst() ?? (this.received.mayBe(connectByte) ? undefined : 'not_mqtt');
    if (reason !== undefined) this.#connection.close(reason);
    return reason !== undefined;
  }

  #handle(readAt: number): void {
    const isFirst = this.#isFirst;
    this.#isFirst = false;
    try {
      if (this.inbox !== undefined && this.received.type === publishType) this.inbox.publish(readAt);
      else if (isFirst) this.#connection.connect();
      else this.#connection.dispatch();
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.#connection.close(isFirst ? 'not_mqtt' : error.reason);
    }
  }

  #takeLarge(step: Step): void {
    try {
      this.#large ??= this.#connection.largePackets();
      if (this.#large?.take(step)) return;
      if (step === 'too_large') this.#connection.tooLarge(this.received.declaredBytes);
      this.#connection.close(this.#isFirst ? 'not_mqtt' : step === 'malformed' ? 'malformed' : 'packet_too_large');
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.#connection.close(error.reason);
    }
  }
}
