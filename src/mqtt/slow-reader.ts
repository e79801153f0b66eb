/**
 * Watches how much of what was sent the client has not read: a client that leaves much unread is not read either, and a
 * client that leaves too much, or reads nothing for too long, is closed. Owned by a connection, which acts on the
 * answer.
 */
import { limits } from '../base/limits.ts';
import type { Transport } from './transport.ts';

export class SlowReader {
  readonly #transport: Transport;
  /** Monotonic time of the last sign that the client reads; 0 = nothing waits for it. */
  #stalledAt = 0;
  /** Bytes that waited for the client at the last check, and the part of large messages in them. */
  #unreadMark = 0;
  #largeBytes = 0;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Called when a message is sent. A whole file may be larger than the bytes that a slow reader may leave unread. */
  sends(bytes: number): void {
    if (bytes > limits.mqttUnreadBytesPause) this.#largeBytes += bytes;
  }

  /** Everything that was written has left. */
  drained(): void {
    this.#stalledAt = 0;
    this.#largeBytes = 0;
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
    return bufferedBytes > limits.mqttUnreadBytesPause ? 'pause' : 'fine';
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
