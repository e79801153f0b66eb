/**
 * A file in one PUBLISH that is larger than memory should hold: its head is written, then slice after slice as the
 * client reads them, so that a worker holds `mqttFileUnreadBytesMax` of it and one slice. Nothing else may be written
 * meanwhile. Made by the connection, which also asks whether the client still reads.
 */
import { setImmediate as turn } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { SlicedFile } from '../ota/chunks.ts';
import type { Transport } from './transport.ts';

export class OutgoingFile {
  readonly #transport: Transport;
  readonly #head: Buffer;
  readonly #file: SlicedFile;
  readonly #clock: Clock;
  readonly #onEnd: (isSent: boolean) => void;
  #hasBegun = false;
  #hasEnded = false;
  #drained: (() => void) | undefined;
  /** Monotonic: of the last sign that the client reads, or that it was not the client's turn. */
  #readAt = 0;
  #unreadMark = Number.POSITIVE_INFINITY;

  /** `onEnd`, once: all of it is written, or never will be. */
  constructor(transport: Transport, head: Buffer, file: SlicedFile, clock: Clock, onEnd: (isSent: boolean) => void) {
    this.#transport = transport;
    this.#head = head;
    this.#file = file;
    this.#clock = clock;
    this.#onEnd = onEnd;
  }

  /** A part of the packet may be written already. */
  get hasBegun(): boolean {
    return this.#hasBegun;
  }

  begin(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    this.#transport.write(this.#head);
    void this.#send();
  }

  /** The transport has nothing left to write. */
  drained(): void {
    this.#drained?.();
  }

  /** The connection is gone. */
  stop(): void {
    this.#end(false);
  }

  /** The client has read nothing for too long, while something waited for it. `lateMs`: this process did not run. */
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
        this.#end(false);
        return;
      }
      this.#transport.write(slice);
      at += slice.length;
      // A file in memory, to a client that reads as fast, would leave no turn of the loop to others.
      await turn();
    }
    this.#end(true);
  }

  #untilDrained(): Promise<void> {
    this.#readAt = this.#clock.monotonic();
    this.#unreadMark = Number.POSITIVE_INFINITY;
    return new Promise((resolve) => {
      this.#drained = () => {
        this.#drained = undefined;
        resolve();
      };
    });
  }

  /** Undefined when the file is deleted, or the store does not answer for long: the packet cannot be completed. */
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
      await new Promise((resolve) => setTimeout(resolve, limits.mqttFileRetryMs));
    }
  }

  #end(isSent: boolean): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#drained?.();
    this.#onEnd(isSent);
  }
}
