/**
 * Decides when a connection is read. Each connection owns one gate; there may be fifty thousand of them. A connection
 * is read while none of the reasons of `hold` applies.
 */
import type { Clock } from '../../base/clock.ts';
import { assert, type Fault, type Subject } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Transport } from '../transport/transport.ts';
import type { ProtocolLevel } from '../wire/protocol.ts';
import type { JournalWaiter, JournalWaiters } from './journal-waiters.ts';

/** Why a connection is not read at the moment; several reasons may hold at once. */
export const hold = {
  signIn: 1,
  /** Too many messages wait for their answers: of QoS 0, or of any QoS from an MQTT 3 client. */
  answers: 2,
  /** The journal refuses. */
  journal: 4,
  /** The client does not read what it is sent. */
  reader: 8,
  /** The worker stops. */
  drain: 16,
  /** A large file is being sent to the client. */
  file: 32,
  /** A large packet of the client waits for room. */
  room: 64,
  /** A compressed message is being unpacked. */
  unpack: 128,
} as const;

/** The connection, as its gate sees it. */
export interface Gated extends Subject {
  /** Called when the last reason no longer holds; reads the kept bytes. */
  readOn(): void;
}

export interface ReadGateDeps {
  clock: Clock;
  journalWaiters: JournalWaiters;
  /** Why the journal takes nothing at the moment. */
  journalRefusal: () => Fault | undefined;
}

export class ReadGate implements JournalWaiter {
  readonly #deps: ReadGateDeps;
  readonly #owner: Gated;
  readonly #transport: Transport;
  /** Bits of `hold`; 0 = the connection is read. Changed by this file only. */
  held = 0;
  /** Messages of QoS 1 and 2 that count against `inflightMax`. `Inbox` and `Connection` count them. */
  unacknowledged = 0;
  /** Messages of QoS 0 that are not handled to their end. `Inbox` counts them. */
  unanswered = 0;
  /** The largest number of messages of either kind. */
  inflightMax: number;
  /** 0 = the client asked for no Keep Alive. */
  keepAliveMs = 0;
  /** Monotonic time of the first refusal since the journal accepted; 0 = none. */
  #refusedAt = 0;

  constructor(deps: ReadGateDeps, owner: Gated, transport: Transport, inflightMax: number) {
    this.#deps = deps;
    this.#owner = owner;
    this.#transport = transport;
    this.inflightMax = inflightMax;
  }

  hold(why: number): void {
    if (this.held === 0) this.#transport.pause();
    this.held |= why;
  }

  release(why: number): void {
    if ((this.held & why) === 0) return;
    this.held &= ~why;
    if (this.held === 0) this.#owner.readOn();
  }

  /** Removes a reason without a call of `readOn`, because the transport is closed. */
  drop(why: number): void {
    this.held &= ~why;
  }

  /** Called after each PUBLISH. An MQTT 5 client keeps to its Receive Maximum by itself. */
  holdForAnswers(level: ProtocolLevel): void {
    const { inflightMax } = this;
    if (this.unanswered >= inflightMax || (level !== 5 && this.unacknowledged >= inflightMax)) this.hold(hold.answers);
  }

  releaseAnswers(): void {
    if ((this.held & hold.answers) === 0) return;
    const { inflightMax } = this;
    if (this.unacknowledged < inflightMax && this.unanswered < inflightMax) this.release(hold.answers);
  }

  /**
   * True until the wait since the first refusal of the journal is over. All later messages share this wait, so a client
   * waits once.
   */
  get mayWait(): boolean {
    if (this.#refusedAt === 0) return true;
    const keepAliveMs = this.keepAliveMs > 0 ? this.keepAliveMs : Number.POSITIVE_INFINITY;
    return this.#deps.clock.monotonic() - this.#refusedAt <= Math.min(limits.mqttPausedMsMax, keepAliveMs / 2);
  }

  /** Stops reading until the journal accepts or the wait is over. */
  holdForJournal(): void {
    this.#refusedAt ||= this.#deps.clock.monotonic();
    this.hold(hold.journal);
    this.#deps.journalWaiters.add(this);
  }

  journalAccepts(): void {
    assert((this.held & hold.journal) !== 0, 'only a connection that waits is called', this.#owner);
    this.release(hold.journal);
  }

  journalRefuses(): void {
    assert((this.held & hold.journal) !== 0, 'only a connection that waits is called', this.#owner);
    if (this.mayWait) return;
    this.#deps.journalWaiters.delete(this);
    this.release(hold.journal);
  }

  /** Ends a wait for the journal early, because the transport can keep no more. */
  endWait(): void {
    if ((this.held & hold.journal) === 0) return;
    this.#refusedAt = Number.NEGATIVE_INFINITY;
    this.journalRefuses();
  }

  /** Called after each message and twice a second. Ends the shared wait when the journal accepts again. */
  forgetRefusal(): void {
    if (this.#refusedAt === 0) return;
    if (this.held === 0 && this.#deps.journalRefusal() === undefined) this.#refusedAt = 0;
  }

  /** Called when the connection has ended. */
  close(): void {
    this.#deps.journalWaiters.delete(this);
  }

  /** Asserts the state between any two events. */
  check(isFileSent: boolean): void {
    assert(this.unacknowledged >= 0 && this.unanswered >= 0, 'no message is answered twice', this.#owner);
    assert(
      ((this.held & hold.file) !== 0) === isFileSent,
      'a connection is not read while a file is sent, and only then for this reason',
      this.#owner,
    );
    assert((this.held & hold.signIn) === 0, 'a connection that signed in waits for no sign-in', this.#owner);
    const isWait = (this.held & hold.journal) !== 0;
    assert(!isWait || this.#refusedAt !== 0, 'a wait for the journal has a beginning', this.#owner);
  }
}
