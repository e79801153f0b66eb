/**
 * Handles the messages of one client, each from its PUBLISH to its answer: finds the operation of the topic, counts the
 * message against the cap of waiting messages, and refuses or discards the message, or leaves it unread while the
 * journal refuses. A connection makes its inbox when the session opens. The `Outbox` sends the acknowledgements.
 */

import { readEncoding, unpack, unpackNow } from '../../base/content-encoding.ts';
import { assert, Fault, isBug, notFound } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { Troubles } from '../../diagnostics/troubles.ts';
import { isJournalRefusal } from '../../ingest/refusals.ts';
import type { ClientConnection } from '../flow/client-connection.ts';
import type { Counters } from '../flow/counters.ts';
import type { PacketRoom } from '../flow/packet-room.ts';
import { hold, type ReadGate } from '../flow/read-gate.ts';
import { type Outbox, unanswered, withheld } from '../outgoing/outbox.ts';
import { pubcompBytes, pubrecBytes } from '../packets/acknowledgements.ts';
import { PublishFields, readPublish } from '../packets/publish.ts';
import { type Answered, giveBack, type Incoming, takeIncoming } from '../session/incoming.ts';
import type { Session } from '../session/session.ts';
import { sendGatewayError } from '../topics/gateway-errors.ts';
import type { ExactTopic, TopicTable } from '../topics/table.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import { type ProtocolLevel, packetType } from '../wire/protocol.ts';
import { code } from '../wire/reason-codes.ts';
import type { ReceivedPackets } from '../wire/received-packets.ts';
import { isTopic, readText } from '../wire/strings.ts';
import { malformed } from '../wire/wire-error.ts';
import { answerOf, isDiscarded, mayPass, passesLater } from './answers.ts';
import { Discards } from './discards.ts';

/** What the inboxes of all connections share. */
interface InboxDeps {
  settings: {
    gateway: { packetBytesMax: number };
    /** True: a message that cannot be decoded ends an MQTT 3 connection. */
    closeOnInvalid: boolean;
  };
  topics: TopicTable;
  provisionTopics: TopicTable;
  packetRoom: PacketRoom;
  counters: Counters;
  troubles: Troubles;
  log: Log;
}

/** What belongs to the connection of one inbox. */
interface InboxConnection {
  connection: ClientConnection;
  session: Session;
  received: ReceivedPackets;
  gate: ReadGate;
  outbox: Outbox;
  /** The client wants no Reason Strings. */
  isTerse: boolean;
  packetBytesMax: number;
}

/** The head of a PUBLISH, which is answered when its last byte is skipped. */
export interface SkippedPublish {
  topic: string;
  qos: 0 | 1 | 2;
  packetId: number;
}

/** `returnable`: the reader of packets can return the packet of the message again. */
type PacketState = 'returnable' | 'consumed';

/** Ends that the client caused: what the client sent last is not counted as discarded. */
const causedByClient: Partial<Record<CloseReason, true>> = {
  client_disconnect: true,
  malformed: true,
  protocol_error: true,
  packet_too_large: true,
  not_mqtt: true,
};

/** Short forms of gateway topics do not exist. */
const gatewayTopics = 'v1/gateway/';
/** The bits of the QoS in the flags of a PUBLISH. */
const qosBits = 0x06;
const noPayload = Buffer.alloc(0);
const gone = notFound('The connection has ended.');
const fields = new PublishFields();

export class Inbox implements Answered {
  readonly #deps: InboxDeps;
  readonly #connection: ClientConnection;
  readonly #session: Session;
  readonly #table: TopicTable;
  readonly #received: ReceivedPackets;
  readonly #gate: ReadGate;
  readonly #outbox: Outbox;
  readonly #level: ProtocolLevel;
  readonly #isTerse: boolean;
  readonly #packetBytesMax: number;
  #discards: Discards | undefined = undefined;
  /** True: a message of MQTT 3 got no answer. The connection ends a while later, so that the client sends it again. */
  #hasUnanswered = false;
  #endsAt = Number.POSITIVE_INFINITY;
  /** Messages on `v1/gateway/errors` since the last sweep. */
  #errorsSent = 0;

