/**
 * One MQTT connection: CONNECT first, then packets in order, each passed to its handler. Only this file decides when a
 * connection ends. The connection is not read while it signs in, while too many of its messages wait for their answer
 * (MQTT 3), while the journal refuses, or while the client does not read. Keep Alive is suspended while the connection
 * is not read. The object is small: there may be fifty thousand.
 */

import { randomUUID } from 'node:crypto';
import { assert, Fault, isBug } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { began, ended, type Work } from '../base/underway.ts';
import type { ClientCertificate } from '../onboarding/certificate-provision.ts';
import type { SlicedFile } from '../ota/chunks.ts';
import { answerOf, code, isDiscarded, isJournalRefusal, mayPass } from './answers.ts';
import { isSenderBlocked, packets, workOf } from './blocked.ts';
import type { CloseReason } from './close-reason.ts';
import type { ConnectionCaps, ConnectionDeps } from './deps.ts';
import type { Flushable } from './flusher.ts';
import { type Answered, giveBack, type Incoming, takeIncoming } from './incoming.ts';
import type { JournalWaiter } from './journal-waiters.ts';
import { Outbox, withheld } from './outbox.ts';
import { OutgoingFile } from './outgoing-file.ts';
import { pubcompBytes, pubrecBytes, readAcknowledgement } from './packets/acknowledgements.ts';
import { type Connect, connackBytes, type Refusal, readConnect, refusalBytes } from './packets/connect.ts';
import { checkDisconnect, disconnectBytes } from './packets/disconnect.ts';
import {
  PublishFrame,
  payloadBytesMax,
  publishBytes,
  publishHead,
  readPublish,
  writePublish,
} from './packets/publish.ts';
import {
  readSubscribe,
  readUnsubscribe,
  subackBytes,
  subscribe,
  subscribeRefused,
  unsubackBytes,
  unsubscribe,
} from './packets/subscribe.ts';
import { Pushes } from './pushes.ts';
import { type Confirm, type FileOutcome, type ProtocolLevel, Session, type SessionLink } from './session.ts';
import type { SignedIn, SignInOwner, SignInRefused } from './sign-in.ts';
import type { QoS, StreamName } from './subscriptions.ts';
import type { Stream } from './topics/table.ts';
import type { Transport, TransportEvents } from './transport.ts';
import { Frames } from './wire/frames.ts';
import { isTopic, readText } from './wire/strings.ts';
import { malformed, protocolError, WireError } from './wire/wire-error.ts';

type State = 'new' | 'signing_in' | 'live' | 'closed';

/** The reasons for which a connection is not read at the moment; several may apply at once. */
const hold = { signIn: 1, answers: 2, journal: 4, reader: 8, drain: 16, file: 32 } as const;

/** Reasons after which no received packet is handled. */
const clientsOwn: Partial<Record<CloseReason, true>> = {
  client_disconnect: true,
  malformed: true,
  protocol_error: true,
  packet_too_large: true,
  not_mqtt: true,
};

/** The user name of a client that signs in without credentials, to be provisioned. */
const provision = 'provision';

const connectByte = 0x10;
const pingresp = Buffer.from([0xd0, 0]);
const noPayload = Buffer.alloc(0);
const frame = new PublishFrame();

