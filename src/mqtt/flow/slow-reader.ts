/**
 * Watches how much of what was sent the client has not read: a client that leaves much unread is not read either, and a
 * client that leaves too much, or reads nothing for too long, is closed. All clients of the worker that leave much
 * unread share one room. Owned by a connection, which acts on the answer.
 */
import { limits } from '../../base/limits.ts';
import { type PlaceOwner, Places } from '../../base/places.ts';
import type { Transport } from '../transport/transport.ts';

/** Bytes that clients have left unread, of those that leave more than `mqttUnreadBytesPause`. */
const unread = new Places(limits.mqttUnreadBytesOfAllMax);

/** The connection, as the room for unread bytes sees it. */
export interface Debtor {
  unreadOwners(): readonly PlaceOwner[];
}

export class SlowReader {
  readonly #transport: Transport;
  readonly #debtor: Debtor;
  /** The bytes of the room that this client holds, and for whom. */
  #held = 0;
  #owners: readonly PlaceOwner[] = [];
  /** Monotonic time of the last sign that the client reads; 0 = nothing waits for it. */
  #stalledAt = 0;
  /** Bytes that waited for the client at the last check, and the part of large messages in them. */
  #unreadMark = 0;
  #largeBytes = 0;

  constructor(transport: Transport, debtor: Debtor) {
    this.#transport = transport;
    this.#debtor = debtor;
  }

  /** Called when a message is sent. A whole file may be larger than the bytes that a slow reader may leave unread. */
  sends(bytes: number): void {
    if (bytes > limits.mqttUnreadBytesPause) this.#largeBytes += bytes;
  }

  /** Everything that was written has left. */
  drained(): void {
    this.#stalledAt = 0;
    this.#largeBytes = 0;
    if (this.#held > 0) this.release();
  }

  /** Called when everything has left, and when the connection has ended. */
  release(): void {
    unread.release(this.#owners, this.#held);
    this.#held = 0;
  }

  /** Called after each write. */
  verdict(monotonic: () => number): 'fine' | 'pause' | 'close' {
    const { bufferedBytes } = this.#transport;
    if (bufferedBytes === 0) {
      this.drained();
      return 'fine';
    }
    if (bufferedBytes > limits.mqttUnreadBytesMax + this.#largeBytes) return 'close';
    if (this.#stalledAt === 0) {
      this.#stalledAt = monotonic();
      this.#unreadMark = Number.POSITIVE_INFINITY;
    }
    if (bufferedBytes <= limits.mqttUnreadBytesPause) return 'fine';
    return this.#hold(bufferedBytes) ? 'pause' : 'close';
  }

  /** Returns false when there is no room for so many bytes. */
  #hold(bytes: number): boolean {
    if (bytes <= this.#held) return true;
    if (this.#held === 0) this.#owners = this.#debtor.unreadOwners();
    if (unread.take(this.#owners, bytes - this.#held) !== 'taken') return false;
    this.#held = bytes;
    return true;
  }

  /** True when the client has read nothing for too long. Called twice a second. */
  isStalled(now: number): boolean {
    if (this.#stalledAt === 0) return false;
    const { bufferedBytes, sendingBytes = 0 } = this.#transport;
    const mark = bufferedBytes + sendingBytes;
    if (mark < this.#unreadMark) this.#stalledAt = now;
    this.#unreadMark = mark;
    return now - this.#stalledAt > limits.mqttStallMsMax;
  }

  /** Called when this process did not run for `ms`, so that this time does not count against the client. */
  late(ms: number): void {
    if (this.#stalledAt > 0) this.#stalledAt += ms;
  }
}