  constructor(
    deps: InboxDeps,
    { connection, session, received, gate, outbox, isTerse, packetBytesMax }: InboxConnection,
  ) {
    this.#deps = deps;
    this.#connection = connection;
    this.#session = session;
    this.#table = session.kind === 'provision' ? deps.provisionTopics : deps.topics;
    this.#received = received;
    this.#gate = gate;
    this.#outbox = outbox;
    this.#level = session.level;
    this.#isTerse = isTerse;
    this.#packetBytesMax = packetBytesMax;
  }

  /** Handles the PUBLISH that `received` holds; `readAt` is the clock time of the read. */
  publish(readAt: number): void {
    const { buffer, start, end, flags } = this.#received;
    const gate = this.#gate;
    readPublish(fields, flags, buffer, start, end, this.#level);
    // All fields are read before any call that could read another packet.
    const { qos, packetId, topicStart, topicEnd, payloadStart, encoding, wantsReceipt } = fields;
    const exact = this.#table.findExact(buffer, topicStart, topicEnd);
    const topic = exact === undefined ? readText(buffer, topicStart, topicEnd) : exact.topic;
    if (topic === undefined || (exact === undefined && !isTopic(topic))) throw malformed;
    const incoming = this.#take(topic, qos, packetId);
    if (incoming === undefined) return;
    incoming.readAt = readAt;
    incoming.payload = buffer.subarray(payloadStart, end);
    incoming.isOwned = this.#received.isOwned;
    // The standard allows no user properties to a client that wants no Reason Strings [MQTT-3.1.2-29].
    if (qos > 0 && wantsReceipt && !this.#isTerse) incoming.receipt = '';
    if (encoding !== '') {
      this.#unpack(incoming, exact, encoding);
      return;
    }
    // Repeats `#handle`, because a call costs 40 ns here, a sixth of the time of a message.
    try {
      if (exact === undefined) this.#table.dispatch(incoming);
      else exact.operation(incoming, '');
      this.#passRoom(incoming);
      // The read buffer is reused. The object may be in the pool already, but serves no other message yet.
      incoming.payload = noPayload;
    } catch (error) {
      this.#failed(incoming, error, 'returnable');
      return;
    }
    gate.forgetRefusal();
    if (this.#connection.reach !== 'closed') gate.holdForAnswers(this.#level);
  }

  /** Handles an unpacked message. */
  #handle(incoming: Incoming, exact: ExactTopic | undefined, packet: PacketState): void {
    try {
      if (exact === undefined) this.#table.dispatch(incoming);
      else exact.operation(incoming, '');
      this.#passRoom(incoming);
      incoming.payload = noPayload;
    } catch (error) {
      this.#failed(incoming, error, packet);
      return;
    }
    this.#gate.forgetRefusal();
    if (this.#connection.reach !== 'closed') this.#gate.holdForAnswers(this.#level);
  }

  /** Called when the operation of a message threw: the message waits for the journal, or is refused. */
  #failed(incoming: Incoming, error: unknown, packet: PacketState): void {
    if (!(error instanceof Fault)) throw error;
    const gate = this.#gate;
    const isReturnable = packet === 'returnable' && this.#connection.reach !== 'closed';
    if (isReturnable && mayPass(error) && gate.mayWait) {
      this.#waitForJournal(incoming);
      return;
    }
    this.#passRoom(incoming);
    incoming.refuse(error);
    gate.forgetRefusal();
    if (this.#connection.reach !== 'closed') gate.holdForAnswers(this.#level);
  }

  /** Handles a compressed message. The cap of a packet of its sender is also the cap of the unpacked bytes. */
  #unpack(incoming: Incoming, exact: ExactTopic | undefined, contentEncoding: string): void {
    const { gateway } = this.#deps.settings;
    const ofTopic = Math.min(gateway.packetBytesMax, exact?.bytesMax ?? limits.decodeInLoopBytesMax);
    const bytesMax = this.#session.kind === 'gateway' ? ofTopic : this.#packetBytesMax;
    try {
      const encoding = readEncoding(contentEncoding);
      const body = encoding === '' ? incoming.payload : unpackNow(encoding, incoming.payload, bytesMax);
      if (body === undefined) {
        void this.#unpackLater(incoming, exact, encoding, bytesMax);
        return;
      }
      incoming.payload = body;
      incoming.isOwned &&= encoding === '';
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      this.#passRoom(incoming);
      incoming.refuse(error);
      return;
    }
    this.#handle(incoming, exact, 'returnable');
  }

  /**
   * Unpacks a large message in a thread. Meanwhile the connection is not read, so that messages keep their order.
   */
  async #unpackLater(
    incoming: Incoming,
    exact: ExactTopic | undefined,
    encoding: string,
    bytesMax: number,
  ): Promise<void> {
    const { packetRoom } = this.#deps;
    const packed = incoming.isOwned ? incoming.payload : Buffer.from(incoming.payload);
    const packedRoom = this.#received.takeRoom();
    const waiter = { hasRoom() {} };
    const { device } = this.#session;
    const room = packetRoom.of(device, waiter);
    const sender = { owner: device.tenantId, sender: `device ${device.number}` };
    this.#gate.hold(hold.unpack);
    try {
      incoming.payload = await unpack(encoding, packed, bytesMax, sender, (bytes) => room.grow(bytes));
      incoming.isOwned = true;
      incoming.room = room;
      if (this.#connection.reach === 'closed') incoming.refuse(gone);
      else this.#handle(incoming, exact, 'consumed');
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      packetRoom.forget(waiter);
      room.release();
      incoming.refuse(error);
    } finally {
      packedRoom?.release();
      this.#gate.release(hold.unpack);
    }
  }

  /** Refuses a PUBLISH that was skipped, in the same way as one that `publish` reads. */
  refuseSkipped({ topic, qos, packetId }: SkippedPublish, fault: Fault): void {
    const incoming = this.#take(topic, qos, packetId);
    if (incoming === undefined) return;
    incoming.refuse(fault);
    if (this.#connection.reach !== 'closed') this.#gate.holdForAnswers(this.#level);
  }

  /**
   * Takes an object for a message and counts the message until its answer. Returns undefined when the message was
   * received before, and when the client has too many unfinished messages, which ends the connection.
   */
  #take(topic: string, qos: 0 | 1 | 2, packetId: number): Incoming | undefined {
    const gate = this.#gate;
    if (qos === 2 && this.#isRepeated(packetId)) return undefined;
    if (qos > 0 && gate.unacknowledged >= gate.inflightMax) {
      this.#connection.close('receive_maximum');
      return undefined;
    }
    if (qos === 2 && this.#level !== 5 && this.#outbox.unreleased >= limits.mqttUnreleasedMax) {
      this.#connection.close('too_many_unreleased');
      return undefined;
    }
    const incoming = takeIncoming();
    incoming.topic = topic;
    incoming.qos = qos;
    incoming.packetId = packetId;
    incoming.session = this.#session;
    incoming.connection = this;
    if (qos === 0) {
      gate.unanswered += 1;
    } else {
      gate.unacknowledged += 1;
      this.#outbox.expect(incoming);
    }
    return incoming;
  }

  answered(incoming: Incoming, fault: Fault | undefined): void {
    const gate = this.#gate;
    const isWaited = incoming.qos === 0 ? gate.unanswered > 0 : gate.unacknowledged > 0;
    assert(isWaited, 'a message is answered while its connection waits for the answer', this.#connection);
    if (fault !== undefined) this.#refused(incoming, fault);
    if (incoming.qos === 0) {
      gate.unanswered -= 1;
      giveBack(incoming);
      gate.releaseAnswers();
    } else if (this.#connection.reach !== 'closed') {
      this.#connection.flushSoon();
    }
  }

  /** Handles a PUBREL. */
  released(packetId: number): void {
    const isKnown = this.#outbox.released(packetId);
    if (isKnown && this.#level === 5) this.#gate.unacknowledged -= 1;
    assert(this.#gate.unacknowledged >= 0, 'only messages that wait are released', this.#connection);
    this.#connection.send(pubcompBytes(this.#level, packetId, isKnown));
  }

  /**
   * Discards QoS 0 messages that arrived before the end and were not handled; other messages are not acknowledged and
   * are sent again. Called once.
   */
  discardUnread(reason: CloseReason): void {
    if (reason in causedByClient) return;
    while (this.#received.next(this.#packetBytesMax) === 'packet') {
      const { type, flags } = this.#received;
      if (type === packetType.publish && (flags & qosBits) === 0) this.#discard(reason, 0);
    }
  }

  /** True when the client must send a message again that got no answer, over another connection. */
  isOverdue(now: number): boolean {
    return now >= this.#endsAt;
  }

  /** Called twice a second. */
  sweep(now: number): void {
    if (this.#hasUnanswered) this.#endsAt = Math.min(this.#endsAt, now + limits.mqttPausedMsMax);
    this.#errorsSent = 0;
    this.#discards?.log(this.#deps.log, this.#session.device?.id);
    this.#gate.forgetRefusal();
  }

  /** Passes the room of a large packet to its message, whose answer releases the room. */
  #passRoom(incoming: Incoming): void {
    const room = this.#received.takeRoom();
    if (room === undefined) return;
    if (incoming.isOpen) incoming.room = room;
    else room.release();
  }

  /** Handles a PUBLISH that is repeated before its PUBREL: one PUBREC answers both. Returns false for a new one. */
  #isRepeated(packetId: number): boolean {
    if (this.#outbox.isExpected(packetId)) return true;
    if (!this.#outbox.isReceived(packetId)) return false;
    this.#connection.send(pubrecBytes(packetId));
    return true;
  }

  #refused(incoming: Incoming, fault: Fault): void {
    const { counters, settings, log, troubles } = this.#deps;
    const session = this.#session;
    counters.refused(fault.reason);
    if (session.kind !== 'provision') {
      const door = incoming.topic.startsWith(gatewayTopics) ? 'gateway' : 'mqtt';
      troubles.refused(session.device, fault, { door, address: () => session.remoteAddress }, incoming.payload);
    }
    if (isBug(fault)) log.error('handler_bug', { topic: incoming.topic, error: fault.cause });
    if (incoming.qos === 0) {
      if (isDiscarded(fault)) this.#discardRefused(incoming, fault);
    } else {
      const answer = answerOf(fault);
      incoming.code = answer.code;
      if (!this.#isTerse) incoming.text = fault.message;
      if (this.#level !== 5) {
        const isInvalid = answer.code === code.payload && settings.closeOnInvalid;
        const reason = isJournalRefusal(fault) ? 'journal_refused' : answer.closesMqtt3;
        if (passesLater(fault)) {
          incoming.code = unanswered;
          this.#hasUnanswered = true;
        } else if (reason !== undefined) {
          incoming.code = withheld;
          this.#connection.close(reason);
        } else if (isInvalid && session.profileTopics?.acknowledgesInvalid !== true) {
          incoming.code = withheld;
          this.#connection.close('invalid_message');
        } else {
          this.#discardRefused(incoming, fault);
        }
      }
    }
    if (session.kind === 'provision' && fault.status === 404) this.#connection.close('provisioning_topic');
  }

  /** Returns the packet to `received` for another try, and stops reading until the journal accepts. */
  #waitForJournal(incoming: Incoming): void {
    if (incoming.qos === 0) {
      this.#gate.unanswered -= 1;
    } else {
      this.#outbox.unexpect(incoming);
      this.#gate.unacknowledged -= 1;
    }
    giveBack(incoming);
    this.#received.unread();
    this.#gate.holdForJournal();
  }

  #discardRefused(incoming: Incoming, fault: Fault): void {
    this.#discard(fault.reason, incoming.qos);
    if (this.#session.kind !== 'gateway' || this.#errorsSent >= limits.gatewayErrorsPerSweepMax) return;
    if (sendGatewayError(incoming, fault)) this.#errorsSent += 1;
  }

  #discard(reason: string, qos: 0 | 1 | 2): void {
    this.#discards ??= new Discards(this.#deps.counters);
    this.#discards.add(reason, qos);
    // No further sweep will log these discards.
    if (this.#connection.reach === 'closed') this.#discards.log(this.#deps.log, this.#session.device?.id);
  }
}
