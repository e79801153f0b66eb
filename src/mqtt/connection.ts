/**
 * One MQTT connection: CONNECT first, then packets in order, each passed to its handler. Only this file decides when a
 * connection ends. `Reader` cuts the packets, and reads while its `ReadGate` is open; Keep Alive is suspended during a
 * pause. `Outbox` writes. The object is small, because a worker may hold fifty thousand of them.
 *
 *     new ── CONNECT ──▶ signing_in ── CONNACK ──▶ live ──▶ closed        every state may end in `closed`
 */

import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { networkOf } from '../base/network.ts';
import { devicePlaceOwners, type PlaceOwner } from '../base/places.ts';
import { beginEvent, endEvent, type Work } from '../base/running-work.ts';
import type { Place } from '../diagnostics/troubles.ts';
import type { ClientCertificate } from '../onboarding/certificate-provision.ts';
import type { SlicedFile } from '../ota/chunks.ts';
import { asksForCredentials, newSession, readFirst, signInRequest, welcomeBytes } from './connecting.ts';
import type { ConnectionCaps, ConnectionDeps } from './deps.ts';
import { Deadlines } from './flow/deadlines.ts';
import { hold, type ReadGate } from './flow/read-gate.ts';
import { SlowReader, type UnreadClient } from './flow/slow-reader.ts';
import { Inbox } from './incoming/inbox.ts';
import { LargePackets } from './incoming/large-packets.ts';
import { type PacketHandler, Reader } from './incoming/reader.ts';
import { stopAllStreams, takeSubscribe, takeUnsubscribe } from './incoming/subscribing.ts';
import type { Flushable } from './outgoing/flusher.ts';
import { Outbox } from './outgoing/outbox.ts';
import { Outgoing } from './outgoing/outgoing.ts';
import { readAcknowledgement } from './packets/acknowledgements.ts';
import { unknownClient } from './packets/client.ts';
import { type Connect, type ConnectRefusal, refusalBytes } from './packets/connect.ts';
import { checkDisconnect, disconnectBytes } from './packets/disconnect.ts';
import type { Confirm, FileOutcome, Session, SessionLink } from './session/session.ts';
import { isSenderBlocked, packets, workOf } from './sign-in/blocked.ts';
import type { SignedIn, SignInOwner, SignInRefused } from './sign-in/sign-in.ts';
import type { Transport, TransportEvents } from './transport/transport.ts';
import { type CloseReason, closings } from './wire/close-reason.ts';
import { packetType, type QoS } from './wire/protocol.ts';
import type { ReceivedPackets } from './wire/received-packets.ts';
import { malformed, protocolError } from './wire/wire-error.ts';

type State = 'new' | 'signing_in' | 'live' | 'closed';

/** The types whose fixed header must have the flags 0010 [MQTT-2.1.3-1]. */
const typesWithFlag = new Set<number>([packetType.pubrel, packetType.subscribe, packetType.unsubscribe]);

const pingresp = Buffer.from([0xd0, 0]);

export class Connection implements TransportEvents, SessionLink, SignInOwner, Flushable, PacketHandler, UnreadClient {
  readonly #deps: ConnectionDeps;
  readonly #transport: Transport;
  readonly #certificate: ClientCertificate | undefined;
  readonly #deadlines: Deadlines;
  readonly #reader: Reader;
  readonly #gate: ReadGate;
  readonly #received: ReceivedPackets;
  readonly #outbox: Outbox;
  readonly #slowReader: SlowReader;
  #state: State = 'new';
  #session: Session | undefined = undefined;
  #signedIn: SignedIn | undefined = undefined;
  /** Set with the session. */
  #inbox: Inbox | undefined = undefined;
  /** Made with the first message to the client. */
  #outgoing: Outgoing | undefined = undefined;
  #caps: ConnectionCaps;
  #client = unknownClient;
  /** True when the transport is closed; received bytes may still wait to be read. */
  #isGone = false;
  isQueued = false;

