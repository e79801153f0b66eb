/**
 * Decodes messages of attributes: those above `limits.attributesInLoopBytesMax` in one thread of the worker
 * (`telemetry/body-thread.ts`), so that nested JSON of a megabyte does not block the event loop. At most
 * `limits.attributeDecodeQueueMax` messages wait for the thread.
 */
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type BodySource, BodyThread, type ThreadOptions } from '../telemetry/body-thread.ts';
import { faultFromPlain } from '../telemetry/plain-fault.ts';
import { leniently, type ReadBody, strictly } from '../value/lenient.ts';
import type { TypedValue } from '../value/typed.ts';
import { decodeAttributes } from './decode.ts';
import type { AttributeDecodeOptions, AttributeDecodeReply, AttributeDecodeRequest } from './decode-worker.ts';
import type { PackedAttributes } from './packed-attributes.ts';

export class AttributeDecoder {
  readonly #castNumericStrings: boolean;
  readonly #readBody: ReadBody;
  readonly #thread: BodyThread<AttributeDecodeRequest, AttributeDecodeReply>;

  constructor(
    { castNumericStrings, lenientJson }: AttributeDecodeOptions,
    { entry = new URL('./decode-worker.js', import.meta.url) }: Pick<ThreadOptions, 'entry'> = {},
  ) {
    this.#castNumericStrings = castNumericStrings;
    this.#readBody = lenientJson ? leniently : strictly;
    const options: AttributeDecodeOptions = { castNumericStrings, lenientJson };
    const { attributeDecodeQueueMax: waitingMax, decodeHeapMegabytesMax: heapMegabytesMax } = limits;
    this.#thread = new BodyThread({ entry, options, waitingMax, heapMegabytesMax, keepsBody: true });
  }

  isLarge(body: Uint8Array): boolean {
    return body.length > limits.attributesInLoopBytesMax;
  }

  /** Decodes a message that is not large. Throws a Fault. */
  decodeSmall(body: Uint8Array): Map<string, TypedValue> {
    assert(!this.isLarge(body), 'a large message is decoded in the thread');
    return decodeAttributes(body, this.#readBody, this.#castNumericStrings);
  }

  /** Decodes a message of any size. `body` stays valid until then. Rejects with a Fault. */
  async decode(body: Uint8Array, source: BodySource): Promise<Map<string, TypedValue>> {
    if (!this.isLarge(body)) return this.decodeSmall(body);
    const reply = await this.#thread.run({ body, isByName: false }, source);
    if ('fault' in reply) throw faultFromPlain(reply.fault);
    assert('entries' in reply, 'a message of one device has one set of attributes');
    return reply.entries;
  }

  /** Decodes a large message of a gateway. `body` stays valid until then. Rejects with the Fault of all of it. */
  async decodeByName(body: Uint8Array, gateway: BodySource): Promise<PackedAttributes> {
    const reply = await this.#thread.run({ body, isByName: true }, gateway);
    if ('fault' in reply) throw faultFromPlain(reply.fault);
    assert('packed' in reply, 'a message of a gateway has attributes by name');
    return reply.packed;
  }

  /** Ends the thread and refuses waiting messages. */
  close(): Promise<void> {
    return this.#thread.close();
  }
}
