/**
 * Handles packets of one gateway above `mqtt.packetBytesMax`. A PUBLISH that its topic allows is kept, in room that
 * grows with the received bytes; without room the connection is not read for a while. Any other PUBLISH is skipped and
 * refused with a reason, and the connection stays. The connection makes the object with the first such packet.
 */

import type { Clock } from '../../base/clock.ts';
import { type Fault, tooLarge, unavailable } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { FittingChildren } from '../../gateway/fitting-children.ts';
import type { PacketRoom, RoomWaiter } from '../flow/packet-room.ts';
import { hold, type ReadGate } from '../flow/read-gate.ts';
import type { TooLargeLog } from '../flow/too-large-log.ts';
import { PublishFields, readPublish } from '../packets/publish.ts';
import type { Session } from '../session/session.ts';
import type { TopicTable } from '../topics/table.ts';
import type { LargePacket } from '../wire/large-packet.ts';
import { packetType } from '../wire/protocol.ts';
import type { ReceivedPackets, Step } from '../wire/received-packets.ts';
import { isTopic, readText } from '../wire/strings.ts';
import { malformed } from '../wire/wire-error.ts';
import type { Inbox, SkippedPublish } from './inbox.ts';

interface LargePacketsDeps {
  settings: { gateway: { packetBytesMax: number } };
  topics: TopicTable;
  packetRoom: PacketRoom;
  tooLargeLog: TooLargeLog;
  clock: Clock;
  session: Session;
  received: ReceivedPackets;
  gate: ReadGate;
  inbox: Inbox;
}

/** The length of the topic, the topic, the packet id, and the length of the properties. */
const headBytesMax = 2 + limits.mqttLargeTopicBytesMax + 2 + 4;
const head = new PublishFields();

export class LargePackets implements RoomWaiter {
  readonly #deps: LargePacketsDeps;
  /** Undefined until the head of the packet is read. */
  #publish: SkippedPublish | undefined = undefined;
  /** Makes the refusal of the packet that is being skipped; called after its last byte. */
  #fault: (() => Fault) | undefined = undefined;
  /** Monotonic time since when the packet waits for room; 0 = it does not wait. */
  #waitsSince = 0;
  /** Received bytes of the packet at its last progress. */
  #seenBytes = 0;
  /** Monotonic time of the last progress. */
  #seenAt = 0;

  constructor(deps: LargePacketsDeps) {
    this.#deps = deps;
  }