export class Connection implements TransportEvents, SessionLink, SignInOwner, Answered, Flushable, JournalWaiter {
  readonly #deps: ConnectionDeps;
  readonly #transport: Transport;
  readonly #certificate: ClientCertificate | undefined;
  readonly #frames = new Frames();
  readonly #outbox: Outbox;
  #state: State = 'new';
  #session: Session | undefined = undefined;
  #signedIn: SignedIn | undefined = undefined;
  #pushes: Pushes | undefined = undefined;
  /** A large file that is being sent or is next: until its end no other packet is sent, and nothing is read. */
  #file: OutgoingFile | undefined = undefined;
  /** Bytes of messages to the client that wait for the end of the file. */
  #behindFileBytes = 0;
  #caps: ConnectionCaps;
  #level: ProtocolLevel = 4;
  #isTerse = false;
  #packetBytesMax = Number.POSITIVE_INFINITY;
  #receiveMaximum = 0;
  #keepAliveMs = 0;
  /** Bits of `hold`. */
  #held = 0;
  #reading = false;
  /** True when the transport is closed; received bytes may still wait to be read. */
  #isGone = false;
  /** Messages that wait for their answer: with an acknowledgement, and without. */
  #unacknowledged = 0;
  #unanswered = 0;
  /**
   * Monotonic times: of the last packet, of the first refusal since the journal accepted (0 = none), and at which the
   * client last read.
   */
  #receivedAt: number;
  #refusedAt = 0;
  #stalledAt = 0;
  /** Monotonic time at which a connection without credentials ends. */
  #endsAt = Number.POSITIVE_INFINITY;
  /** Bytes that waited for the client at the last check, and the part of large messages in them. */
  #unreadMark = 0;
  #largeBytes = 0;
  /** Messages discarded since the last line in the log, and the reason of the last one. */
  #discards = 0;
  #discardReason = '';
  isQueued = false;

  constructor(deps: ConnectionDeps, transport: Transport, certificate: ClientCertificate | undefined) {
    this.#deps = deps;
    this.#transport = transport;
    this.#certificate = certificate;
    this.#caps = deps.settings;
    this.#outbox = new Outbox(transport, this);
    this.#receivedAt = deps.clock.monotonic();
  }

  get remoteAddress(): string {
    return this.#transport.remoteAddress;
  }