  constructor(deps: ConnectionDeps, transport: Transport, certificate: ClientCertificate | undefined) {
    this.#deps = deps;
    this.#transport = transport;
    this.#certificate = certificate;
    this.#caps = deps.settings;
    this.#outbox = new Outbox(transport, this);
    this.#deadlines = new Deadlines(this, deps.settings.idleMs, deps.clock.monotonic());
    this.#reader = new Reader(deps, this, transport, this.#deadlines, deps.settings.inflightMax);
    this.#gate = this.#reader.gate;
    this.#received = this.#reader.received;
    this.#slowReader = new SlowReader(transport, this);
  }

  get remoteAddress(): string {
    return this.#transport.remoteAddress;
  }

  /** True also for a client that has ended the connection, before the event of the close. */
  get isGone(): boolean {
    return this.#isGone || this.#state === 'closed' || this.#transport.hasEnded;
  }

  get isReset(): boolean {
    return this.#transport.isReset === true;
  }

  get reach(): 'open' | 'gone' | 'closed' {
    return this.#state === 'closed' ? 'closed' : this.#isGone ? 'gone' : 'open';
  }

  /** Describes the sender for the log of a crash. */
  describe(): string {
    return this.work().caller;
  }

  /** The work that an assertion names. */
  work(): Work {
    return workOf(this.#signedIn?.device.id ?? this.#session?.device?.id, this.remoteAddress);
  }

  // Events of the transport.

  onData(bytes: Buffer): void {
    assert(!this.#isGone && !this.#reader.isReading, 'packets come one after the other, and none after the end', this);
    if (this.#state === 'closed') return;
    beginEvent(packets, this);
    this.#reader.take(bytes);
    endEvent();
  }

  onDrained(): void {
    assert(!this.#isGone, 'a transport that is closed has nothing to write', this);
    this.#outgoing?.drained();
    this.#slowReader.drained();
    this.#gate.release(hold.reader);
  }

  /** Ends a wait before its deadline, because the transport can keep no more bytes of the client. */
  onOverflow(): void {
    assert(!this.#isGone, 'a transport that is closed keeps nothing', this);
    this.#reader.endWait();
  }

  /**
   * Ends the connection after its received packets were handled: a client may publish and disconnect at once, even
   * during a slow sign-in.
   */
  onClosed(): void {
    assert(!this.#isGone && !this.#reader.isReading, 'a transport closes once, and not while packets are read', this);
    this.#isGone = true;
    this.#gate.drop(hold.reader);
    this.#outgoing?.stopFile();
    this.#reader.endWaitForRoom();
    if (this.#gate.held === 0) this.#end('connection_lost');
    if (this.#state === 'closed') this.#deps.left(this);
  }

  // CONNECT.

  refusesFirst(): CloseReason | undefined {
    const { remoteAddress } = this;
    // Many senders share the address of a trusted proxy.
    const isBlocked = isSenderBlocked(undefined, remoteAddress) && !this.#deps.isTrustedProxy(remoteAddress);
    return isBlocked ? 'blocked' : undefined;
  }

  connect(): void {
    assert(this.#state === 'new', 'CONNECT is the first packet', this);
    const connect = readFirst(this.#received);
    this.#client = connect.client;
    if (connect.kind === 'refusal') {
      this.#refuse(connect.refusal);
      return;
    }
    this.#gate.keepAliveMs = connect.keepAliveSeconds * 1000;
    this.#state = 'signing_in';
    if (asksForCredentials(connect)) {
      this.#provision(connect);
    } else {
      this.#transport.named?.();
      this.#signIn(connect);
    }
  }

  /** Starts a session without credentials: for a minute, with small packets, and few for one address. */
  #provision(connect: Connect): void {
    const { addresses, provisioningCaps, clock } = this.#deps;
    if (!addresses.enterProvisioning(this.remoteAddress)) {
      this.#refuse('rate', 'Too many connections of this address ask for credentials; try again in a minute.');
      return;
    }
    this.#caps = provisioningCaps;
    this.#gate.inflightMax = provisioningCaps.inflightMax;
    this.#deadlines.endAt(clock.monotonic() + limits.provisioningSessionMs);
    this.#open(connect, undefined);
  }

  /** Nothing is read until the answer of a sign-in that takes time. */
  #signIn(connect: Connect): void {
    const answer = this.#deps.signIn(signInRequest(connect, this.remoteAddress, this.#certificate), this);
    if (!(answer instanceof Promise)) {
      this.#signInAnswered(connect, answer);
      return;
    }
    this.#gate.hold(hold.signIn);
    void answer.then((late) => {
      this.#signInAnswered(connect, late);
      this.#gate.release(hold.signIn);
    });
  }

  #signInAnswered(connect: Connect, answer: SignedIn | SignInRefused): void {
    assert(this.#state === 'signing_in' || this.#state === 'closed', 'a sign-in is answered once', this);
    if ('refused' in answer) {
      if (this.isReset) this.close('connection_lost');
      else if (this.#state !== 'closed') this.#refuse(answer.refused, answer.text);
    } else if (this.#state === 'closed') {
      answer.end();
    } else {
      this.#signedIn = answer;
      this.#open(connect, answer);
    }
  }

  #open(connect: Connect, signedIn: SignedIn | undefined): void {
    assert(this.#state === 'signing_in' && this.#session === undefined, 'a connection signs in once', this);
    const { settings, counters, troubles } = this.#deps;
    const { packetBytesMax } = this.#caps;
    const session = newSession(this, this.remoteAddress, connect, signedIn);
    this.#session = session;
    this.#inbox = new Inbox(this.#deps, {
      connection: this,
      session,
      received: this.#received,
      gate: this.#gate,
      outbox: this.#outbox,
      isTerse: connect.client.isTerse,
      packetBytesMax,
    });
    this.#reader.inbox = this.#inbox;
    this.#reader.packetBytesMax = packetBytesMax;
    this.#state = 'live';
    counters.connected('accepted');
    if (signedIn !== undefined) troubles.connected(signedIn.device, this.#place);
    const announced = signedIn?.isGateway ? settings.gateway : this.#caps;
    this.send(welcomeBytes(session, connect, announced, settings.worker));
    this.#deps.onSession?.(session);
  }

  #refuse(refusal: ConnectRefusal, text?: string): void {
    assert(this.#session === undefined && this.#state !== 'closed', 'a sign-in is refused before its session', this);
    this.#deps.counters.connected(refusal);
    this.#transport.write(refusalBytes(this.#client, refusal, text));
    this.#end('login_refused');
    this.#transport.end();
  }

  // Packets after CONNECT.

  dispatch(): void {
    assert(this.#state === 'live', 'packets other than CONNECT are those of a live connection', this);
    const { type, flags, buffer, start, end } = this.#received;
    const { level } = this.#client;
    if (flags !== (typesWithFlag.has(type) ? 2 : 0)) throw malformed;
    switch (type) {
      case packetType.puback: {
        // Reads the packet even when no message waits for it, because a malformed packet ends the connection.
        const packetId = readAcknowledgement(buffer, start, end, level);
        this.#outgoing?.acknowledged(packetId);
        return;
      }
      case packetType.pubrel:
        this.#inbox!.released(readAcknowledgement(buffer, start, end, level));
        return;
      case packetType.subscribe:
        takeSubscribe(this.#deps, this.#session!, this.#client, this.#received, (packet) => this.send(packet));
        return;
      case packetType.unsubscribe:
        takeUnsubscribe(this.#deps, this.#session!, this.#received, (packet) => this.send(packet));
        return;
      case packetType.pingreq:
        if (end > start) throw malformed;
        if (this.#signedIn !== undefined) this.#deps.admission.touch(this.#signedIn.device);
        this.send(pingresp);
        return;
      case packetType.disconnect:
        checkDisconnect(buffer, start, end, level);
        this.close('client_disconnect');
        return;
      case 0:
        throw malformed;
      default:
        // Packets that only a server sends, PUBREC and PUBCOMP (this server sends no QoS 2), AUTH, and a second
        // CONNECT.
        throw protocolError;
    }
  }

  /** Returns undefined for a client that is no gateway: a packet above its cap ends the connection. */
  largePackets(): LargePackets | undefined {
    const session = this.#session;
    if (session?.kind !== 'gateway') return undefined;
    const own = { session, received: this.#received, gate: this.#gate, inbox: this.#inbox! };
    return new LargePackets({ ...this.#deps, ...own });
  }

  tooLarge(bytes: number): void {
    const device = this.#session?.device;
    if (device !== undefined) this.#deps.tooLargeLog.add(device, { bytes, bytesMax: this.#caps.packetBytesMax });
  }

  caughtUp(): void {
    assert(this.#state !== 'closed', 'a connection that has ended is not read', this);
    if (this.#isGone) this.#end('connection_lost');
    else this.#transport.resume();
  }

  // Packets to the client.

  send(packet: Buffer, confirm?: Confirm): void {
    // A push that a SUBSCRIBE causes may close the connection before the answer to it.
    if (this.#state === 'closed') return;
    assert(this.#state === 'live', 'packets go to a connection that signed in', this);
    this.#outbox.add(packet, confirm);
    this.#deps.flusher.add(this);
  }

  flushSoon(): void {
    this.#deps.flusher.add(this);
  }

  flush(): void {
    if (this.#state === 'closed' || this.#isCut) return;
    assert(this.#state === 'live', 'packets are written to a connection that signed in', this);
    this.#writeDue();
    if (this.reach === 'closed' || this.#outgoing?.beginFile()) return;
    const verdict = this.#slowReader.verdict(this.#deps.clock.monotonic);
    if (verdict === 'close') this.close('slow_reader');
    else if (verdict === 'pause') this.#gate.hold(hold.reader);
    this.#gate.releaseAnswers();
  }

  /** Writes all packets and acknowledgements that are due. A callback of a packet may close the connection. */
  #writeDue(): void {
    const gate = this.#gate;
    const outbox = this.#outbox;
    const client = this.#client;
    outbox.flush(client.level, client.packetBytesMax);
    this.#deps.counters.packetsOut.add(outbox.sent);
    gate.unacknowledged -= outbox.acknowledged;
    assert(gate.unacknowledged >= 0, 'only messages that wait are acknowledged', this);
    // A close by a callback writes once more.
    outbox.confirm();
  }

  /** True when only a part of a packet may have been written: no other packet may follow. */
  get #isCut(): boolean {
    return this.#outgoing?.isCut === true;
  }

  push(topic: string, payload: string | Uint8Array, qos: QoS, confirm: Confirm | undefined): boolean {
    return this.#isOpen() && this.#toClient().push(topic, payload, qos, confirm);
  }

  sendFile(topic: string, file: SlicedFile, qos: QoS, onEnd: () => void): FileOutcome {
    return this.#isOpen() ? this.#toClient().sendFile(topic, file, qos, onEnd) : 'gone';
  }

  #isOpen(): boolean {
    assert(this.#session !== undefined, 'messages go to a connection with a session', this);
    return this.#state === 'live' && !this.isGone;
  }

  #toClient(): Outgoing {
    this.#outgoing ??= new Outgoing({
      connection: this,
      transport: this.#transport,
      gate: this.#gate,
      slowReader: this.#slowReader,
      counters: this.#deps.counters,
      clock: this.#deps.clock,
      client: this.#client,
    });
    return this.#outgoing;
  }

  unreadOwners(): readonly PlaceOwner[] {
    const device = this.#signedIn?.device;
    return device ? devicePlaceOwners(device) : [{ name: `address ${networkOf(this.remoteAddress)}`, timesFree: 3 }];
  }

  // Deadlines and the end.

  /**
   * Checks all deadlines, twice a second. `lateMs`: the time since the last sweep in which this process did not run.
   */
  sweep(now: number, lateMs = 0): void {
    this.#checkState();
    this.#deadlines.late(lateMs);
    this.#slowReader.late(lateMs);
    this.#inbox?.sweep(now);
    this.#reader.sweep(now);
    if (this.#state === 'new' && this.#deadlines.isConnectOverdue(now)) this.close('connect_timeout');
    if (this.#state !== 'live') return;
    const reason = this.#overdue(now, lateMs);
    if (reason !== undefined) this.close(reason);
  }

  /** Returns the reason to end a connection that is live; undefined while no deadline has passed. */
  #overdue(now: number, lateMs: number): CloseReason | undefined {
    if (this.#deadlines.hasEnded(now)) return 'provisioned';
    if (this.#inbox?.isOverdue(now) === true) return 'server_fault';
    const isStalled = this.#outgoing?.isStalled(now, lateMs) ?? this.#slowReader.isStalled(now);
    if (isStalled) return 'slow_reader';
    return this.#gate.held === 0 ? this.#deadlines.silence(now, this.#gate.keepAliveMs) : undefined;
  }

  /** Asserts the state between any two events; called twice a second. */
  #checkState(): void {
    assert(!this.#reader.isReading, 'no packet is read between two events', this);
    if (this.#state !== 'live') return;
    assert(this.#session?.endedBy === undefined, 'a session ends with its connection', this);
    this.#gate.check(this.#outgoing?.hasFile === true);
  }

  /**
   * Stops reading, and ends a sign-in for `reason`; returns true when no message waits for an answer. A message of QoS
   * 2 waits for its PUBREC only: its PUBREL would not be read.
   */
  drain(reason: 'server_shutdown' | 'handed_over'): boolean {
    assert(!this.#reader.isReading, 'a stop begins between two events', this);
    if (this.#state === 'new' || this.#state === 'signing_in') this.close(reason);
    if (this.#state === 'closed') return true;
    this.#gate.hold(hold.drain);
    return !this.#outbox.isExpecting && this.#gate.unanswered === 0;
  }

  sessionEnded(reason: CloseReason): void {
    assert(this.#state !== 'new', 'a session ends after its CONNECT', this);
    this.close(reason);
  }

  /** Writes the packets that are due, then DISCONNECT to an MQTT 5 client if `reason` has a code, and closes. */
  close(reason: CloseReason): void {
    if (this.#state === 'closed') return;
    const isCut = this.#isCut;
    if (this.#state === 'live' && !isCut) {
      this.#writeDue();
      // A callback of a write may have closed the connection.
      if (this.reach === 'closed') return;
      this.#writeDisconnect(reason);
    }
    this.#end(reason);
    if (reason === 'slow_reader' || isCut) this.#transport.destroy();
    else this.#transport.end();
  }

  #writeDisconnect(reason: CloseReason): void {
    const client = this.#client;
    if (client.level !== 5) return;
    const bytes = disconnectBytes(reason, client, this.#deps.settings.serverReference);
    if (bytes !== undefined) this.#transport.write(bytes);
  }

  #end(reason: CloseReason): void {
    if (this.#state === 'closed') return;
    assert(this.#session === undefined || this.#state === 'live', 'a session is that of a live connection', this);
    const wasLive = this.#state === 'live';
    this.#state = 'closed';
    if (wasLive) this.#inbox?.discardUnread(reason);
    this.#reader.close();
    this.#outbox.drop();
    this.#outgoing?.drop();
    this.#slowReader.release();
    this.#deps.counters.disconnected(reason);
    if (this.#session !== undefined) this.#endSession(this.#session, reason);
    this.#signedIn?.end();
    this.#signedIn = undefined;
    if (this.#session?.kind === 'provision') this.#deps.addresses.leaveProvisioning(this.remoteAddress);
    if (this.#isGone) this.#deps.left(this);
  }

  #endSession(session: Session, reason: CloseReason): void {
    const { troubles, log } = this.#deps;
    stopAllStreams(this.#deps, session);
    session.ended(reason);
    const cause = { reason, message: closings[reason].sentence };
    if (session.kind !== 'provision') troubles.disconnected(session.device, cause, this.#place);
    log.debug('mqtt_disconnected', { reason, device: session.device?.id });
  }

  /** Where the troubles of the device are noted. */
  get #place(): Place {
    return { door: 'mqtt', address: () => this.remoteAddress };
  }
}