  /** Handles a step of `ReceivedPackets`. Returns false for a packet that ends the connection. Throws a WireError. */
  take(step: Step): boolean {
    const { received, gate, inbox } = this.#deps;
    switch (step) {
      case 'too_large':
        if (received.type !== packetType.publish) return false;
        received.openLarge(headBytesMax);
        this.#publish = undefined;
        this.#waitsSince = 0;
        this.#seenBytes = 0;
        this.#seenAt = this.#deps.clock.monotonic();
        return true;
      case 'head':
        return this.#decide(received.large!);
      case 'no_room':
        this.#waitsSince ||= this.#deps.clock.monotonic();
        gate.hold(hold.room);
        return true;
      case 'skipped':
        inbox.refuseSkipped(this.#publish!, this.#fault!());
        this.#fault = undefined;
        return true;
      default:
        return false;
    }
  }

  /** Called at the end of the received bytes: true when enough of a large packet arrived to count as activity. */
  hasProgressed(): boolean {
    const filled = this.#deps.received.large?.filled ?? 0;
    this.#waitsSince = 0;
    if (filled - this.#seenBytes < limits.mqttProgressBytes) return false;
    this.#seenBytes = filled;
    this.#seenAt = this.#deps.clock.monotonic();
    return true;
  }

  hasRoom(): void {
    this.#deps.gate.release(hold.room);
  }

  /** Called twice a second. */
  sweep(now: number): void {
    const { received, gate } = this.#deps;
    const { keepAliveMs } = gate;
    if ((gate.held & hold.room) !== 0) {
      const waitMsMax = Math.min(limits.mqttPausedMsMax, keepAliveMs > 0 ? keepAliveMs / 2 : Number.POSITIVE_INFINITY);
      if (now - this.#waitsSince > waitMsMax) this.endWait();
    } else if (gate.held !== 0) {
      // Nothing is read, so the packet cannot grow.
      this.#seenAt = now;
    } else if (received.large !== undefined && this.#publish !== undefined && this.#fault === undefined) {
      if (now - this.#seenAt > limits.mqttLargeStallMsMax) this.#skip(noRoom);
    }
  }

  /** Refuses the packet that waits for room, because the transport can keep no more, or the wait is over. */
  endWait(): void {
    const { gate } = this.#deps;
    if ((gate.held & hold.room) === 0) return;
    this.#waitsSince = 0;
    this.#skip(noRoom);
    gate.release(hold.room);
  }

  /** Called when the connection has ended. */
  close(): void {
    this.#deps.packetRoom.forget(this);
  }

  /** Reads the head and decides whether the packet is kept. */
  #decide(large: LargePacket): boolean {
    const { session, received } = this.#deps;
    const { buffer, bodyStart, bytes } = large;
    // Reads the head as that of MQTT 3: properties may be longer than the head, and the decision needs none of them.
    readPublish(head, received.flags, buffer, bodyStart, bytes, 4);
    const { qos, packetId, topicStart, topicEnd, payloadStart } = head;
    if (payloadStart > large.filled) return false;
    const exact = this.#deps.topics.findExact(buffer, topicStart, topicEnd);
    const topic = exact?.topic ?? readText(buffer, topicStart, topicEnd);
    if (topic === undefined || (exact === undefined && !isTopic(topic))) throw malformed;
    this.#publish = { topic, qos, packetId };
    const { packetBytesMax } = this.#deps.settings.gateway;
    const bytesMax = Math.min(packetBytesMax, exact?.bytesMax ?? limits.decodeInLoopBytesMax);
    if (bytes <= bytesMax) {
      large.keep(this.#deps.packetRoom.of(session.device, this));
      return true;
    }
    this.#deps.tooLargeLog.add(session.device, { bytes, bytesMax, topic });
    const start = session.level === 5 ? endOfProperties(buffer, payloadStart) : payloadStart;
    const children = new FittingChildren(topic.startsWith('v1/gateway/') ? bytesMax - start : 0);
    skipAndCount(large, start, children);
    const fault = () => tooLargeFault(bytes, bytesMax, bytesMax === packetBytesMax, children.count);
    this.#fault = fault;
    return true;
  }

  #skip(fault: Fault): void {
    this.#deps.packetRoom.forget(this);
    this.#deps.received.large?.skip();
    const known = () => fault;
    this.#fault = known;
  }
}

/** Skips the packet, whose payload begins at `start`. */
function skipAndCount(large: LargePacket, start: number, children: FittingChildren): void {
  const { buffer, filled } = large;
  children.add(buffer.subarray(start, filled));
  // Long properties end after the bytes of the head.
  let unread = Math.max(0, start - filled);
  large.skip((bytes) => {
    if (unread < bytes.length) children.add(bytes.subarray(unread));
    unread = Math.max(0, unread - bytes.length);
  });
}

/** Returns the offset after the properties, which may be beyond the received bytes. */
function endOfProperties(bytes: Buffer, at: number): number {
  let length = 0;
  for (let i = 0; i < 4; i += 1) {
    const byte = bytes[at + i] ?? 0;
    length += (byte & 0x7f) * 2 ** (7 * i);
    if (byte < 0x80) return at + i + 1 + length;
  }
  throw malformed;
}

function tooLargeFault(bytes: number, bytesMax: number, isSetting: boolean, children: number): Fault {
  const setting = isSetting ? ' (GATEWAY_PAYLOAD_SIZE)' : '';
  const fit = children > 0 ? `: its first ${children} devices would have fitted` : '';
  return tooLarge(
    'message_too_large',
    `The message has ${bytes} bytes and was not read. On this topic a gateway may send ${bytesMax} bytes${setting}. Send it in ${Math.ceil(bytes / bytesMax)} or more parts${fit}.`,
  );
}

const noRoom = unavailable(
  'gateway_room',
  'Too many bytes of large messages of gateways are in memory; send again, in smaller parts or later.',
);
