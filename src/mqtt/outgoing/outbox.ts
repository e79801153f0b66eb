/**
 * The outgoing packets of one connection: packets in the order in which they were added, then the acknowledgements that
 * are due. One write sends all packets of one turn of the event loop. Acknowledgements keep the order of arrival: an
 * early answer waits for the earlier messages.
 */
import { assert, type Subject } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { generate } from '../packets/generate.ts';
import { giveBack, type Incoming } from '../session/incoming.ts';
import type { Confirm } from '../session/session.ts';
import type { Transport } from '../transport/transport.ts';
import { receiptName } from '../wire/properties.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import { code } from '../wire/reason-codes.ts';

/** Shared by all connections of the worker: a write copies its bytes. */
const scratch = Buffer.allocUnsafe(limits.mqttWriteBytes);
let isScratchInUse = false;
/** PUBACK or PUBREC without a reason. */
const shortBytes = 4;
/** Used as a reason code: this message and later ones get no answer, so that the client keeps them. */
export const withheld = -1;
/** Used as a reason code: this message gets no answer, and later ones do. */
export const unanswered = -2;

export class Outbox {
  readonly #transport: Transport;
  readonly #owner: Subject;
  #isDropped = false;
  #packets: Buffer[] | undefined = undefined;
  #confirms: Confirm[] | undefined = undefined;
  #head: Incoming | undefined = undefined;
  #tail: Incoming | undefined = undefined;
  /** Packet ids of QoS 2 before their PUBREC. */
  #expected: Set<number> | undefined = undefined;
  /** Packet ids of QoS 2 between PUBREC and PUBREL. */
  #received: Set<number> | undefined = undefined;
  /** Packets that the last flush wrote. */
  sent = 0;
  /** Messages that the last flush finished: these no longer count against the Receive Maximum. */
  acknowledged = 0;

  constructor(transport: Transport, owner: Subject) {
    this.#transport = transport;
    this.#owner = owner;
  }

