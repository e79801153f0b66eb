/**
 * Sends a file in one PUBLISH without holding all of the file in memory. The head is written first, then slice after
 * slice as the client reads them, so a worker holds `mqttFileUnreadBytesMax` of the file and one slice. No other packet
 * may be written meanwhile. `Outgoing` makes the object, and its sweep checks that the client still reads.
 */
import type { Clock } from '../../base/clock.ts';
import { Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { SlicedFile } from '../../ota/chunks.ts';
import type { Transport } from '../transport/transport.ts';

/** `unsent`: the PUBLISH is not complete, and never will be. */
export type FileEnd = 'sent' | 'unsent';

export class OutgoingFile {
  readonly #transport: Transport;
  readonly #head: Buffer;
  readonly #file: SlicedFile;
  readonly #clock: Clock;
  readonly #onEnd: (end: FileEnd) => void;
  #hasBegun = false;
  #hasEnded = false;
  #drained: (() => void) | undefined;
  /** Monotonic time at which the client last read, or at which no bytes waited for the client. */
  #readAt = 0;
  #unreadMark = Number.POSITIVE_INFINITY;

  /** `onEnd` is called once. */
  constructor(transport: Transport, head: Buffer, file: SlicedFile, clock: Clock, onEnd: (end: FileEnd) => void) {
    this.#transport = transport;
    this.#head = head;
    this.#file = file;
    this.#clock = clock;
    this.#onEnd = onEnd;
  }

  /** True when a part of the packet may have been written. */
  get hasBegun(): boolean {
    return this.#hasBegun;
  }

  begin(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    this.#transport.write(this.#head);
    void this.#send();
  }

  /** Called when the transport has no bytes left to write. */
  drained(): void {
    this.#drained?.();
  }

  /** Called when the connection has ended. */
  stop(): void {
    this.#end('unsent');
  }

  /**
   * True when bytes waited and the client has read none for too long. `lateMs`: time in which this process did not run.
   */
  isStalled(now: number, lateMs: number): boolean {
    const { bufferedBytes, sendingBytes = 0 } = this.#transport;
    const mark = bufferedBytes + sendingBytes;
    if (this.#drained === undefined || mark < this.#unreadMark) this.#readAt = now;
    else this.#readAt += lateMs;
    this.#unreadMark = mark;
    return now - this.#readAt > limits.mqttFileStallMsMax;
  }

  async #send(): Promise<void> {
    for (let at = 0; at < this.#file.bytes; ) {
      if (this.#transport.bufferedBytes >= limits.mqttFileUnreadBytesMax) await this.#untilDrained();
      if (this.#hasEnded) return;
      const slice = await this.#slice(at);
      if (this.#hasEnded) return;
      if (slice === undefined) {
        this.#end('unsent');
        return;
      }
      this.#transport.write(slice);
      at += slice.length;
      // Without this turn a file in memory, sent to a fast client, would block the event loop.
      await new Promise<void>((resolve) => systemScheduler.soon(resolve));
    }
    this.#end('sent');
  }

  #untilDrained(): Promise<void> {
    this.#readAt = this.#clock.monotonic();
    this.#unreadMark = Number.POSITIVE_INFINITY;
    return new Promise((resolve) => {
      const drained = () => {
        this.#drained = undefined;
        resolve();
      };
      this.#drained = drained;
    });
  }

  /**
   * Returns undefined when the file is deleted, or the store is unavailable for long: the packet cannot be completed.
   */
  async #slice(at: number): Promise<Buffer | undefined> {
    const since = this.#clock.monotonic();
    for (;;) {
      try {
        return await this.#file.slice(at);
      } catch (error) {
        const isDeleted = error instanceof Fault && error.status === 404;
        if (isDeleted || this.#hasEnded || this.#clock.monotonic() - since > limits.mqttFileStoreMsMax)
          return undefined;
      }
      await systemScheduler.sleep(limits.mqttFileRetryMs);
    }
  }

  #end(end: FileEnd): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#drained?.();
    this.#onEnd(end);
  }
}