  onData(bytes: Buffer): void {
    assert(!this.#isGone && !this.#reading, 'packets come one after the other, and none after the end', this);
    if (this.#state === 'closed') return;
    began(packets, this);
    this.#take(bytes);
    ended();
  }

  /** Describes the sender for the log of a crash. */
  describe(): string {
    return this.work().caller;
  }

  /** The work that an assertion names. */
  work(): Work {
    return workOf(this.#signedIn?.device.id ?? this.#session?.device?.id, this.remoteAddress);
  }

  #take(bytes: Buffer): void {
    this.#deps.counters.bytesIn.add(bytes.length);
    this.#frames.feed(bytes);
    if (this.#held === 0 && !this.#reading) this.#read();
    else this.#frames.keep();
  }

  onDrained(): void {
    assert(!this.#isGone, 'a transport that is closed has nothing to write', this);
    this.#file?.drained();
    this.#stalledAt = 0;
    this.#largeBytes = 0;
    this.#release(hold.reader);
  }

  /** Ends a wait early: a client that sends more bytes than can be kept is refused now instead of at the deadline. */
  onOverflow(): void {
    assert(!this.#isGone, 'a transport that is closed keeps nothing', this);
    if ((this.#held & hold.journal) === 0) return;
    this.#refusedAt = Number.NEGATIVE_INFINITY;
    this.journalRefuses();
  }

  /** A client may publish and disconnect at once: its packets are handled first, even after a slow sign-in. */
  onClosed(): void {
    assert(!this.#isGone && !this.#reading, 'a transport closes once, and not while packets are read', this);
    this.#isGone = true;
    this.#held &= ~hold.reader;
    this.#file?.stop();
    if (this.#held === 0) this.#end('connection_lost');
    if (this.#state === 'closed') this.#deps.left(this);
  }

  sessionEnded(reason: CloseReason): void {
    assert(this.#state !== 'new', 'a session ends after its CONNECT', this);
    this.close(reason);
  }

  /** Sends the reason, where the protocol has a code for it. Acknowledgements that are due are sent before. */
  close(reason: CloseReason): void {
    if (this.#state === 'closed') return;
    const wasLive = this.#state === 'live';
    // No packet may follow a partial packet.
    const isCut = this.#file?.hasBegun === true;
    if (wasLive && !isCut) {
      this.#flushOut();
      // A callback of a write may have closed the connection.
      if (this.#hasClosed()) return;
      const bytes = this.#level === 5 ? disconnectBytes(reason, this.#isTerse, this.#packetBytesMax) : undefined;
      if (bytes !== undefined) this.#transport.write(bytes);
    }
    this.#end(reason);
    if (reason === 'slow_reader' || isCut) this.#transport.destroy();
    else this.#transport.end();
  }

  push(topic: string, payload: string | Uint8Array, qos: QoS, confirm: Confirm | undefined): boolean {
    assert(this.#session !== undefined, 'messages go to a connection with a session', this);
    if (this.#state !== 'live' || this.#isGone) return false;
    const topicBytes = Buffer.byteLength(topic);
    const payloadBytes = typeof payload === 'string' ? Buffer.byteLength(payload) : payload.length;
    if (publishBytes(topicBytes, payloadBytes, qos, this.#level) > this.#packetBytesMax) {
      this.#deps.counters.pushesTooLarge.add(1);
      return false;
    }
    const packet = writePublish(topic, payload, qos, 0, this.#level);
    if (this.#file !== undefined) {
      this.#behindFileBytes += packet.length;
      if (this.#behindFileBytes > limits.mqttUnreadBytesMax) {
        this.close('too_many_pushes');
        return false;
      }
    }
    // A whole file may be larger than the bytes that a slow reader may leave unread.
    if (packet.length > limits.mqttUnreadBytesPause) this.#largeBytes += packet.length;
    if (qos === 0) {
      this.#outbox.add(packet, confirm);
      this.#deps.flusher.add(this);
      return true;
    }
    this.#pushes ??= new Pushes(this.#receiveMaximum);
    if (this.#pushes.isFull) {
      this.close('too_many_pushes');
      return false;
    }
    const idAt = packet.length - payloadBytes - (this.#level === 5 ? 3 : 2);
    if (this.#pushes.add(packet, idAt, confirm)) this.#send(packet);
    return true;
  }

  sendFile(topic: string, file: SlicedFile, qos: QoS, onEnd: () => void): FileOutcome {
    assert(this.#session !== undefined, 'files go to a connection with a session', this);
    if (this.#state !== 'live' || this.#isGone) return 'gone';
    const topicBytes = Buffer.byteLength(topic);
    if (
      file.bytes > payloadBytesMax(topicBytes, qos, this.#level) ||
      publishBytes(topicBytes, file.bytes, qos, this.#level) > this.#packetBytesMax
    ) {
      this.#deps.counters.pushesTooLarge.add(1);
      return 'too_large';
    }
    if (this.#file !== undefined) return 'busy';
    let packetId = 0;
    if (qos > 0) {
      this.#pushes ??= new Pushes(this.#receiveMaximum);
      const taken = this.#pushes.takeId();
      if (taken === undefined) return 'busy';
      packetId = taken;
    }
    const head = publishHead(topic, file.bytes, qos, packetId, this.#level);
    this.#file = new OutgoingFile(this.#transport, head, file, this.#deps.clock, (isSent) => {
      onEnd();
      this.#fileEnded(isSent);
    });
    this.#behindFileBytes = 0;
    this.#hold(hold.file);
    // The file begins after the packets that are due, among them the acknowledgement of the request.
    this.#deps.flusher.add(this);
    return 'taken';
  }

  #fileEnded(isSent: boolean): void {
    if (this.#state === 'closed') return;
    assert(this.#file !== undefined, 'a file ends once', this);
    if (!isSent && !this.#isGone) {
      this.close('file_unreadable');
      return;
    }
    this.#file = undefined;
    if (this.#isGone) {
      this.#release(hold.file);
      return;
    }
    this.#deps.counters.packetsOut.add(1);
    this.#deps.flusher.add(this);
    this.#release(hold.file);
  }

  answered(incoming: Incoming, fault: Fault | undefined): void {
    const isWaited = incoming.qos === 0 ? this.#unanswered > 0 : this.#unacknowledged > 0;
    assert(isWaited, 'a message is answered while its connection waits for the answer', this);
    if (fault !== undefined) this.#refused(incoming, fault);
    if (incoming.qos === 0) {
      this.#unanswered -= 1;
      giveBack(incoming);
      this.#releaseAnswers();
    } else if (this.#state !== 'closed') {
      this.#deps.flusher.add(this);
    }
  }

  flush(): void {
    if (this.#state === 'closed' || this.#file?.hasBegun) return;
    this.#flushOut();
    if (this.#file !== undefined && !this.#hasClosed()) {
      this.#file.begin();
      return;
    }
    this.#watchReader();
    this.#releaseAnswers();
  }

  /**
   * Checks all deadlines, twice a second. `lateMs`: the time since the last sweep in which this process did not run.
   */
  sweep(now: number, lateMs = 0): void {
    this.#checkState();
    this.#receivedAt += lateMs;
    if (this.#stalledAt > 0) this.#stalledAt += lateMs;
    if (this.#discards > 0) this.#logDiscards();
    if (this.#refusedAt !== 0) this.#forgetRefusal();
    const silentMs = now - this.#receivedAt;
    switch (this.#state) {
      case 'new':
        if (silentMs > limits.mqttConnectMsMax) this.close('connect_timeout');
        return;
      case 'live':
        break;
      default:
        return;
    }
    if (now > this.#endsAt) {
      this.close('provisioned');
    } else if (this.#file === undefined ? this.#isStalled(now) : this.#file.isStalled(now, lateMs)) {
      this.close('slow_reader');
    } else if (this.#held === 0) {
      if (this.#keepAliveMs > 0) {
        if (silentMs > this.#keepAliveMs * 1.5) this.close('keep_alive');
      } else if (this.#deps.settings.idleMs > 0 && silentMs > this.#deps.settings.idleMs) {
        this.close('idle');
      }
    }
  }

  /** Asserts the state between any two events; called twice a second. */
  #checkState(): void {
    assert(!this.#reading, 'no packet is read between two events', this);
    assert(this.#unacknowledged >= 0 && this.#unanswered >= 0, 'no message is answered twice', this);
    if (this.#state !== 'live') return;
    assert(this.#session?.endedBy === undefined, 'a session ends with its connection', this);
    assert(
      ((this.#held & hold.file) !== 0) === (this.#file !== undefined),
      'a file that is sent holds packets up',
      this,
    );
    assert((this.#held & hold.signIn) === 0, 'a connection that signed in waits for no sign-in', this);
    assert((this.#held & hold.journal) === 0 || this.#refusedAt !== 0, 'a wait for the journal has a beginning', this);
  }

  /** Stops reading; returns true when no message waits for an answer. */
  drain(): boolean {
    if (this.#state === 'new' || this.#state === 'signing_in') this.close('server_shutdown');
    if (this.#state === 'closed') return true;
    this.#hold(hold.drain);
    return this.#unacknowledged === 0 && this.#unanswered === 0;
  }

  #end(reason: CloseReason): void {
    if (this.#state === 'closed') return;
    assert(this.#session === undefined || this.#state === 'live', 'a session is that of a live connection', this);
    const wasLive = this.#state === 'live';
    this.#state = 'closed';
    if (wasLive) this.#discardUnread(reason);
    this.#frames.clear();
    this.#deps.journalWaiters.delete(this);
    this.#outbox.drop();
    this.#pushes?.drop();
    this.#file?.stop();
    this.#deps.counters.disconnected(reason);
    const session = this.#session;
    if (session !== undefined) {
      this.#stopStreams(session);
      session.ended(reason);
      this.#deps.log.debug('mqtt_disconnected', { reason, device: session.device?.id });
    }
    this.#signedIn?.end();
    this.#signedIn = undefined;
    if (session?.kind === 'provision') this.#deps.addresses.leaveProvisioning(this.remoteAddress);
    if (this.#isGone) this.#deps.left(this);
  }

  // Reading.

  #read(): void {
    this.#reading = true;
    const { counters, clock } = this.#deps;
    let now = 0;
    while (this.#held === 0 && this.#state !== 'closed') {
      const isFirst = this.#state === 'new';
      if (isFirst && this.#isAddressBlocked()) {
        this.close('blocked');
        break;
      }
      if (isFirst && !this.#frames.mayBe(connectByte)) {
        this.close('not_mqtt');
        break;
      }
      const step = this.#frames.next(isFirst ? limits.mqttFirstPacketBytesMax : this.#caps.packetBytesMax);
      if (step === 'more') break;
      if (step === 'packet') {
        // Only whole packets count as activity: a drip of bytes does not postpone the deadline.
        now ||= clock.monotonic();
        this.#receivedAt = now;
        counters.packetsIn[this.#frames.type]!.add(1);
        this.#handle(isFirst);
      } else {
        this.close(isFirst ? 'not_mqtt' : step === 'too_large' ? 'packet_too_large' : 'malformed');
      }
    }
    this.#reading = false;
    if (this.#held !== 0 && this.#state !== 'closed') this.#frames.keep();
  }

  /** The address of a trusted proxy belongs to many senders. */
  #isAddressBlocked(): boolean {
    return isSenderBlocked(undefined, this.remoteAddress) && !this.#deps.isTrustedProxy(this.remoteAddress);
  }

  #handle(isFirst: boolean): void {
    try {
      if (isFirst) this.#connect();
      else this.#dispatch();
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.close(isFirst ? 'not_mqtt' : error.reason);
    }
  }

  #dispatch(): void {
    const { type, flags, buffer, start, end } = this.#frames;
    if (type === 3) {
      this.#publish();
      return;
    }
    if (flags !== (type === 6 || type === 8 || type === 10 ? 2 : 0)) throw malformed;
    switch (type) {
      case 4: {
        const packetId = readAcknowledgement(buffer, start, end, this.#level);
        const next = this.#pushes?.acknowledged(packetId);
        if (next !== undefined) this.#send(next);
        return;
      }
      case 6:
        this.#pubrel(readAcknowledgement(buffer, start, end, this.#level));
        return;
      case 8:
        this.#subscribe();
        return;
      case 10:
        this.#unsubscribe();
        return;
      case 12:
        if (end > start) throw malformed;
        if (this.#signedIn !== undefined) this.#deps.admission.touch(this.#signedIn.device);
        this.#send(pingresp);
        return;
      case 14:
        checkDisconnect(buffer, start, end, this.#level);
        this.close('client_disconnect');
        return;
      case 0:
        throw malformed;
      default:
        // Packets that only a server sends, acknowledgements of a QoS 2 that is never sent, AUTH, and a second CONNECT.
        throw protocolError;
    }
  }

  #hold(why: number): void {
    if (this.#held === 0) this.#transport.pause();
    this.#held |= why;
  }

  #release(why: number): void {
    if ((this.#held & why) === 0) return;
    this.#held &= ~why;
    if (this.#held !== 0 || this.#reading || this.#state === 'closed') return;
    // Nothing was read, so the silence of the client does not count: Keep Alive starts again.
    this.#receivedAt = this.#deps.clock.monotonic();
    this.#read();
    // The kept bytes may cause another hold.
    if (!this.#isUnheld()) return;
    if (this.#isGone) this.#end('connection_lost');
    else this.#transport.resume();
  }

  #releaseAnswers(): void {
    if ((this.#held & hold.answers) === 0) return;
    const { inflightMax } = this.#caps;
    if (this.#unacknowledged < inflightMax && this.#unanswered < inflightMax) this.#release(hold.answers);
  }

  #isUnheld(): boolean {
    return this.#held === 0 && this.#state !== 'closed';
  }

  #hasClosed(): boolean {
    return this.#state === 'closed';
  }

  // CONNECT.

  #connect(): void {
    const { type, flags, buffer, start, end } = this.#frames;
    if (type !== 1 || flags !== 0) throw malformed;
    const connect = readConnect(buffer, start, end);
    this.#level = connect.level;
    if (connect.kind === 'refusal') {
      this.#refuse(connect.refusal);
      return;
    }
    this.#isTerse = connect.isTerse;
    this.#packetBytesMax = connect.packetBytesMax;
    this.#receiveMaximum = connect.receiveMaximum;
    this.#keepAliveMs = connect.keepAliveSeconds * 1000;
    this.#state = 'signing_in';
    if (connect.username === provision || connect.clientId === provision) {
      this.#provision(connect);
      return;
    }
    const { clientId, username, password } = connect;
    const request = {
      clientId,
      username,
      password,
      certificate: this.#certificate,
      remoteAddress: this.#transport.remoteAddress,
    };
    const answer = this.#deps.signIn(request, this);
    if (!(answer instanceof Promise)) {
      this.#signIn(connect, answer);
      return;
    }
    this.#hold(hold.signIn);
    void answer.then((late) => {
      this.#signIn(connect, late);
      this.#release(hold.signIn);
    });
  }

  /** Starts a session without credentials: for a minute, with small packets, and few for one address. */
  #provision(connect: Connect): void {
    const { addresses, provisioningCaps, clock } = this.#deps;
    if (!addresses.enterProvisioning(this.remoteAddress)) {
      this.#refuse('rate', 'Too many connections of this address ask for credentials; try again in a minute.');
      return;
    }
    this.#caps = provisioningCaps;
    this.#endsAt = clock.monotonic() + limits.provisioningSessionMs;
    this.#open(connect, undefined);
  }

  #signIn(connect: Connect, answer: SignedIn | SignInRefused): void {
    if ('refused' in answer) {
      if (this.#state !== 'closed') this.#refuse(answer.refused, answer.text);
    } else if (this.#state === 'closed') {
      answer.end();
    } else {
      this.#signedIn = answer;
      this.#open(connect, answer);
    }
  }

  #open({ clientId, level }: Connect, signedIn: SignedIn | undefined): void {
    assert(this.#state === 'signing_in' && this.#session === undefined, 'a connection signs in once', this);
    const { settings, counters } = this.#deps;
    const assignedClientId = clientId === '' && level === 5 ? randomUUID() : '';
    this.#session = new Session(this, {
      device: signedIn?.device,
      kind: signedIn === undefined ? 'provision' : signedIn.isGateway ? 'gateway' : 'device',
      level,
      profileTopics: signedIn?.topics,
      clientId: clientId || assignedClientId,
      remoteAddress: this.#transport.remoteAddress,
    });
    this.#state = 'live';
    counters.connected('accepted');
    const { packetBytesMax, inflightMax } = this.#caps;
    const { worker } = settings;
    this.#send(connackBytes(level, { packetBytesMax, receiveMaximum: inflightMax, assignedClientId, worker }));
    this.#deps.onSession?.(this.#session);
  }

  #refuse(refusal: Refusal, text?: string): void {
    this.#deps.counters.connected(refusal);
    const client = { isTerse: this.#isTerse, packetBytesMax: this.#packetBytesMax };
    this.#transport.write(refusalBytes(this.#level, refusal, client, text));
    this.#end('login_refused');
    this.#transport.end();
  }

  // PUBLISH.

  #publish(): void {
    const { buffer, start, end, flags } = this.#frames;
    const session = this.#session!;
    readPublish(frame, flags, buffer, start, end, this.#level);
    // All fields are read before any call that could read another packet.
    const { qos, packetId, topicStart, topicEnd, payloadStart } = frame;
    const table = session.kind === 'provision' ? this.#deps.provisionTopics : this.#deps.topics;
    const exact = table.findExact(buffer, topicStart, topicEnd);
    const topic = exact === undefined ? readText(buffer, topicStart, topicEnd) : exact.topic;
    if (topic === undefined || (exact === undefined && !isTopic(topic))) throw malformed;
    if (qos === 2 && this.#isRepeated(packetId)) return;
    if (qos > 0 && this.#unacknowledged >= this.#caps.inflightMax) {
      this.close('receive_maximum');
      return;
    }
    const incoming = takeIncoming();
    incoming.topic = topic;
    incoming.qos = qos;
    incoming.packetId = packetId;
    incoming.session = session;
    incoming.connection = this;
    incoming.payload = buffer.subarray(payloadStart, end);
    if (qos === 0) {
      this.#unanswered += 1;
    } else {
      this.#unacknowledged += 1;
      this.#outbox.expect(incoming);
    }
    try {
      if (exact === undefined) table.dispatch(incoming);
      else exact.operation(incoming, '');
      // The read buffer is reused. The object may be in the pool already, but serves no other message yet.
      incoming.payload = noPayload;
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      if (this.#state === 'live' && mayPass(error) && this.#mayWait()) {
        this.#waitForJournal(incoming);
        return;
      }
      incoming.refuse(error);
    }
    if (this.#refusedAt !== 0) this.#forgetRefusal();
    const { inflightMax } = this.#caps;
    if (this.#state !== 'live') return;
    if (this.#unanswered >= inflightMax || (this.#level !== 5 && this.#unacknowledged >= inflightMax)) {
      this.#hold(hold.answers);
    }
  }

  /** Handles a PUBLISH that is repeated before PUBREL: the first one was accepted, and its PUBREC answers both. */
  #isRepeated(packetId: number): boolean {
    if (this.#outbox.isExpected(packetId)) return true;
    if (!this.#outbox.isReceived(packetId)) return false;
    this.#send(pubrecBytes(packetId));
    return true;
  }

  #refused(incoming: Incoming, fault: Fault): void {
    const { counters, settings, log } = this.#deps;
    counters.refused(fault.reason);
    if (isBug(fault)) log.error('handler_bug', { topic: incoming.topic, error: fault.cause });
    if (incoming.qos === 0) {
      if (isDiscarded(fault)) this.#discard(fault.reason, 0);
    } else {
      const answer = answerOf(fault);
      incoming.code = answer.code;
      if (!this.#isTerse) incoming.text = fault.message;
      if (this.#level !== 5) {
        const reason = isJournalRefusal(fault) ? 'journal_refused' : answer.closesOld;
        if (reason !== undefined) {
          incoming.code = withheld;
          this.close(reason);
        } else if (answer.code === code.payload && settings.closeOnInvalid && !this.#acknowledgesInvalid()) {
          incoming.code = withheld;
          this.close('invalid_message');
        } else {
          this.#discard(fault.reason, incoming.qos);
        }
      }
    }
    if (this.#session?.kind === 'provision' && fault.status === 404) this.close('provisioning_topic');
  }

  #acknowledgesInvalid(): boolean {
    return this.#session?.profileTopics?.acknowledgesInvalid === true;
  }

  /**
   * True until the wait since the first refusal is over. All later messages share this wait, so a client waits once.
   */
  #mayWait(): boolean {
    if (this.#refusedAt === 0) return true;
    const keepAliveMs = this.#keepAliveMs > 0 ? this.#keepAliveMs : Number.POSITIVE_INFINITY;
    return this.#deps.clock.monotonic() - this.#refusedAt <= Math.min(limits.mqttPausedMsMax, keepAliveMs / 2);
  }

  /** Keeps the message for another try, and reads nothing before it. */
  #waitForJournal(incoming: Incoming): void {
    if (incoming.qos === 0) {
      this.#unanswered -= 1;
    } else {
      this.#outbox.unexpect(incoming);
      this.#unacknowledged -= 1;
    }
    giveBack(incoming);
    this.#frames.unread();
    this.#refusedAt ||= this.#deps.clock.monotonic();
    this.#hold(hold.journal);
    this.#deps.journalWaiters.add(this);
  }

  journalAccepts(): void {
    assert((this.#held & hold.journal) !== 0, 'only a connection that waits is called', this);
    this.#release(hold.journal);
  }

  journalRefuses(): void {
    assert((this.#held & hold.journal) !== 0, 'only a connection that waits is called', this);
    if (this.#mayWait()) return;
    this.#deps.journalWaiters.delete(this);
    this.#release(hold.journal);
  }

  /** The journal accepts again: the next refusal gets a new wait. */
  #forgetRefusal(): void {
    if (this.#held === 0 && this.#deps.journalRefusal() === undefined) this.#refusedAt = 0;
  }

  #discard(reason: string, qos: QoS | 2): void {
    this.#deps.counters.discarded(reason, qos);
    this.#discards += 1;
    this.#discardReason = reason;
    // No further sweep will log them.
    if (this.#state === 'closed') this.#logDiscards();
  }

  /**
   * Discards QoS 0 messages that arrived before the end and were not handled; other messages are not acknowledged and
   * are sent again.
   */
  #discardUnread(reason: CloseReason): void {
    if (reason in clientsOwn) return;
    while (this.#frames.next(this.#caps.packetBytesMax) === 'packet') {
      if (this.#frames.type === 3 && (this.#frames.flags & 0x06) === 0) this.#discard(reason, 0);
    }
  }

  #logDiscards(): void {
    const device = this.#signedIn?.device.id ?? this.#session?.device?.id;
    this.#deps.log.warn('mqtt_discarded', { device, messages: this.#discards, reason: this.#discardReason });
    this.#discards = 0;
  }

  #pubrel(packetId: number): void {
    const isKnown = this.#outbox.released(packetId);
    if (isKnown && this.#level === 5) this.#unacknowledged -= 1;
    assert(this.#unacknowledged >= 0, 'only messages that wait are released', this);
    this.#send(pubcompBytes(this.#level, packetId, isKnown));
  }

  // SUBSCRIBE.

  #subscribe(): void {
    const { buffer, start, end } = this.#frames;
    const session = this.#session!;
    const packet = readSubscribe(buffer, start, end, this.#level);
    if (!this.#charge()) {
      const codes = subscribeRefused(this.#level, packet.filters.length);
      this.#send(subackBytes(this.#level, packet.packetId, codes));
      return;
    }
    const { codes, started, restarted } = subscribe(session, packet);
    this.#send(subackBytes(this.#level, packet.packetId, codes));
    for (const stream of restarted) this.#stream(stream)?.stop(session);
    for (const stream of started) if (this.#state === 'live') this.#stream(stream)?.start(session);
  }

  #unsubscribe(): void {
    const { buffer, start, end } = this.#frames;
    const session = this.#session!;
    const packet = readUnsubscribe(buffer, start, end, this.#level);
    const { codes, stopped } = unsubscribe(session, packet);
    for (const stream of stopped) this.#stream(stream)?.stop(session);
    this.#send(unsubackBytes(this.#level, packet.packetId, codes));
  }

  /** Returns false when the device has sent too many messages. */
  #charge(): boolean {
    const device = this.#signedIn?.device;
    if (device === undefined) return true;
    try {
      this.#deps.admission.message(device);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      return false;
    }
    return true;
  }

  /** The streams of a gateway are granted to every device, and send nothing to others. */
  #stream(name: StreamName): Stream | undefined {
    return name.startsWith('gateway') && this.#session!.kind !== 'gateway' ? undefined : this.#deps.streams[name];
  }

  #stopStreams(session: Session): void {
    for (const stream of session.subscriptions.streams()) this.#stream(stream)?.stop(session);
  }

  // Writing.

  #send(packet: Buffer): void {
    this.#outbox.add(packet);
    this.#deps.flusher.add(this);
  }

  #flushOut(): void {
    this.#outbox.flush(this.#level, this.#packetBytesMax);
    this.#deps.counters.packetsOut.add(this.#outbox.sent);
    this.#unacknowledged -= this.#outbox.acknowledged;
    assert(this.#unacknowledged >= 0, 'only messages that wait are acknowledged', this);
  }

  /** True when the client has read nothing for too long. */
  #isStalled(now: number): boolean {
    if (this.#stalledAt === 0) return false;
    const { bufferedBytes, sendingBytes = 0 } = this.#transport;
    const mark = bufferedBytes + sendingBytes;
    if (mark < this.#unreadMark) this.#stalledAt = now;
    this.#unreadMark = mark;
    return now - this.#stalledAt > limits.mqttStallMsMax;
  }

  #watchReader(): void {
    const { bufferedBytes } = this.#transport;
    if (bufferedBytes === 0) {
      this.#stalledAt = 0;
      this.#largeBytes = 0;
      return;
    }
    if (bufferedBytes > limits.mqttUnreadBytesMax + this.#largeBytes) {
      this.close('slow_reader');
      return;
    }
    if (this.#stalledAt === 0) {
      this.#stalledAt = this.#deps.clock.monotonic();
      this.#unreadMark = Number.POSITIVE_INFINITY;
    }
    if (bufferedBytes > limits.mqttUnreadBytesPause) this.#hold(hold.reader);
  }
}