  /** Sends a whole packet. `confirm` is called when the transport has the packet or will never have it. */
  add(packet: Buffer, confirm?: Confirm): void {
    assert(!this.#isDropped, 'a connection that has ended sends nothing', this.#owner);
    this.#packets ??= [];
    this.#packets.push(packet);
    if (confirm === undefined) return;
    this.#confirms ??= [];
    this.#confirms.push(confirm);
  }

  /** Expects the answer of `incoming`; its acknowledgement is sent after all that were expected earlier. */
  expect(incoming: Incoming): void {
    assert(!this.#isDropped, 'a connection that has ended takes no message', this.#owner);
    assert(incoming.isOpen && incoming.next === undefined, 'a message that is expected is new', this.#owner);
    if (this.#tail === undefined) this.#head = incoming;
    else this.#tail.next = incoming;
    this.#tail = incoming;
    if (incoming.qos !== 2) return;
    this.#expected ??= new Set();
    this.#expected.add(incoming.packetId);
  }

  /** Removes the message that was expected last. */
  unexpect(incoming: Incoming): void {
    assert(incoming === this.#tail, 'the message that was expected last is taken back', this.#owner);
    let before: Incoming | undefined;
    for (let at = this.#head; at !== incoming && at !== undefined; at = at.next) before = at;
    if (before === undefined) this.#head = undefined;
    else before.next = undefined;
    this.#tail = before;
    if (incoming.qos === 2) this.#expected?.delete(incoming.packetId);
  }

  /** Handles PUBREL: returns true when a PUBREC with this id was sent. */
  released(packetId: number): boolean {
    assert(!this.#isDropped, 'a connection that has ended releases nothing', this.#owner);
    return this.#received?.delete(packetId) ?? false;
  }

  /** True when the message with this id waits for its PUBREC. */
  isExpected(packetId: number): boolean {
    return this.#expected?.has(packetId) ?? false;
  }

  /** True when a PUBREC with this id was sent and its PUBREL has not arrived. */
  isReceived(packetId: number): boolean {
    return this.#received?.has(packetId) ?? false;
  }

  /** Messages whose PUBREC was sent and whose PUBREL has not arrived. */
  get unreleased(): number {
    return this.#received?.size ?? 0;
  }

  /** True while a message waits for its PUBACK or PUBREC. */
  get isExpecting(): boolean {
    return this.#head !== undefined;
  }

  /** Writes all packets that are due. The caller then calls `confirm`. */
  flush(level: ProtocolLevel, packetBytesMax: number): void {
    assert(!this.#isDropped, 'a connection that has ended writes nothing', this.#owner);
    assert(!isScratchInUse, 'one connection writes at a time', this.#owner);
    isScratchInUse = true;
    let at = 0;
    this.sent = 0;
    this.acknowledged = 0;
    const packets = this.#packets;
    if (packets !== undefined) {
      this.#packets = undefined;
      this.sent = packets.length;
      for (const packet of packets) {
        if (at + packet.length > scratch.length) at = this.#write(at);
        if (packet.length > scratch.length) this.#transport.write(packet);
        else at += packet.copy(scratch, at);
      }
    }
    let incoming = this.#head;
    while (incoming !== undefined && !incoming.isOpen && incoming.code !== withheld) {
      const isRefused = incoming.code !== code.success && level === 5;
      if (incoming.code === unanswered) {
        if (incoming.qos === 2) this.#expected!.delete(incoming.packetId);
        this.acknowledged += 1;
        const { next }: Incoming = incoming;
        giveBack(incoming);
        incoming = next;
        continue;
      }
      if (isRefused || incoming.receipt) {
        const answer = longAnswer(incoming, packetBytesMax);
        if (at + answer.length > scratch.length) at = this.#write(at);
        at += answer.copy(scratch, at);
      } else {
        if (at + shortBytes > scratch.length) at = this.#write(at);
        scratch[at] = incoming.qos === 2 ? 0x50 : 0x40;
        scratch[at + 1] = 2;
        scratch[at + 2] = incoming.packetId >> 8;
        scratch[at + 3] = incoming.packetId & 0xff;
        at += shortBytes;
      }
      this.sent += 1;
      if (incoming.qos === 2) this.#expected!.delete(incoming.packetId);
      if (incoming.qos === 2 && !isRefused) {
        this.#received ??= new Set();
        this.#received.add(incoming.packetId);
        // MQTT 5 counts the message against the Receive Maximum until PUBCOMP.
        if (level !== 5) this.acknowledged += 1;
      } else {
        this.acknowledged += 1;
      }
      const { next }: Incoming = incoming;
      giveBack(incoming);
      incoming = next;
    }
    this.#head = incoming;
    if (incoming === undefined) this.#tail = undefined;
    this.#write(at);
    isScratchInUse = false;
  }

  /**
   * Calls the callbacks of the packets that `flush` wrote: with false when the transport has ended, because the packets
   * did not leave then. A callback may add packets.
   */
  confirm(): void {
    if (this.#confirms !== undefined) this.#confirm(!this.#transport.hasEnded);
  }

  /** Drops all answers, because the connection has ended. */
  drop(): void {
    assert(!this.#isDropped, 'a connection ends once', this.#owner);
    this.#isDropped = true;
    this.#packets = undefined;
    this.#expected = undefined;
    this.#received = undefined;
    let incoming = this.#head;
    while (incoming !== undefined) {
      const { next }: Incoming = incoming;
      incoming.next = undefined;
      if (incoming.isOpen) incoming.connection = undefined;
      else giveBack(incoming);
      incoming = next;
    }
    this.#head = undefined;
    this.#tail = undefined;
    this.#confirm(false);
  }

  #confirm(delivered: boolean): void {
    const confirms = this.#confirms;
    if (confirms === undefined) return;
    this.#confirms = undefined;
    for (const confirm of confirms) confirm(delivered);
  }

  #write(bytes: number): 0 {
    if (bytes > 0) this.#transport.write(scratch.subarray(0, bytes));
    return 0;
  }
}

/**
 * Returns a refusal, or an acknowledgement with a receipt. A packet that would exceed the client's Maximum Packet Size
 * omits the Reason String, and if this is not enough, the receipt.
 */
function longAnswer({ qos, packetId, code: reasonCode, text, receipt }: Incoming, packetBytesMax: number): Buffer {
  const packet = { cmd: qos === 2 ? 'pubrec' : 'puback', messageId: packetId, reasonCode } as const;
  const userProperties = receipt ? { userProperties: { [receiptName]: receipt } } : undefined;
  const forms = [{ ...userProperties, ...(text !== '' && { reasonString: text }) }, { ...userProperties }];
  for (const properties of forms) {
    if (Object.keys(properties).length === 0) continue;
    const bytes = generate({ ...packet, properties }, { protocolVersion: 5 });
    if (bytes.length <= packetBytesMax) return bytes;
  }
  return generate(packet, { protocolVersion: 5 });
}
