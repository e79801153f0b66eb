/**
 * Decodes large bodies of single devices in one thread (`body-thread.ts`). At most `limits.decodeQueueMax` bodies wait.
 */
import type { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type BodySource, BodyThread, type ThreadOptions } from './body-thread.ts';
import type { DecodeOptions } from './decode-options.ts';
import type { DecodeReply, DecodeRequest } from './decode-worker.ts';
import { Chunk, type DecodedChunk } from './decoded-chunk.ts';
import { faultFromPlain } from './plain-fault.ts';
import { serverTimeRefusal } from './rows.ts';

export class DecodeThread {
  readonly #thread: BodyThread<DecodeRequest, DecodeReply>;

  constructor(options: DecodeOptions, threadOptions: ThreadOptions = {}) {
    const { room, entry = new URL('./decode-worker.js', import.meta.url) } = threadOptions;
    const { heapMegabytesMax = limits.decodeHeapMegabytesMax } = threadOptions;
    const waitingMax = limits.decodeQueueMax;
    this.#thread = new BodyThread({ entry, options, waitingMax, heapMegabytesMax, keepsBody: false, room });
  }

  /** Bodies that wait or are being decoded. */
  get length(): number {
    return this.#thread.length;
  }

  /** Returns the fault of `decode` for a body that has no place now; undefined: the body has a place. */
  refusal(device: BodySource): Fault | undefined {
    return this.#thread.refusal(device);
  }

  /**
   * Returns the rows of a message in chunks of at most `limits.frameRowsMax`; none for a message without points. The
   * body is transferred and empty afterwards. Rejects with a Fault.
   */
  async decode(body: Uint8Array, device: BodySource, now: number): Promise<Chunk[]> {
    const reply = await this.#thread.run({ body, now }, device);
    if ('fault' in reply) throw faultFromPlain(reply.fault);
    checkServerTimes(reply.chunks);
    return reply.chunks.map((chunk) => {
      chunk.spans.device.fill(device.number);
      return new Chunk(chunk);
    });
  }

  /** Ends the thread and refuses waiting bodies. */
  close(): Promise<void> {
    return this.#thread.close();
  }
}

/** Throws when a chunk needs server times while server times are refused. The thread does not know of the refusal. */
export function checkServerTimes(chunks: readonly DecodedChunk[]): void {
  const needsTime = chunks.some(({ spans }) => spans.serverTimes > 0);
  const refusal = needsTime ? serverTimeRefusal() : undefined;
  if (refusal !== undefined) throw refusal;
}
