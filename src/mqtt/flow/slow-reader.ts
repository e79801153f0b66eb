/**
 * Watches the bytes that were sent to one client and that the client has not read. A client that leaves many bytes
 * unread is not read either. A client that leaves too many, or reads nothing for too long, is closed. All such clients
 * of the worker share one room. A connection owns one `SlowReader` and acts on its verdict.
 */
import { limits } from '../../base/limits.ts';
import { type PlaceOwner, Places } from '../../base/places.ts';
import type { Transport } from '../transport/transport.ts';

/** The shared room: unread bytes of all clients that leave more than `mqttUnreadBytesPause` unread. */
const unread = new Places(limits.mqttUnreadBytesOfAllMax);

/** The connection, as the shared room sees it. */
export interface UnreadClient {
  unreadOwners(): readonly PlaceOwner[];
}

const noOwners: readonly PlaceOwner[] = [];

export class SlowReader {
  readonly #transport: Transport;
  readonly #client: UnreadClient;
  /** Bytes of the shared room that this client holds, and the owners that the room counts them for. */
  #held = 0;
  #owners = noOwners;
  /** Monotonic time at which the client last read something; 0 = no bytes wait for the client. */
  #stalledAt = 0;
  /** Bytes that waited for the client at the last check. */
  #unreadMark = 0;
  /** Bytes of large messages that were sent since the client last had no bytes to read. */
  #largeBytes = 0;

  constructor(transport: Transport, client: UnreadClient) {
    this.#transport = transport;
    this.#client = client;
  }

  /** Called when a message is sent. A large message raises the cap by its size: a file may exceed the cap. */
  sends(bytes: number): void {
    if (bytes > limits.mqttUnreadBytesPause) this.#largeBytes += bytes;
  }

  /** Called when everything that was written has left. */
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

  /** Called after each write; returns what the connection must do. */
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

  /** Returns false when the shared room has no place for the bytes. */
  #hold(bytes: number): boolean {
    if (bytes <= this.#held) return true;
    if (this.#held === 0) this.#owners = this.#client.unreadOwners();
    if (unread.take(this.#owners, bytes - this.#held) !== 'taken') return false;
    this.#held = bytes;
    return true;
  }

  /** True when the client has read nothing for too long. Called twice a second. */
  isStalled(now: number): boolean {
    if (this.#stalledAt === 0) return false;
    const { bufferedBytes, sendingBytes = 0 } = this.#transport;
    const mark = bufferedBytes + sendingBytes;
    if (mark === 0) {
      // Node has no event for the end of a small write that waited. Over TLS every write waits.
      this.drained();
      return false;
    }
    if (mark < this.#unreadMark) this.#stalledAt = now;
    this.#unreadMark = mark;
    return now - this.#stalledAt > limits.mqttStallMsMax;
  }

  /** Called when this process did not run for `ms`, so that this time does not count against the client. */
  late(ms: number): void {
    if (this.#stalledAt > 0) this.#stalledAt += ms;
  }
}
