/**
 * Decodes large telemetry of gateways in one thread of a worker (`telemetry/body-thread.ts`). Every large message of a
 * gateway holds room (`mqtt/flow/packet-room.ts`), so as many wait as the room has messages, and none is refused.
 */
import { limits } from '../base/limits.ts';
import { type BodySource, BodyThread, type ThreadOptions } from '../telemetry/body-thread.ts';
import type { DecodeOptions } from '../telemetry/decode-options.ts';
import { checkServerTimes } from '../telemetry/decode-thread.ts';
import { Chunk } from '../telemetry/decoded-chunk.ts';
import { faultFromPlain } from '../telemetry/plain-fault.ts';
import type { DecodedByName, GatewayDecodeReply, GatewayDecodeRequest } from './decode-worker.ts';

export class GatewayDecodeThread {
  readonly #thread: BodyThread<GatewayDecodeRequest, GatewayDecodeReply>;

  /** `bytesInFlightMax`: bytes of all large messages of gateways at this worker. */
  constructor(options: DecodeOptions, bytesInFlightMax: number, threadOptions: ThreadOptions = {}) {
    const { room, entry = new URL('./decode-worker.js', import.meta.url) } = threadOptions;
    const { heapMegabytesMax = limits.decodeHeapMegabytesMax } = threadOptions;
    const waitingMax = Math.ceil(bytesInFlightMax / limits.decodeInLoopBytesMax) + 1;
    this.#thread = new BodyThread({ entry, options, waitingMax, heapMegabytesMax, keepsBody: true, room });
  }

  /** Decodes a message, without the records of some children. Rejects with the Fault of the whole message. */
  async decode(gateway: BodySource, request: GatewayDecodeRequest): Promise<DecodedByName> {
    const reply = await this.#thread.run(request, gateway);
    if (!('fault' in reply)) {
      checkServerTimes(reply.chunks);
      return reply;
    }
    throw faultFromPlain(reply.fault);
  }

  close(): Promise<void> {
    return this.#thread.close();
  }
}

/** Replaces the places of children by the numbers of their devices. */
export function chunksWith({ chunks }: DecodedByName, deviceOf: readonly (number | undefined)[]): Chunk[] {
  return chunks.map((chunk) => {
    const { device, count } = chunk.spans;
    for (let i = 0; i < count; i += 1) device[i] = deviceOf[device[i]!]!;
    return new Chunk(chunk);
  });
}
