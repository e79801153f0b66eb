/** The thread of `decode-thread.ts`: decodes one message of attributes, of a device or of a gateway. */
import { parentPort, workerData } from 'node:worker_threads';
import { assert, Fault } from '../base/errors.ts';
import { type PlainDecodeFault, plainFault } from '../telemetry/plain-fault.ts';
import { readByName } from '../value/by-name.ts';
import { leniently, strictly } from '../value/lenient.ts';
import type { TypedValue } from '../value/typed.ts';
import { decodeAttributes } from './decode.ts';
import { type PackedAttributes, packAttributes } from './packed-attributes.ts';

export interface AttributeDecodeOptions {
  castNumericStrings: boolean;
  /** True: a message that is malformed is read again as lenient JSON. */
  lenientJson: boolean;
}

export interface AttributeDecodeRequest {
  body: Uint8Array;
  /** True: the message of a gateway, with a member for each device. */
  isByName: boolean;
}

export type AttributeDecodeReply =
  | { entries: Map<string, TypedValue> }
  | { packed: PackedAttributes }
  | { fault: PlainDecodeFault };

const { castNumericStrings, lenientJson } = workerData as AttributeDecodeOptions;
const readBody = lenientJson ? leniently : strictly;

function decode({ body, isByName }: AttributeDecodeRequest): AttributeDecodeReply {
  try {
    if (isByName) return { packed: packAttributes(readBody(body, readByName), castNumericStrings) };
    return { entries: decodeAttributes(body, readBody, castNumericStrings) };
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return { fault: plainFault(error) };
  }
}

assert(parentPort, 'decode-worker.ts runs as a thread');
const port = parentPort;
port.on('message', (request: AttributeDecodeRequest) => port.postMessage(decode(request)));
