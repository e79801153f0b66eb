/**
 * Sends an answer in slices at the pace of its reader, with one slice in memory, in turn with other answers
 * (`slice-turns.ts`). The library cuts a connection that leaves a write unfinished for some 10 s, and the kernel
 * reports room only when a third of its buffer is free. A slow reader takes longer than that, so the rest is offered
 * again every few seconds.
 */
import type { HttpResponse as UwsResponse } from 'uWebSockets.js';
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type PlaceOwner, Places } from '../base/places.ts';
import { sliceTurns } from './slice-turns.ts';

/** A body that is read while it is sent: `slice` returns bytes from `at` on, until all `bytes` are sent. */
export interface SlicedBody {
  bytes: number;
  slice(at: number): Promise<Buffer>;
  /** The owners of the answer; without them it counts for the address of the reader. */
  owners?: readonly PlaceOwner[];
  /** Called once when the answer has ended, even when none of it was sent. */
  release?(): void;
}

/** Sends a body that is in memory. */
export function inSlices(body: Buffer): SlicedBody {
  return { bytes: body.length, slice: async (at) => body.subarray(at, at + limits.assetSliceBytes) };
}

/** Answers in slices that this process is sending. */
export const streams = new Places(limits.streamsMax);

/**
 * The outcome: 'sent' to the kernel, the reader 'gone' or 'stalled', or the `Error` of the body that cut the answer.
 */
export type SliceOutcome = 'sent' | 'gone' | 'stalled' | Error;

export class SliceSender {
  readonly #res: UwsResponse;
  readonly #body: SlicedBody;
  readonly #owners: readonly PlaceOwner[];
  readonly #isLast: boolean;
  /** The slice being offered, and its position in the body; undefined while the next slice is read. */
  #offered: Buffer | undefined;
  #offeredAt = 0;
  #taken: (() => void) | undefined;
  #progressAt = 0;
  #progressMs = 0;
  #outcome: SliceOutcome | undefined;
  #timer: NodeJS.Timeout | undefined;

  /** `isLast`: no further request of the connection is read; the library closes the connection when it is idle. */
  constructor(res: UwsResponse, body: SlicedBody, owners: readonly PlaceOwner[], isLast = false) {
    this.#res = res;
    this.#body = body;
    this.#owners = owners;
    this.#isLast = isLast;
  }

  /** Calls `writeHead` with the first bytes. */
  async run(writeHead: () => void): Promise<SliceOutcome> {
    try {
      let head: (() => void) | undefined = writeHead;
      for (let at = 0; this.#outcome === undefined; at += this.#offeredLength) {
        const slice = await this.#body.slice(at);
        assert(slice.length > 0 && at + slice.length <= this.#body.bytes, 'a slice lies inside its body');
        await sliceTurns.take(this.#owners, slice.length);
        if (this.#outcome !== undefined) break;
        await this.#offer(slice, at, head);
        head = undefined;
      }
      return this.#outcome;
    } catch (error) {
      if (this.#outcome !== undefined) return this.#outcome;
      // The status is sent already, so a cut body is the only sign of the error.
      this.#outcome = error as Error;
      this.#res.close();
      return this.#outcome;
    } finally {
      clearInterval(this.#timer);
    }
  }

  /** Called when the client has disconnected: the response must not be touched any more. */
  abort(): void {
    this.#end('gone');
  }

  get #offeredLength(): number {
    return this.#offered?.length ?? 0;
  }

  /** Resolves when the kernel has all of `slice`, or when the answer has ended. */
  #offer(slice: Buffer, at: number, writeHead: (() => void) | undefined): Promise<void> {
    return new Promise((resolve) => {
      this.#offered = slice;
      this.#offeredAt = at;
      this.#taken = resolve;
      if (!writeHead) {
        this.#res.cork(() => this.#attempt());
        return;
      }
      this.#res.onWritable(() => this.#taken === undefined || this.#attempt());
      this.#progressMs = performance.now();
      this.#timer = setInterval(() => this.#offerAgain(), limits.streamOfferMs);
      this.#res.cork(() => {
        writeHead();
        this.#attempt();
      });
    });
  }

  /** Offers the rest of the slice to the kernel; returns true when the kernel has all of it. */
  #attempt(): boolean {
    const slice = this.#offered!;
    // A partial write makes the library read again.
    if (this.#isLast) this.#res.pause();
    const begun = this.#res.getWriteOffset() - this.#offeredAt;
    const [ok, done] = this.#res.tryEnd(slice.subarray(begun), this.#body.bytes);
    if (done) this.#end('sent');
    else if (ok) this.#take();
    return ok;
  }

  #offerAgain(): void {
    if (this.#outcome !== undefined) return;
    const at = this.#res.getWriteOffset();
    const now = performance.now();
    if (at > this.#progressAt || this.#taken === undefined) {
      this.#progressAt = at;
      this.#progressMs = now;
    } else if (now - this.#progressMs > limits.streamStallMsMax) {
      this.#end('stalled');
      this.#res.close();
      return;
    }
    if (this.#taken !== undefined) this.#res.cork(() => this.#attempt());
  }

  #end(outcome: SliceOutcome): void {
    this.#outcome ??= outcome;
    this.#take();
  }

  #take(): void {
    const taken = this.#taken;
    this.#taken = undefined;
    taken?.();
  }
}
