/**
 * The times by which a client must send: its CONNECT, then a packet within one and a half times its Keep Alive, or
 * without Keep Alive within `mqtt.idleSeconds`; and the end of a connection without credentials. Each connection owns
 * one `Deadlines` and checks it twice a second. Only whole packets count, so single bytes postpone no deadline.
 */
import { assert, type Subject } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { CloseReason } from '../wire/close-reason.ts';

export class Deadlines {
  readonly #owner: Subject;
  /** 0 = silence without Keep Alive is allowed. */
  readonly #idleMs: number;
  /** Monotonic time of the last packet, or of the end of a pause in which nothing was read. */
  receivedAt: number;
  /** Undefined: the connection has no end. */
  #endsAt: number | undefined = undefined;

  constructor(owner: Subject, idleMs: number, now: number) {
    this.#owner = owner;
    this.#idleMs = idleMs;
    this.receivedAt = now;
  }

  /** Sets the monotonic time at which the connection ends. */
  endAt(time: number): void {
    assert(this.#endsAt === undefined, 'the end of a connection is set once', this.#owner);
    this.#endsAt = time;
  }

  /** Called when this process did not run for `ms`, so that this time does not count against the client. */
  late(ms: number): void {
    assert(ms >= 0, 'time does not run backwards', this.#owner);
    this.receivedAt += ms;
  }

  /** True when the time for CONNECT is over. Called only before the first packet. */
  isConnectOverdue(now: number): boolean {
    return now - this.receivedAt > limits.mqttConnectMsMax;
  }

  hasEnded(now: number): boolean {
    return this.#endsAt !== undefined && now > this.#endsAt;
  }

  /** Returns the reason to end a connection that is read and whose client is silent for too long. */
  silence(now: number, keepAliveMs: number): CloseReason | undefined {
    const silentMs = now - this.receivedAt;
    if (keepAliveMs > 0) return silentMs > keepAliveMs * 1.5 ? 'keep_alive' : undefined;
    return this.#idleMs > 0 && silentMs > this.#idleMs ? 'idle' : undefined;
  }
}
